"""Additions to TVM's schedule primitives.

They are setImage, autobroadcast (paper, Listing 4), multiply-add, and marks for passes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum

import numpy as np
from tvm import s_tir, tirx
from tvm_ffi.structural import structural_map

from romou.base.errors import BuildError
from romou.compiler.tir.traversal import substitute, with_fields
from romou.devices.backends.launch import IMAGE, JOINED_ROWS_IMAGE, ROW_AXES, SEPARATORS

# Scope of local memory with a separate part for each work-item, so that no barrier is needed (`passes/own_memory.py`).
OWN_MEMORY = "shared.own"
LANES = 4
# Marks on a block, which `passes/arithmetic.py` and `passes/fp16_storage.py` carry out. TVM keeps a block's annotations
# through lowering if they are pragmas.
AUTOBROADCAST, MULTIPLY_ADD, FP16_ARITHMETIC = (
    "pragma_romou_autobroadcast",
    "pragma_romou_multiply_add",
    "pragma_romou_half_arithmetic",
)

# On a loop, which `passes/tensor_cores.py` carries out. With the second mark, products of floats keep fp32's precision.
TENSOR_CORE_MARKS = TENSOR_CORES, SPLIT_TENSOR_CORES = "pragma_romou_tensor_cores", "pragma_romou_split_tensor_cores"

# On a loop, which `passes/double_buffers.py` carries out.
DOUBLE_BUFFER = "pragma_romou_double_buffer"

# On a loop, which `passes/code_generator.py` carries out.
UNROLL_BY_COMPILER = "pragma_romou_unroll_by_compiler"

# On loops of at least `_LEAST_ADVANCED` iterations, which `passes/advancing_pointers.py` carries out. In shorter loops,
# making the pointer costs more than it saves.
ADVANCE_POINTERS, _LEAST_ADVANCED = "pragma_romou_advance_pointers", 4

# On a loop with pointers, which stays although a compiler would unroll it (`passes/advancing_pointers.py`), and on any
# loop that stays, which `passes/keep_marked_loops.py` carries out.
KEEP_LOOP, KEEP_ANY_LOOP = "romou_keep_loop", "pragma_romou_keep_loop"

# On statements, which `passes/nan.py` carries out.
IGNORE_NAN = "pragma_romou_ignore_nan"

# On a function whose data and output no graph has placed. A knob then decides whether they are in images.
FREE_IMAGES = "romou.free_images"
# The exponentials and quotients of a function with this attribute are the device's own, see passes/short_functions.py.
NATIVE_FUNCTIONS = "romou.native_functions"
# Work groups of a function with this attribute wait for each other, see passes/kernel_attributes.py.
WAITING_GROUPS = "romou.waiting_groups"
# A function with this attribute checks its arguments in full, see passes/argument_checks.py.
CHECKS_ARGUMENTS = "romou.checks_arguments"
# Attribute of a function whose last parameters are sizes at run time: their largest values.
LARGEST_SIZES = "romou.largest_sizes"
# Attribute of such a function while it is scheduled: the sizes, which are no parameters then.
SIZES = "romou.sizes"


def tensors_of(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """Return the parameters that are tensors: all but sizes at run time."""
    return [param for param in func.params if isinstance(param.ty, tirx.BufferType)]


def is_image(buffer: tirx.Buffer) -> bool:
    """Return whether a parameter is marked as an image."""
    return str(buffer.scope()) in SEPARATORS


def is_texel(index: tirx.Expr) -> bool:
    """Return whether an index is the lanes of one texel, in order."""
    return is_lanes(index, LANES)


def is_lanes(index: tirx.Expr, lanes: int) -> bool:
    """Return whether an index is that of `lanes` neighbours, in order."""
    return (
        isinstance(index, tirx.Ramp)
        and int(index.lanes) == lanes
        and isinstance(index.stride, tirx.IntImm)
        and int(index.stride) == 1
    )


def texel_shape(shape: Sequence[int], scope: str) -> tuple[int, ...]:
    """Return the shape of a tensor in an image scope, in texels.

    (..., 4)  ->  (...)      and in a scope of `ROW_AXES`      (..., columns)  ->  (..., columns / 4)
    """
    return tuple(map(int, shape[:-1])) + ((int(shape[-1]) // LANES,) if scope in ROW_AXES else ())


def image_extents(shape: Sequence[int], scope: str) -> tuple[int, int, int]:
    """Return (width, height, layers) in texels of a tensor in an image scope."""
    return extents_of_texels(texel_shape(shape, scope), scope)


def extents_of_texels(texels: Sequence[int], scope: str) -> tuple[int, int, int]:
    """Return (width, height, layers) of the image of a tensor with a shape in texels (`texel_shape`)."""
    if scope in ROW_AXES:
        rows = len(texels) - ROW_AXES[scope]
        return int(np.prod(texels[rows:])), int(np.prod(texels[:rows])), 1
    rows = SEPARATORS[scope] % (len(texels) + 1)
    return int(np.prod(texels[rows:])), int(texels[rows - 1]), int(np.prod(texels[: rows - 1]))


def activation_scope(shape: Sequence[int]) -> str:
    """Return the scope of an activation's image. An image of one layer needs no array, as a matrix.

    (n, c, h, w, 4)  ->  `IMAGE`      (1, 1, h, w, 4)  ->  `JOINED_ROWS_IMAGE`
    """
    is_slice = len(shape) > 2 and all(int(extent) == 1 for extent in shape[:-3]) and int(shape[-1]) == LANES
    return JOINED_ROWS_IMAGE if is_slice else IMAGE


def image_axes(buffer: tirx.Buffer) -> tuple[int, ...]:
    """Return the axes of a tensor that count rows or columns of its image. Outside of them, the image reads as zero.

    Empty for buffers, and for matrices.
    """
    scope = str(buffer.scope())
    if not is_image(buffer) or (scope in ROW_AXES and scope != activation_scope(buffer.shape)):
        return ()
    columns = SEPARATORS[IMAGE if scope in ROW_AXES else scope] % len(buffer.shape)
    return (columns - 1, columns) if columns == len(buffer.shape) - 2 else (columns - 1,)


def set_image(func: tirx.PrimFunc, name: str, scope: str) -> tirx.PrimFunc:
    """Mark the parameter `name` of a scheduled function as an image (the paper's `setImage`, Listing 4).

    Returns the function with the parameter in memory scope `scope`. `address_images` rewrites its accesses.

    Raises
    ------
    BuildError
        No parameter has that name, or its last axis is not the four lanes of a texel (in a scope of `ROW_AXES`, not
        whole texels).
    """
    old = _parameter(func, name)
    columns = int(old.shape[-1])
    if columns != LANES and not (scope in ROW_AXES and columns % LANES == 0):
        raise BuildError(
            f"{name} cannot be an image: its last axis is {columns}, not the {LANES} lanes of a texel", buffer=name
        )
    return replace_parameter(func, name, scope=scope)


def replace_parameter(
    func: tirx.PrimFunc, name: str, *, shape: Sequence[int] | None = None, scope: str | None = None
) -> tirx.PrimFunc:
    """Return the function with its parameter `name` in another shape of the same axes, or in another memory scope."""
    old = _parameter(func, name)
    return _exchanged(func, old, tirx.decl_buffer(shape or old.shape, old.dtype, name, scope=scope or str(old.scope())))


def with_own_names(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with a name of its own for each parameter.

    multiply(lv, lv)      ->      multiply(lv, lv_1)
    """
    taken = {str(p.name) for p in func.params}
    seen: set[str] = set()
    for old in list(func.params):
        name, count = str(old.name), 0
        if name in seen and isinstance(old, tirx.Buffer):
            while name in taken:
                count += 1
                name = f"{old.name}_{count}"
            func = _exchanged(func, old, tirx.decl_buffer(old.shape, old.dtype, name, scope=str(old.scope())))
        seen.add(name)
        taken.add(name)
    return func


def _exchanged(func: tirx.PrimFunc, old: tirx.Buffer, new: tirx.Buffer) -> tirx.PrimFunc:
    params = [new if param.same_as(old) else param for param in func.params]
    return with_fields(func, params=params, body=substitute(func.body, {old: new}))


def _parameter(func: tirx.PrimFunc, name: str) -> tirx.Buffer:
    try:
        (parameter,) = (p for p in func.params if str(p.name) == name)
    except ValueError:
        raise BuildError(
            f"no parameter {name!r} to put in an image; there are {', '.join(str(p.name) for p in func.params)}"
        ) from None
    return parameter


def autobroadcast(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    """Multiply scalars with vectors in `block`, without a vector of copies (the paper's `autobroadcast`, Sec. 4.1)."""
    sch.annotate(block, AUTOBROADCAST, 1)


def broadcast_scalars(stmt: tirx.Stmt) -> tirx.Stmt:
    """Compute with scalars and vectors in `stmt`, as `autobroadcast` does in a block."""
    return tirx.AttrStmt(tirx.const(0, "int32"), AUTOBROADCAST, tirx.const(1, "int32"), stmt)


def multiply_add(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, function: str) -> None:
    """Write a * b + c in `block` as one call of `function`.

    function: "fma", or "mad", which leaves the rounding in between undefined.
    """
    sch.annotate(block, MULTIPLY_ADD, function)


def fp16_arithmetic(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    """Compute in fp16 in the kernel of `block`. Other kernels compute in fp32 (`passes/fp16_storage.py`)."""
    sch.annotate(block, FP16_ARITHMETIC, 1)


def tensor_cores(
    sch: s_tir.Schedule, loop: s_tir.schedule.LoopRV, steps: int = 1, *, splits_floats: bool = False
) -> None:
    """Sum up the products of the nest of `loop` with tensor cores.

    `compiler/operators/contraction/tensor_core.py` shows the nest.

    steps: most nests in a row that stage their operands together.
    splits_floats: whether each float is the sum of two numbers of TF32, instead of rounded to one.
    """
    sch.annotate(loop, SPLIT_TENSOR_CORES if splits_floats else TENSOR_CORES, steps)


def double_buffer(sch: s_tir.Schedule, loop: s_tir.schedule.LoopRV) -> None:
    """Stage the tiles of `loop` in two halves of local memory: the next tile is loaded while one is summed up."""
    sch.annotate(loop, DOUBLE_BUFFER, 1)


def unroll_by_compiler(sch: s_tir.Schedule, loop: s_tir.schedule.LoopRV) -> None:
    """Let the device's compiler unroll `loop`, so that a kernel of thousands of statements has a short text."""
    sch.annotate(loop, UNROLL_BY_COMPILER, 1)


def advance_pointers(func: tirx.PrimFunc, read_ahead: int = 1) -> tirx.PrimFunc:
    """Mark the innermost serial loops of a scheduled function for pointers that advance with them.

    read_ahead: registers of an iteration that reads odd rows in vectors (`passes/odd_sums.py`). 1 for no vectors.
    """

    def marked(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.SERIAL or int(loop.extent) < _LEAST_ADVANCED:
            return loop
        return _with_mark(loop, ADVANCE_POINTERS, read_ahead)

    return func.with_body(structural_map(func.body, (tirx.For, marked)))


def _with_mark(loop: tirx.For, mark: str, value: int) -> tirx.For:
    return with_fields(loop, annotations={**loop.annotations, mark: value})


def keep_loops(func: tirx.PrimFunc, names: Collection[str]) -> tirx.PrimFunc:
    """Mark the serial loops of a scheduled function with these names, which a compiler must not unroll."""

    def marked(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.SERIAL or str(loop.loop_var.name) not in names:
            return loop
        return _with_mark(loop, KEEP_ANY_LOOP, 1)

    return func.with_body(structural_map(func.body, (tirx.For, marked)))


def ignore_nan(stmt: tirx.Stmt) -> tirx.Stmt:
    """Leave maxima and minima in `stmt` undefined for NaN. Others return NaN."""
    return tirx.AttrStmt(tirx.const(0, "int32"), IGNORE_NAN, tirx.const(1, "int32"), stmt)


class MemoryKind(str, Enum):
    """A kind of memory. The values are choices of the knobs `data`, `weight` and `output`, and stored in records."""

    BUFFER = "buffer"
    IMAGE = "image"

    # Messages, records and kernels show only the word.
    __str__, __repr__ = str.__str__, str.__repr__
