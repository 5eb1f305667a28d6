"""The knobs of a contraction: which choices an operator has, and which configs are valid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from romou.base.knob import Choice, Knob
from romou.base.limits import Limits
from romou.base.space import Choices, Columns, Config, Space
from romou.compiler.operators.contraction import tensor_core
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.native_functions import FUNCTIONS
from romou.compiler.operators.waves import WAVE
from romou.compiler.scheduling.loops import VECTOR_WIDTH, padded_texels
from romou.compiler.tir.primitives import LANES, MemoryKind
from romou.devices.backends.launch import COPIED, UNIFORM

# Most float4 accumulators of one work-item. With more, every known GPU spills.
MAX_TILE = 32
# Fewest iterations of the reduction with double-buffered local memory.
_MIN_BUFFERED = 3
# Choice of the knob `unroll`: the device's compiler unrolls the whole iteration between two barriers. The number limits
# the products of such an iteration.
ITERATION, _MAX_UNROLLED = "iteration", 2048
# Choices of the knob `accumulate`. `MIXED` sums up to `MOST_MIXED` products in fp16, and these sums in fp32. The
# relative error of n products is fp16's, times the root of n / 2.
FP32, FP16, MIXED = "float32", "float16", "mixed"
MOST_MIXED = 64
# Choices of the knob `store`.
ITEM, GROUP = "item", "group"
# Choices of the knobs for the memory of operands, and the devices that have them.
PLACES = tuple(kind.value for kind in MemoryKind)
HAS_IMAGES = "image: devices with large enough images; the default of sums of products if read faster than buffers"
# Knobs of element-wise kernels, too.
DATA, OUTPUT = (
    Knob(name=name, choices=PLACES, default=MemoryKind.BUFFER.value, help=f"memory that the {use}", devices=HAS_IMAGES)
    for name, use in (("data", "activations are read from"), ("output", "output is written to"))
)
# Spaces of quantized products lack the knob if no image can hold the weight.
WEIGHT = Knob(
    name="weight",
    choices=PLACES,
    default=MemoryKind.BUFFER.value,
    help="memory that the weight is read from",
    devices=f"{HAS_IMAGES}. Quantized weights: OpenCL, the default on Adreno",
    absent=MemoryKind.BUFFER.value,
)
AUTOBROADCAST = Knob(
    name="autobroadcast",
    choices=(False, True),
    default=True,
    help=(
        "write scalar * vector instead of a vector of copies. The paper gains 4.9 times by it on an Adreno 640; under"
        " Mesa's compilers it changes no instruction (benchmarks/bench_listing4.py)"
    ),
    devices="yes: OpenCL, Vulkan; in element-wise kernels, mobile GPUs with images that gain by it",
    is_spelling=True,
)


# Pixels of a tile that a preset may leave out, because every choice multiplies the configs.
_FINE_TILES = (5, 6)
_LOCAL = (0, 1, 2, 4, 8, 16)
# Warps of this many work-items leave lanes idle if a group has the pixels of a single row.
_WIDE_WARP = 32
# The order of the knobs numbers the configs. Several rows exclude most choices of others, so they come first: blocks of
# a space are cut by the first knob.
KNOBS = (
    Knob(
        name="wg_h",
        choices=(1, 2, 4),
        default=1,
        help="work-items of a group along the rows of pixels",
        devices="mobile GPUs with warps of at least 32",
        exists_on=lambda limits: limits.is_mobile and limits.warp_size >= _WIDE_WARP,
        scales_outputs=True,
        absent=1,
    ),
    DATA,
    WEIGHT,
    OUTPUT,
    Knob(
        name="pixels", choices=("flat", "rows"), default="flat", help="pixels in one row, or row by row as images need"
    ),
    Knob(
        name="accumulate",
        choices=(FP32, FP16, MIXED),
        default=FP32,
        help=f"type of the partial sums; mixed: of about {MOST_MIXED} products in fp16, and of these sums in fp32",
        devices="float16, mixed: devices that compute with fp16",
    ),
    Knob(
        name="tile_o",
        choices=(1, 2, 4),
        default=1,
        help="texels of output channels that a work-item computes",
        scales_outputs=True,
    ),
    Knob(
        name="tile_h",
        choices=(1, 2, 4),
        default=1,
        help="rows of pixels that a work-item computes",
        scales_outputs=True,
    ),
    Knob(
        name="tile_w",
        choices=(1, 2, 3, 4, 5, 6, 7, 8),
        default=4,
        help="pixels of a row that a work-item computes",
        devices="5, 6: Mali from Valhall on",
        scales_outputs=True,
    ),
    Knob(
        name="wg_o",
        choices=(1, 2, 4, 8, 16, 32, 64),
        default=8,
        help="work-items of a group along the output channels",
        scales_outputs=True,
    ),
    Knob(
        name="wg_w",
        choices=(1, 2, 4, 8, 16, 32, 64, 128),
        default=8,
        help="work-items of a group along the pixels",
        scales_outputs=True,
    ),
    Knob(
        name="split_k",
        choices=(1, 2, 4, 8, 16, 32, 64),
        default=1,
        help="work-items that share a sum and add up their parts in local memory",
    ),
    Knob(
        name="arrangement",
        choices=("blocked", "striped"),
        default="blocked",
        help="neighbouring outputs belong to one work-item, or to neighbours",
    ),
    Knob(
        name="local",
        choices=_LOCAL,
        default=0,
        help="texels of the reduction staged in local memory at a time; 0: none",
    ),
    Knob(
        name="unroll",
        choices=("lanes", "window", tensor_core.TAPS, ITERATION),
        default="lanes",
        help=(
            "loops that are unrolled: lanes alone, the window too, or a whole step between barriers; taps: one tap at a"
            " time"
        ),
        devices="taps: tensor cores",
    ),
    VECTOR_WIDTH,
    AUTOBROADCAST,
    Knob(
        name="multiply_add",
        choices=("mad", "fma", "plain", tensor_core.MMA, tensor_core.TF32, tensor_core.COOPMAT, tensor_core.TF32X3),
        default="mad",
        help=(
            "how products are added: mad(), fma(), * and +, or by tensor cores (mma: fp16, tf32: floats rounded to"
            " TF32, coopmat: fp16 as matrices, tf32x3: floats in their own precision)"
        ),
        devices="mad, plain: OpenCL; mma, tf32, coopmat, tf32x3: tensor cores",
        is_spelling=True,
    ),
    Knob(
        name="steps",
        choices=tensor_core.STEPS,
        default=1,
        help="steps of the reduction loaded before the first is multiplied",
        devices="tensor cores",
        exists_on=lambda limits: limits.has_tensor_cores or limits.has_cooperative_matrices,
        absent=1,
    ),
    Knob(
        name="local_buffers",
        choices=(1, 2),
        default=1,
        help="copies of the staged operands in local memory: 2 loads one while the other is used",
    ),
    Knob(
        name="store",
        choices=(ITEM, GROUP),
        default=ITEM,
        help="each work-item stores its sums, or the group stores all of them from local memory, in memory's order",
        devices="group: the variants conv_simd_buffered and SGEMM_buffered",
        absent=ITEM,
    ),
    FUNCTIONS,
    WAVE,
)


def space_of(
    flat: Contraction,
    rows: Contraction,
    limits: Limits,
    dtype: str,
    own: Mapping[str, Sequence[Choice]],
    *,
    splits_floats: bool = False,
) -> Space:
    """Return the space of a contraction: the choices of each knob, and the constraints between knobs.

    flat, rows: the contraction with its pixels in one row, and row by row. The knob `pixels` chooses one of them.
    dtype: type of numbers in memory.
    own: choices that do not follow from the extents: memory of operands, pixels and sums. Without choices of `store`,
        the space lacks that knob.
    splits_floats: whether tensor cores may multiply floats that are split, if that is their choice.
    """
    instruction = tensor_core.instruction(dtype, limits)
    has_mma = instruction is not None and (instruction != tensor_core.TF32X3 or splits_floats)
    has_mma = has_mma and tensor_core.can_use(flat)
    matrix_product = instruction if has_mma else None
    steps = () if instruction is None else tensor_core.STEPS if has_mma else (1,)
    choices: dict[str, Choices] = {
        **_tile_choices(flat, rows, has_mma, limits),
        **_reduction_choices(flat, has_mma),
        **_spelling_choices(flat, limits, matrix_product),
        "steps": steps,
        "store": (),
    }
    space = Space.of(KNOBS, limits, choices | dict(own))
    if has_mma:
        space.add_constraint(
            lambda config: {
                "whole warps on tensor cores, even splits elsewhere": tensor_core.is_allowed(config, flat),
                "one spelling on tensor cores": (tensor_core.is_mma(config) == False)  # noqa: E712
                | (config["autobroadcast"] == limits.has_vector_arithmetic),
            }
        )
    if limits.searches_waves:
        space.add_constraint(lambda config: _wave_constraints(config, flat, dtype))
    space.add_constraint(lambda config: _constraints(config, flat, rows, limits))
    return space


def _wave_constraints(config: Columns, flat: Contraction, dtype: str) -> dict[str, Any]:
    is_in_buffer = (config["weight"] == MemoryKind.BUFFER) & (config["wg_o"] == 1) & (config["local"] == 0)
    # Other loads are calls of functions of pointers.
    is_indexed = (config["vector_width"] != 2) & ((config["accumulate"] == FP16) | (dtype == "float32"))
    has_units = (config["vector_width"] == LANES) & (config["tile_o"] % 2 == 0)
    has_units = has_units & (flat.extents[0] % config["tile_o"] == 0)
    return {
        "a wave's work-items load the same weights, from a buffer": (
            (config[WAVE.name] != UNIFORM) & (config[WAVE.name] != COPIED)
        )
        | (is_in_buffer & is_indexed),
        "whole units of 16 bytes are copied, by one kernel of several work-items": (config[WAVE.name] != COPIED)
        | (has_units & (config["split_k"] == 1) & (config["wg_h"] * config["wg_w"] > 1)),
    }


def _tile_choices(flat: Contraction, rows: Contraction, has_mma: bool, limits: Limits) -> dict[str, Choices]:
    """Choices for register tiles and work groups.

    Tiles that tensor cores do not support are left out if there are tensor cores, because every choice multiplies the
    number of configs to check.
    """
    o, is_shared = flat.extents[0], flat.lhs_varies == "never"
    h, w = (max(c.extents[axis] for c in (flat, rows)) for axis in (1, 2))
    has_rows = not has_mma and not flat.is_batched
    left_out = () if limits.preset.products.has_fine_tiles else _FINE_TILES
    return {
        "wg_h": lambda t: t == 1 or (has_rows and t < 2 * h),
        "tile_o": lambda t: t == 1 or (is_shared and t <= o),
        "tile_h": lambda t: t == 1 or (has_rows and t <= h),
        "tile_w": lambda t: t <= w and t not in left_out and (t & (t - 1) == 0 or not has_mma),
        "wg_o": lambda t: t < 2 * o or (has_mma and t == tensor_core.WARP_O),
        "wg_w": lambda t: t < 2 * w or (has_mma and t == tensor_core.WARP_W),
        "arrangement": lambda arrangement: arrangement == "blocked" or not has_mma,
    }


def _reduction_choices(flat: Contraction, has_mma: bool) -> dict[str, Choices]:
    """Choices for splitting, staging and unrolling the reduction."""
    is_shared = flat.lhs_varies == "never"
    first, *window = flat.reduce.values()
    can_stage = is_shared and flat.rhs_vector != "none"
    local = [s for s in _LOCAL if s == 0 or (can_stage and first % s == 0 and (s >= tensor_core.GROUP or not has_mma))]
    has_window = len(window) > 1 and math.prod(window[:-1]) > 1
    unroll = ["lanes"] + ["window"] * has_window + [tensor_core.TAPS] * (has_window and has_mma)
    # With only two iterations, the kernel would wait for half of all loads, as without a second buffer.
    can_buffer = any(0 < _MIN_BUFFERED * s <= first for s in local)
    return {
        "split_k": lambda k: k == 1 or (is_shared and (first % k == 0 or has_mma)),
        "local": local,
        "unroll": unroll + [ITERATION] * (len(local) > 1),
        "local_buffers": lambda count: count == 1 or can_buffer,
    }


def _spelling_choices(flat: Contraction, limits: Limits, matrix_product: str | None) -> dict[str, Choices]:
    """Choices for vectors, and for how arithmetic is spelled."""
    # If both factors are vectors, or neither is, nothing is broadcast.
    is_broadcast = limits.has_vector_arithmetic and flat.lhs_varies != "by lane" and flat.vector
    products = ["mad", "fma", "plain"] if limits.has_vector_arithmetic else ["fma"]
    return {
        "vector_width": lambda width: width == (LANES if flat.vector else 1) or (flat.vector and not matrix_product),
        "autobroadcast": [True, False] if is_broadcast else [False],
        "multiply_add": [*products, *([matrix_product] if matrix_product else [])],
    }


def _constraints(config: Columns, flat: Contraction, rows: Contraction, limits: Limits) -> dict[str, Any]:
    """Return reason -> condition between knobs, for one config or for columns of many.

    They are written with & and |, and compare with False, because `not` does not apply to columns.
    """
    first, *window = flat.reduce.values()
    is_rows = config.get("pixels", "flat") == "rows"
    o, h, w = (
        flat_extent + is_rows * (extent - flat_extent)
        for flat_extent, extent in zip(flat.extents, rows.extents, strict=True)
    )
    tile = config["tile_o"] * config["tile_h"] * config["tile_w"]
    group_o, group_w = config["wg_o"] * config["tile_o"], config["wg_w"] * config["tile_w"]
    items_h: Any = config.get("wg_h", 1)
    split, is_mma = config["split_k"], tensor_core.is_mma(config)
    is_stored_whole = config["output"] == MemoryKind.IMAGE
    has_image = (config["data"] == MemoryKind.IMAGE) | (config["weight"] == MemoryKind.IMAGE) | is_stored_whole
    is_dense = ((config["tile_o"] == 1) | (config["wg_o"] == 1)) & ((config["tile_w"] == 1) | (config["wg_w"] == 1))
    steps = config["local"] * math.prod(window)
    can_unroll_iteration = (steps > window[-1]) & (steps * tile * LANES <= _MAX_UNROLLED) & (is_mma == False)  # noqa: E712
    # The final sum deals out the elements of the tile, or the elements of each row. TVM proves that all are dealt out
    # only for powers of two, or within a row.
    is_dealt_out = (tile & (tile - 1) == 0) | (split <= config["tile_w"])
    has_iterations = (config["local"] > 0) & (config["local"] * _MIN_BUFFERED <= first)
    return {
        "no more rows in a tile than in the output": config["tile_h"] <= h,
        "no more columns in a tile than in the output": config["tile_w"] <= w,
        f"at most {MAX_TILE} texels of sums in registers": tile <= MAX_TILE,
        # If both arrangements are the same, there is one.
        "striped and blocked differ": (config["arrangement"] == "blocked") | (is_dense == False),  # noqa: E712
        # Without vectors along the channels, an image is read in vectors along the reduction.
        "images are read in whole texels": (config["vector_width"] == LANES) | (has_image == False) | (not flat.vector),  # noqa: E712
        "work-items of a group, device's limit": config["wg_o"] * items_h * config["wg_w"] * split
        <= limits.max_work_group_size,
        # A larger group computes mostly padding.
        "a group less than twice as large as the channels": (config["wg_o"] == 1 + 7 * is_mma) | (group_o < 2 * o),
        "a group less than twice as large as the pixels": (config["wg_w"] == 1 + 3 * is_mma) | (group_w < 2 * w),
        "a group less than twice as high as the rows": (items_h == 1) | (items_h * config["tile_h"] < 2 * h),
        "sums of several rows of work-items are neither staged nor split": (items_h == 1)
        | ((config["local"] == 0) & (split == 1)),
        "split sums are not staged, and dealt out": (split == 1) | ((config["local"] == 0) & is_dealt_out),
        "sums of mixed precision are not staged": (config["accumulate"] != MIXED) | (config["local"] == 0),
        "a second buffer is for a loop of stages": (config["local_buffers"] == 1)
        | (has_iterations & (is_mma == False)),  # noqa: E712
        "an unrolled stage is of several steps, and short": (config["unroll"] != ITERATION) | can_unroll_iteration,
        "local memory, device's limit": local_bytes(config, flat) <= limits.local_memory_bytes,
    }


def store_constraints(config: Columns, is_along_channels: bool) -> dict[str, Any]:
    """Return reason -> condition of the knob `store`.

    is_along_channels: whether neighbours in the output are channels, as in matrices. Otherwise they are pixels.
    """
    side = "o" if is_along_channels else "w"
    is_spread = (config[f"tile_{side}"] > 1) & (config["arrangement"] == "blocked")
    # Neighbouring work-items have neighbouring pixels. Only with one column of work-items, they have channels.
    is_apart = is_spread | (config["wg_w"] > 1) if is_along_channels else is_spread
    is_plain = (config["local"] == 0) & (config["split_k"] == 1) & (config.get("wg_h", 1) == 1)
    return {
        "a group stores sums that neighbours have apart, neither staged nor split": (config["store"] == ITEM)
        | (is_apart & is_plain & (config["output"] == MemoryKind.BUFFER))
    }


def sums_of(c: Contraction, dtype: str, limits: Limits) -> list[str]:
    """Return the types that products may be summed up in. Sums are in fp16 only if the tensors are.

    The check of each trial sees the error of a long sum.
    """
    if dtype != "float16" or not limits.has_fp16_arithmetic:
        return [FP32]
    return [FP32, FP16] + [MIXED] * (math.prod(c.reduce.values()) > MOST_MIXED)


def steps_of_sum(c: Contraction) -> int:
    """Return the steps of the first reduction axis that `MIXED` sums up in fp16 at a time. They divide the axis.

    Over a window, a quarter of `MOST_MIXED` is summed up: phones' compilers unroll a short block, load ahead for all of
    it, and spill.
    """
    first, *window, lanes = c.reduce.values()
    most = MOST_MIXED // 4 if math.prod(window) > 1 else MOST_MIXED
    return max((k for k in range(1, first + 1) if first % k == 0 and k * lanes * math.prod(window) <= most), default=1)


def rows_of_items(config: Config) -> int:
    """Return the work-items of a group along the rows of pixels. Devices with narrow warps have no such knob."""
    return int(config.get("wg_h", 1))


def local_bytes(config: Columns, c: Contraction) -> Any:
    """Return the local memory of a work group in bytes, for one config or for columns of many.

    Numbers are fp32 there, except with sums in fp16 and for tensor cores.
    """
    group_o, group_w = config["wg_o"] * config["tile_o"], config["wg_w"] * config["tile_w"] * config["tile_h"]
    number = number_bytes(config)
    outputs = number * group_o * group_w * LANES
    split, texels = config["split_k"], config["tile_o"] * config["tile_w"] * config["tile_h"]
    # Texels are dealt out to the pieces, or numbers if there are too few and no image takes whole texels. If these are
    # too few as well, TVM allocates one for each piece, unless there is one texel.
    dealt = texels * np.where((texels >= split) | (config["output"] == MemoryKind.IMAGE), 1, LANES)
    partial = (split > 1) * split * outputs * np.where(texels > 1, np.maximum(split // dealt, 1), 1)
    if "store" in config:
        partial = partial + (config["store"] == GROUP) * outputs
    *window, lanes = list(c.reduce.values())[1:]
    local, is_mma = config["local"], tensor_core.is_mma(config)
    patch, kernel = math.prod(window) * group_w, math.prod(window) * LANES * group_o
    # Rows along memory are padded against bank conflicts.
    if c.lhs_neighbours == "reduction":
        patch = padded_texels(patch, (c.texel or lanes) * number, local)
    if c.rhs_vector == "reduction":
        kernel = padded_texels(kernel, lanes * number, local)
    staged = number * config["local_buffers"] * local * ((c.texel or lanes) * patch + lanes * kernel)
    # If no config has tensor cores, nothing depends on their knobs.
    return partial + (staged if is_mma is False else staged + is_mma * (tensor_core.staged_bytes(config) - staged))


def number_bytes(config: Columns) -> Any:
    """Return the bytes of a number in arithmetic."""
    return 4 - 2 * (config["accumulate"] == "float16")
