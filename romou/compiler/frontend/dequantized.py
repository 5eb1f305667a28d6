"""Products of two dequantized tensors as products of integers.

    Conv(DequantizeLinear(x), DequantizeLinear(w), DequantizeLinear(b))
        ->      Add(Mul(Cast(ConvInteger(x, w)), scale of x * scale of w), b)

for a constant w of 8 bits, and so for MatMul and Gemm. It has to happen before constants are folded, which would make
floats of the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from romou.compiler.frontend.onnx_graph import STANDARD, Graph, attributes_of, rule

_BYTES = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
# Operator -> the same product of integers.
_PRODUCTS = {"Conv": "ConvInteger", "MatMul": "MatMulInteger", "Gemm": "MatMulInteger"}
# First opset with integer products.
_LEAST_OPSET = 10


@rule(*_PRODUCTS, drops=("DequantizeLinear", "Transpose"))
def with_integer_products(node: onnx.NodeProto, graph: Graph, is_as_given: bool) -> None:
    """Replace a product of dequantized bytes by a product of integers.

    is_as_given: whether the model's types stay. fp16 has no sums of that size.
    """
    parts = None
    if is_as_given and graph.opset >= _LEAST_OPSET:
        parts = _convolution(node, graph) if node.op_type == "Conv" else _matrix_product(node, graph)
    if parts is None:
        return
    inputs, scale = parts
    is_convolution, bias, made = node.op_type == "Conv", [*node.input, ""][2], []
    if bias and is_convolution:
        shape = graph.constant(f"{node.output[0]}/shape", np.array(scale.shape, np.int64))
        reshaped = graph.free(f"{node.output[0]}/bias")
        made = [helper.make_node("Reshape", [bias, shape], [reshaped], f"{node.name}/{reshaped}")]
        bias = reshaped
    scales, kept = graph.constant(f"{node.output[0]}/scale", scale), attributes_of(node) if is_convolution else {}
    graph.replace(node, *made, *scaled_product(graph, node, _PRODUCTS[node.op_type], inputs, scales, bias, **kept))


@rule("QuantizeLinear")
def with_quantized_constants(node: onnx.NodeProto, graph: Graph) -> None:
    """Replace what QuantizeLinear makes of a constant by a constant.

        DequantizeLinear(QuantizeLinear(w))     ->      DequantizeLinear(integers)

    Training aware of quantization exports weights in floats, behind a pair of these.
    """
    given = [name for name in node.input if name]
    if all(name in graph.constants for name in given):
        values = [numpy_helper.to_array(graph.constants[name]) for name in given]
        graph.replace(node)
        graph.define(node.output[0], _quantized(graph.model, node, values))


def _quantized(model: onnx.ModelProto, node: onnx.NodeProto, values: Sequence[np.ndarray]) -> np.ndarray:
    """Return what a QuantizeLinear makes of constants."""
    from onnx.reference import ReferenceEvaluator  # the import takes a tenth of a second

    names = [name for name in node.input if name]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, values, strict=True)
    ]
    element = helper.np_dtype_to_tensor_dtype(values[2].dtype) if len(values) > 2 else onnx.TensorProto.UNDEFINED
    output = helper.make_tensor_value_info(node.output[0], element, None)
    graph = helper.make_graph([node], "constant", inputs, [output])
    part = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    (result,) = ReferenceEvaluator(part).run(None, dict(zip(names, values, strict=True)))
    return np.asarray(result)


def scaled_product(
    graph: Graph,
    node: onnx.NodeProto,
    operator: str,
    inputs: Sequence[str],
    scale: str,
    bias: str,
    **attributes: Any,
) -> Iterator[onnx.NodeProto]:
    """Yield, in place of a node, a product of integers as floats times a scale, plus the bias if there is one."""
    steps = ("product", "floats", "scaled")
    product, floats, scaled = (graph.free(f"{node.output[0]}/{step}") for step in steps)
    scaled = scaled if bias else node.output[0]
    yield helper.make_node(operator, list(inputs), [product], node.name, **attributes)
    # onnxruntime requires nodes to have different names.
    yield helper.make_node("Cast", [product], [floats], f"{node.name}/{floats}", to=onnx.TensorProto.FLOAT)
    yield helper.make_node("Mul", [floats, scale], [scaled], f"{node.name}/{scaled}")
    if bias:
        yield helper.make_node("Add", [scaled, bias], [node.output[0]], f"{node.name}/{node.output[0]}")


@dataclass(frozen=True, kw_only=True)
class _Dequantized:
    """A dequantized tensor: its integers, their zero point ("" for none), and the scale."""

    integers: str
    zero: str
    scale: np.ndarray


def _convolution(node: onnx.NodeProto, graph: Graph) -> tuple[list[str], np.ndarray] | None:
    data, weight = _activations(node.input[0], graph), _weight(node.input[1], graph)
    if data is None or weight is None:
        return None
    integers, zeros, scales = weight
    factors, points = (_for_each(array, 0, integers.shape) for array in (scales, zeros))
    if factors is None or points is None:
        return None
    return _inputs(node, graph, data, integers, points), (data.scale * factors).reshape(
        1, -1, *[1] * (integers.ndim - 2)
    )


def _matrix_product(node: onnx.NodeProto, graph: Graph) -> tuple[list[str], np.ndarray] | None:
    attributes = attributes_of(node)
    factors = attributes.get("alpha", 1.0), attributes.get("beta", 1.0), attributes.get("transA", 0)
    data, weight = _activations(node.input[0], graph), _weight(node.input[1], graph)
    if data is None or weight is None or weight[0].ndim != 2 or factors != (1.0, 1.0, 0):
        return None
    is_transposed = bool(attributes.get("transB", 0))
    zeros, scales = (_for_each(array, 0 if is_transposed else 1, weight[0].shape) for array in weight[1:])
    if scales is None or zeros is None:
        return None
    integers = np.ascontiguousarray(weight[0].T if is_transposed else weight[0])
    return _inputs(node, graph, data, integers, zeros), data.scale * scales


def _inputs(
    node: onnx.NodeProto, graph: Graph, data: _Dequantized, integers: np.ndarray, zeros: np.ndarray
) -> list[str]:
    """Return the inputs of the product of integers."""
    weight = graph.constant(f"{node.output[0]}/weight", integers)
    return [data.integers, weight, data.zero, graph.constant(f"{node.output[0]}/zero", zeros.astype(integers.dtype))]


def _dequantization(name: str, graph: Graph) -> tuple[list[str], int] | None:
    """Return inputs and axis of the dequantization that makes a tensor, without blocks, in fp32."""
    node = graph.producers.get(name)
    if node is None or node.op_type != "DequantizeLinear" or node.domain not in STANDARD:
        return None
    attributes = attributes_of(node)
    scale = graph.constants.get(node.input[1])
    is_fp32 = scale is not None and scale.data_type == onnx.TensorProto.FLOAT
    if not is_fp32 or attributes.get("block_size", 0) or attributes.get("output_dtype", 0):
        return None
    return [*node.input, ""][:3], int(attributes.get("axis", 1))


def _activations(name: str, graph: Graph) -> _Dequantized | None:
    dequantized = _dequantization(name, graph)
    if dequantized is None:
        return None
    (integers, scale_name, zero), _ = dequantized
    scale = numpy_helper.to_array(graph.constants[scale_name])
    if integers in graph.constants or scale.size != 1 or (zero and zero not in graph.constants):
        return None
    if graph.elements.get(zero or integers) not in _BYTES:
        return None
    return _Dequantized(integers=integers, zero=zero, scale=scale.reshape(()))


def _weight(name: str, graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return integers, zero points and scales of a constant weight, the latter with the weight's axes.

    Between the dequantization and the product, a matrix may be transposed.
    """
    node = graph.producers.get(name)
    if node is not None and node.op_type == "Transpose" and node.domain in STANDARD:
        weight = _weight(node.input[0], graph)
        is_swap = list(attributes_of(node).get("perm", (1, 0))) == [1, 0]
        if weight is None or weight[0].ndim != 2 or not is_swap:
            return None
        return weight[0].T, weight[1].T, weight[2].T
    dequantized = _dequantization(name, graph)
    if dequantized is None or not all(tensor in graph.constants for tensor in dequantized[0] if tensor):
        return None
    integers, scales, *zeros = (numpy_helper.to_array(graph.constants[tensor]) for tensor in dequantized[0] if tensor)
    if integers.dtype not in (np.int8, np.uint8):
        return None
    alike = [1] * integers.ndim
    along = list(alike)
    along[dequantized[1] % integers.ndim] = scales.size
    points = zeros[0] if zeros else np.zeros((), integers.dtype)
    points, scales = (array.reshape(along if array.size > 1 else alike) for array in (points, scales))
    return integers, points, scales


def _for_each(array: np.ndarray, axis: int, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return one number for each index of an axis. None if numbers differ along another axis."""
    is_along = all(extent == 1 or at == axis for at, extent in enumerate(array.shape))
    return np.broadcast_to(array.reshape(-1), (shape[axis],)).copy() if is_along else None
