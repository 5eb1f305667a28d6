"""Operators of onnxruntime's domain com.microsoft: where models write them, and the types of their results.

onnxruntime has two of its own operators in the standard's domain, where ONNX does not know them:

    SimplifiedLayerNormalization, LayerNormalization before opset 17      in a file, and for onnxruntime
    com.microsoft.SimplifiedLayerNormalization, ...                       in the compiler
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
from onnx import TensorProto, helper, numpy_helper

from romou.compiler.frontend.onnx_graph import Graph, rule
from tvm_patches.domains import MICROSOFT

# Operator -> first opset that has it as a standard operator, if there is one.
_STRAYS: Mapping[str, int | None] = {"SimplifiedLayerNormalization": None, "LayerNormalization": 17}
# Operators whose float tensors have one type, and whose first result has the type and the shape of the first input.
UNIFORM = frozenset(
    {
        "BiasGelu",
        "FastGelu",
        "Gelu",
        "LayerNormalization",
        "QuickGelu",
        "RotaryEmbedding",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)
# Other operators whose float tensors have one type.
ONE_FLOAT_TYPE = UNIFORM | {
    "Attention",
    "GatherBlockQuantized",
    "GroupQueryAttention",
    "MatMulBnb4",
    "MatMulNBits",
    "MultiHeadAttention",
}

# A product, and its attribute for the precision to which onnxruntime may round its activations.
_COARSE, _ACCURACY = "MatMulNBits", "accuracy_level"

Types = Mapping[str, onnx.TypeProto]
Constants = Mapping[str, onnx.TensorProto]


@rule(*_STRAYS)
def with_microsoft_domain(node: onnx.NodeProto, graph: Graph) -> None:
    """Write onnxruntime's operators in its domain."""
    first = _STRAYS[node.op_type]
    if first is None or graph.opset < first:
        node.domain = MICROSOFT
        graph.import_domain(MICROSOFT)
        graph.touch()


@rule(*_STRAYS, _COARSE, domain=MICROSOFT)
def for_onnxruntime(node: onnx.NodeProto, graph: Graph) -> None:
    """Write a node as onnxruntime's CPU should run it: in its domain, products in full precision.

    It may round activations of a product to 8 bits, which costs half a percent and Romou never does.
    """
    if node.op_type != _COARSE:
        node.domain = ""
    kept = [attribute for attribute in node.attribute if attribute.name != _ACCURACY]
    del node.attribute[:]
    node.attribute.extend(kept)
    graph.touch()


def result_types(node: onnx.NodeProto, types: Types, constants: Constants) -> list[onnx.TypeProto] | None:
    """Return the types of a node's results, or None if there is no rule.

    types: of all tensors that the node reads.
    """
    if node.domain != MICROSOFT:
        return None
    if node.op_type in UNIFORM:
        return _uniform(node, types)
    rule = _RULES.get(node.op_type)
    return None if rule is None else rule(_Reader(node, types, constants))


class _Reader:
    """A node with the shapes and types of its inputs."""

    def __init__(self, node: onnx.NodeProto, types: Types, constants: Constants) -> None:
        self.node, self._types, self._constants = node, types, constants

    def _name(self, index: int) -> str:
        return self.node.input[index] if index < len(self.node.input) else ""

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Return the shape of an input, or None if it is left out."""
        name = self._name(index)
        return tuple(d.dim_value for d in self._types[name].tensor_type.shape.dim) if name else None

    def element(self, index: int = 0) -> int:
        return int(self._types[self._name(index)].tensor_type.elem_type)

    def integer(self, index: int) -> int | None:
        """Return the value of a constant input, or None if it is computed or left out."""
        tensor = self._constants.get(self._name(index))
        return None if tensor is None else int(numpy_helper.to_array(tensor).reshape(-1)[0])

    def attribute(self, name: str, default: int = 0) -> int:
        return next((int(a.i) for a in self.node.attribute if a.name == name), default)

    def integers(self, name: str) -> tuple[int, ...]:
        return next((tuple(a.ints) for a in self.node.attribute if a.name == name), ())


def _uniform(node: onnx.NodeProto, types: Types) -> list[onnx.TypeProto]:
    first = types[node.input[0]]
    shape = [d.dim_value for d in first.tensor_type.shape.dim]
    statistics = helper.make_tensor_type_proto(TensorProto.FLOAT, [*shape[:-1], 1])
    return [first, statistics, statistics, first]


def _gathered(node: _Reader) -> list[onnx.TypeProto]:
    data, indices = list(node.shape(0) or ()), node.shape(1) or ()
    axis = node.attribute("gather_axis") % len(data)
    if node.element() == TensorProto.UINT8:
        data[-1] *= 8 // node.attribute("bits", 4)
    return [helper.make_tensor_type_proto(node.element(2), [*data[:axis], *indices, *data[axis + 1 :]])]


def _multiplied(node: _Reader) -> list[onnx.TypeProto]:
    rows = (node.shape(0) or ())[:-1]
    return [helper.make_tensor_type_proto(node.element(), [*rows, node.attribute("N")])]


def _grouped(node: _Reader) -> list[onnx.TypeProto]:
    """Return the types of an attention's output and caches. A cache is as long as the past one or the total length."""
    batch, rows, width = node.shape(0) or (0, 0, 0)
    heads, shared = node.attribute("num_heads"), node.attribute("kv_num_heads")
    size = width // (heads if node.shape(1) else heads + 2 * shared)
    past = node.shape(3)
    length = max((past[2] if past else 0) or rows, node.integer(6) or 0)
    output, cache = (batch, rows, heads * size), (batch, shared, length, size)
    return [helper.make_tensor_type_proto(node.element(), shape) for shape in (output, cache, cache)]


def _multi_head(node: _Reader) -> list[onnx.TypeProto]:
    query, key, value = (node.shape(i) or () for i in range(3))
    heads, past = node.attribute("num_heads"), node.shape(6)
    rows = query[1] if len(query) == 5 else key[2] if len(key) == 4 else key[1]
    size = (key if len(key) in (4, 5) else query)[-1] // (1 if len(query) == 5 or len(key) != 3 else heads)
    of_value = value[-1] // (heads if len(value) == 3 else 1) if value else size
    total = rows + (past[2] if past else 0)
    shapes = [(*query[:2], heads * of_value), *((query[0], heads, total, n) for n in (size, of_value))]
    return [helper.make_tensor_type_proto(node.element(), shape) for shape in shapes]


def _self_attended(node: _Reader) -> list[onnx.TypeProto]:
    batch, rows, _ = node.shape(0) or (0, 0, 0)
    heads, past, width = node.attribute("num_heads"), node.shape(4), (node.shape(1) or (0, 0))[1]
    _, of_key, of_value = node.integers("qkv_hidden_sizes") or (width // 3,) * 3
    total = rows + (past[3] if past else 0)
    shapes = [(batch, rows, of_value), (2, batch, heads, total, of_key // heads)]
    return [helper.make_tensor_type_proto(node.element(), shape) for shape in shapes]


_RULES: Mapping[str, Callable[[_Reader], list[onnx.TypeProto]]] = {
    "Attention": _self_attended,
    "GatherBlockQuantized": _gathered,
    "MultiHeadAttention": _multi_head,
    "MatMulBnb4": _multiplied,
    "MatMulNBits": _multiplied,
    "GroupQueryAttention": _grouped,
}
