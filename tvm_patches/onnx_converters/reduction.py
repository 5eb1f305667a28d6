"""Reductions of truth values, of no elements, of integers to integers, and over an axis computed at run time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, te, tirx

from tvm_patches.onnx_converters.node import Node, converter

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
    """Return the index of the largest or smallest element.

    The wheel starts with index -1 and the type's least finite number, and keeps the -1 for a row without a larger one.
    """
    value, axis = node.input(0), node.attributes["axis"] % len(node.shape())
    find = op.argmax if node.operator == "ArgMax" else op.argmin
    is_last = bool(node.attributes.get("select_last_index", 0))
    found = find(op.flip(value, axis) if is_last else value, axis, bool(node.attributes["keepdims"]))
    first = op.maximum(found, relax.const(0, "int64"))
    return op.subtract(relax.const(node.shape()[axis] - 1, "int64"), first) if is_last else first


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
    found: relax.Expr | None = None
    given = op.reshape(op.astype(node.input(index), "int64"), [])
    wrapped = node.emit(
        op.where(op.less(given, relax.const(0, "int64")), op.add(given, relax.const(len(node.shape()), "int64")), given)
    )
    for axis in axes:
        value = node.emit(make(axis))
        found = (
            value if found is None else node.emit(op.where(op.equal(wrapped, relax.const(axis, "int64")), value, found))
        )
    if found is None:
        raise ValueError("no axis gives the result's shape")
    return found


def _reduced(node: Node, axes: list[int]) -> relax.Expr:
    name, dtype = node.operator.removeprefix("Reduce"), node.dtype()
    shape = node.shape()
    keeps = bool(node.attributes["keepdims"])
    if 0 in [shape[axis] for axis in axes]:
        result = [1 if axis in axes else extent for axis, extent in enumerate(shape) if keeps or axis not in axes]
        return relax.const(np.full(result, _of_nothing(name, dtype)).astype(dtype), dtype)
    data = node.input(0)
    if dtype == "bool":
        found = _reduced_plain(node, name, node.emit(op.astype(data, "int32")), "int32", axes, keeps)
        return op.astype(found, "bool")
    return _reduced_plain(node, name, data, dtype, axes, keeps)


def _reduced_plain(node: Node, name: str, data: relax.Expr, dtype: str, axes: list[int], keeps: bool) -> relax.Expr:
    if name == "LogSumExp":
        return _log_sum_exp(node, data, axes, keeps)
    is_whole = np.dtype(dtype).kind in "iu"
    term = {"L1": op.abs, "L2": _square, "SumSquare": _square}.get(name, lambda x: x)
    if name in ("L1", "L2", "SumSquare"):
        data = node.emit(term(data))
    if not axes:
        found = data
    elif is_whole and name not in ("Max", "Min"):
        found = _combined(
            node,
            data,
            axes,
            keeps,
            (lambda a, b: a * b) if name == "Prod" else (lambda a, b: a + b),
            int(name == "Prod"),
        )
    else:
        combine = {"Max": op.max, "Min": op.min, "Prod": op.prod, "Mean": op.mean}.get(name, op.sum)
        found = combine(data, axes, keepdims=keeps)
    if name == "Mean" and is_whole:
        count = math.prod([node.shape()[axis] for axis in axes])
        return op.astype(op.trunc(op.divide(op.astype(found, "float64"), relax.const(float(count), "float64"))), dtype)
    if name in ("L2", "LogSum"):
        last = op.sqrt if name == "L2" else op.log
        return op.astype(last(op.astype(found, "float64")), dtype) if is_whole else last(found)
    return found


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
    found = op.add(op.log(total), shift)
    return op.astype(found if keeps else op.squeeze(node.emit(found), axes), dtype)


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
