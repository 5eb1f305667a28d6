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

from romou.compiler.frontend.onnx_graph import (
    constant_tensors,
    drop_unread_weights,
    free_prefix,
    replace_nodes,
    types_of,
)

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


def with_exact_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with these operators rewritten, or `model` itself if it has none of them."""
    if not any(node.op_type == "Sigmoid" or node.op_type in _PRODUCTS for node in model.graph.node):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    rewriter = _Rewriter(result.graph)
    replace_nodes(result.graph, [made for node in result.graph.node for made in rewriter.rewritten(node)])
    drop_unread_weights(result.graph)
    return result


class _Rewriter:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph, self._constants = graph, constant_tensors(graph)
        self._elements = {name: kind.tensor_type.elem_type for name, kind in types_of(graph).items()}
        self._elements |= {name: tensor.data_type for name, tensor in self._constants.items()}
        self._prefix = free_prefix(graph, "exact")
        # New names that a node or a constant has.
        self._known: set[str] = set()

    def rewritten(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes that compute what a node does."""
        if node.op_type == "Sigmoid" and self._elements.get(node.output[0]) == TensorProto.FLOAT:
            return self._sigmoid(node)
        before: list[onnx.NodeProto] = []
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        for other, factor, zero in _PRODUCTS.get(node.op_type, ()):
            given = [*node.input, *[""] * (zero + 1 - len(node.input))]
            # A factor that DynamicQuantizeLinear writes may have no recorded type.
            is_unsigned = other < 0 or self._elements.get(given[other], TensorProto.UINT8) == TensorProto.UINT8
            if is_unsigned and self._elements.get(given[factor]) == TensorProto.INT8:
                changed.input.extend([""] * (zero + 1 - len(changed.input)))
                changed.input[factor] = self._shifted(given[factor], before)
                changed.input[zero] = self._shifted(given[zero], before)
        return [*before, changed]

    def _sigmoid(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        one = self._constant("one", np.array(1, np.float32))
        minus, power, divisor = (f"{self._prefix}/{node.output[0]}/{role}" for role in ("minus", "power", "divisor"))
        return [
            helper.make_node("Neg", list(node.input), [minus]),
            helper.make_node("Exp", [minus], [power]),
            helper.make_node("Add", [power, one], [divisor]),
            helper.make_node("Reciprocal", [divisor], list(node.output), node.name),
        ]

    def _shifted(self, name: str, before: list[onnx.NodeProto]) -> str:
        """Return the name of a tensor of signed bytes as unsigned ones, 128 larger. A missing zero point is 0.

        before: receives the nodes that compute it, unless it is constant or was computed for another product.
        """
        if not name or name in self._constants:
            values = numpy_helper.to_array(self._constants[name]) if name else np.zeros((), np.int8)
            return self._constant(f"{name}/unsigned", (values.astype(np.int16) + _SHIFT).astype(np.uint8))
        wide, total, shifted = (f"{self._prefix}/{name}/{role}" for role in ("wide", "sum", "unsigned"))
        if shifted not in self._known:
            self._known.add(shifted)
            before += [
                helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
                helper.make_node("Add", [wide, self._constant("shift", np.array(_SHIFT, np.int32))], [total]),
                helper.make_node("Cast", [total], [shifted], to=TensorProto.UINT8),
            ]
        return shifted

    def _constant(self, role: str, values: np.ndarray) -> str:
        name = f"{self._prefix}/{role}"
        if name not in self._known:
            self._known.add(name)
            self._graph.initializer.append(numpy_helper.from_array(values, name))
        return name
