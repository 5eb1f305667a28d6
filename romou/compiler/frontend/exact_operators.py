"""Operators that onnxruntime's CPU computes too coarsely for a reference, written so that it computes them exactly.

    MatMulInteger(uint8, int8 w, zero z)  ->  MatMulInteger(uint8, uint8 w + 128, zero z + 128)
    Sigmoid(x)                            ->  Reciprocal(Exp(Neg(x)) + 1)

- On processors with AVX2 and without VNNI, products of unsigned by signed bytes saturate at 16 bits. onnxruntime has an
  option against it, `session.x64quantprecision`, but only for constant factors, and it fails if two products share one.
- Its Sigmoid is 0.5 plus an odd function, so it is off by 1e-7, which is all of a probability of 1e-7.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from romou.compiler.frontend.onnx_graph import Graph, rule

# Operator -> (input that has the type of the other factor, signed factor, its zero point) of each product.
_PRODUCTS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "ConvInteger": ((1, 0, 2),),  # here the weight is the first factor
    "DynamicQuantizeLSTM": ((-1, 1, 9), (-1, 2, 11)),
    "DynamicQuantizeMatMul": ((-1, 1, 3),),
    "MatMulInteger": ((0, 1, 3),),
    "MatMulIntegerToFloat": ((0, 1, 5),),
    "QAttention": ((0, 1, 7),),
    "QGemm": ((2, 3, 5),),
    "QLinearConv": ((2, 3, 5),),
    "QLinearMatMul": ((2, 3, 5),),
}
_SHIFT = 128


@rule("Sigmoid", *_PRODUCTS, domain=None)
def with_exact_operators(node: onnx.NodeProto, graph: Graph) -> None:
    """Write an operator so that onnxruntime's CPU computes it exactly."""
    if node.op_type == "Sigmoid":
        if graph.elements.get(node.output[0]) == TensorProto.FLOAT:
            _replace_sigmoid(node, graph)
        return
    for other, factor, zero in _PRODUCTS[node.op_type]:
        given = [*node.input, *[""] * (zero + 1 - len(node.input))]
        # A factor that DynamicQuantizeLinear writes may have no recorded type.
        is_unsigned = other < 0 or graph.elements.get(given[other], TensorProto.UINT8) == TensorProto.UINT8
        if is_unsigned and graph.elements.get(given[factor]) == TensorProto.INT8:
            given[factor] = _shifted(given[factor], node, graph)
            given[zero] = _shifted(given[zero], node, graph)
            node.input[:] = given
            graph.touch(node)


def _replace_sigmoid(node: onnx.NodeProto, graph: Graph) -> None:
    one = graph.once("exact/one", lambda name: graph.constant(name, np.array(1, np.float32)))
    roles = ("minus", "power", "divisor")
    minus, power, divisor = (graph.free(f"exact/{node.output[0]}/{role}") for role in roles)
    graph.replace(
        node,
        helper.make_node("Neg", list(node.input), [minus]),
        helper.make_node("Exp", [minus], [power]),
        helper.make_node("Add", [power, one], [divisor]),
        helper.make_node("Reciprocal", [divisor], list(node.output), node.name),
    )


def _shifted(name: str, reader: onnx.NodeProto, graph: Graph) -> str:
    """Return the name of a tensor of signed bytes as unsigned ones, 128 larger. A missing zero point is 0.

    reader: the node before which it is computed, unless it is constant or was computed for another product.
    """

    def made(shifted: str) -> str:
        if not name or name in graph.constants:
            values = numpy_helper.to_array(graph.constants[name]) if name else np.zeros((), np.int8)
            return graph.constant(shifted, (values.astype(np.int16) + _SHIFT).astype(np.uint8))
        wide, total, shifted = (graph.free(f"exact/{name}/{role}") for role in ("wide", "sum", "unsigned"))
        shift = graph.once("exact/shift", lambda name: graph.constant(name, np.array(_SHIFT, np.int32)))
        graph.replace(
            reader,
            helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
            helper.make_node("Add", [wide, shift], [total]),
            helper.make_node("Cast", [total], [shifted], to=TensorProto.UINT8),
            reader,
        )
        return shifted

    return graph.once(f"exact/{name}/unsigned", made)
