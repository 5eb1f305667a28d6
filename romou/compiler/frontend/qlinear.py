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
from onnx import helper

from romou.compiler.frontend.dequantized import scaled_product
from romou.compiler.frontend.onnx_graph import Graph, attributes_of, rule
from tvm_patches.domains import MICROSOFT

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


@rule(
    *_OPERATORS,
    *("DequantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm", "QLinearConcat", "QuantizeLinear"),
    domain=MICROSOFT,
)
def with_standard_operators(node: onnx.NodeProto, graph: Graph) -> None:
    """Replace quantized operators of onnxruntime by their definitions. Those of a form that has none here stay."""
    if graph.opset >= _LEAST_OPSET:
        made = list(_definition(node, graph))
        if made:
            graph.replace(node, *made)


def _definition(node: onnx.NodeProto, graph: Graph) -> Iterator[onnx.NodeProto]:
    attributes, given = attributes_of(node), [*node.input, *[""] * 9]
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        yield helper.make_node(node.op_type, list(node.input), list(node.output), node.name, **attributes)
    elif node.op_type == "QLinearConcat":
        factors = [given[at : at + 3] for at in range(2, len(node.input), 3)]
        yield from _defined(node, graph, "Concat", factors, given[:2], attributes)
    elif node.op_type == "QGemm":
        yield from _gemm(node, graph, given, attributes)
    elif node.op_type == "MatMulIntegerToFloat":
        yield from _product(node, graph, [*given[:2], *given[4:6]], given[2:4], given[6])
    elif node.op_type == "DynamicQuantizeMatMul":
        integers, scale, zero = (graph.free(f"{node.output[0]}/{role}") for role in ("integers", "scale", "zero"))
        yield helper.make_node("DynamicQuantizeLinear", given[:1], [integers, scale, zero], f"{integers}/of")
        yield from _product(node, graph, [integers, given[1], zero, given[3]], [scale, given[2]], given[4])
    else:
        definition = _OPERATORS[node.op_type]
        kept = definition.attributes(attributes)
        if kept is not None:
            factors = [[given[at] for at in factor] for factor in definition.factors]
            result = [given[at] for at in definition.result]
            yield from _defined(node, graph, definition.operator, factors, result, kept)


def _gemm(node: onnx.NodeProto, graph: Graph, given: Sequence[str], attributes: Attributes) -> Iterator[onnx.NodeProto]:
    scales = [scale for at in (1, 4) if (scale := graph.array(given[at])) is not None]
    has_columns = any(scale.size > 1 for scale in scales)
    if len(scales) < 2 or (has_columns and graph.opset < _LEAST_OF_AXES):
        return
    # The bias has the scale of the sums.
    of_sums = np.float32(attributes.get("alpha", 1.0)) * scales[0] * scales[1]
    factors = [given[:3], given[3:6]]
    if given[6]:
        factors.append([given[6], graph.constant(f"{node.output[0]}/sums", of_sums), ""])
    axes = [1, 0 if attributes.get("transB", 0) else 1, 0] if has_columns else []
    yield from _defined(node, graph, "Gemm", factors, given[7:9], attributes, axes)


def _product(
    node: onnx.NodeProto, graph: Graph, factors: Sequence[str], scales: Sequence[str], bias: str
) -> Iterator[onnx.NodeProto]:
    """Yield a product of integers whose sums get the product of two scales and perhaps a bias."""
    scale = graph.free(f"{node.output[0]}/scales")
    yield helper.make_node("Mul", list(scales), [scale], f"{scale}/of")
    yield from scaled_product(graph, node, "MatMulInteger", factors, scale, bias)


def _defined(
    node: onnx.NodeProto,
    graph: Graph,
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
        floats.append(graph.free(f"{node.output[0]}/float{number}"))
        axis: Attributes = {"axis": axes[number]} if axes else {}
        read = list(factor) if factor[2] else list(factor[:2])
        yield helper.make_node("DequantizeLinear", read, floats[-1:], f"{floats[-1]}/of", **axis)
    output = graph.free(f"{node.output[0]}/float") if result[0] else node.output[0]
    yield helper.make_node(operator, floats, [output], node.name, **attributes)
    if result[0]:
        read = [output, *(name for name in result if name)]
        yield helper.make_node("QuantizeLinear", read, list(node.output), f"{output}/of")
