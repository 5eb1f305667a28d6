"""Quantization by blocks, parameters for each row, and integer products.

The wheel lacks them or computes them with one scale only.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_patches.onnx_converters.node import Node, converter, shape_of, type_name
from tvm_patches.onnx_converters.padding import with_pads
from tvm_patches.onnx_converters.short_types import decoded, encoded
from tvm_patches.short_types import STORAGE, info_of

op = relax.op


@converter("DequantizeLinear")
def dequantize(node: Node) -> relax.Expr:
    """Return (x - zero point) * scale."""
    return _dequantized(
        node, 0, 1, 2, axis=node.attributes.get("axis", 1), dtype=_type(node, "output_dtype") or node.dtype(1)
    )


@converter("QuantizeLinear")
def quantize(node: Node) -> relax.Expr:
    """Return round(x / scale) + zero point, saturated."""
    return _quantized(node, node.input(0), 1, 2, axis=node.attributes.get("axis", 1))


@converter("ConvInteger")
def conv_integer(node: Node) -> relax.Expr:
    return _convolved(node, _shifted(node, 0, 2, 1), _shifted(node, 1, 3, 0))


@converter("MatMulInteger")
def matmul_integer(node: Node) -> relax.Expr:
    return op.matmul(_shifted(node, 0, 2, -2), _shifted(node, 1, 3, -1))


@converter("QLinearConv")
def qlinear_conv(node: Node) -> relax.Expr:
    product = node.emit(_convolved(node, _shifted(node, 0, 2, 1), _shifted(node, 3, 5, 0)))
    rank = len(node.shape())
    if node.has(8):
        product = op.add(product, op.reshape(node.input(8), [1, -1, *[1] * (rank - 2)]))
    scale = op.multiply(node.input(1), _across(node.input(4), 1, rank))
    return _quantized(node, node.emit(op.multiply(op.astype(product, "float32"), scale)), 6, 7, axis=1)


@converter("QLinearMatMul")
def qlinear_matmul(node: Node) -> relax.Expr:
    product = node.emit(op.matmul(_shifted(node, 0, 2, -2), _shifted(node, 3, 5, -1)))
    rank = len(shape_of(product))
    rows, columns = (
        _across(op.astype(node.input(i), "float32"), axis, rank) for i, axis in ((1, rank - 2), (4, rank - 1))
    )
    return _quantized(
        node, node.emit(op.multiply(op.multiply(op.astype(product, "float32"), rows), columns)), 6, 7, axis=-1
    )


def _type(node: Node, attribute: str) -> str | None:
    dtype_number = node.attributes.get(attribute, 0)
    return type_name(dtype_number) if dtype_number else None


def _across(parameter: relax.Expr, axis: int, rank: int) -> relax.Expr:
    """Return a parameter for each index of an axis, in a shape that broadcasts.

    A scalar, a single element or a full tensor stays as it is.
    """
    if isinstance(parameter, relax.Call):
        parameter = relax.BlockBuilder().normalize(parameter)
    shape = shape_of(parameter)
    if len(shape) != 1 or rank == 0:
        return parameter
    return (
        op.reshape(parameter, [1])
        if shape == (1,)
        else op.reshape(parameter, [1 if i != axis % rank else shape[0] for i in range(rank)])
    )


def _spread(node: Node, parameter: relax.Expr, shape: tuple[int, ...], axis: int) -> relax.Expr:
    """Return a scale or a zero point in a shape that broadcasts.

    It is given for each block, for each index of the axis, or for the tensor.
    """
    block = node.attributes.get("block_size", 0)
    if not block or len(shape_of(parameter)) != len(shape):
        return _across(parameter, axis, len(shape))
    axis %= len(shape)
    repeated = node.emit(op.repeat(parameter, block, axis))
    return (
        op.strided_slice(repeated, [axis], [0], [shape[axis]]) if shape_of(repeated)[axis] != shape[axis] else repeated
    )


def _dequantized(node: Node, data: int, scale: int, zero: int, *, axis: int, dtype: str) -> relax.Expr:
    wide = "float32"
    kind = node.kind(data)
    # The zero point of float8 is zero.
    has_zero = node.has(zero) and "float" not in kind
    value = op.astype(decoded(node, node.input(data), kind), "int32" if has_zero else wide)
    if has_zero:
        point = _spread(node, _zero_point(node, zero, "int32"), node.shape(data), axis)
        value = op.astype(op.subtract(value, point), wide)
    factor = _spread(node, node.emit(op.astype(node.input(scale), wide)), node.shape(data), axis)
    return op.astype(op.multiply(value, factor), dtype)


def _quantized(node: Node, value: relax.Expr, scale: int, zero: int, *, axis: int) -> relax.Expr:
    shape = shape_of(value)
    dtype = node.kind(zero) if node.has(zero) else _type(node, "output_dtype") or "uint8"
    wide = type_name(node.attributes["precision"]) if node.attributes.get("precision") else node_float(node, scale)
    factor = _spread(node, node.emit(op.astype(node.input(scale), wide)), shape, axis)
    quotient = op.divide(op.astype(value, wide), factor)
    if "float" in dtype:
        return _as_minifloat(node, quotient, dtype, zero, axis=axis)
    limits = info_of(dtype)
    rounded = op.round(quotient)
    if node.has(zero):
        rounded = op.add(rounded, _spread(node, _zero_point(node, zero, wide), shape, axis))
    bounded = op.minimum(
        op.maximum(rounded, relax.const(float(limits.min), wide)), relax.const(float(limits.max), wide)
    )
    return op.astype(op.astype(bounded, "int32"), STORAGE.get(dtype, dtype))


def _as_minifloat(node: Node, quotient: relax.Expr, dtype: str, zero: int, *, axis: int) -> relax.Expr:
    """Round a quotient to a float of at most 8 bits. Only float4 has a zero point other than zero."""
    if dtype == "float4_e2m1fn" and node.has(zero):
        point = decoded(node, node.input(zero), dtype)
        quotient = op.add(quotient, _spread(node, node.emit(point), shape_of(node.emit(quotient)), axis))
    return encoded(node, quotient, dtype, is_saturated=bool(node.attributes.get("saturate", 1)))


def node_float(node: Node, scale: int) -> str:
    """Return the type that values have while they are divided by the scale."""
    return "float32" if node.dtype(scale) == "float16" else node.dtype(scale)


def _shifted(node: Node, index: int, zero: int, axis: int) -> relax.Expr:
    """Return an operand minus its zero point, in 32 bits."""
    value = op.astype(node.input(index), "int32")
    if not node.has(zero):
        return node.emit(value)
    point = _zero_point(node, zero, "int32")
    return node.emit(op.subtract(value, _across(point, axis, len(node.shape(index)))))


def _zero_point(node: Node, index: int, dtype: str) -> relax.Expr:
    """Return a zero point in another type.

    TVM folds no conversion of a constant of 16 bits. In the graph, such a conversion would end a kernel.
    """
    value = node.constant(index)
    if value is not None and value.dtype in (np.int16, np.uint16):
        return relax.const(value.astype(dtype), dtype)
    return node.emit(op.astype(node.input(index), dtype))


def _convolved(node: Node, data: relax.Expr, weight: relax.Expr) -> relax.Expr:
    inputs = onnx_frontend.onnx_input([data, weight])
    convolution: relax.Expr = onnx_frontend.Conv._impl_v11(
        node.builder, inputs, with_pads(node, shape_of(weight)[2:]), [{}, {}]
    )
    return convolution
