"""Contractions on tensor cores: constraints between knobs, and the nest that a warp computes together.

fp16 is multiplied as it is. fp32 is rounded to TF32 (10 bits of mantissa, as fp16 has, and fp32's range) if the user
allows it. Else a float is split into two numbers of TF32, and three products of these have fp32's precision. That is an
algorithm (`operators/algorithms/algorithm.py`), known as 3xTF32 from CUTLASS.

A warp is 4 work-items along the pixels (x) times 8 along the output channels (y). The warps of a work group follow
along y. Four texels of input channels make one step of the reduction, 16 deep. `passes/tensor_cores.py` replaces this
nest by instructions, with the operands that each work-item holds:

    for group in 4: for ilane in 4: for o in tile_o: for w in tile_w: for lane in 4:
        acc[o, w, lane] += data(4 * step + group, ilane, w) * weight(4 * step + group, ilane, o, lane)
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from tvm import te, tirx

from romou.base.limits import Limits
from romou.base.space import Columns, Config
from romou.compiler.operators.contraction.form import Contraction, round_up
from romou.compiler.passes.cooperative_matrices import local_memory_bytes
from romou.compiler.tir.expressions import FLOATS, is_multiple
from romou.compiler.tir.primitives import LANES, MemoryKind

# Choices of the knob `multiply_add`: PTX's instruction mma for fp16, for TF32 and for floats split into two numbers of
# TF32, GLSL's cooperative matrices.
CHOICES = MMA, TF32, TF32X3, COOPMAT = "mma", "tf32", "tf32x3", "coopmat"
# Choice -> matrix instructions for a product of the size of fp16's.
INSTRUCTIONS = {MMA: 1, TF32: 2, TF32X3: 6, COOPMAT: 1}
# Choice of the knob `unroll`: all channels of a tap are summed up before the next tap, so that the innermost loop has
# no conditions. Nothing more is unrolled.
TAPS = "taps"
# Work-items of a warp along channels and pixels, texels of input channels in a step, pixels of a work-item in an
# instruction.
WARP_O, WARP_W, GROUP, PAIR = 8, 4, 4, 2
# Steps whose operands may be loaded together, before the first of them is multiplied.
STEPS = (1, 2, 4)
# Bytes of all banks of local memory. Texels that a warp reads together are this many bytes apart in the banks, which
# avoids bank conflicts.
LINE_BYTES, APART_BYTES = 128, 32


def instruction(dtype: str, limits: Limits) -> str | None:
    """Return the choice of `multiply_add` for numbers of this type on tensor cores, or None."""
    if dtype == "float16":
        return MMA if limits.has_tensor_cores else COOPMAT if limits.has_cooperative_matrices else None
    return None if dtype != "float32" or not limits.has_tensor_cores else TF32 if limits.allows_tf32 else TF32X3


def can_use(c: Contraction) -> bool:
    """Return whether both sides are summed over texels, and all output channels, several texels, read the same data.

    Of a single texel, TVM keeps the sums of all rows of a warp in one array, and seven of eight rows would be padding.
    """
    *axes, last = c.reduce.values()
    is_shared = not c.is_batched and c.lhs_varies == "never" and c.extents[0] > 1
    return is_shared and c.vector and last == LANES and bool(axes)


def is_allowed(config: Columns, c: Contraction) -> Any:
    """Return whether a config, or which of many, is valid.

    With tensor cores it fills whole warps, pairs and groups. Without them its split is even.
    """
    first, texels = (next(iter(form.reduce.values())) for form in (c, flatten(c)))
    # Copies past the registers convert nothing.
    kinds = {str(factor.dtype) for factor in c.inputs}
    can_stage = len(kinds) == 1 and kinds <= set(FLOATS)
    is_whole = (
        fills_warps(config)
        & (config["vector_width"] == LANES)
        & (config["arrangement"] == "blocked")
        & (config["local"] % GROUP == 0)
        & reads_buffers(config)
        # Single numbers of a sum are no texels of an image.
        & ((config["output"] == MemoryKind.BUFFER) | (config["tile_o"] * config["tile_w"] >= config["split_k"]))
        & (is_coopmat(config) <= fits_matrices(config))
        & (
            (config["local"] == 0)
            | (can_stage & (texels == first) & (config["unroll"] == "lanes") & (staged_iterations(config, c) > 0))
        )
        # Padding of the last iteration is at most a third of the work.
        & (3 * padded(texels, config) <= 4 * round_up(texels, GROUP))
    )
    is_other = (is_mma(config) == False) & (config["steps"] == 1) & (config["unroll"] != TAPS)  # noqa: E712
    return is_whole | (is_other & (first % config["split_k"] == 0))


def fits_matrices(config: Columns) -> Any:
    """Return whether a config, or which of many, may use cooperative matrices.

    It fills matrices with pixels, and nothing is staged.
    """
    return (config["local"] == 0) & (config["output"] == MemoryKind.BUFFER) & (config["tile_w"] % (2 * PAIR) == 0)


def reads_buffers(config: Columns) -> Any:
    """Return whether a config, or which of many, reads texels of buffers and sums up in fp32."""
    in_buffers = (config["data"] == MemoryKind.BUFFER) & (config["weight"] == MemoryKind.BUFFER)
    return in_buffers & (config["accumulate"] == "float32")


def is_mma(config: Columns) -> Any:
    """Return whether a config, or which of many, uses tensor cores.

    It is a plain False if none does, so that nothing depends on the knob.
    """
    has_mma = takes_fp16(config) | (config["multiply_add"] == TF32) | (config["multiply_add"] == TF32X3)
    return has_mma if np.any(has_mma) else False


def takes_fp16(config: Columns) -> Any:
    """Return whether a config, or which of many, multiplies fp16 without a conversion."""
    return (config["multiply_add"] == MMA) | is_coopmat(config)


def instructions(config: Columns) -> Any:
    """Return the matrix instructions of a config, or of many, for each product of the size of fp16's. 1 without any."""
    return 1 + sum((config["multiply_add"] == choice) * (count - 1) for choice, count in INSTRUCTIONS.items())


def is_coopmat(config: Columns) -> Any:
    """Return whether a config, or which of many, uses cooperative matrices, loaded from local memory."""
    return config["multiply_add"] == COOPMAT


def fills_warps(config: Columns) -> Any:
    """Return whether a config, or which of many, fills whole warps and pairs of pixels on tensor cores.

    This is necessary for a valid config, and nearly sufficient.
    """
    whole = (
        (config["wg_o"] % WARP_O == 0)
        & (config["wg_w"] % WARP_W == 0)
        & (config["tile_w"] % PAIR == 0)
        & (config["tile_h"] == 1)
    )
    return is_mma(config) & whole


def together(config: Columns) -> Any:
    """Return the texels of input channels in one iteration of a piece of the reduction, if nothing is staged."""
    return 1 + fills_warps(config) * (GROUP * config.get("steps", 1) - 1)


def pair_of_weights(config: Columns, texels: Any) -> Any:
    """Return how many neighbouring output texels are clamped together, so that one access reads them: 2 or 1."""
    # A single load reads one texel of floats.
    is_read_together = (config["local"] > 0) | (config["tile_o"] % PAIR == 0)
    return 1 + takes_fp16(config) * is_read_together * is_multiple(texels, PAIR)


def pair_of_pixels(config: Columns, c: Contraction) -> Any:
    """Return how many neighbouring pixels are clamped together, so that one copy reads them: 2 or 1."""
    taps = math.prod(list(c.reduce.values())[1:-1]) // c.reduce.get("group", 1)
    are_neighbours = c.lhs_neighbours == "pixels" and not c.is_padded and c.stride == taps == 1
    return 1 + takes_fp16(config) * (config["local"] > 0) * (are_neighbours and is_multiple(c.extents[2], PAIR))


def padded(texels: int, config: Columns) -> Any:
    """Round the texels of the reduction up to whole iterations of every piece. Staged operands need no rounding."""
    return round_up(texels, (config["local"] == 0) * (GROUP * config.get("steps", 1) * config["split_k"] - 1) + 1)


def staged_iterations(config: Columns, c: Contraction) -> Any:
    """Return the iterations that copy and sum, if operands are staged: without prologue and epilogue."""
    first, *window, _ = c.reduce.values()
    return first // np.maximum(config["local"], 1) * math.prod(window) - config["steps"]


def staged_bytes(config: Columns) -> Any:
    """Return the bytes of local memory for staged operands, of all iterations in flight, or for matrices."""
    number = number_bytes(config)

    def row(numbers: Any) -> Any:
        return numbers + (APART_BYTES // number - numbers) % (LINE_BYTES // number)

    rows = row(LANES * config["wg_w"] * config["tile_w"]) + row(LANES * LANES * config["wg_o"] * config["tile_o"])
    staged = (config.get("steps", 1) + 1) * config["local"] * rows * number
    warps = config["wg_o"] * config["wg_w"] * config["split_k"] // (WARP_O * WARP_W)
    return staged + is_coopmat(config) * warps * local_memory_bytes(
        config["tile_o"], config["tile_w"], config.get("steps", 1)
    )


def number_bytes(config: Columns) -> Any:
    """Return the bytes of a number that tensor cores read."""
    return 4 - 2 * takes_fp16(config)


def flatten(c: Contraction) -> Contraction:
    """Return the reduction over (texel, *window, lane), or over (texel and window, lane).

    The window is fused if the texels would leave much of a group empty.
    """
    (first, extent), *window, (last, lanes) = c.reduce.items()
    taps = math.prod(e for _, e in window)
    if 4 * round_up(extent, GROUP) * taps <= 5 * round_up(extent * taps, GROUP):
        return c

    def at(texel: Any, lane: Any) -> tuple[Any, ...]:
        indices, pitch = [], taps
        for _, e in window:
            pitch //= e
            indices.append(texel // pitch % e)
        return (texel // taps, *indices, lane)

    lhs, rhs = c.lhs, c.rhs
    return dataclasses.replace(
        c,
        reduce={first: extent * taps, last: lanes},
        lhs=lambda o, h, w, lane, *r: lhs(o, h, w, lane, *at(*r)),
        rhs=lambda o, lane, *r: rhs(o, lane, *at(*r)),
    )


def regroup(c: Contraction, config: Config) -> Contraction:
    """Cut the first reduction axis into groups of four texels: (groups, *window, 4, lanes). Padding adds zeros."""
    c = flatten(c)
    (first, extent), *window, (last, lanes) = c.reduce.items()
    groups = padded(extent, config) // GROUP
    lhs, rhs = c.lhs, c.rhs
    # Bytes in memory are read as floats.
    number = str(c.inputs[0].dtype) if str(c.inputs[0].dtype) in FLOATS else "float32"

    def data(o: Any, h: Any, w: Any, lane: Any, group: Any, *rest: Any) -> tirx.Expr:
        *taps, member, last = rest
        texel = group * GROUP + member
        value = lhs(o, h, w, lane, texel, *taps, last)
        return value if groups * GROUP == extent else te.if_then_else(texel < extent, value, tirx.const(0, number))

    def weight(o: Any, lane: Any, group: Any, *rest: Any) -> tirx.Expr:
        *taps, member, last = rest
        texel = group * GROUP + member
        return rhs(o, lane, texel if groups * GROUP == extent else te.min(texel, extent - 1), *taps, last)

    return dataclasses.replace(
        c, reduce={first: groups, **dict(window), "group": GROUP, last: lanes}, lhs=data, rhs=weight
    )
