"""Whole-texel reads and writes of the buffers that setImage marked (paper, Section 4.1).

TVM's own TextureFlatten scalarises stores and is not connected to any pipeline that works. This pass replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi.structural import structural_map

from romou.base.errors import BuildError
from romou.compiler.passes.image_bounds import read_inside
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.primitives import LANES, activation_scope, is_image, is_texel, replace_parameter, tensors_of
from romou.compiler.tir.traversal import function_pass, with_fields
from romou.devices.backends.launch import IMAGE, INSIDE_IMAGE, JOINED_ROWS_IMAGE, ROW_AXES, SEPARATORS, SLICE_IMAGE

# A pass runs inside TVM: without this, its error would come out as a RuntimeError.
tvm_ffi.register_error("BuildError", BuildError)


def _coordinates(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
    rows = SEPARATORS[str(buffer.scope())] % len(indices)

    def flat(first: int, last: int) -> tirx.Expr:
        total: tirx.Expr = tirx.const(0, "int32")
        for axis in range(first, last):
            total = total * buffer.shape[axis] + indices[axis]
        return total

    if str(buffer.scope()) in ROW_AXES:
        rows = len(indices) - ROW_AXES[str(buffer.scope())]
        texel = tvm.sym.Analyzer().simplify(tirx.floordiv(indices[-1].base, LANES))
        return flat(rows, len(indices) - 1) * (buffer.shape[-1] // LANES) + texel, flat(0, rows), tirx.const(0, "int32")
    return flat(rows, len(indices) - 1), flat(rows - 1, rows), flat(0, rows - 1)


@function_pass
def address_images(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Access images in whole texels, after VectorizeLoop and before FlattenBuffer, while indices are the tensor's axes.

        image[n, c, y, x, 0:4]            ->  texture2d_load(image, x, y, n * C + c)      a read_only image
        image[n, c, y, x, 0:4] = value    ->  texture2d_store(image, x, y, n * C + c, value)      write_only
        matrix[y, x * 4:x * 4 + 4]        ->  texture2d_load(matrix, x, y, 0)                     in scope `ROWS_IMAGE`
        matrix[y, h, x * 4:x * 4 + 4]
            ->  texture2d_load(matrix, h * (columns / 4) + x, y, 0)        `JOINED_ROWS_IMAGE`

    Reads outside the image give zero. Scopes mark images without such reads, and images of one layer with them.

    Raises
    ------
    BuildError
        A single lane of a texel is accessed, or an image is read and written, which OpenCL 1.2 does not allow.
    """
    arrays = [p for p in tensors_of(func) if str(p.scope()) == IMAGE]
    slices = [p for p in tensors_of(func) if str(p.scope()) == JOINED_ROWS_IMAGE == activation_scope(p.shape)]
    inside = {str(image.name) for image in read_inside(func, [*arrays, *slices])}
    scopes = {str(image.name): INSIDE_IMAGE for image in arrays if str(image.name) in inside}
    scopes |= {str(image.name): SLICE_IMAGE for image in slices if str(image.name) not in inside}
    for name, scope in scopes.items():
        func = replace_parameter(func, name, scope=scope)
    images = [p for p in tensors_of(func) if is_image(p)]
    if not images:
        return func
    read: set[int] = set()
    written: set[int] = set()

    def number_of(buffer: tirx.Expr) -> int | None:
        return next((i for i, image in enumerate(images) if image.same_as(buffer)), None)

    def load(access: tvm.ir.TensorLoad) -> tirx.Expr:
        if (number := number_of(access.source)) is None:
            return access
        read.add(number)
        return _texel_load(access)

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        if (number := number_of(access.buffer)) is None:
            return access
        written.add(number)
        return _texel_store(access)

    body = structural_map(func.body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])
    if both := sorted(read & written):
        name = str(images[both[0]].name)
        raise BuildError(
            f"image {name} is read and written by one kernel; OpenCL 1.2 allows one of both",
            hint="Keep it in a buffer.",
            buffer=name,
        )
    return func.with_body(body)


def _texel_load(access: tvm.ir.TensorLoad) -> tirx.Expr:
    buffer, indices = access.source, list(access.indices)
    lanes = _whole_texel(buffer, indices)
    return tirx.call_intrin(
        f"{buffer.dtype}x{LANES}",
        "tirx.texture2d_load",
        buffer.data,
        *_coordinates(buffer, indices),
        _texel_bits(buffer),
        tirx.Ramp(0, 1, lanes.lanes),
    )


def _texel_store(access: tirx.BufferStore) -> tirx.Stmt:
    buffer, indices = access.buffer, list(access.indices)
    _whole_texel(buffer, indices)
    arguments = (buffer.data, *_coordinates(buffer, indices), _texel_bits(buffer), access.value)
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.texture2d_store", *arguments))


def _whole_texel(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> tirx.Ramp:
    """Return the lanes of an access. Raises BuildError if they are not one whole texel."""
    lanes = indices[-1]
    # A column of a matrix may be in the middle of a texel.
    if not is_texel(lanes) or not tvm.sym.Analyzer().can_prove_equal(tirx.floormod(lanes.base, LANES), 0):
        raise BuildError(
            f"image {buffer.name}: lane {lanes} of a texel is accessed by itself; an image is read and written in"
            f" texels of {LANES} lanes",
            hint="Vectorize the lane axis by 4, or keep the tensor in a buffer.",
            buffer=str(buffer.name),
        )
    return lanes


def _texel_bits(buffer: tirx.Buffer) -> tirx.Expr:
    return tirx.const(LANES * np.dtype(str(buffer.dtype)).itemsize * 8, "int32")


@function_pass
def name_stored_texels(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Name each texel that is written to an image, after the last simplification.

    TVM's code generator confuses two texels whose expressions have the same text, even if registers changed in between.
    """

    def store(stmt: tirx.Evaluate) -> tirx.Stmt:
        call = stmt.value
        if op_name(call) != "tirx.texture2d_store":
            return stmt
        *destination, value = call.args
        texel = tirx.Var("texel", value.ty)
        return tirx.SeqStmt(
            [
                tirx.Bind(texel, value),
                tirx.Evaluate(with_fields(call, args=[*destination, texel], ret_ty=call.ty)),
            ]
        )

    return func.with_body(structural_map(func.body, (tirx.Evaluate, store)))
