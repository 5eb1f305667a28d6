"""The knobs of a contraction: which choices an operator has, and which configs are valid."""

from __future__ import annotations

import math
from typing import Any

from romou.core.limits import Limits
from romou.core.space import Columns, Space
from romou.schedules.contraction import tensor_core
from romou.schedules.contraction.form import Contraction
from romou.schedules.loops import padded_texels
from romou.tir.primitives import LANES

# float4 accumulators of one work-item beyond which every known GPU spills.
MAX_TILE = 32
# Iterations of the reduction from which on local memory may be buffered twice.
_LEAST_BUFFERED = 3
# Choice of the knob `unroll`: the device's compiler writes out all that is summed up between two barriers, of so many products at most.
TURN, _MOST_UNROLLED = "turn", 2048


def declare_knobs(space: Space, flat: Contraction, rows: Contraction, limits: Limits, dtype: str) -> None:
    """The knobs of every contraction, cut down to what this one's extents make different.

    `flat` and `rows` are the two ways to lay its pixels (equal where there is only one); the knob `pixels` tells which holds. The knobs
    `data`, `weight` and `output` are declared before: whether each lies in a buffer or in an image, whose texels are accessed whole.
    `dtype` is that of numbers in memory.
    """
    o, (reach_h, reach_w) = flat.extents[0], (max(c.extents[i] for c in (flat, rows)) for i in (1, 2))
    is_shared = flat.lhs_varies == "never"
    instruction = tensor_core.instruction(dtype, limits)
    has_mma = instruction is not None and not flat.is_batched and tensor_core.can_use(flat)
    first, *window = flat.reduce.values()
    space.define_knob("tile_o", [t for t in (1, 2, 4) if t <= o] if is_shared else [1])
    # Beside tensor cores, tiles that they do not take are few: every one would be looked at in all combinations.
    space.define_knob("tile_h", [t for t in (1, 2, 4) if t <= reach_h] if not has_mma and not flat.is_batched else [1])
    space.define_knob("tile_w", [t for t in ((1, 2, 3, 4, 7, 8) if not has_mma else (1, 2, 4, 8)) if t <= reach_w])
    space.define_knob("wg_o", [t for t in (1, 2, 4, 8, 16, 32, 64) if t < 2 * o or (has_mma and t == tensor_core.WARP_O)])
    space.define_knob("wg_w", [t for t in (1, 2, 4, 8, 16, 32, 64, 128) if t < 2 * reach_w or (has_mma and t == tensor_core.WARP_W)])
    space.define_knob("split_k", [k for k in (1, 2, 4, 8, 16, 32) if first % k == 0 or has_mma] if is_shared else [1])
    space.define_knob("arrangement", ["blocked", "striped"] if not has_mma else ["blocked"])
    can_stage = is_shared and flat.rhs_vector != "none"
    space.define_knob("local", [0] + [s for s in ((1, 2, 4, 8, 16) if not has_mma else (4, 8, 16)) if first % s == 0] if can_stage else [0])
    has_window = len(window) > 1 and math.prod(window[:-1]) > 1
    space.define_knob("unroll", ["lanes"] + ["window"] * has_window + [tensor_core.TAPS] * (has_window and has_mma) + [TURN] * (len(space.knobs["local"]) > 1))
    space.define_knob("vector_width", ([LANES, 2, 1] if not has_mma else [LANES]) if flat.vector else [1])
    # Where both factors are vectors already, or neither is one, nothing is broadcast.
    is_broadcast = limits.has_vector_arithmetic and flat.lhs_varies != "by lane" and flat.vector
    space.define_knob("autobroadcast", [True, False] if is_broadcast else [False])
    space.define_knob("multiply_add", ["mad", "fma", "plain"] if limits.has_vector_arithmetic else ["fma", *([instruction] if instruction and has_mma else [])])
    if instruction is not None:
        space.define_knob("steps", tensor_core.STEPS if has_mma else [1])
    # With two turns alone, half of all loads would be waited for as before.
    space.define_knob("local_buffers", [1, 2] if any(isinstance(s, int) and 0 < _LEAST_BUFFERED * s <= first for s in space.knobs["local"]) else [1])
    if has_mma:
        space.add_constraint(lambda config: tensor_core.is_allowed(config, flat))

    def is_allowed(config: Columns) -> Any:
        # With & and |: one config or columns of many. Comparisons with text give bool or array alike.
        is_rows = config.get("pixels", "flat") == "rows"
        o, h, w = (flat_extent + is_rows * (extent - flat_extent) for flat_extent, extent in zip(flat.extents, rows.extents, strict=True))
        tile = config["tile_o"] * config["tile_h"] * config["tile_w"]
        group_o, group_w, split = config["wg_o"] * config["tile_o"], config["wg_w"] * config["tile_w"], config["split_k"]
        is_stored_whole = config["output"] == "image"
        is_mma = tensor_core.is_mma(config)
        has_image = (config["data"] == "image") | (config["weight"] == "image") | is_stored_whole
        is_dense = ((config["tile_o"] == 1) | (config["wg_o"] == 1)) & ((config["tile_w"] == 1) | (config["wg_w"] == 1))
        steps = config["local"] * math.prod(window)
        is_turn = (steps > window[-1]) & (steps * tile * LANES <= _MOST_UNROLLED) & (is_mma == False)  # noqa: E712  as above
        # The final sum deals the tile's elements out to the split, evenly; TVM proves that only for powers of two.
        most = tile * (LANES - (LANES - 1) * is_stored_whole)
        return (
            config["tile_h"] <= h,
            config["tile_w"] <= w,
            tile <= MAX_TILE,
            # Where both arrangements are the same, there is one.
            (config["arrangement"] == "blocked") | (is_dense == False),  # noqa: E712  `not` does not judge columns
            (config["vector_width"] == LANES) | (has_image == False),  # noqa: E712  `not` does not judge columns
            config["wg_o"] * config["wg_w"] * split <= limits.max_work_group_size,
            # A group more than twice as large as the whole operator computes mostly padding.
            (config["wg_o"] == 1 + 7 * is_mma) | (group_o < 2 * o),
            (config["wg_w"] == 1 + 3 * is_mma) | (group_w < 2 * w),
            (split == 1) | ((config["local"] == 0) & (tile & (tile - 1) == 0) & (split <= most)),
            (config["local_buffers"] == 1) | ((config["local"] > 0) & (config["local"] * _LEAST_BUFFERED <= first) & (is_mma == False)),  # noqa: E712  as above
            (config["unroll"] != TURN) | is_turn,
            local_bytes(config, flat) <= limits.local_memory_bytes,
        )

    space.add_constraint(is_allowed)


def local_bytes(config: Columns, c: Contraction) -> Any:
    """Local memory of a work group in bytes, for one config or columns of many; numbers are single precision there, but for half arithmetic
    and what tensor cores read."""
    group_o, group_w = config["wg_o"] * config["tile_o"], config["wg_w"] * config["tile_w"] * config["tile_h"]
    number = number_bytes(config)
    partial = number * (config["split_k"] > 1) * config["split_k"] * group_o * group_w * LANES
    *window, lanes = list(c.reduce.values())[1:]
    local, is_mma = config["local"], tensor_core.is_mma(config)
    patch, kernel = math.prod(window) * group_w, math.prod(window) * LANES * group_o
    # What runs along memory is padded.
    if c.lhs_neighbours == "reduction":
        patch = padded_texels(patch, (c.texel or lanes) * number, local)
    if c.rhs_vector == "reduction":
        kernel = padded_texels(kernel, lanes * number, local)
    by_itself = number * config["local_buffers"] * local * ((c.texel or lanes) * patch + lanes * kernel)
    # Where no config has tensor cores, nothing depends on their knobs.
    return partial + (by_itself if is_mma is False else by_itself + is_mma * (tensor_core.staged_bytes(config) - by_itself))


def number_bytes(config: Columns) -> Any:
    """Of a number that is computed with."""
    return 4 - 2 * (config["accumulate"] == "float16")
