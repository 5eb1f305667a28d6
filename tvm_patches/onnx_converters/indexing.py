"""Operators on the positions of elements: triangles, unit matrices, ranges, one-hot vectors, reversed sequences."""

from __future__ import annotations

import math

import numpy as np
import onnx
from tvm import relax, te, tirx

from tvm_patches.onnx_converters.node import Node, converter, type_name
from tvm_patches.onnx_converters.reduction import extreme_positions
from tvm_patches.short_types import stored

op = relax.op


@converter("Constant")
def constant(node: Node) -> relax.Expr:
    """Convert a Constant: a tensor, a number or a list of numbers."""
    ((name, value),) = [(n, v) for n, v in node.attributes.items() if v is not None]
    if name == "value":
        return _tensor(onnx.numpy_helper.to_array(value))
    if "string" in name or "sparse" in name:
        raise ValueError(f"constants by {name} are not supported")
    return _tensor(np.array(value, "float32" if "float" in name else "int64"))


def _tensor(array: np.ndarray) -> relax.Expr:
    kept = stored(array)
    # Without a type, Relax makes 32 bits of 64.
    return relax.const(kept, kept.dtype.name)


@converter("EyeLike")
def eye_like(node: Node) -> relax.Expr:
    dtype_number = node.attributes.get("dtype", 0)
    dtype = type_name(dtype_number) if dtype_number else node.dtype()
    rows, columns = node.shape()
    return relax.const(np.eye(rows, columns, k=node.attributes["k"], dtype=dtype), dtype)


@converter("Range")
def arithmetic_range(node: Node) -> relax.Expr:
    """Convert Range to start + i * delta, if the model gives the length."""
    (count,) = node.result_shape()
    numbers = relax.const(np.arange(count).astype(node.dtype()), node.dtype())
    return op.add(op.multiply(numbers, node.input(2)), node.input(0))


@converter("Trilu")
def triangle(node: Node) -> relax.Expr:
    """Return the elements on and above diagonal k, or on and below it."""
    shape, upper = node.shape(), bool(node.attributes["upper"])
    k = op.astype(op.reshape(node.input(1), []), "int64") if node.has(1) else relax.const(0, "int64")
    distance = relax.const(np.arange(shape[-1])[None, :] - np.arange(shape[-2])[:, None], "int64")
    kept = (op.greater_equal if upper else op.less_equal)(distance, k)
    return op.where(kept, node.input(0), relax.const(np.zeros((), node.dtype()), node.dtype()))


@converter("OneHot")
def one_hot(node: Node) -> relax.Expr:
    """Return the on value at each index along the new axis. Negative indices count from its end."""
    shape = node.shape()
    depth, axis = node.integers(1), node.attributes["axis"]
    assert depth is not None
    axis %= len(shape) + 1
    indices = op.astype(node.input(0), "int64") if node.dtype() != "int64" else node.input(0)
    wrapped = op.where(
        op.less(indices, relax.const(0, "int64")), op.add(indices, relax.const(depth[0], "int64")), indices
    )
    positions = np.arange(depth[0]).reshape([-1 if i == axis else 1 for i in range(len(shape) + 1)])
    is_on = node.emit(op.equal(op.expand_dims(wrapped, axis), relax.const(positions, "int64")))
    off, on = (op.reshape(op.strided_slice(node.input(2), [0], [i], [i + 1]), []) for i in (0, 1))
    return op.where(is_on, on, off)


@converter("Hardmax")
def hardmax(node: Node) -> relax.Expr:
    """Return one for the first of the largest elements along an axis, zero for the others.

    Until opset 12, the axis and all axes behind it count as one.
    """
    shape, axis = node.shape(), node.attributes["axis"] % len(node.shape())
    rows = [math.prod(shape[:axis]), math.prod(shape[axis:])] if node.opset < 13 else list(shape)
    along = 1 if node.opset < 13 else axis
    data = node.emit(op.reshape(node.input(0), rows)) if rows != list(shape) else node.input(0)
    positions = np.arange(rows[along]).reshape([-1 if i == along else 1 for i in range(len(rows))])
    is_largest = op.equal(relax.const(positions, "int64"), extreme_positions(node, data, along))
    return op.reshape(op.astype(is_largest, node.dtype()), list(shape))


@converter("NonMaxSuppression")
def non_max_suppression(node: Node) -> relax.Expr:
    """Refuse NonMaxSuppression, so that the host runs it. The wheel's kernels have a result of another shape."""
    raise ValueError("the number of boxes that it keeps is known only after it ran")


@converter("ReverseSequence")
def reverse_sequence(node: Node) -> relax.Expr:
    """Reverse the first `n` elements of each sequence. Its length `n` is an input."""
    time, batch = node.attributes["time_axis"], node.attributes["batch_axis"]

    def reversed_rows(x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*i: tirx.Var) -> tirx.Expr:
            length, at = tirx.Cast("int64", lengths[i[batch]]), tirx.Cast("int64", i[time])
            moved = [
                v if axis != time else tirx.Max(tirx.const(0, "int64"), tirx.Select(at < length, length - 1 - at, at))
                for axis, v in enumerate(i)
            ]
            return x[tuple(moved)]

        return te.compute(x.shape, element, name="reverse_sequence")

    return node.compute(reversed_rows, node.input(0), node.input(1))


@converter("BitCast")
def bit_cast(node: Node) -> relax.Expr:
    """Convert BitCast: return the same bits as numbers of another type of the same size."""
    dtype = type_name(node.attributes["to"])
    if "bool" in (dtype, node.dtype()):
        raise ValueError("bits of truth values are not supported")
    return node.compute(
        lambda x: te.compute(x.shape, lambda *i: tirx.reinterpret(dtype, x[tuple(i)]), name="bit_cast"), node.input(0)
    )


@converter("TensorScatter")
def tensor_scatter(node: Node) -> relax.Expr:
    """Write an update over a range of a cache's axis. Each batch has a position, and the range may wrap around."""
    shape, axis = node.shape(), node.attributes["axis"] % len(node.shape())
    length, is_circular = node.shape(1)[axis], node.attributes["mode"] == "circular"
    starts = node.input(2) if node.has(2) else relax.const(np.zeros(shape[0], np.int64), "int64")

    def written(past: te.Tensor, update: te.Tensor, starts: te.Tensor) -> te.Tensor:
        def element(*i: tirx.Var) -> tirx.Expr:
            distance = tirx.Cast("int64", i[axis]) - tirx.Cast("int64", starts[i[0]])
            distance = tirx.floormod(distance, shape[axis]) if is_circular else distance
            new = update[(*i[:axis], distance, *i[axis + 1 :])]
            return tirx.if_then_else(tirx.all(distance >= 0, distance < length), new, past[tuple(i)])

        return te.compute(shape, element, name="tensor_scatter")

    return node.compute(written, node.input(0), node.input(1), starts)


@converter("ScatterElements", "Scatter")
def scatter_elements(node: Node) -> relax.Expr:
    """Scatter into a corner of the data if there are fewer updates than elements on other axes.

    TVM's operator indexes the data by the shape of the updates.
    """
    shape, axis = node.shape(), node.attributes["axis"] % len(node.shape())
    corner = tuple(e if i == axis else min(e, u) for i, (e, u) in enumerate(zip(shape, node.shape(1), strict=True)))
    data = node.input(0)
    if corner != shape:
        data = node.emit(op.strided_slice(data, list(range(len(shape))), [0] * len(shape), corner))
    reduction = {"none": "update"}.get(attribute := node.attributes.get("reduction", "none"), attribute)
    scattered = node.emit(op.scatter_elements(data, node.input(1), node.input(2), axis=axis, reduction=reduction))
    if corner == shape:
        return scattered

    def written(x: te.Tensor, changed: te.Tensor) -> te.Tensor:
        def element(*i: tirx.Var) -> tirx.Expr:
            return tirx.if_then_else(
                tirx.all(*(v < e for v, e in zip(i, corner, strict=True))), changed[tuple(i)], x[tuple(i)]
            )

        return te.compute(shape, element, name="scatter_elements")

    return node.compute(written, node.input(0), scattered)


@converter("SpaceToDepth")
def space_to_depth(node: Node) -> relax.Expr:
    batch, channels, height, width = node.shape()
    block = node.attributes["blocksize"]
    # Opset 28 adds the order of DepthToSpace's mode CRD.
    order = [0, 1, 3, 5, 2, 4] if node.attributes.get("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    blocks = op.reshape(node.input(0), [batch, channels, height // block, block, width // block, block])
    return op.reshape(
        op.permute_dims(blocks, order), [batch, channels * block * block, height // block, width // block]
    )
