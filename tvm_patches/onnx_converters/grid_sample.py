"""GridSample as a sum over the elements around each position. The wheel repeats the position's formulas in each term.

    at[n, o, a, t], weight[n, o, a, t]      the t-th element along axis a around the position of o, and its weight
    y[n, c, o] = sum over s, t of x[n, c, at[n, o, 0, s], at[n, o, 1, t]] * weight[n, o, 0, s] * weight[n, o, 1, t]

All channels share the positions. An index of -1 is outside of the input, where it counts as zero.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

from tvm import relax, te, tirx

from tvm_patches.onnx_converters.node import Node, converter

op = relax.op
# The factor of cubic interpolation, as in PyTorch.
_A = -0.75
# Offsets of the elements from the position, or from the element below it.
_OFFSETS = {"nearest": (0,), "linear": (0, 1), "bilinear": (0, 1), "cubic": (-1, 0, 1, 2), "bicubic": (-1, 0, 1, 2)}
# Fusion would compute a table again for each element that reads it.
_TABLE = {"primfunc_name_hint": "grid_positions", "primfunc_attrs": {"op_pattern": 8}}


@converter("GridSample")
def grid_sample(node: Node) -> relax.Expr:
    """Return the sum, or for the nearest element the element, in the input's type."""
    work = "float64" if "float64" in (node.dtype(0), node.dtype(1)) else "float32"
    samples = _Samples(node, work)
    grid = _in_type(node, node.input(1), work)
    at = node.builder.emit_te(samples.indices, grid, **_TABLE)
    if len(samples.offsets) == 1:
        return node.compute(samples.chosen, node.input(0), at)
    weight = node.builder.emit_te(samples.weights, grid, **_TABLE)
    summed = node.compute(samples.summed, _in_type(node, node.input(0), work), at, weight)
    return _in_type(node, summed, node.dtype())


def _in_type(node: Node, value: relax.Expr, dtype: str) -> relax.Expr:
    return value if str(value.ty.dtype) == dtype else node.emit(op.astype(value, dtype))


class _Samples:
    """The elements around each position of a grid."""

    def __init__(self, node: Node, work: str) -> None:
        self.const: Callable[[float], tirx.Expr] = functools.partial(tirx.const, dtype=work)
        self.offsets = _OFFSETS[node.attributes["mode"]]
        self.padding, self.is_aligned = node.attributes["padding_mode"], bool(node.attributes["align_corners"])
        self.extents = node.shape()[2:]
        batch, *positions, _ = node.shape(1)
        self.shape = (batch, node.shape()[1], *positions)
        self.table_shape = (batch, *positions, len(self.extents), len(self.offsets))

    def indices(self, grid: te.Tensor) -> te.Tensor:
        def index(position: tirx.Expr, offset: tirx.Expr, axis: tirx.Expr) -> tirx.Expr:
            element, last = self._padded(self._start(position) + offset, axis), self._last(axis)
            is_inside = tirx.all(element >= self.const(0), element <= last)
            return tirx.Select(is_inside, element.astype("int32"), tirx.const(-1, "int32"))

        return self._table(grid, index)

    def weights(self, grid: te.Tensor) -> te.Tensor:
        def weight(position: tirx.Expr, offset: tirx.Expr, _axis: tirx.Expr) -> tirx.Expr:
            d, a = tirx.abs(position - self._start(position) - offset), _A
            if len(self.offsets) == 2:
                return self.const(1) - d
            near = (self.const(a + 2) * d - self.const(a + 3)) * d * d + self.const(1)
            far = ((self.const(a) * d - self.const(5 * a)) * d + self.const(8 * a)) * d - self.const(4 * a)
            return tirx.Select(d <= self.const(1), near, far)

        return self._table(grid, weight)

    def chosen(self, x: te.Tensor, at: te.Tensor) -> te.Tensor:
        def element(*i: tirx.Var) -> tirx.Expr:
            value, outside = self._sample(x, at, i, [0] * len(self.extents))
            return tirx.Select(outside < 0, tirx.const(0, x.dtype), value)

        return te.compute(self.shape, element, name="grid_sample")

    def summed(self, x: te.Tensor, at: te.Tensor, weight: te.Tensor) -> te.Tensor:
        taps = [te.reduce_axis((0, len(self.offsets)), name=f"tap{axis}") for axis in range(len(self.extents))]

        def element(*i: tirx.Var) -> tirx.Expr:
            factors = [weight[(i[0], *i[2:], axis, tap)] for axis, tap in enumerate(taps)]
            value, outside = self._sample(x, at, i, taps)
            # A mask, because a select of a load is a branch, one for each channel.
            bits = str(x.dtype).replace("float", "int")
            mask = tirx.bitwise_not(outside >> 31).astype(bits)
            inside = tirx.reinterpret(x.dtype, tirx.bitwise_and(tirx.reinterpret(bits, value), mask))
            return te.sum(functools.reduce(operator.mul, factors) * inside, axis=taps)

        return te.compute(self.shape, element, name="grid_sample")

    def _sample(
        self, x: te.Tensor, at: te.Tensor, i: Sequence[tirx.Var], taps: Sequence[te.IterVar | int]
    ) -> tuple[tirx.Expr, tirx.Expr]:
        """Return an element, or one in its place outside of the input, and a number that is negative there."""
        indices = [at[(i[0], *i[2:], axis, tap)] for axis, tap in enumerate(taps)]
        value = x[(*i[:2], *(tirx.max(index, tirx.const(0, "int32")) for index in indices))]
        return value, functools.reduce(tirx.bitwise_or, indices)

    def _table(self, grid: te.Tensor, entry: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]) -> te.Tensor:
        """Return `entry(position, offset, axis)` for each element. The grid has the last axis first."""

        def element(*i: tirx.Var) -> tirx.Expr:
            *at, axis, tap = i
            position = self._position(grid[(*at, len(self.extents) - 1 - axis)], axis)
            return entry(position, tap.astype(str(grid.dtype)) + self.const(self.offsets[0]), axis)

        return te.compute(self.table_shape, element, name="table")

    def _position(self, value: tirx.Expr, axis: tirx.Expr) -> tirx.Expr:
        """Return the position of a number from -1 to 1, in elements."""
        one, half = self.const(1), self.const(0.5)
        if self.is_aligned:
            return (value + one) * half * self._last(axis)
        return ((value + one) * self._of_axis(axis, self.extents) - one) * half

    def _start(self, position: tirx.Expr) -> tirx.Expr:
        return tirx.nearbyint(position) if len(self.offsets) == 1 else tirx.floor(position)

    def _last(self, axis: tirx.Expr) -> tirx.Expr:
        return self._of_axis(axis, [extent - 1 for extent in self.extents])

    def _of_axis(self, axis: tirx.Expr, numbers: Sequence[float]) -> tirx.Expr:
        """Return the number of an axis."""
        chosen = self.const(numbers[-1])
        for position, number in enumerate(numbers[:-1] if len(set(numbers)) > 1 else ()):
            chosen = tirx.Select(axis == position, self.const(number), chosen)
        return chosen

    def _padded(self, element: tirx.Expr, axis: tirx.Expr) -> tirx.Expr:
        """Return the element that takes the place of one outside of the input."""
        if self.padding == "reflection":
            # A walk from border to border and back.
            low = 0 if self.is_aligned else -0.5
            lengths = [max(extent - 1 - 2 * low, 0.5) for extent in self.extents]
            length = self._of_axis(axis, lengths)
            both_ways = self._of_axis(axis, [2 * length for length in lengths])
            steps = element - self.const(low)
            behind = steps - both_ways * tirx.floor(steps / both_ways)
            element = self._of_axis(axis, [low + length for length in lengths]) - tirx.abs(behind - length)
        if self.padding == "zeros":
            return element
        return tirx.max(tirx.min(element, self._last(axis)), self.const(0))
