"""The config of a contraction that is tried first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from romou.base.knob import nearest
from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.contraction import tensor_core
from romou.compiler.operators.contraction.form import Contraction, round_up
from romou.compiler.operators.contraction.knobs import FP16, FP32, MIXED, MOST_MIXED
from romou.compiler.tir.primitives import LANES, Place

# Cycles of a core, and warps that it has room for: see `tensor_core_config`.
_LINES, _LATENCY, _STARTED, _WARPS_OF_CORE = 4, 400, 1500, 16
# Registers of a work-item for addresses and other numbers, and for what is loaded ahead: see `_fit_tile`.
_ADDRESSES, _TAPS_AHEAD = 10, 60
# Mali's from Bifrost on: all that an instruction can name.
_FEW_REGISTERS = 64
# Products of a work-item up to which Mesa's compiler for Adreno writes out the loop over the rows of a window: it does
# with 576, and not with 700. Where all columns are constants, as in a tile of whole rows, it does with 1008, and not
# with 1152.
_WRITTEN_OUT, _WRITTEN_OUT_OF_CONSTANTS = 576, 1024
# Share of what a sum without a window loads that is alive at once where Mesa's compiler for Adreno writes it out: it
# spills with 236 numbers, and not with 224.
_AT_ONCE = 0.72
# Texels of a sum without a window from which on Mesa's compiler for Mali keeps its loop. It writes out twelve, and
# loads their weights ahead.
_LEAST_LEAN = 16
# Work-items of a warp of Mali from Valhall on: more than Bifrost's eight.
_WARP_OF_VALHALL = 16
# How often the work-items in flight, of which the registers of all cores hold no more, have to be replaced until a
# device is busy.
_ROUNDS = 4
# Work-items along each side of a group, where the operator is large enough.
_SIDE = 8
# Products of a sum from which on it is worth fp16.
_LEAST_FP16 = 32
# Share of the registers that it fills at most.
_SAFE = 0.85
# Cycles until an iteration with staged operands gets to its sums, and bytes that reach a core in a cycle: see
# `staged_config`.
_WAITED, _MOVED = 120, 20


def default_config(space: Space, flat: Contraction, rows: Contraction, limits: Limits) -> Config:
    """A config that is decent on any GPU: a 1x4 register tile, about 64 work-items, nothing staged in local memory.

    Operators with few outputs leave most of a large GPU idle: for them the reduction is split, then the tile made
    smaller, until the device is busy.
    """
    place = (Place.IMAGE if limits.prefers_images else Place.BUFFER).value
    sums = _sums(space, flat) if limits.prefers_fp16 else FP32
    pixels = "rows" if nearest(space.knobs["data"], place) == Place.IMAGE else "flat"
    contraction = rows if pixels == "rows" else flat
    config = space.default(data=place, weight=place, output=place, pixels=pixels, accumulate=sums, wg_o=1, wg_w=1)
    while not space.is_valid(config) and config["tile_w"] > 1:
        # Too wide for a small operator.
        config = config.replace(
            tile_w=max(c for c in space.knobs["tile_w"] if isinstance(c, int) and c < config["tile_w"])
        )
    warp = min(limits.warp_size, limits.max_work_group_size)
    config = _fit_group(space, contraction, _fit_tile(space, contraction, config, limits), warp)
    config = _split_sums(space, contraction, config, limits)
    for tile_w in (2, 1):
        candidate = config.replace(tile_w=nearest(space.knobs["tile_w"], tile_w))
        if work_items(contraction, config) < _busy(limits, contraction, config) and space.is_valid(candidate):
            config = candidate
    return tensor_core_config(space, contraction, config, limits)


def _split_sums(space: Space, contraction: Contraction, config: Config, limits: Limits) -> Config:
    """`config` with its sums split until the device is busy, as far as that pays."""
    warp, share = min(limits.warp_size, limits.max_work_group_size), next(iter(contraction.reduce.values()))
    # A split below four steps costs more in the final sum than it brings.
    for split in [k for k in space.knobs["split_k"] if isinstance(k, int) and 1 < k <= share // 4]:
        # The group keeps its size, and fills a warp: what the split adds, its other sides give.
        wide = min(config["wg_w"], _SIDE)
        high = max(16, warp // wide)
        # Partial sums meet in local memory.
        high = high if limits.most_with_local_memory is None else min(high, limits.most_with_local_memory // wide)
        if high < split:
            break
        candidate = config.replace(split_k=split, wg_w=wide, wg_o=nearest(space.knobs["wg_o"], max(1, high // split)))
        if work_items(contraction, config) < _busy(limits, contraction, config) and space.is_valid(candidate):
            config = candidate
    return config


def _sums(space: Space, contraction: Contraction) -> str:
    """The type of sums where the device computes faster in fp16. Sums of a few products wait for memory, and would lose
    digits for nothing.
    """
    if MIXED in space.knobs["accumulate"]:
        _, *window, lanes = contraction.reduce.values()
        # Mesa's compiler for Bifrost writes out the block of a window of three axes, and spills, but for short ones.
        return FP32 if len(window) > 2 and lanes * math.prod(window) > MOST_MIXED // 2 else MIXED
    # As long as one of the sums that `MIXED` adds up, it loses as few digits.
    is_long = math.prod(contraction.reduce.values()) >= _LEAST_FP16
    return FP16 if is_long and FP16 in space.knobs["accumulate"] else FP32


def _busy(limits: Limits, contraction: Contraction, tile: Config) -> float:
    """Work-items below which tiles are made smaller and sums are split: on phones an eighth of all less is better than
    a final sum, and so are a few times as many as the registers of all cores hold at once.
    """
    if not limits.prefers_images:
        return limits.busy_work_items
    most = limits.busy_work_items * 7 / 8
    return (
        most
        if limits.registers_of_all is None
        else min(most, _ROUNDS * limits.registers_of_all / _registers(contraction, tile))
    )


def _registers(contraction: Contraction, tile: Config) -> int:
    """Registers of a work-item for its sums, for what it loads and for addresses."""
    sums, tile_w = tile["tile_o"] * tile["tile_w"], tile["tile_w"]
    *_, w = contraction.extents
    texels, *window, lanes = contraction.reduce.values()
    products, taps = LANES * sums * lanes * math.prod(window), math.prod(window)
    if contraction.lhs_varies == "by lane":
        # A row of the window; a compiler writes out all of them where they are few.
        loaded, ahead = (
            _row(contraction, tile_w),
            float(LANES * sums * math.prod(contraction.reduce.values()) <= _WRITTEN_OUT),
        )
    else:
        # A compiler loads ahead for several taps of a window, and more where it writes out all of its rows.
        # A sum over three channels is over a single texel, so that all weights lie at constant places.
        is_whole_row = 1 < w <= tile_w
        is_constant = is_whole_row or (texels == 1 and contraction.inputs[0].dtype == FP32)
        is_written_out = products <= (_WRITTEN_OUT_OF_CONSTANTS if is_constant else _WRITTEN_OUT)
        # The taps of a whole row read the same pixels: only weights are loaded ahead.
        once = 1 if is_written_out or not is_whole_row else 1 / 2
        loaded, ahead = tile_w + LANES, (taps > 1) * (once + is_written_out)
        if taps == 1 and products * texels <= _WRITTEN_OUT_OF_CONSTANTS:
            # All of the sum is written out.
            return int(_AT_ONCE * LANES * (sums + texels * (tile_w + lanes * tile["tile_o"])))
        if texels == 1 and taps > 1:
            # Of three channels, a row of the window is loaded together.
            columns = window[-1]
            row = columns + (tile_w - 1) * contraction.stride + columns * lanes * tile["tile_o"]
            ahead = max(ahead, LANES * (row - loaded) / _TAPS_AHEAD)
    return int(LANES * (sums + loaded) + _ADDRESSES + _TAPS_AHEAD * ahead)


def _row(contraction: Contraction, tile_w: int) -> int:
    """Texels of a row of a depthwise window: its weights, and what lies under the windows of a tile."""
    return 2 * list(contraction.reduce.values())[-1] + (tile_w - 1) * contraction.stride


def _fit_tile(space: Space, contraction: Contraction, config: Config, limits: Limits) -> Config:
    """The register tile that takes fewest instructions on a phone with registers enough: a load costs about as much as
    a multiply-add of a texel, and what lies beyond the ends of rows and channels is paid for.
    """
    if limits.registers is None or not limits.prefers_images or contraction.lhs_varies == "by texel":
        return config
    o, _, w = contraction.extents
    warp = min(limits.warp_size, limits.max_work_group_size)
    is_depthwise = contraction.lhs_varies == "by lane"
    texels, *window, lanes = contraction.reduce.values()
    is_float = space.knobs["accumulate"] == (FP32,)

    # Long sums of floats without a window, under a compiler with few registers: it loads one weight after the other. In
    # fp16 it spills.
    is_lean = (
        is_float
        and contraction.rhs_vector == "lanes"
        and math.prod(window) == 1
        and texels >= _LEAST_LEAN
        and limits.registers <= _FEW_REGISTERS
    )

    def registers(tile: Config) -> int:
        if is_lean:
            # A place for each pixel where some of a tile may lie beyond the end of the row.
            return int(
                LANES * (tile["tile_o"] * tile["tile_w"] + tile["tile_w"] + 1)
                + 2
                + tile["tile_w"] * (w % tile["tile_w"] > 0)
            )
        return _registers(contraction, tile)

    def instructions(tile: Config) -> float:
        loaded = _row(contraction, tile["tile_w"]) if is_depthwise else lanes * tile["tile_o"] + tile["tile_w"]
        loads = loaded / (lanes * tile["tile_o"] * tile["tile_w"])
        # A few neighbours along a row share a group, as far as the row goes; or as many as fill a warp, where the
        # channels are too few.
        group = _fit_group(space, contraction, tile, warp)
        items, is_high = group["wg_o"] * group["wg_w"], warp // _SIDE * tile["tile_o"] < 2 * o
        wide = next(side for side in (4, 2, 1) if side * tile["tile_w"] <= w or side == 1) if is_high else group["wg_w"]
        # A single pixel gets more work-items by splitting its sums.
        idle = round_up(items, warp) / items if w > 1 else 1
        return float((1 + loads) * round_up(o, tile["tile_o"]) * round_up(w, wide * tile["tile_w"]) * idle)

    # A single pixel, as dense layers have, gets its work-items by splitting its sums, a larger tile's among more of
    # them. The loop that is left is written out by compilers where it is short, which takes more registers the larger
    # the tile.
    is_long = w == 1 < limits.busy_work_items and LANES * texels > _WRITTEN_OUT
    tiles = _candidates(
        space, config, {"tile_o": (1, 2, 4) if is_long else (1, 2), "tile_w": (4, 7, 8) if w > 1 else (1,)}
    )
    if is_float and limits.registers <= _FEW_REGISTERS:
        config = next(_candidates(space, config, _tile_of_windows_apart(contraction, config, limits)), config)

    def is_busy(tile: Config) -> bool:
        # A tile of a whole row gets its work-items by splitting its sums: it leaves no lane idle, and reads each pixel
        # once for all taps of a row.
        if 1 < w <= tile["tile_w"]:
            tile = _split_sums(space, contraction, _fit_group(space, contraction, tile, warp), limits)
        return w == 1 or work_items(contraction, tile) >= _busy(limits, contraction, tile)

    fitting = [tile for tile in tiles if registers(tile) <= _SAFE * limits.registers and is_busy(tile)]
    best = min([config, *fitting], key=instructions)
    return config.replace(tile_o=best["tile_o"], tile_w=best["tile_w"])


def _tile_of_windows_apart(contraction: Contraction, config: Config, limits: Limits) -> dict[str, tuple[int, ...]]:
    """The sides of a tile that differ from those of `config` where a compiler with few registers spills, as windows
    side by side have little in common.

    Mesa's compiler for Valhall does with four windows at a stride, but with those of three channels only at stride 4.
    That for Bifrost does at stride 2, where a row with padding ends within a tile, or where the window of three
    channels is written out.
    """
    _, _, w = contraction.extents
    texels, *window, lanes = contraction.reduce.values()
    if contraction.stride == 1 or math.prod(window) == 1 or contraction.lhs_varies == "by lane":
        return {}
    is_valhall = limits.warp_size >= _WARP_OF_VALHALL
    if texels > 1:
        is_cut = contraction.stride == 2 and contraction.is_padded and w % config["tile_w"] > 0
        return {"tile_o": (2,), "tile_w": (2,)} if is_valhall or is_cut else {}
    if is_valhall:
        return {"tile_o": (2,), "tile_w": (2,)} if contraction.stride > 2 else {}
    is_written_out = LANES * config["tile_o"] * config["tile_w"] * lanes * math.prod(window) <= _WRITTEN_OUT
    return {"tile_w": (2,)} if contraction.stride == 2 and is_written_out else {}


def _fit_group(space: Space, contraction: Contraction, config: Config, warp_size: int) -> Config:
    """The largest group, and of those the widest, that leaves little undone beyond the ends of rows and channels and in
    a warp that it does not fill. It has `_SIDE` work-items along each side, or as many in all as a warp, at most; more
    along a row only where that fills a warp.
    """
    o, _, w = contraction.extents
    for name in ("wg_o", "wg_w"):
        config = [
            config,
            *_candidates(space, config, {name: [side for side in space.knobs[name] if int(side) <= _SIDE]}),
        ][-1]
    wide, size = config["wg_w"], max(config["wg_o"] * config["wg_w"], warp_size)
    computed = {}
    for shape in _candidates(space, config, {name: space.knobs[name] for name in ("wg_w", "wg_o")}):
        group = shape["wg_o"] * shape["wg_w"]
        if group <= (size if shape["wg_w"] <= wide else warp_size):
            covered = round_up(o, shape["wg_o"] * shape["tile_o"]) * round_up(w, shape["wg_w"] * shape["tile_w"])
            computed[shape] = covered * round_up(group, warp_size) / group
    enough = [shape for shape, cost in computed.items() if cost <= 1.1 * min(computed.values())]
    return max(enough, key=lambda c: (c["wg_o"] * c["wg_w"], min(c["wg_w"], wide), c["wg_o"]), default=config)


def work_items(contraction: Contraction, config: Config) -> int:
    """Count the work-items of a config, those that share a sum included."""
    o, h, w = contraction.extents
    tiles = -(-o // config["tile_o"]) * -(-h // config["tile_h"]) * -(-w // config["tile_w"])
    return int(tiles * config["split_k"])


def tensor_core_config(space: Space, c: Contraction, config: Config, limits: Limits) -> Config:
    """`config`, or where tensor cores can be used a config with them that is decent, by a rough count of cycles.

    A core's loads take as long as the lines of its first-level cache that a warp touches, and its tensor cores two
    cycles for each instruction, of which fp32 needs twice as many; an iteration waits for its loads, while other groups
    on the core go on.
    """
    choice = _choice_of(space)
    if choice is None:
        return config
    texels, *window, _ = tensor_core.flatten(c).reduce.values()
    issued = 4 if choice == tensor_core.TF32 else 2
    cores = _cores(limits)

    def cycles(candidate: Config) -> float:
        tile_o, tile_w, split = candidate["tile_o"], candidate["tile_w"], candidate["split_k"]
        groups, warps = (
            _groups(c, candidate),
            candidate["wg_o"] * candidate["wg_w"] * split // (tensor_core.WARP_O * tensor_core.WARP_W),
        )
        steps = tensor_core.padded(texels, candidate) // (tensor_core.GROUP * split) * math.prod(window)
        busy = (
            -(-groups // cores)
            * warps
            * steps
            * (_LINES * (LANES * tile_o + tile_w // tensor_core.PAIR) + issued * tile_o * tile_w)
        )
        rounds = -(-groups // (cores * max(_WARPS_OF_CORE // warps, 1)))
        return float(busy + rounds * (_STARTED + steps / candidate["steps"] * _LATENCY))

    sides = {
        "tile_o": (1, 2),
        "tile_w": (2, 4, 8),
        "wg_o": (8, 16),
        "wg_w": (4, 8, 16),
        "split_k": space.knobs["split_k"],
        "steps": (1, 2),
    }
    warp = config.replace(multiply_add=choice, tile_h=1, local=0, vector_width=LANES, unroll="lanes")
    return min(_candidates(space, warp, sides), key=cycles, default=config)


def staged_config(space: Space, c: Contraction, config: Config, limits: Limits) -> Config | None:
    """A decent config whose operands are staged, by the cycles of one iteration; None where there is none.

    In an iteration every warp waits for the others and for its first operands, then each of its instructions takes
    eight cycles of a quarter of a core; local memory takes a cycle for each of its lines that is read or written, and
    the second-level cache gives every core so many bytes. Copies are far enough ahead.
    """
    choice = _choice_of(space)
    if choice is None or max(space.knobs["local"]) == 0:
        return None
    texels, *window, _ = c.reduce.values()
    numbers, cores = 2 if choice == tensor_core.TF32 else 1, _cores(limits)

    def cycles(candidate: Config) -> float:
        tile_o, tile_w, local = candidate["tile_o"], candidate["tile_w"], candidate["local"]
        groups, warps = (
            -(-_groups(c, candidate) // cores),
            candidate["wg_o"] * candidate["wg_w"] // (tensor_core.WARP_O * tensor_core.WARP_W),
        )
        sums = numbers * local // tensor_core.GROUP * tile_o * tile_w
        loads = 2 * numbers * local // tensor_core.GROUP * (LANES * tile_o + tile_w // tensor_core.PAIR)
        copied = numbers * local * (candidate["wg_w"] * tile_w + LANES * candidate["wg_o"] * tile_o) * 2 * LANES
        iteration = max(
            _WAITED + 8 * sums * -(-groups * warps // 4),
            groups * (warps * loads + copied / tensor_core.LINE_BYTES),
            groups * copied / _MOVED,
        )
        return float(texels // local * math.prod(window) * iteration)

    sides = {
        "tile_o": (1, 2),
        "tile_w": (4, 8),
        "wg_o": (8, 16),
        "wg_w": (4, 8, 16),
        "local": (8, 4, 16),
        "steps": (4, 2),
    }
    warp = config.replace(multiply_add=choice, tile_h=1, split_k=1, vector_width=LANES, unroll="lanes")
    return min(_candidates(space, warp, sides), key=cycles, default=None)


def _choice_of(space: Space) -> str | None:
    return next((choice for choice in tensor_core.CHOICES if choice in space.knobs["multiply_add"]), None)


def _cores(limits: Limits) -> int:
    return max(limits.busy_work_items // limits.max_work_group_size, 1)


def _groups(c: Contraction, config: Config) -> int:
    o, h, w = c.extents
    return int(-(-o // (config["wg_o"] * config["tile_o"])) * h * -(-w // (config["wg_w"] * config["tile_w"])))


def _candidates(space: Space, config: Config, sides: Mapping[str, Sequence[Any]]) -> Iterator[Config]:
    """`config` with each combination of choices of some knobs, as far as they are valid."""
    choices = ([value for value in values if value in space.knobs[name]] for name, values in sides.items())
    return filter(
        space.is_valid,
        (config.replace(**dict(zip(sides, values, strict=True))) for values in itertools.product(*choices)),
    )
