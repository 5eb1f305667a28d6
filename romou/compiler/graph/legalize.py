"""Lower resizes with positions in whole numbers, and gathers without TVM's warning.

    half_pixel       position = ((2 i + 1) * extent + count) / (2 * count) - 1
    align_corners    position = i * (extent - 1) / (count - 1)
    asymmetric       position = i * extent / count

TVM computes positions in fp32. 34.5 * (1 / 3) - 0.5 is then below 11, so element 34 is not the input's element 11 but
takes 1e-6 of element 10.

TVM simplifies the bounds of a pool's windows by its extents, at even ones otherwise than at odd ones. If extents are
sizes at run time, a pool is lowered for unknown extents.

A scatter is a function of rows, for which a family has kernels. TVM's own is a single work-item for each row.

TVM warns on stderr of each gather that does not check its indices. `bound_indices` has put them in range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import tvm
from tvm import relax, te, tirx, topi

from romou.compiler.tir.expressions import digits_of, number_of, static_shape
from tvm_patches.onnx_converters.sorted_rows import scattered

# Roundings of a / b, a >= 0. The simplifier splits floordiv, so that rows are computed twice, but keeps truncdiv.
_ROUNDED: dict[str, Callable[[tirx.Expr, int], tirx.Expr]] = {
    "floor": lambda a, b: tirx.truncdiv(a, b),
    "ceil": lambda a, b: tirx.truncdiv(a + (b - 1), b),
    "round_prefer_floor": lambda a, b: tirx.truncdiv(a * 2 + (b - 1), b * 2),
    "round_prefer_ceil": lambda a, b: tirx.truncdiv(a * 2 + b, b * 2),
}


def _resize2d(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Resize NCHW or NCHWc, to the nearest elements or by linear interpolation."""
    data, size = call.args
    counts = [int(count) for count in size.values]
    transform, rounding = str(call.attrs.coordinate_transformation_mode), str(call.attrs.rounding_method)

    def resize(x: te.Tensor) -> te.Tensor:
        extents = [int(extent) for extent in x.shape[2:4]]

        def read(i: Sequence[tirx.Expr], row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
            return x[(*i[:2], row, column, *i[4:])]

        def nearest(*i: tirx.Var) -> tirx.Expr:
            places = []
            for step, extent, count in zip(i[2:4], extents, counts, strict=True):
                numerator, divisor, offset = _position(step, extent, count, transform)
                places.append(_clamped(_ROUNDED[rounding](numerator, divisor) - offset, extent))
            return read(i, *places)

        def linear(*i: tirx.Var) -> tirx.Expr:
            def wide(row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
                return read(i, row, column).astype("float32")

            between_rows, between_columns = (
                _between(*_position(step, extent, count, transform), extent)
                for step, extent, count in zip(i[2:4], extents, counts, strict=True)
            )
            return between_rows(lambda row: between_columns(partial(wide, row))).astype(str(x.dtype))

        element = nearest if call.attrs.method == "nearest_neighbor" else linear
        return te.compute([*x.shape[:2], *counts, *x.shape[4:]], element, name="resize")

    return bb.call_te(resize, data)


def _position(step: tirx.Expr, extent: int, count: int, transform: str) -> tuple[tirx.Expr, int, int]:
    """Return (a >= 0, b, c) for the position a / b - c of an element."""
    if transform == "align_corners":
        extent, count = extent - 1, max(count - 1, 1)
    common = math.gcd(extent, count)
    extent, count = extent // common, count // common
    if transform == "half_pixel":
        both = extent + count
        return (step * extent + both // 2, count, 1) if both % 2 == 0 else (step * (2 * extent) + both, count * 2, 1)
    return step * extent, count, 0


def _clamped(index: tirx.Expr, extent: int) -> tirx.Expr:
    return tirx.max(tirx.min(index, extent - 1), 0)


def _between(
    numerator: tirx.Expr, divisor: int, offset: int, extent: int
) -> Callable[[Callable[[tirx.Expr], tirx.Expr]], tirx.Expr]:
    """Return a function that interpolates values at the indices before and behind a position."""
    before = tirx.truncdiv(numerator, divisor) - offset
    if divisor == 1:
        return lambda value: value(before)
    share = tirx.truncmod(numerator, divisor).astype("float32") * tirx.const(1 / divisor, "float32")

    def interpolated(value: Callable[[tirx.Expr], tirx.Expr]) -> tirx.Expr:
        return value(_clamped(before, extent)) * (1 - share) + value(_clamped(before + 1, extent)) * share

    return interpolated


def _take(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis = call.attrs.axis
    if axis is None or call.attrs.mode != "fast":
        return tvm.ir.Op.get("relax.take").get_attr("FLegalize")(bb, call)

    def take(x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        first = int(axis) % len(x.shape)
        after = first + len(indices.shape)

        def element(*i: tirx.Var) -> tirx.Expr:
            return x[(*i[:first], indices[i[first:after]], *i[after:])]

        shape = [*x.shape[:first], *indices.shape, *x.shape[first + 1 :]]
        return te.compute(shape, element, name="T_take", tag="injective")

    return bb.call_te(take, *call.args)


def _scatter_elements(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, indices, updates = call.args
    axis = int(call.attrs.axis) % len(static_shape(data))
    return scattered(bb, data, indices, updates, axis, str(call.attrs.reduction))


def _scatter_nd(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Scatter the rows of a matrix: the axes that an index has a coordinate of are one axis, and the others are one."""
    data, indices, updates = call.args
    shape, (*several, depth) = static_shape(data), static_shape(indices)
    count, (n, width) = math.prod(several), (math.prod(shape[:depth]), math.prod(shape[depth:]))

    def places(x: te.Tensor) -> te.Tensor:
        def place(number: tirx.Var, _: tirx.Var) -> tirx.Expr:
            at = digits_of(number, several)
            return number_of([x[(*at, tirx.const(axis, "int32"))] for axis in range(depth)], shape[:depth])

        return te.compute((count, 1), place, name="places", tag="injective")

    def reshaped(x: relax.Expr, *extents: int) -> relax.Expr:
        return bb.emit(bb.call_te(topi.reshape, x, extents))

    rows, at, new = reshaped(data, n, width), bb.emit(bb.call_te(places, indices)), reshaped(updates, count, width)
    return bb.call_te(topi.reshape, scattered(bb, rows, at, new, 0, str(call.attrs.reduction)), shape)


def _pool_of_any_extents(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (data,), shape, dtype = call.args, static_shape(call.args[0]), str(call.args[0].ty.dtype)
    letters = filter(str.isalpha, str(call.attrs.layout))
    free = [
        tirx.Var(f"extent_{letter}", "int64") if letter in "DHW" and extent > 1 else extent
        for letter, extent in zip(letters, shape, strict=True)
    ]
    builder, whole = relax.BlockBuilder(), relax.Var("data", relax.TensorType(free, dtype))
    with builder.function("main", [whole]):
        pooled = relax.Call(call.op, [whole], call.attrs)
        builder.emit_func_output(builder.emit(call.op.get_attr("FLegalize")(builder, pooled)))
    ((var, func),) = (each for each in builder.get().functions_items() if isinstance(each[1], tirx.PrimFunc))
    func = func.specialize({func.params[0]: tirx.decl_buffer([tirx.const(extent, "int64") for extent in shape], dtype)})
    return relax.call_tir(bb.add_func(func, var.name_hint), [data], out_ty=call.ty)


# The table of overrides for `relax.transform.LegalizeOps`.
LEGALIZED: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
    "relax.image.resize2d": _resize2d,
    "relax.take": _take,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
}
# And of more for a model with sizes at run time.
OF_SIZES = {f"relax.nn.{kind}_pool{rank}d": _pool_of_any_extents for kind in ("avg", "max") for rank in (1, 2, 3)}
