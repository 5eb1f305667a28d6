"""Pooling of the forms that the wheel gets wrong.

They are dilated averages, windows over the border, indices of the maxima, and powers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_patches.onnx_converters.node import Node, Result, converter, in_single
from tvm_patches.onnx_converters.padding import same_pads

op = relax.op


class Windows:
    """The windows of a pooling node: extent, kernel, stride, dilation, padding and count along each spatial axis."""

    def __init__(self, node: Node) -> None:
        self.extents = node.shape()[2:]
        rank = len(self.extents)
        self.kernel = tuple(node.attributes["kernel_shape"])
        self.strides = tuple(node.attributes.get("strides", [1] * rank))
        self.dilations = tuple(node.attributes.get("dilations", [1] * rank))
        self.spans = tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))
        pads = tuple(node.attributes.get("pads", [0] * (2 * rank)))
        self.before, self.after = pads[:rank], pads[rank:]
        auto_pad = node.attributes.get("auto_pad", "NOTSET")
        self.has_ceil = has_ceil = bool(node.attributes.get("ceil_mode", 0))
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            self.counts = tuple(-(-e // s) for e, s in zip(self.extents, self.strides, strict=True))
            self.before, self.after = same_pads(auto_pad, self.extents, self.kernel, self.strides, self.dilations)
        else:
            if auto_pad == "VALID":
                self.before = self.after = (0,) * rank
            self.counts = tuple(self._count(axis, self.after[axis], has_ceil) for axis in range(rank))

    @property
    def reach(self) -> tuple[int, ...]:
        """The padding behind the input that the last windows need, at least the node's."""
        return tuple(
            max(a, (c - 1) * s + span - e - b)
            for a, c, s, span, e, b in zip(
                self.after, self.counts, self.strides, self.spans, self.extents, self.before, strict=True
            )
        )

    @property
    def pads(self) -> tuple[int, ...]:
        """The padding for an operator that rounds down. Behind the input it is the same for all extents if possible."""
        up = tuple(a + (s - 1) * self.has_ceil for a, s in zip(self.after, self.strides, strict=True))
        is_alike = all(self._count(axis, up[axis], False) == count for axis, count in enumerate(self.counts))
        return (*self.before, *(up if is_alike else self.reach))

    def _count(self, axis: int, after: int, has_ceil: bool) -> int:
        room = self.extents[axis] + self.before[axis] + after - self.spans[axis]
        count = (-(-room // self.strides[axis]) if has_ceil else room // self.strides[axis]) + 1
        # A window that starts in the padding behind the input is left out.
        return (
            int(count - 1)
            if has_ceil and (count - 1) * self.strides[axis] >= self.extents[axis] + self.before[axis]
            else int(count)
        )

    def elements(self, *, with_padding: bool) -> np.ndarray:
        """Return the number of elements in each window, in the shape (1, 1, *counts)."""
        elements = np.ones((1, 1), np.float64)
        for axis, count in enumerate(self.counts):
            low = -self.before[axis] if with_padding else 0
            high = self.extents[axis] + (self.after[axis] if with_padding else 0)
            inside = [
                sum(
                    low <= o * self.strides[axis] - self.before[axis] + k * self.dilations[axis] < high
                    for k in range(self.kernel[axis])
                )
                for o in range(count)
            ]
            elements = elements[..., None] * np.array(inside)
        return elements

    def reduce(self, data: te.Tensor, combine: Any, term: Any, outside: Any) -> te.Tensor:
        """Combine `term(index of an element, index of the window)` over each window. Padding counts as `outside`."""
        steps = [te.reduce_axis((0, k), name=f"k{axis}") for axis, k in enumerate(self.kernel)]

        def window(n: tirx.Var, c: tirx.Var, *places: tirx.Var) -> tirx.Expr:
            at = [
                p * s + k * d - b
                for p, s, k, d, b in zip(places, self.strides, steps, self.dilations, self.before, strict=True)
            ]
            bounds = [tvm.tirx.all(i >= 0, i < e) for i, e in zip(at, self.extents, strict=True)]
            return combine(
                tirx.if_then_else(tvm.tirx.all(*bounds), term((n, c, *at), (n, c, *places)), outside), axis=steps
            )

        return te.compute((*data.shape[:2], *self.counts), window, name="pool")


def _is_plain(node: Node, windows: Windows) -> bool:
    """Return whether the wheel's pooling is right: rows or planes, no dilation, input in every window."""
    has_elements = bool((windows.elements(with_padding=False) > 0).all())
    return (
        len(windows.extents) in (1, 2)
        and set(windows.dilations) == {1}
        and has_elements
        and node.dtype() in ("float16", "float32")
    )


def _wheel(node: Node, windows: Windows) -> relax.Expr:
    """Pool by the wheel's operator, which keeps channels packed.

    Padding is extended, so the operator does not have to round up.
    """
    attributes = {
        name: value for name, value in node.attributes.items() if name not in ("auto_pad", "ceil_mode", "storage_order")
    }
    return node.wheel(**{**attributes, "pads": [*windows.pads]})


@converter("MaxPool")
def max_pool(node: Node) -> Result:
    windows = Windows(node)
    if _is_plain(node, windows) and not any(node.is_wanted[1:]):
        return _wheel(node, windows)
    data, lowest = node.input(0), tvm.te.min_value(node.dtype())
    largest = node.compute(lambda x: windows.reduce(x, te.max, lambda at, _: x[at], lowest), data)
    if not any(node.is_wanted[1:]):
        return largest
    shape = node.shape()
    order = (
        range(len(shape)) if not node.attributes.get("storage_order", 0) else (0, 1, *reversed(range(2, len(shape))))
    )
    weights = dict(
        zip(order, [math.prod([shape[a] for a in list(order)[i + 1 :]]) for i in range(len(shape))], strict=True)
    )
    last = tirx.const(math.prod(shape), "int64")

    def first_index(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        def place(at: tuple[Any, ...], window: tuple[Any, ...]) -> tirx.Expr:
            flat = sum(tirx.Cast("int64", i) * weights[axis] for axis, i in enumerate(at))
            return tirx.Select(x[at] == y[window], flat, last)

        return windows.reduce(x, te.min, place, last)

    return [largest, node.compute(first_index, data, largest)]


@converter("AveragePool")
def average_pool(node: Node) -> relax.Expr:
    windows = Windows(node)
    counts_padding = bool(node.attributes.get("count_include_pad", 0))
    # If a window ends beyond the padding, ONNX counts only its elements in the padding. The wheel counts all.
    if _is_plain(node, windows) and not (counts_padding and windows.reach != tuple(windows.after)):
        return _wheel(node, windows)
    return in_single(_average)(node)


def _average(node: Node) -> relax.Expr:
    windows = Windows(node)
    total = _sum(node, windows, node.input(0))
    counts = windows.elements(with_padding=bool(node.attributes.get("count_include_pad", 0)))
    return op.divide(total, relax.const(counts.astype(node.dtype()), node.dtype()))


@converter("LpPool", is_single=True)
def lp_pool(node: Node) -> relax.Expr:
    windows, p = Windows(node), int(node.attributes["p"])
    return _root(node, _sum(node, windows, _power(node, p)), p)


@converter("GlobalLpPool", is_single=True)
def global_lp_pool(node: Node) -> relax.Expr:
    p = int(node.attributes["p"])
    return _root(node, op.sum(_power(node, p), list(range(2, len(node.shape()))), keepdims=True), p)


@converter("MaxUnpool")
def max_unpool(node: Node) -> relax.Expr:
    """Put values at their indices. Indices count in the shape from kernel and strides. The result may be larger."""
    shape, result = node.shape(), node.result_shape()
    kernel = node.attributes["kernel_shape"]
    rank = len(kernel)
    strides, pads = node.attributes.get("strides", [1] * rank), node.attributes.get("pads", [0] * 2 * rank)
    pooled = [
        (e - 1) * s + k - pads[i] - pads[i + rank]
        for i, (e, s, k) in enumerate(zip(shape[2:], strides, kernel, strict=True))
    ]
    indices = node.input(1)
    if [*shape[:2], *pooled] != list(result):
        left, moved = indices, relax.const(0, "int64")
        for axis in reversed(range(len(shape))):
            extent = relax.const([*shape[:2], *pooled][axis], "int64")
            coordinate = op.floor_mod(left, extent)
            moved = node.emit(
                op.add(moved, op.multiply(coordinate, relax.const(math.prod(result[axis + 1 :]), "int64")))
            )
            left = node.emit(op.floor_divide(left, extent))
        indices = moved
    zeros = relax.const(np.zeros(math.prod(result), node.dtype()), node.dtype())
    put = op.scatter_elements(zeros, op.reshape(indices, [-1]), op.reshape(node.input(0), [-1]), axis=0)
    return op.reshape(put, list(result))


def _sum(node: Node, windows: Windows, data: relax.Expr) -> relax.Expr:
    zero = tirx.const(0, node.dtype())
    return node.compute(lambda x: windows.reduce(x, te.sum, lambda at, _: x[at], zero), node.emit(data))


def _power(node: Node, p: int) -> relax.Expr:
    size = op.abs(node.input(0))
    return (
        op.multiply(size, size) if p == 2 else size if p == 1 else op.power(size, relax.const(float(p), node.dtype()))
    )


def _root(node: Node, value: relax.Expr, p: int) -> relax.Expr:
    return op.sqrt(value) if p == 2 else value if p == 1 else op.power(value, relax.const(1.0 / p, node.dtype()))
