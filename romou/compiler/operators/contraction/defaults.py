"""The config of a contraction that is tried first."""

from __future__ import annotations

import math

from romou.base.knob import nearest
from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.contraction.cpu_defaults import vector_tile
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.contraction.knobs import FP16, FP32, MIXED, steps_of_sum
from romou.compiler.operators.contraction.local_memory_defaults import staged_products
from romou.compiler.operators.contraction.occupancy import (
    SIDE,
    coalesced_windows,
    fit_group,
    is_allowed,
    lost_images,
    min_work_items,
    single_warp,
    split_sums,
    warp_of,
    work_items,
)
from romou.compiler.operators.contraction.pixel_defaults import fill_warps
from romou.compiler.operators.contraction.tensor_core_defaults import tensor_core_config
from romou.compiler.operators.contraction.tiles import fit_tile
from romou.compiler.tir.primitives import LANES, MemoryKind

# Shortest sum that is worth fp16, in products. It loses no more digits than the sums that `MIXED` adds up.
_MIN_FP16_PRODUCTS = 32
# Shortest sum of products of two tensors that is worth its addition in fp32.
_MIN_MIXED_PRODUCTS = 16


def default_config(space: Space, flat: Contraction, rows: Contraction, limits: Limits) -> Config:
    """Return a config that is decent on any GPU: a 1x4 register tile, about 64 work-items, nothing staged.

    Large GPUs stage products without a window in local memory.

    Operators with few outputs leave most of a large GPU idle. For them the reduction is split, then the tile made
    smaller, until the device is busy.
    """
    memory = (MemoryKind.IMAGE if limits.prefers_images else MemoryKind.BUFFER).value
    sums = type_of_sums(space, flat, limits)
    is_grouped = flat.lhs_varies == "by texel" and math.prod(list(flat.reduce.values())[1:-1]) > 1
    has_rows = (
        nearest(space.knobs["data"], memory) == MemoryKind.IMAGE
        or lost_images(space, limits)
        or (is_grouped and _is_large(limits))
    )
    pixels = "rows" if has_rows else "flat"
    contraction = rows if pixels == "rows" else flat
    weight = memory_of_weight(flat, limits)
    config = space.default(data=memory, weight=weight, output=memory, pixels=pixels, accumulate=sums, wg_o=1, wg_w=1)
    config = _shrink_until_valid(space, config)
    if limits.is_cpu and (tiles := limits.preset.vector_tiles) is not None:
        return vector_tile(space, contraction, fit_group(space, contraction, config, 1), limits, tiles)
    config = tile_of_windows(space, contraction, config, limits) or fit_tile(space, contraction, config, limits)
    config = fit_group(space, contraction, config, warp_of(limits))
    config = split_sums(space, contraction, config, limits)
    config = fill_warps(space, contraction, config, limits)
    if is_grouped and _is_large(limits):
        # Short sums wait for their loads.
        config = single_warp(space, contraction, config, limits, widest=SIDE, unroll=["window"])
    # A single pixel of short vectors takes more loads than products.
    has_short_vectors = contraction.is_batched and list(contraction.reduce.values())[-1] < LANES
    for tile_w in (2,) if has_short_vectors else (2, 1):
        candidate = config.replace(tile_w=nearest(space.knobs["tile_w"], tile_w))
        is_idle = work_items(contraction, config) < min_work_items(limits, contraction, config)
        if is_idle and is_allowed(space, candidate, limits):
            config = candidate
    if _is_large(limits):
        config = coalesced_windows(space, contraction, config, limits)
    striped = config.replace(arrangement="striped")
    # A single pixel reuses no texel of its weight. Neighbours then read a row of the image in one line of the cache.
    if flat.extents[1:] == (1, 1) and config["weight"] == MemoryKind.IMAGE and is_allowed(space, striped, limits):
        config = striped
    config = staged_products(space, contraction, config, limits)
    return tensor_core_config(space, contraction, config, limits)


def tile_of_windows(space: Space, contraction: Contraction, config: Config, limits: Limits) -> Config | None:
    """Return `config` of a phone with a tile of all windows that lack different taps. None if the tile is not valid.

    Two pixels of four windows fit into the registers of each of Mesa's GPUs. More do not, nor do sums in mixed
    precision.
    """
    tile = config.replace(tile_o=contraction.windows, tile_h=1, tile_w=2, unroll="window", accumulate=FP32)
    has_model = contraction.has_tap is not None and limits.preset.registers is not None
    return tile if has_model and space.knows(tile) and space.is_valid(tile) else None


def memory_of_weight(flat: Contraction, limits: Limits) -> str:
    """Return the memory of the weight of a first config, a choice of the knob `weight`."""
    is_fp16_pixel = flat.extents[1:] == (1, 1) and str(flat.inputs[1].dtype) == FP16
    is_buffer = not limits.prefers_images or (is_fp16_pixel and limits.preset.products.pixel_weight == "buffer")
    return str((MemoryKind.BUFFER if is_buffer else MemoryKind.IMAGE).value)


def _is_large(limits: Limits) -> bool:
    """Return whether a device is a GPU that is no phone's."""
    return not limits.is_cpu and not limits.is_mobile


def _shrink_until_valid(space: Space, config: Config) -> Config:
    """Return `config` with a narrower tile if the operator is smaller than the tile."""
    while not space.is_valid(config) and config["tile_w"] > 1:
        narrower = [c for c in space.knobs["tile_w"] if isinstance(c, int) and c < config["tile_w"]]
        config = config.replace(tile_w=max(narrower))
    return config


def type_of_sums(space: Space, contraction: Contraction, limits: Limits) -> str:
    """Return the type of the sums of a first config: fp32, unless the device computes faster in fp16.

    Sums of a few products wait for memory, and would lose digits for nothing.
    """
    if not limits.prefers_fp16:
        return FP32
    if MIXED in space.knobs["accumulate"]:
        _, *window, lanes = contraction.reduce.values()
        spills = len(window) > 2 and lanes * math.prod(window) > limits.preset.mixed_sums.max_3d_window
        # A prime number of texels has sums of one texel.
        is_short = contraction.is_batched and lanes * steps_of_sum(contraction) < _MIN_MIXED_PRODUCTS
        return FP32 if spills or is_short else MIXED
    is_long = math.prod(contraction.reduce.values()) >= _MIN_FP16_PRODUCTS
    return FP16 if is_long and FP16 in space.knobs["accumulate"] else FP32
