"""Slice and Pad with attributes of old opsets, negative steps, and bounds computed at run time.

The result's shape must be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, te, tirx

from tvm_patches.onnx_converters.node import Node, converter

op = relax.op


@converter("Slice")
def slice_tensor(node: Node) -> relax.Expr:
    """Slice by known bounds with a strided slice. Other bounds are read by the kernel."""
    shape = node.shape()
    values = [node.attributes.get("starts"), node.attributes.get("ends"), node.attributes.get("axes"), None]
    if node.opset >= 10:
        if any(node.has(i) and node.constant(i) is None for i in (1, 2, 3, 4)):
            return _slice_at_run_time(node)
        values = [node.integers(i) for i in (1, 2, 3, 4)]
    starts, ends = values[0] or (), values[1] or ()
    axes = [a % len(shape) for a in values[2] or range(len(starts))]
    steps = values[3] or [1] * len(starts)
    ranges = [range(extent) for extent in shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        ranges[axis] = range(shape[axis])[start:end:step]
    if all(r.step > 0 for r in ranges):
        taken = [axis for axis, r in enumerate(ranges) if r != range(shape[axis])]
        begin, end, step = ([getattr(ranges[axis], name) for axis in taken] for name in ("start", "stop", "step"))
        return op.strided_slice(node.input(0), taken, begin, end, step) if taken else node.input(0)

    def at(*indices: tirx.Var) -> list[tirx.Expr]:
        return [i * r.step + r.start for i, r in zip(indices, ranges, strict=True)]

    return node.compute(
        lambda x: te.compute([len(r) for r in ranges], lambda *i: x[tuple(at(*i))], name="slice"), node.input(0)
    )


def _slice_at_run_time(node: Node) -> relax.Expr:
    """Compute the first element and the step of each axis from the bounds.

    The ends only decide the shape, which the model gives.
    """
    shape, result = node.shape(), node.result_shape()
    count = node.shape(1)[0]
    steps = node.input(4) if node.has(4) else relax.const(np.ones(count, np.int64), "int64")

    extents = relax.const(np.array(shape), "int64")
    step = _per_axis(node, 3, steps, count, 1)
    start = _per_axis(node, 3, node.input(1), count, 0)

    def first(start: te.Tensor, step: te.Tensor, extents: te.Tensor) -> te.Tensor:
        def element(axis: tirx.Var) -> tirx.Expr:
            last = tirx.Select(step[axis] > 0, extents[axis], extents[axis] - 1)
            return tirx.Max(tirx.const(0, "int64"), tirx.Min(_wrapped(start[axis], extents[axis]), last))

        return te.compute((len(shape),), element, name="first")

    def sliced(x: te.Tensor, starts: te.Tensor, steps: te.Tensor) -> te.Tensor:
        def at(i: tirx.Var, axis: int) -> tirx.Expr:
            # Bounds that contradict the model's shape must not read outside.
            index = starts[axis] + tirx.Cast("int64", i) * steps[axis]
            return tirx.Max(tirx.const(0, "int64"), tirx.Min(index, tirx.const(shape[axis] - 1, "int64")))

        return te.compute(result, lambda *i: x[tuple(at(v, axis) for axis, v in enumerate(i))], name="slice")

    return node.compute(sliced, node.input(0), node.compute(first, start, step, extents), step)


def _per_axis(node: Node, axes: int, values: relax.Expr, count: int, default: int) -> relax.Expr:
    """Return a number for each axis, from numbers for some of them.

    A separate kernel computes it, so that others read one number instead of searching it.

    axes: the input that has the axes. Without it, the numbers are for all axes in order.
    """
    rank = len(node.shape())
    wide_values = op.astype(values, "int64")
    if node.has(axes) and node.constant(axes) is None:
        # Compare with a tensor of numbers. A comparison with a loop variable would mix vectors of two types, and TVM's
        # simplifier rejects that.
        numbers, per_axis = (
            relax.const(np.arange(rank), "int64"),
            relax.const(np.full(rank, default, np.int64), "int64"),
        )
        wide = node.emit(op.astype(node.input(axes), "int64"))
        wrapped = node.emit(
            op.where(op.less(wide, relax.const(0, "int64")), op.add(wide, relax.const(rank, "int64")), wide)
        )
        for k in range(count):
            axis, value = (op.strided_slice(tensor, [0], [k], [k + 1]) for tensor in (wrapped, wide_values))
            per_axis = node.emit(op.where(op.equal(axis, numbers), value, per_axis))
        return per_axis
    order = [axis % rank for axis in node.integers(axes) or range(count)]
    positions = [order.index(axis) if axis in order else count for axis in range(rank)]
    return node.emit(
        op.take(
            op.concat(
                [op.strided_slice(wide_values, [0], [0], [count]), relax.const(np.array([default]), "int64")], axis=0
            ),
            relax.const(np.array(positions), "int64"),
            axis=0,
        )
    )


def _wrapped(index: tirx.Expr, extent: int | tirx.Expr) -> tirx.Expr:
    index = tirx.Cast("int64", index)
    return tirx.Select(index < 0, index + extent, index)


@converter("Pad")
def pad(node: Node) -> relax.Expr:
    """Pad by an index: reflected, clamped or wrapped, or with a constant outside."""
    shape, mode = node.shape(), node.attributes["mode"]
    if node.opset < 11:
        pads: Sequence[int] | None = node.attributes["pads" if "pads" in node.attributes else "paddings"]
        value: relax.Expr = relax.const(node.attributes["value"], node.dtype())
    else:
        is_known = all(not node.has(i) or node.constant(i) is not None for i in (1, 3))
        value = node.input(2) if node.has(2) else relax.const(0, node.dtype())
        pads = node.integers(1) if is_known else None
    if pads is None:
        return _pad_at_run_time(node, value)
    axes = [a % len(shape) for a in (node.integers(3) or range(len(pads) // 2))]
    before, after = [0] * len(shape), [0] * len(shape)
    for k, axis in enumerate(axes):
        before[axis], after[axis] = pads[k], pads[k + len(axes)]
    if not any(before + after):
        return node.input(0)
    result = tuple(e + b + a for e, b, a in zip(shape, before, after, strict=True))
    number = node.constant(2) if node.has(2) else np.array(node.attributes.get("value", 0), node.dtype())

    def padded(x: te.Tensor, *values: te.Tensor) -> te.Tensor:
        return _padded(
            x,
            _element(values[0]) if number is None else tirx.const(number.item(), x.dtype),
            mode,
            result,
            lambda axis: before[axis],
        )

    # A known value is a number in the kernel. TVM has no numbers in the upper half of uint64, and its operator takes a
    # double, which cannot represent all integers.
    if number is not None and number.dtype == np.uint64 and number >= 2**63:
        number = None
    return node.compute(padded, node.input(0), *([value] if number is None else []))


def _element(scalar: te.Tensor) -> tirx.Expr:
    return scalar[(0,) * len(scalar.shape)]


def _pad_at_run_time(node: Node, value: relax.Expr) -> relax.Expr:
    result = node.result_shape()
    count = node.shape(1)[0] // 2
    # Extents fit into 32 bits.
    before = node.emit(op.astype(_per_axis(node, 3, node.input(1), count, 0), "int32"))

    def padded(x: te.Tensor, v: te.Tensor, before: te.Tensor) -> te.Tensor:
        return _padded(x, _element(v), node.attributes["mode"], result, lambda axis: before[axis])

    return node.compute(padded, node.input(0), value, before)


def _padded(
    x: te.Tensor, number: tirx.Expr, mode: str, result: Sequence[int], before: Callable[[int], tirx.Expr | int]
) -> te.Tensor:
    shape = [int(d) for d in x.shape]

    def element(*indices: tirx.Var) -> tirx.Expr:
        at = [tirx.Cast("int32", i) - before(axis) for axis, i in enumerate(indices)]
        if mode == "constant":
            inside = [tirx.all(i >= 0, i < e) for i, e in zip(at, shape, strict=True)]
            return tirx.if_then_else(tirx.all(*inside), x[tuple(at)], number) if at else x[()]
        return x[tuple(_bent(i, e, mode) for i, e in zip(at, shape, strict=True))]

    return te.compute(result, element, name="pad")


def _bent(index: tirx.Expr, extent: int, mode: str) -> tirx.Expr:
    """Return the index inside the axis that an index outside of it reads."""
    if mode == "edge":
        return tirx.Max(tirx.const(0, "int32"), tirx.Min(index, tirx.const(extent - 1, "int32")))
    if mode == "wrap":
        return tirx.floormod(index, extent)
    if mode != "reflect":
        raise ValueError(f"the mode {mode!r} is not supported")
    if extent == 1:
        return tirx.const(0, "int32")
    inside = tirx.floormod(index, 2 * (extent - 1))
    return tirx.Select(inside < extent, inside, 2 * (extent - 1) - inside)
