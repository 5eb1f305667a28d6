"""Lower group norms in two passes over each row.

    mean = sum(x) / n
    variance = sum((x - mean) ** 2) / n
    y = (x - mean) / sqrt(variance + epsilon) * scale + shift

TVM computes the mean of squares minus the squared mean. The difference of two fp32 numbers near 1e6 has no digits left
for a variance of 1: rows of mean 1000 would be off by 5%.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import relax, te, tirx, topi
from tvm.tirx import op as tir_op

from romou.compiler.graph.legalize_resize import resize2d


def _group_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Normalize the groups of a tensor (N, G * c, ...).

    group_norm(x)      ->      reshape(normalized(reshape(x, (N, G, c, ...))), (N, G * c, ...))
    """
    data, scale, shift = call.args
    shape = [int(extent) for extent in data.ty.shape.values]
    groups, channel = int(call.attrs.num_groups), int(call.attrs.channel_axis) % len(shape)
    per_group = shape[channel] // groups
    axes = [
        channel + 1,
        *(axis + (axis > channel) for axis in sorted(int(axis) % len(shape) for axis in call.attrs.axes)),
    ]

    def group_norm(x: te.Tensor, scale: te.Tensor, shift: te.Tensor) -> te.Tensor:
        def scaled(value: tirx.Expr, i: Sequence[tirx.Expr]) -> tirx.Expr:
            at = [i[channel] * per_group + i[channel + 1]]
            return value * _load(scale, at) + _load(shift, at)

        rows = topi.reshape(x, [*shape[:channel], groups, per_group, *shape[channel + 1 :]])
        return topi.reshape(_normalized(rows, axes, scaled, float(call.attrs.epsilon)), shape)

    return bb.call_te(group_norm, data, scale, shift)


def _normalized(
    x: te.Tensor, axes: Sequence[int], behind: Callable[[tirx.Expr, Sequence[tirx.Expr]], tirx.Expr], epsilon: float
) -> te.Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) with statistics over `axes`.

    behind: epilogue of an element, called with its value and index.
    """
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    count = math.prod(int(x.shape[axis]) for axis in axes)

    def sum_of(name: str, term: Callable[[list[tirx.Expr], Sequence[tirx.Expr]], tirx.Expr]) -> te.Tensor:
        """Return sum(term(index of an element, index of its row)) over each row."""
        inside = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}

        def row(*i: tirx.Var) -> tirx.Expr:
            outside = dict(zip(kept, i, strict=True))
            return te.sum(
                term([inside[axis] if axis in inside else outside[axis] for axis in range(len(x.shape))], i),
                axis=list(inside.values()),
            )

        return te.compute([x.shape[axis] for axis in kept], row, name=name)

    def centred(at: Sequence[tirx.Expr], row: Sequence[tirx.Expr]) -> tirx.Expr:
        mean = total[tuple(row)] / tirx.const(count, total.dtype)
        return _load(x, at) - mean

    def element(*i: tirx.Var) -> tirx.Expr:
        row = [i[axis] for axis in kept]
        variance = squares[tuple(row)] / tirx.const(count, squares.dtype)
        value = centred(i, row) * tir_op.rsqrt(variance + tirx.const(epsilon, squares.dtype))
        return behind(value, i).astype(str(x.dtype))

    total = sum_of("sum", lambda at, _: _load(x, at))
    squares = sum_of("squares", lambda at, row: tirx.Mul(centred(at, row), centred(at, row)))
    return te.compute(x.shape, element, name="normalize")


def _load(tensor: te.Tensor, at: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return an element, widened to fp32 if it is fp16."""
    return tensor[tuple(at)].astype("float32" if str(tensor.dtype) == "float16" else str(tensor.dtype))


# The table of overrides for `relax.transform.LegalizeOps`.
LEGALIZED: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
    "relax.nn.group_norm": _group_norm,
    "relax.image.resize2d": resize2d,
}
