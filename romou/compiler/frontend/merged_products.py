"""Compute queries, keys and values of an attention by one product, whose parts the attention reads in place.

    q = Reshape(Gemm(x, a, b), (n, h, d))      ->      parts = Reshape(Gemm(x, [a c e], [b d f]), (n, 3, h, d))
    k = Reshape(Gemm(x, c, d), (n, h, d))              q = parts[:, 0]
    v = Reshape(Gemm(x, e, f), (n, h, d))              k = parts[:, 1]      v = parts[:, 2]

One launch instead of three, and x is read once. Products of one width are merged, so with shared heads those of keys
and values are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import MOVES, Graph, attributes_of

# A head has two axes behind the rows: the heads, and the numbers of one.
_HEAD_AXES = 2


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A product with a constant weight, and what follows up to the reshape into heads.

    nodes: the product first, the reshape last.
    weight, bias: (k, n) and (n,), scaled.
    """

    nodes: tuple[onnx.NodeProto, ...]
    data: str
    weight: np.ndarray
    bias: np.ndarray | None
    shape: tuple[int, ...]

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[int, ...], str, bool]:
        """Equal for parts that one product computes."""
        return self.data, self.weight.shape, self.shape, str(self.weight.dtype), self.bias is not None


def merge_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a folded model with such products merged, or `model` itself if there are none."""
    groups: dict[object, list[_Part]] = {}
    graph = Graph(model)
    for node in graph.nodes:
        if (part := _part_of(node, graph)) is not None:
            groups.setdefault(part.key, []).append(part)
    for group in groups.values():
        if len(group) > 1:
            made = _nodes_of(graph, group)
            first, *rest = (node for part in group for node in part.nodes)
            graph.replace(first, *made)
            for node in rest:
                graph.replace(node)
    return infer(graph.result()) if graph.has_changed else model


def _nodes_of(graph: Graph, group: list[_Part]) -> list[onnx.NodeProto]:
    """Return the product of a group, its reshape, and the parts under their old names."""
    first, product = group[0], group[0].nodes[0]
    name = graph.free(f"{product.output[0]}_merged")
    weight = graph.constant(f"{name}_weight", np.concatenate([part.weight for part in group], 1))
    biases = [part.bias for part in group if part.bias is not None]
    bias = [graph.constant(f"{name}_bias", np.concatenate(biases))] if biases else []
    if product.op_type == "Gemm":
        made = [helper.make_node("Gemm", [first.data, weight, *bias], [name], product.name)]
    else:
        sums = f"{name}_sums" if bias else name
        made = [helper.make_node("MatMul", [first.data, weight], [sums], product.name)]
        made += [helper.make_node("Add", [sums, *bias], [name])] if bias else []
    *rows, heads, size = first.shape
    shape = graph.constant(f"{name}_shape", np.array([*rows, len(group), heads, size]))
    made.append(helper.make_node("Reshape", [name, shape], [f"{name}_parts"]))
    ends = [graph.constant(f"{name}_end{index}", np.array([index])) for index in range(len(group) + 1)]
    axis = graph.constant(f"{name}_axis", np.array([len(rows)]))
    for index, part in enumerate(group):
        sliced = f"{name}_part{index}"
        made.append(helper.make_node("Slice", [f"{name}_parts", *ends[index : index + 2], axis], [sliced]))
        made.append(helper.make_node("Squeeze", [sliced, axis], part.nodes[-1].output))
    return made


def _part_of(product: onnx.NodeProto, graph: Graph) -> _Part | None:
    """Return the part of a product, or None."""
    factors = _factors(product, graph)
    if factors is None:
        return None
    weight, bias = factors
    dtype, chain = weight.dtype, [product]
    while chain[-1].op_type != "Reshape" and (node := graph.only_reader(chain[-1].output[0])) is not None:
        chain.append(node)
        if node.op_type == "Reshape":
            break
        constant = _constant_of(node, graph)
        if constant is None:
            return None
        if node.op_type == "Mul" and constant.size == 1:
            weight, bias = weight * constant.item(), None if bias is None else bias * constant.item()
        elif node.op_type == "Add" and bias is None and constant.shape == weight.shape[1:]:
            bias = constant
        else:
            return None
    reshape, shape = chain[-1], graph.shapes.get(chain[-1].output[0])
    if reshape.op_type != "Reshape" or shape is None or not all(shape) or len(shape) <= _HEAD_AXES:
        return None
    if shape[-2] * shape[-1] != weight.shape[1] or not _is_read_by_attention(reshape, graph):
        return None
    bias = None if bias is None else bias.astype(dtype)
    return _Part(nodes=tuple(chain), data=product.input[0], weight=weight.astype(dtype), bias=bias, shape=tuple(shape))


def _factors(node: onnx.NodeProto, graph: Graph) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return the constant weight (k, n) of a product and its bias, or None."""
    if node.op_type not in ("Gemm", "MatMul") or node.input[0] in graph.constants:
        return None
    weight, *bias = (graph.array(name) for name in node.input[1:] if name)
    given = attributes_of(node)
    if weight is None or weight.ndim != 2 or weight.dtype.kind != "f":
        return None
    if given.get("transA") or given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0:
        return None
    weight = weight.T if given.get("transB") else weight
    if not bias:
        return weight, None
    return None if bias[0] is None or bias[0].size != weight.shape[1] else (weight, bias[0].reshape(-1))


def _constant_of(node: onnx.NodeProto, graph: Graph) -> np.ndarray | None:
    """Return the constant operand of a node with two operands, or None."""
    constants = [name for name in node.input if name in graph.constants]
    return graph.array(constants[0]) if len(constants) == 1 and len(node.input) > 1 else None


def _is_read_by_attention(node: onnx.NodeProto, graph: Graph) -> bool:
    """Return whether a product of two computed tensors alone reads a node's output, moved or scaled."""
    while (reader := graph.only_reader(node.output[0])) is not None:
        if reader.op_type == "MatMul":
            return not any(name in graph.constants for name in reader.input) and reader.input[0] != reader.input[1]
        constant = _constant_of(reader, graph) if reader.op_type in ("Mul", "Div") else None
        if reader.op_type not in MOVES and (constant is None or constant.size != 1):
            return False
        node = reader
    return False
