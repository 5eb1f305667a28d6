"""Reductions of truth values, of no elements, of integers to integers, and over an axis computed at run time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, te, tirx

from tvm_patches.onnx_converters.node import Node, converter, whole

op = relax.op
# Reductions of several operators: their intermediate results may be too large or too small for fp16.
_IN_STEPS = ("L2", "LogSum", "LogSumExp", "SumSquare")
_NAMES = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


@converter(*(f"Reduce{name}" for name in _NAMES if name not in _IN_STEPS))
@converter(*(f"Reduce{name}" for name in _IN_STEPS), is_single=True)
def reduce(node: Node) -> relax.Expr:
    """Reduce over the node's axes, or over all."""
    rank = len(node.shape())
    axes: Sequence[int] | None = node.attributes.get("axes")
    if axes is None and node.has(1):
        if node.constant(1) is None:
            return _over_unknown_axis(node)
        axes = node.integers(1)
    if not axes:
        axes = () if node.attributes.get("noop_with_empty_axes", 0) else range(rank)
    return _reduced(node, sorted({axis % rank for axis in axes}))


@converter("ArgMax", "ArgMin")
def index_of_extreme(node: Node) -> relax.Expr:
    """Return the position of the first, or last, extreme element along an axis."""
    axis = node.attributes["axis"] % len(node.shape())
    is_max, is_last = node.operator == "ArgMax", bool(node.attributes.get("select_last_index", 0))
    positions = extreme_positions(node, node.input(0), axis, is_max=is_max, is_last=is_last)
    return positions if node.attributes["keepdims"] else op.squeeze(positions, [axis])


def extreme_positions(
    node: Node, value: relax.Expr, axis: int, *, is_max: bool = True, is_last: bool = False
) -> relax.Expr:
    """Return the int64 positions of the first, or last, maximum or minimum along an axis, which becomes 1.

    m[i] = max over k of x[i, k];  at[i] = min over k of (x[i, k] == m[i] ? k : n)

    NaN counts as the worst value, so a row has an element that equals its extreme. TVM's operators reduce pairs of a
    value and an index, which no family of kernels takes.
    """
    extreme, worst = (te.max, -math.inf) if is_max else (te.min, math.inf)

    def positions(x: te.Tensor) -> te.Tensor:
        shape, count = [1 if i == axis else extent for i, extent in enumerate(x.shape)], int(x.shape[axis])
        k, j = (te.reduce_axis((0, count), name) for name in ("k", "j"))

        def term(step: te.IterVar, row: Sequence[tirx.Expr]) -> tirx.Expr:
            element = x[(*row[:axis], step, *row[axis + 1 :])]
            is_float = "float" in str(x.dtype)
            return tirx.Select(tirx.isnan(element), tirx.const(worst, x.dtype), element) if is_float else element

        extremes = te.compute(shape, lambda *row: extreme(term(k, row), axis=k), name="extreme")

        def position(*row: tirx.Expr) -> tirx.Expr:
            combine, outside = (te.max, -1) if is_last else (te.min, count)
            is_extreme = tirx.EQ(term(j, row), extremes[row])
            return combine(tirx.Select(is_extreme, j.var.astype("int64"), tirx.const(outside, "int64")), axis=j)

        return te.compute(shape, position, name="position")

    return node.compute(positions, value)


def _over_unknown_axis(node: Node) -> relax.Expr:
    """Reduce over every axis that gives the result's shape, and select the result of the axis in the input."""
    shape, keeps = node.shape(), bool(node.attributes["keepdims"])
    if node.shape(1) != (1,):
        raise ValueError("its axes are computed at run time")

    def result(axis: int) -> tuple[int, ...]:
        return (*shape[:axis], *[1] * keeps, *shape[axis + 1 :])

    return choose_axis(
        node,
        1,
        [axis for axis in range(len(shape)) if result(axis) == node.result_shape()],
        lambda axis: _reduced(node, [axis]),
    )


def choose_axis(node: Node, index: int, axes: Sequence[int], make: Callable[[int], relax.Expr]) -> relax.Expr:
    """Apply `make` to the axis in an input, if several axes have results of the same shape."""
    chosen: relax.Expr | None = None
    axis_input = op.reshape(op.astype(node.input(index), "int64"), [])
    wrapped = node.emit(
        op.where(
            op.less(axis_input, relax.const(0, "int64")),
            op.add(axis_input, relax.const(len(node.shape()), "int64")),
            axis_input,
        )
    )
    for axis in axes:
        value = node.emit(make(axis))
        chosen = (
            value
            if chosen is None
            else node.emit(op.where(op.equal(wrapped, relax.const(axis, "int64")), value, chosen))
        )
    if chosen is None:
        raise ValueError("no axis gives the result's shape")
    return chosen


def _reduced(node: Node, axes: list[int]) -> relax.Expr:
    name, dtype = node.operator.removeprefix("Reduce"), node.dtype()
    shape = node.shape()
    keeps = bool(node.attributes["keepdims"])
    if 0 in [shape[axis] for axis in axes]:
        result = [1 if axis in axes else extent for axis, extent in enumerate(shape) if keeps or axis not in axes]
        return relax.const(np.full(result, _of_nothing(name, dtype)).astype(dtype), dtype)
    data = node.input(0)
    if dtype == "bool":
        reduced = _reduced_plain(node, name, node.emit(op.astype(data, "int32")), "int32", axes, keeps)
        return op.astype(reduced, "bool")
    return _reduced_plain(node, name, data, dtype, axes, keeps)


def _reduced_plain(node: Node, name: str, data: relax.Expr, dtype: str, axes: list[int], keeps: bool) -> relax.Expr:
    if name == "LogSumExp":
        return _log_sum_exp(node, data, axes, keeps)
    is_whole = np.dtype(dtype).kind in "iu"
    if is_whole and name in ("L2", "LogSum", "Mean"):
        # Their results may fit where sums of the elements' type overflow.
        wide = _reduced_plain(node, name, node.emit(op.astype(data, "float64")), "float64", axes, keeps)
        return whole(node.emit(wide), dtype)
    term = {"L1": op.abs, "L2": _square, "SumSquare": _square}.get(name, lambda x: x)
    if name in ("L1", "L2", "SumSquare"):
        data = node.emit(term(data))
    if not axes:
        reduced = data
    elif is_whole and name not in ("Max", "Min"):
        reduced = _combined(
            node,
            data,
            axes,
            keeps,
            (lambda a, b: a * b) if name == "Prod" else (lambda a, b: a + b),
            int(name == "Prod"),
        )
    else:
        combine = {"Max": op.max, "Min": op.min, "Prod": op.prod, "Mean": op.mean}.get(name, op.sum)
        reduced = combine(data, axes, keepdims=keeps)
    return {"L2": op.sqrt, "LogSum": op.log}.get(name, lambda x: x)(reduced)


def _square(value: relax.Expr) -> relax.Expr:
    return op.multiply(value, value)


def _combined(
    node: Node, data: relax.Expr, axes: list[int], keeps: bool, function: Callable[..., tirx.Expr], first: float
) -> relax.Expr:
    """Reduce in the type of the elements. Relax widens sums and products of integers."""
    combine = te.comm_reducer(function, lambda t: tirx.const(first, t), name="reduce")

    def reduced(x: te.Tensor) -> te.Tensor:
        over = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}
        kept = [axis for axis in range(len(x.shape)) if keeps or axis not in axes]

        def element(*i: tirx.Var) -> tirx.Expr:
            at = dict(zip(kept, i, strict=True))
            return combine(
                x[tuple(over[axis] if axis in over else at[axis] for axis in range(len(x.shape)))],
                axis=list(over.values()),
            )

        return te.compute([1 if axis in over else x.shape[axis] for axis in kept], element, name="reduce")

    return node.compute(reduced, data)


def _log_sum_exp(node: Node, data: relax.Expr, axes: list[int], keeps: bool) -> relax.Expr:
    """Return the logarithm of a sum of powers of e. The largest exponent is subtracted first, so no power overflows."""
    if not axes:
        return data
    dtype = node.dtype()
    wide = dtype if np.dtype(dtype).kind == "f" else "float64"
    data = node.emit(op.astype(data, wide))
    largest = node.emit(op.max(data, axes, keepdims=True))
    infinite = op.equal(op.abs(largest), relax.const(float("inf"), wide))
    shift = node.emit(op.where(infinite, relax.const(0.0, wide), largest))
    total = op.sum(op.exp(op.subtract(data, shift)), axes, keepdims=True)
    logarithm = op.add(op.log(total), shift)
    result = node.emit(logarithm if keeps else op.squeeze(node.emit(logarithm), axes))
    return result if wide == dtype else whole(result, dtype)


def _of_nothing(name: str, dtype: str) -> float | bool | int:
    """Return the value of a reduction of no elements."""
    if name in ("Max", "Min"):
        if dtype == "bool":
            return name == "Min"
        if np.dtype(dtype).kind in "iu":
            limits = np.iinfo(dtype)
            return int(limits.min if name == "Max" else limits.max)
        return -math.inf if name == "Max" else math.inf
    return {"Prod": 1.0, "Mean": math.nan, "LogSum": -math.inf, "LogSumExp": -math.inf}.get(name, 0.0)
