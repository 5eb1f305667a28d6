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

from romou.compiler.frontend.onnx_graph import (
    add_constant,
    constant_tensors,
    drop_unread_weights,
    free_name,
    opset_of,
    replace_nodes,
    types_of,
    without_unread,
)

_BYTES = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
# Operator -> the same product of integers.
_PRODUCTS = {"Conv": "ConvInteger", "MatMul": "MatMulInteger", "Gemm": "MatMulInteger"}
# First opset with integer products.
_LEAST_OPSET = 10


def with_integer_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with products of dequantized bytes as products of integers."""
    if opset_of(model) < _LEAST_OPSET or not any(node.op_type == "DequantizeLinear" for node in model.graph.node):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    rewriter = _Rewriter(result.graph)
    nodes = [made for node in result.graph.node for made in rewriter.rewritten(node)]
    if not rewriter.has_products:
        return model
    replace_nodes(result.graph, without_unread(nodes, {value.name for value in result.graph.output}))
    drop_unread_weights(result.graph)
    return result


def with_quantized_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with constants in place of what QuantizeLinear makes of constants.

        DequantizeLinear(QuantizeLinear(w))     ->      DequantizeLinear(integers)

    Training aware of quantization exports weights in floats, behind a pair of these.
    """
    constants = constant_tensors(model.graph)
    made: dict[str, onnx.TensorProto] = {}
    for node in model.graph.node:
        reads = [constants.get(name) for name in node.input if name]
        if node.op_type == "QuantizeLinear" and node.domain in ("", "ai.onnx") and None not in reads:
            values = [numpy_helper.to_array(tensor) for tensor in reads if tensor is not None]
            made[node.output[0]] = numpy_helper.from_array(_quantized(model, node, values), node.output[0])
    if not made:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = [node for node in result.graph.node if not (node.output and node.output[0] in made)]
    result.graph.initializer.extend(made.values())
    replace_nodes(result.graph, kept)
    drop_unread_weights(result.graph)
    return result


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
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    operator: str,
    inputs: Sequence[str],
    scale: str,
    bias: str,
    **attributes: Any,
) -> Iterator[onnx.NodeProto]:
    """Yield, in place of a node, a product of integers as floats times a scale, plus the bias if there is one."""
    steps = ("product", "floats", "scaled")
    product, floats, scaled = (free_name(graph, f"{node.output[0]}/{step}") for step in steps)
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


class _Rewriter:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._constants, self._types = constant_tensors(graph), types_of(graph)
        self._made_by = {name: node for node in graph.node for name in node.output}
        self.has_products = False

    def rewritten(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the product of integers in place of a node, or the node."""
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        parts = None
        if node.op_type in _PRODUCTS and node.domain in ("", "ai.onnx"):
            parts = self._convolution(node) if node.op_type == "Conv" else self._matrix_product(node, attributes)
        if parts is None:
            yield node
            return
        self.has_products = True
        inputs, scale = parts
        is_convolution, bias = node.op_type == "Conv", [*node.input, ""][2]
        if bias and is_convolution:
            shape, reshaped = self._constant(node, "shape", np.array(scale.shape, np.int64)), self._name(node, "bias")
            yield helper.make_node("Reshape", [bias, shape], [reshaped], f"{node.name}/{reshaped}")
            bias = reshaped
        scales, kept = self._constant(node, "scale", scale), attributes if is_convolution else {}
        yield from scaled_product(self._graph, node, _PRODUCTS[node.op_type], inputs, scales, bias, **kept)

    def _convolution(self, node: onnx.NodeProto) -> tuple[list[str], np.ndarray] | None:
        data, weight = self._activations(node.input[0]), self._weight(node.input[1])
        if data is None or weight is None:
            return None
        integers, zeros, scales = weight
        factors, points = (_for_each(array, 0, integers.shape) for array in (scales, zeros))
        if factors is None or points is None:
            return None
        inputs = [
            data.integers,
            self._constant(node, "weight", integers),
            data.zero,
            self._constant(node, "zero", points.astype(integers.dtype)),
        ]
        return inputs, (data.scale * factors).reshape(1, -1, *[1] * (integers.ndim - 2))

    def _matrix_product(
        self, node: onnx.NodeProto, attributes: dict[str, object]
    ) -> tuple[list[str], np.ndarray] | None:
        factors = attributes.get("alpha", 1.0), attributes.get("beta", 1.0), attributes.get("transA", 0)
        data, weight = self._activations(node.input[0]), self._weight(node.input[1])
        if data is None or weight is None or weight[0].ndim != 2 or factors != (1.0, 1.0, 0):
            return None
        is_transposed = bool(attributes.get("transB", 0))
        integers = weight[0].T if is_transposed else weight[0]
        axis = 0 if is_transposed else 1
        zeros, scales = (_for_each(array, axis, weight[0].shape) for array in weight[1:])
        if scales is None or zeros is None:
            return None
        inputs = [
            data.integers,
            self._constant(node, "weight", np.ascontiguousarray(integers)),
            data.zero,
            self._constant(node, "zero", zeros.astype(integers.dtype)),
        ]
        return inputs, data.scale * scales

    def _dequantization(self, name: str) -> tuple[list[str], int] | None:
        """Return inputs and axis of the dequantization that makes a tensor, without blocks, in fp32."""
        node = self._made_by.get(name)
        if node is None or node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
            return None
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        scale = self._constants.get(node.input[1])
        is_fp32 = scale is not None and scale.data_type == onnx.TensorProto.FLOAT
        if not is_fp32 or attributes.get("block_size", 0) or attributes.get("output_dtype", 0):
            return None
        return [*node.input, ""][:3], int(attributes.get("axis", 1))

    def _activations(self, name: str) -> _Dequantized | None:
        found = self._dequantization(name)
        if found is None:
            return None
        (integers, scale_name, zero), _ = found
        scale = numpy_helper.to_array(self._constants[scale_name])
        if integers in self._constants or scale.size != 1 or (zero and zero not in self._constants):
            return None
        kind = self._types.get(integers)
        element = self._constants[zero].data_type if zero else kind.tensor_type.elem_type if kind else None
        if element not in _BYTES:
            return None
        return _Dequantized(integers=integers, zero=zero, scale=scale.reshape(()))

    def _weight(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return integers, zero points and scales of a constant weight, the latter with the weight's axes.

        Between the dequantization and the product, a matrix may be transposed.
        """
        node = self._made_by.get(name)
        if node is not None and node.op_type == "Transpose" and node.domain in ("", "ai.onnx"):
            weight = self._weight(node.input[0])
            is_swap = any(a.name == "perm" and list(a.ints) == [1, 0] for a in node.attribute) or not node.attribute
            if weight is None or weight[0].ndim != 2 or not is_swap:
                return None
            return weight[0].T, weight[1].T, weight[2].T
        found = self._dequantization(name)
        if found is None or not all(tensor in self._constants for tensor in found[0] if tensor):
            return None
        integers, scales, *zeros = (numpy_helper.to_array(self._constants[tensor]) for tensor in found[0] if tensor)
        if integers.dtype not in (np.int8, np.uint8):
            return None
        alike = [1] * integers.ndim
        along = list(alike)
        along[found[1] % integers.ndim] = scales.size
        points = zeros[0] if zeros else np.zeros((), integers.dtype)
        points, scales = (array.reshape(along if array.size > 1 else alike) for array in (points, scales))
        return integers, points, scales

    def _constant(self, node: onnx.NodeProto, role: str, array: np.ndarray) -> str:
        return add_constant(self._graph, f"{node.output[0]}/{role}", array)

    def _name(self, node: onnx.NodeProto, role: str) -> str:
        return free_name(self._graph, f"{node.output[0]}/{role}")


def _for_each(array: np.ndarray, axis: int, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return one number for each index of an axis. None if numbers differ along another axis."""
    is_along = all(extent == 1 or at == axis for at, extent in enumerate(array.shape))
    return np.broadcast_to(array.reshape(-1), (shape[axis],)).copy() if is_along else None
