"""onnxruntime's operators of quantized tensors, by their definition: dequantize, compute in floats, quantize.

    QLinearAdd(a, b)  ->  QuantizeLinear(Add(DequantizeLinear(a), DequantizeLinear(b)))

onnxruntime.quantization writes them into models of its format QOperator. An integer product follows from it: see
dequantized.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from romou.compiler.frontend.dequantized import scaled_product
from romou.compiler.frontend.onnx_graph import add_constant, constant_tensors, free_name, opset_of, replace_nodes
from tvm_patches.onnx_converters.node import MICROSOFT

# First opset with DequantizeLinear, and the first one where it may have several scales.
_LEAST_OPSET, _LEAST_OF_AXES = 10, 13
Attributes = dict[str, Any]


@dataclass(frozen=True)
class _Definition:
    """A quantized operator as one of floats.

    factors: indices of the inputs of each quantized factor: integers, scale, zero point.
    result: indices of the result's scale and zero point.
    attributes: those of the operator of floats. None for a form that has no such operator.
    """

    operator: str
    factors: tuple[tuple[int, int, int], ...]
    result: tuple[int, int]
    attributes: Callable[[Attributes], Attributes | None] = dict


def _without_layout(attributes: Attributes) -> Attributes | None:
    """Leave out the layout, if channels are the second axis."""
    kept = dict(attributes)
    return None if kept.pop("channels_last", 0) else kept


def _of_softmax(attributes: Attributes) -> Attributes | None:
    """Before opset 13, a Softmax was over all axes from `axis` on."""
    return {"axis": attributes.get("axis", -1)} if attributes.get("opset", 0) >= 13 else None


_TWO = ((0, 1, 2), (3, 4, 5))
_ONE = ((0, 1, 2),)
_OPERATORS: Mapping[str, _Definition] = {
    "QLinearAdd": _Definition("Add", _TWO, (6, 7)),
    "QLinearMul": _Definition("Mul", _TWO, (6, 7)),
    "QLinearSigmoid": _Definition("Sigmoid", _ONE, (3, 4)),
    "QLinearLeakyRelu": _Definition("LeakyRelu", _ONE, (3, 4)),
    "QLinearSoftmax": _Definition("Softmax", _ONE, (3, 4), _of_softmax),
    "QLinearAveragePool": _Definition("AveragePool", _ONE, (3, 4), _without_layout),
    "QLinearGlobalAveragePool": _Definition("GlobalAveragePool", _ONE, (3, 4), _without_layout),
}


def with_standard_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with quantized operators of onnxruntime as their definitions.

    Those of a form that has no definition here stay.
    """
    if opset_of(model) < _LEAST_OPSET or all(node.domain != MICROSOFT for node in model.graph.node):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    rewriter = _Rewriter(result.graph, has_axes=opset_of(model) >= _LEAST_OF_AXES)
    replace_nodes(result.graph, [made for node in result.graph.node for made in rewriter.rewritten(node)])
    return result


class _Rewriter:
    def __init__(self, graph: onnx.GraphProto, *, has_axes: bool) -> None:
        self._graph, self._constants, self._has_axes = graph, constant_tensors(graph), has_axes

    def rewritten(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the definition of a node, or the node."""
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        given = [*node.input, *[""] * 9]
        if node.domain != MICROSOFT:
            yield node
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            yield helper.make_node(node.op_type, list(node.input), list(node.output), node.name, **attributes)
        elif node.op_type == "QLinearConcat":
            factors = [given[at : at + 3] for at in range(2, len(node.input), 3)]
            yield from self._defined(node, "Concat", factors, given[:2], attributes)
        elif node.op_type == "QGemm":
            yield from self._gemm(node, given, attributes)
        elif node.op_type == "MatMulIntegerToFloat":
            yield from self._product(node, [*given[:2], *given[4:6]], given[2:4], given[6])
        elif node.op_type == "DynamicQuantizeMatMul":
            integers, scale, zero = (self._name(node, role) for role in ("integers", "scale", "zero"))
            yield helper.make_node("DynamicQuantizeLinear", given[:1], [integers, scale, zero], f"{integers}/of")
            yield from self._product(node, [integers, given[1], zero, given[3]], [scale, given[2]], given[4])
        elif node.op_type in _OPERATORS:
            definition = _OPERATORS[node.op_type]
            kept = definition.attributes(attributes)
            if kept is None:
                yield node
                return
            factors = [[given[at] for at in factor] for factor in definition.factors]
            yield from self._defined(node, definition.operator, factors, [given[at] for at in definition.result], kept)
        else:
            yield node

    def _gemm(self, node: onnx.NodeProto, given: Sequence[str], attributes: Attributes) -> Iterator[onnx.NodeProto]:
        scales = [numpy_helper.to_array(self._constants[given[at]]) for at in (1, 4) if given[at] in self._constants]
        has_columns = any(scale.size > 1 for scale in scales)
        if len(scales) < 2 or (has_columns and not self._has_axes):
            yield node
            return
        # The bias has the scale of the sums.
        of_sums = np.float32(attributes.get("alpha", 1.0)) * scales[0] * scales[1]
        factors = [given[:3], given[3:6]]
        if given[6]:
            factors.append([given[6], add_constant(self._graph, f"{node.output[0]}/sums", of_sums), ""])
        axes = [1, 0 if attributes.get("transB", 0) else 1, 0] if has_columns else []
        yield from self._defined(node, "Gemm", factors, given[7:9], attributes, axes)

    def _product(
        self, node: onnx.NodeProto, factors: Sequence[str], scales: Sequence[str], bias: str
    ) -> Iterator[onnx.NodeProto]:
        """Yield a product of integers whose sums get the product of two scales and perhaps a bias."""
        scale = self._name(node, "scales")
        yield helper.make_node("Mul", list(scales), [scale], f"{scale}/of")
        yield from scaled_product(self._graph, node, "MatMulInteger", factors, scale, bias)

    def _name(self, node: onnx.NodeProto, role: str) -> str:
        return free_name(self._graph, f"{node.output[0]}/{role}")

    def _defined(
        self,
        node: onnx.NodeProto,
        operator: str,
        factors: Sequence[Sequence[str]],
        result: Sequence[str],
        attributes: Attributes,
        axes: Sequence[int] = (),
    ) -> Iterator[onnx.NodeProto]:
        """Yield the nodes of a definition. Without a scale of the result, the result is floats.

        axes: that of each factor's scales, where there are several.
        """
        floats = []
        for number, factor in enumerate(factors):
            floats.append(self._name(node, f"float{number}"))
            axis: Attributes = {"axis": axes[number]} if axes else {}
            read = list(factor) if factor[2] else list(factor[:2])
            yield helper.make_node("DequantizeLinear", read, floats[-1:], f"{floats[-1]}/of", **axis)
        output = self._name(node, "float") if result[0] else node.output[0]
        yield helper.make_node(operator, floats, [output], node.name, **attributes)
        if result[0]:
            read = [output, *(name for name in result if name)]
            yield helper.make_node("QuantizeLinear", read, list(node.output), f"{output}/of")
