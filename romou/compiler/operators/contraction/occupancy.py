"""Work groups that fill warps, and work-items that fill the device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.contraction.form import Contraction, round_up
from romou.compiler.operators.contraction.registers import estimated_registers
from romou.compiler.tir.primitives import LANES, MemoryKind

# Work-items along each side of a group, if the operator is large enough.
SIDE = 8
# Steps of the reduction of each piece: a shorter piece costs more in the final sum than it saves.
_MIN_STEPS_OF_PIECE = 4
# Work-items of a group with split sums for each of its columns, unless a warp is larger.
_MIN_SPLIT_GROUP = 16
# Neighbouring outputs of a group of a single pixel, if a warp is too small for the split.
_PIXEL_WARPS = 4
# Padding that a larger group may compute, as a multiple of the least padding of all groups.
_PADDING_TOLERANCE = 1.1


def work_items(contraction: Contraction, config: Config) -> int:
    """Return the number of work-items of a config, including work-items that share a sum."""
    o, h, w = contraction.extents
    tiles = -(-o // config["tile_o"]) * -(-h // config["tile_h"]) * -(-w // config["tile_w"])
    return int(tiles * config["split_k"])


def work_groups(contraction: Contraction, config: Config) -> int:
    """Return the number of work groups of a config with one row of work-items and whole sums."""
    o, h, w = contraction.extents
    return int(-(-o // (config["wg_o"] * config["tile_o"])) * h * -(-w // (config["wg_w"] * config["tile_w"])))


def min_work_items(limits: Limits, contraction: Contraction, tile: Config) -> float:
    """Return the fewest work-items that still fill the device.

    If the cores share registers among the work-items in flight, a few rounds of these are enough.
    """
    occupancy, model = limits.preset.occupancy, limits.preset.registers
    busy = limits.busy_work_items * occupancy.min_busy_fraction
    if limits.registers_of_all is None or occupancy.min_register_rounds is None or model is None:
        return busy
    in_flight = limits.registers_of_all / estimated_registers(contraction, tile, limits)
    return min(busy, occupancy.min_register_rounds * in_flight)


def warp_of(limits: Limits) -> int:
    """Return the work-items of a warp that fit into a group."""
    return min(limits.warp_size, limits.max_work_group_size)


def split_sums(space: Space, contraction: Contraction, config: Config, limits: Limits) -> Config:
    """Return `config` with its sums split until the device is busy, as far as that pays."""
    steps = next(iter(contraction.reduce.values()))
    splits = [k for k in space.knobs["split_k"] if isinstance(k, int) and k > 1]
    if not limits.is_mobile and contraction.extents[1:] == (1, 1):
        fitting = [split for split in splits if split <= steps // _MIN_STEPS_OF_PIECE]
        return _split_pixel(space, contraction, config, limits, fitting)
    for choice in split_choices(space, contraction, config, limits):
        if work_items(contraction, config) >= min_work_items(limits, contraction, config):
            break
        config = choice
    return config


def split_choices(space: Space, contraction: Contraction, config: Config, limits: Limits) -> Iterator[Config]:
    """Yield `config` with its sums split among more and more work-items, as far as their registers allow."""
    steps, warp = next(iter(contraction.reduce.values())), warp_of(limits)
    splits = [k for k in space.knobs["split_k"] if isinstance(k, int) and k > 1]
    for split in [k for k in splits if k <= steps // _MIN_STEPS_OF_PIECE]:
        # All work-items of the split add up parts: of a lane each, or of a texel of an image.
        parts = config["tile_o"] * config["tile_h"] * config["tile_w"]
        if split > parts * (1 if config["output"] == MemoryKind.IMAGE else LANES):
            break
        # The group keeps its size and fills a warp: its other sides shrink by the split.
        wide = min(config["wg_w"], SIDE)
        size = max(_MIN_SPLIT_GROUP * wide, warp)
        if limits.most_with_local_memory is not None:
            # Partial sums meet in local memory.
            size = min(size, limits.most_with_local_memory)
        if size < split * wide:
            break
        whole = config.replace(split_k=split, wg_w=wide, **({"wg_h": 1} if "wg_h" in config else {}))
        size = min(size, _most_waiting(contraction, whole, limits))
        groups = [
            group
            for group in candidates(space, whole, {"wg_w": range(1, SIDE + 1), "wg_o": space.knobs["wg_o"]})
            if group["wg_w"] * group["wg_o"] * split <= size and is_allowed(space, group, limits)
        ]
        config = largest(groups, contraction, warp, wide) or config
        yield config


def _split_pixel(
    space: Space, contraction: Contraction, config: Config, limits: Limits, splits: Sequence[int]
) -> Config:
    """Return `config`, of a single pixel, with its sums split until the device is busy.

    Work-items wait for their loads, so short pieces pay, and the few that add up the parts wait for each other no
    longer than before. Neighbours of a group read neighbouring weights, if that leaves a group for each core.
    """
    texels, most = contraction.extents[0], limits.max_work_group_size
    if limits.most_with_local_memory is not None:
        most = min(most, limits.most_with_local_memory)
    for split in splits:
        if work_items(contraction, config) >= min_work_items(limits, contraction, config):
            break
        is_wide = split > warp_of(limits) and texels >= limits.cores
        wide = _PIXEL_WARPS if is_wide else max(1, warp_of(limits) // split)
        groups = candidates(space, config.replace(split_k=split), {"wg_o": space.knobs["wg_o"]})
        fitting = [group for group in groups if group["wg_o"] <= wide and group["wg_o"] * split <= most]
        config = max(fitting, key=lambda group: int(group["wg_o"]), default=config)
    return config


def _most_waiting(contraction: Contraction, config: Config, limits: Limits) -> int:
    """Return the most work-items of a group with a barrier: their registers fit into the file at once."""
    model = limits.preset.registers
    if model is None or model.waiting is None:
        return limits.max_work_group_size
    most = model.max_fill * model.waiting / estimated_registers(contraction, config, limits)
    return max(int(most), warp_of(limits) // 2)


def lost_images(space: Space, limits: Limits) -> bool:
    """Return whether a phone keeps tensors in buffers that would be in images otherwise.

    Their configs keep to what images need, rows of pixels and stores of whole texels, so that only the memory differs.
    """
    return limits.is_mobile and limits.max_image is None and "pixels" in space.knobs


def is_allowed(space: Space, config: Config, limits: Limits) -> bool:
    """Return whether a config is valid, and would be with the images that a phone has lost."""
    stores_texels = config["split_k"] <= config["tile_o"] * config["tile_h"] * config["tile_w"]
    return space.is_valid(config) and (stores_texels or not lost_images(space, limits))


def fit_group(space: Space, contraction: Contraction, config: Config, warp_size: int) -> Config:
    """Choose the largest (then widest) group with little padding and no partly filled warp.

    It has at most `SIDE` work-items along each side, or fills a single warp. It is wider only to fill a warp, and has
    several rows of work-items only to leave fewer lanes idle.
    """
    for name in ("wg_o", "wg_w"):
        sides = [side for side in space.knobs[name] if int(side) <= SIDE]
        config = [config, *candidates(space, config, {name: sides})][-1]
    wide, size = config["wg_w"], max(config["wg_o"] * config["wg_w"], warp_size)
    shapes = [
        shape
        for shape in candidates(space, config, {name: space.knobs[name] for name in ("wg_w", "wg_o")})
        if shape["wg_w"] * shape["wg_o"] <= (size if shape["wg_w"] <= wide else warp_size)
    ]
    shapes += [
        several
        for shape in shapes
        for several in candidates(space, shape, {"wg_h": [warp_size // (shape["wg_w"] * shape["wg_o"])]})
        if several["wg_h"] > 1
    ]
    return largest(shapes, contraction, warp_size, wide) or config


def single_warp(
    space: Space, contraction: Contraction, config: Config, limits: Limits, *, widest: int, **choices: Sequence[Any]
) -> Config:
    """Return `config` with groups of one warp, of up to `widest` neighbouring pixels first.

    Kernels that wait for their loads have such groups. They divide the outputs among the cores more evenly.

    choices: choices of other knobs for these groups.
    """
    warp = warp_of(limits)
    sides = {"wg_w": range(1, widest + 1), "wg_o": space.knobs["wg_o"], **choices}
    warps = [group for group in candidates(space, config, sides) if group["wg_w"] * group["wg_o"] == warp]
    return largest(warps, contraction, warp, widest) or config


def coalesced_windows(space: Space, contraction: Contraction, config: Config, limits: Limits) -> Config:
    """Return `config` with groups of neighbouring pixels if it is a depthwise convolution or a first layer.

    A depthwise convolution waits for its loads: a group is one warp, or two wide rows if there are groups enough. A
    first layer, of a texel of channels, copies its weights into local memory.
    """
    steps, *window, _ = contraction.reduce.values()
    warp, has_window = warp_of(limits), math.prod(window) > 1
    if contraction.lhs_varies == "by lane":
        if work_items(contraction, config) > limits.preset.occupancy.most_of_warps * limits.cores:
            return next(candidates(space, config, {"wg_w": [2 * warp], "wg_o": [2]}), config)
        return single_warp(space, contraction, config, limits, widest=warp)
    if contraction.lhs_varies == "never" and steps == 1 and has_window and config["split_k"] == 1:
        return next(candidates(space, config, {"wg_w": [warp], "local": [1]}), config)
    return config


def largest(shapes: Sequence[Config], contraction: Contraction, warp_size: int, wide: int = SIDE) -> Config | None:
    """Return the config with the largest (then widest) group among those with little padding. None if there are none.

    Groups of one row come first. Widths beyond `wide` count alike.
    """
    costs = {shape: computed(contraction, shape, warp_size) for shape in shapes}
    cheap = [shape for shape, cost in costs.items() if cost <= _PADDING_TOLERANCE * min(costs.values())]
    return max(
        cheap,
        key=lambda c: (c.get("wg_h", 1) == 1, c["wg_o"] * c["wg_w"], min(c["wg_w"], wide), c["wg_o"]),
        default=None,
    )


def computed(contraction: Contraction, config: Config, warp_size: int) -> float:
    """Return the texels that all lanes compute: outputs, padding, and what idle lanes of warps would compute."""
    sides = ((config[f"tile_{axis}"] * config.get(f"wg_{axis}", 1)) for axis in "ohw")
    texels = math.prod(round_up(extent, side) for extent, side in zip(contraction.extents, sides, strict=True))
    items = config["wg_o"] * config["wg_w"] * config.get("wg_h", 1) * config["split_k"]
    return float(texels * round_up(items, warp_size) / items)


def candidates(space: Space, config: Config, choices: Mapping[str, Sequence[Any]]) -> Iterator[Config]:
    """Yield `config` with each valid combination of the choices of some knobs."""
    allowed = ([value for value in values if value in space.knobs.get(name, ())] for name, values in choices.items())
    combinations = [dict(zip(choices, values, strict=True)) for values in itertools.product(*allowed)]
    if not combinations:
        return iter(())
    columns = {name: np.array([combination[name] for combination in combinations]) for name in choices}
    kept = np.broadcast_to(space.admits({**config, **columns}), len(combinations))
    return (config.replace(**combination) for combination, is_kept in zip(combinations, kept, strict=True) if is_kept)
