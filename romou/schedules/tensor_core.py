"""Contractions on tensor cores: the same work groups and register tiles as `contraction.py`, dealt out so that a warp can sum up together.

Halfs are multiplied as they are; floats are rounded to TF32 (10 bits behind the point, as halfs have; the range of floats), where the user allows it.

A warp is 4 work-items along the pixels (x) times 8 along the output channels (y), and the warps of a work group follow along y. Four texels of input
channels make one step of the reduction, 16 deep. `passes/tensor_cores.py` says what an instruction takes of each work-item; here stands only the nest
that it looks for, which by itself computes the same:

    for group in 4: for ilane in 4: for o in tile_o: for w in tile_w: for lane in 4:
        acc[o, w, lane] += data(4 * step + group, ilane, w) * weight(4 * step + group, ilane, o, lane)
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import s_tir, te, tirx

from romou.core.space import Columns, Config, Space
from romou.schedules.loops import Block, Loop, bind_threads, loops_below, stage_in_local_memory, unroll_tile
from romou.schedules.stages import Stage
from romou.tir.primitives import LANES, tensor_cores

if TYPE_CHECKING:
    from romou.core.limits import Limits
    from romou.schedules.contraction import Contraction

# Choices of the knob `multiply_add`: PTX calls the instruction mma, and tf32 what it takes of floats.
MMA, TF32 = "mma", "tf32"
# Choice of the knob `unroll`: nothing more is unrolled, and all channels are summed up for a tap before the next one, so that the innermost loop has no
# conditions of its own.
TAPS = "taps"
# Work-items of a warp along channels and pixels, texels of input channels in a step, pixels of a work-item that are summed up at once.
WARP_O, WARP_W, GROUP, PAIR = 8, 4, 4, 2
# Steps whose operands may be loaded together, before the first of them is multiplied.
STEPS = (1, 2, 4)
# Bytes of all banks of local memory, and how far apart in them texels begin that a warp reads together: none waits for another.
_LINE, _APART = 128, 32
# Cycles of a core, and warps that it has room for: see `default_config`.
_LINES, _LATENCY, _STARTED, _WARPS_OF_CORE = 4, 400, 1500, 16
# Cycles until a turn of staged operands gets to its sums, and bytes that reach a core in a cycle: see `staged_config`.
_WAITED, _MOVED = 120, 20


def instruction(dtype: str, limits: Limits) -> str | None:
    """The choice of `multiply_add` that multiplies numbers of this type on tensor cores; None where there is none."""
    if dtype == "float16":
        return MMA if limits.has_tensor_cores else None
    return TF32 if dtype == "float32" and limits.allows_tf32 else None


def can_use(c: Contraction) -> bool:
    """Whether the contraction is a sum over texels, on both sides, with the same data for all output channels."""
    *axes, last = c.reduce.values()
    return c.lhs_varies == "never" and c.vector and last == LANES and bool(axes)


def is_allowed(config: Columns, c: Contraction) -> Any:
    """Which configs with tensor cores fill whole warps, pairs and groups; of those without, which split evenly. For one config or columns of many."""
    first, texels = (next(iter(form.reduce.values())) for form in (c, flatten(c)))
    is_whole = (
        fills_warps(config)
        & (config["vector_width"] == LANES)
        & (config["arrangement"] == "blocked")
        & (config["local"] % GROUP == 0)
        & ((config["local"] == 0) | ((texels == first) & (config["unroll"] == "lanes") & (turns_of_staged(config, c) > 0)))
        # What is added to fill the last turn is at most a third of the work.
        & (3 * padded(texels, config) <= 4 * _whole(texels, GROUP))
    )
    is_other = (config["multiply_add"] == "fma") & (config["steps"] == 1) & (config["unroll"] != TAPS)
    return is_whole | (is_other & (first % config["split_k"] == 0))


def is_mma(config: Columns) -> Any:
    """Whether a config, or which of many, sums up on tensor cores; a plain False where none does, so that nothing depends on the knob."""
    found = takes_halfs(config) | (config["multiply_add"] == TF32)
    return found if np.any(found) else False


def takes_halfs(config: Columns) -> Any:
    """Whether a config, or which of many, hands halfs to tensor cores as they lie in memory."""
    return config["multiply_add"] == MMA


def fills_warps(config: Columns) -> Any:
    """Whether it does so in whole warps and pairs of pixels: all that is valid, and little else."""
    whole = (config["wg_o"] % WARP_O == 0) & (config["wg_w"] % WARP_W == 0) & (config["tile_w"] % PAIR == 0) & (config["tile_h"] == 1)
    return is_mma(config) & whole


def together(config: Columns) -> Any:
    """Texels of input channels that a piece of the reduction takes in one turn, where nothing is staged."""
    return 1 + fills_warps(config) * (GROUP * config.get("steps", 1) - 1)


def pair_of_weights(config: Config, texels: int) -> int:
    """Neighbouring output texels that are clamped to the last ones together, so that one load brings both; 1 where each is for itself."""
    # A texel of floats is as much as one load brings.
    return PAIR if takes_halfs(config) and config["tile_o"] % PAIR == 0 and texels % PAIR == 0 else 1


def padded(texels: int, config: Columns) -> Any:
    """Texels of the reduction, so many more that they come in whole turns of every piece; what is staged comes in them anyhow."""
    return _whole(texels, (config["local"] == 0) * (GROUP * config.get("steps", 1) * config["split_k"] - 1) + 1)


def turns_of_staged(config: Columns, c: Contraction) -> Any:
    """Turns with copies and sums, where operands are staged: the first `steps` of them have copies alone, the last ones sums."""
    first, *window, _ = c.reduce.values()
    return first // np.maximum(config["local"], 1) * math.prod(window) - config["steps"]


def staged_bytes(config: Columns) -> Any:
    """Of local memory, where operands are staged: those of the turn that is summed up, and of as many more as are copied ahead."""
    number = _number_bytes(config)

    def row(numbers: Any) -> Any:
        return numbers + (_APART // number - numbers) % (_LINE // number)

    rows = row(LANES * config["wg_w"] * config["tile_w"]) + row(LANES * LANES * config["wg_o"] * config["tile_o"])
    return (config.get("steps", 1) + 1) * config["local"] * rows * number


def _number_bytes(config: Columns) -> Any:
    return 4 - 2 * takes_halfs(config)


def _whole(number: int, unit: Any) -> Any:
    return -(-number // unit) * unit


def flatten(c: Contraction) -> Contraction:
    """The same sums over (texel, *window, lane), or over (texel and window, lane) where the texels by themselves would leave much of a group empty."""
    (first, extent), *window, (last, lanes) = c.reduce.items()
    taps = math.prod(e for _, e in window)
    if 4 * _whole(extent, GROUP) * taps <= 5 * _whole(extent * taps, GROUP):
        return c

    def at(texel: Any, lane: Any) -> tuple[Any, ...]:
        places, pitch = [], taps
        for _, e in window:
            pitch //= e
            places.append(texel // pitch % e)
        return (texel // taps, *places, lane)

    lhs, rhs = c.lhs, c.rhs
    return dataclasses.replace(
        c,
        reduce={first: extent * taps, last: lanes},
        lhs=lambda o, h, w, lane, *r: lhs(o, h, w, lane, *at(*r)),
        rhs=lambda o, lane, *r: rhs(o, lane, *at(*r)),
    )


def regroup(c: Contraction, config: Config) -> Contraction:
    """The same sums with the first axis cut into groups of four texels: (groups, *window, 4, lanes). What fills the last groups adds zeros."""
    c = flatten(c)
    (first, extent), *window, (last, lanes) = c.reduce.items()
    groups = padded(extent, config) // GROUP
    lhs, rhs = c.lhs, c.rhs

    def data(o: Any, h: Any, w: Any, lane: Any, group: Any, *rest: Any) -> tirx.Expr:
        *taps, member, last = rest
        texel = group * GROUP + member
        value = lhs(o, h, w, lane, texel, *taps, last)
        return value if groups * GROUP == extent else te.if_then_else(texel < extent, value, tirx.const(0, c.inputs[0].dtype))

    def weight(o: Any, lane: Any, group: Any, *rest: Any) -> tirx.Expr:
        *taps, member, last = rest
        texel = group * GROUP + member
        return rhs(o, lane, texel if groups * GROUP == extent else te.min(texel, extent - 1), *taps, last)

    return dataclasses.replace(c, reduce={first: groups, **dict(window), "group": GROUP, last: lanes}, lhs=data, rhs=weight)


def default_config(space: Space, c: Contraction, config: Config, limits: Limits) -> Config:
    """`config`, or where tensor cores can be used a config with them that is decent, by a rough count of cycles.

    A core's loads take as long as the lines of its first-level cache that a warp touches, and its tensor cores two cycles for each instruction, of which
    floats need twice as many; a turn waits for its loads, while other groups on the core go on.
    """
    choice = _choice_of(space)
    if choice is None:
        return config
    texels, *window, _ = flatten(c).reduce.values()
    issued = 2 if choice == MMA else 4
    cores = _cores(limits)

    def cycles(candidate: Config) -> float:
        tile_o, tile_w, split = candidate["tile_o"], candidate["tile_w"], candidate["split_k"]
        groups, warps = _groups(c, candidate), candidate["wg_o"] * candidate["wg_w"] * split // (WARP_O * WARP_W)
        steps = padded(texels, candidate) // (GROUP * split) * math.prod(window)
        busy = -(-groups // cores) * warps * steps * (_LINES * (LANES * tile_o + tile_w // PAIR) + issued * tile_o * tile_w)
        rounds = -(-groups // (cores * max(_WARPS_OF_CORE // warps, 1)))
        return float(busy + rounds * (_STARTED + steps / candidate["steps"] * _LATENCY))

    sides = {"tile_o": (1, 2), "tile_w": (2, 4, 8), "wg_o": (8, 16), "wg_w": (4, 8, 16), "split_k": space.knobs["split_k"], "steps": (1, 2)}
    warp = config.replace(multiply_add=choice, tile_h=1, local=0, vector_width=LANES, unroll="lanes")
    return min(_candidates(space, warp, sides), key=cycles, default=config)


def staged_config(space: Space, c: Contraction, config: Config, limits: Limits) -> Config | None:
    """A decent config whose operands are staged, by the cycles of a turn; None where there is none.

    In a turn every warp waits for the others and for its first operands, then each of its instructions takes eight cycles of a quarter of a core; local
    memory takes a cycle for each of its lines that is read or written, and the second-level cache gives every core so many bytes. Copies are far enough
    ahead.
    """
    choice = _choice_of(space)
    if choice is None or max(space.knobs["local"]) == 0:
        return None
    texels, *window, _ = c.reduce.values()
    numbers, cores = 1 if choice == MMA else 2, _cores(limits)

    def cycles(candidate: Config) -> float:
        tile_o, tile_w, local = candidate["tile_o"], candidate["tile_w"], candidate["local"]
        groups, warps = -(-_groups(c, candidate) // cores), candidate["wg_o"] * candidate["wg_w"] // (WARP_O * WARP_W)
        sums = numbers * local // GROUP * tile_o * tile_w
        loads = 2 * numbers * local // GROUP * (LANES * tile_o + tile_w // PAIR)
        copied = numbers * local * (candidate["wg_w"] * tile_w + LANES * candidate["wg_o"] * tile_o) * 2 * LANES
        turn = max(_WAITED + 8 * sums * -(-groups * warps // 4), groups * (warps * loads + copied / _LINE), groups * copied / _MOVED)
        return float(texels // local * math.prod(window) * turn)

    sides = {"tile_o": (1, 2), "tile_w": (4, 8), "wg_o": (8, 16), "wg_w": (4, 8, 16), "local": (8, 4, 16), "steps": (4, 2)}
    warp = config.replace(multiply_add=choice, tile_h=1, split_k=1, vector_width=LANES, unroll="lanes")
    return min(_candidates(space, warp, sides), key=cycles, default=None)


def _choice_of(space: Space) -> str | None:
    return next((choice for choice in (MMA, TF32) if choice in space.knobs["multiply_add"]), None)


def _cores(limits: Limits) -> int:
    return max(limits.busy_work_items // limits.max_work_group_size, 1)


def _groups(c: Contraction, config: Config) -> int:
    o, h, w = c.extents
    return int(-(-o // (config["wg_o"] * config["tile_o"])) * h * -(-w // (config["wg_w"] * config["tile_w"])))


def _candidates(space: Space, config: Config, sides: Mapping[str, Sequence[Any]]) -> Iterator[Config]:
    """`config` with each combination of choices of some knobs, as far as they are valid."""
    choices = ([value for value in values if value in space.knobs[name]] for name, values in sides.items())
    return filter(space.is_valid, (config.replace(**dict(zip(sides, values, strict=True))) for values in itertools.product(*choices)))


def schedule_stages(sch: s_tir.Schedule, loops: Sequence[Loop], reduce_names: Sequence[str], config: Config, *, has_whole_texels: bool = True) -> None:
    """As `contraction.schedule_stages`, for the stages that are made of `regroup`."""
    width = LANES if has_whole_texels else 1
    o, h, w, lane = loops
    block_o, warp_o, g, tile_o = sch.split(o, [None, config["wg_o"] // WARP_O, WARP_O, config["tile_o"]])
    block_w, warp_w, pair, t, pixel = sch.split(w, [None, config["wg_w"] // WARP_W, config["tile_w"] // PAIR, WARP_W, PAIR])
    sch.reorder(block_o, h, block_w, warp_o, warp_w, g, t, tile_o, pair, pixel, lane)
    grid = sch.fuse(h, block_w) if int(sch.get(h).extent) > 1 else block_w
    sch.bind(block_o, "blockIdx.y")
    sch.bind(grid, "blockIdx.x")
    # TVM sees what a group needs as long as nothing is cropped.
    is_split = config["split_k"] > 1
    total, sums = (sch.get_sblock(name) for name in ((Stage.ACC, Stage.PART) if is_split else (Stage.TILE, Stage.ACC)))
    sch.compute_at(total, grid, preserve_unit_loops=True)
    sch.compute_at(sums, grid, preserve_unit_loops=True)
    if is_split:
        _sum_pieces(sch, total, (warp_o, warp_w, g, t), (tile_o, pair, pixel, lane), config, width)
    else:
        sch.compute_inline(total)
        bind_threads(sch, sch.fuse(warp_o, warp_w, g), t)
        unroll_tile(sch, (tile_o, pair, pixel, lane), width)
    _deal_out(sch, sums, grid, config)
    *reduction, _o, _h, _w, _lane = sch.get_loops(sums)[-len(reduce_names) - 4 :]
    first, *window, group, _ilane = reduction
    if config["local"]:
        # Tap by tap: of a whole window little would fit.
        outer, inner = sch.split(first, [None, config["local"] // GROUP])
        sch.reorder(outer, *window, inner, group)
        outer = sch.fuse(outer, *window)
        window = []
        sch.compute_inline(sch.get_sblock(Stage.TEXELS))
        for name in (Stage.PATCH, Stage.KERNEL):
            block = sch.get_sblock(name)
            stage_in_local_memory(sch, block, outer, config["wg_o"] * config["wg_w"] // WARP_W, WARP_W)
            sch.unroll(loops_below(sch, block, outer)[0])
            # The four texels that a warp reads at once: (..., texel, row, pixel, lane), (..., texel, lane, channel, lane).
            sch.storage_align(block, 0, len(sch.get(block).writes[0].source.shape) - 4, *(_LINE // _number_bytes(config), _APART // _number_bytes(config)))
        sch.unroll(inner)
        # The copies are ahead of their use.
        for key, value in (("stage", [0, 0, config["steps"]]), ("order", [0, 1, 2]), ("async_stages", [0])):
            sch.annotate(outer, f"software_pipeline_{key}", value)
    else:
        outer, inner = sch.split(first, [None, config["steps"]])
        order = [*window, outer] if config["unroll"] == TAPS else [outer, *window]
        sch.reorder(*order, inner, group)
        sch.compute_inline(sch.get_sblock(Stage.PATCH))
        sch.unroll(inner)
        outer = order[0]
    if config["unroll"] == "window":
        for loop in window:
            sch.unroll(loop)
    tensor_cores(sch, group)
    init = sch.decompose_reduction(sums, outer)
    unroll_tile(sch, sch.get_loops(init)[-4:])
    if not is_split:
        # Registers are a work-item's own: they need no index that tells whose they are.
        sch.transform_layout(sums, ("write", 0), lambda _item_o, _item_w, *own: own, assume_injective_transform=True)


def _sum_pieces(sch: s_tir.Schedule, acc: Block, threads: Sequence[Loop], tile: Sequence[Loop], config: Config, width: int) -> None:
    """acc: the pieces are added up, each number of the tile by one of the work-items that have summed them; whole texels while there are enough."""
    has_texels = config["tile_o"] * config["tile_w"] >= config["split_k"]
    outer, piece = sch.split(sch.fuse(*(tile[:-1] if has_texels else tile)), [None, config["split_k"]])
    sch.reorder(piece, *threads, outer)
    warp_o, warp_w, g, t = threads
    sch.bind(piece, "threadIdx.z")
    bind_threads(sch, sch.fuse(warp_o, warp_w, g), t)
    sch.compute_at(acc, outer, preserve_unit_loops=True)
    sch.set_scope(acc, 0, "local")
    *_, spatial, pieces = sch.get_loops(acc)
    sch.reorder(pieces, spatial)
    sch.unroll(pieces)
    if has_texels:
        sch.vectorize(spatial)
    init = sch.decompose_reduction(acc, pieces)
    if has_texels:
        sch.vectorize(sch.get_loops(init)[-1])
        unroll_tile(sch, (outer, tile[-1]), width)
    else:
        sch.unroll(outer)


def _deal_out(sch: s_tir.Schedule, sums: Block, group: Loop, config: Config) -> None:
    """The sums of a group, of each piece of the reduction: every work-item has its own in registers, and where there are pieces leaves them in local
    memory."""
    *pieces, item_o, t, o, h, w, lane = (loops := loops_below(sch, sums, group))[: 7 if config["split_k"] > 1 else 6]
    warp_o, g, own_o = sch.split(o, [None, WARP_O, config["tile_o"]])
    warp_w, own_w = sch.split(w, [None, config["tile_w"]])
    sch.reorder(*pieces, item_o, warp_o, warp_w, g, t, *loops[len(pieces) + 6 :], own_o, h, own_w, lane)
    if pieces:
        sch.set_scope(sums, 0, "shared")
        registers = sch.cache_write(sums, 0, "local")
        sch.reverse_compute_at(registers, t, preserve_unit_loops=True)
        sch.bind(pieces[0], "threadIdx.z")
        unroll_tile(sch, sch.get_loops(registers)[-4:])
    else:
        sch.set_scope(sums, 0, "local")
    bind_threads(sch, sch.fuse(warp_o, warp_w, g), t)
