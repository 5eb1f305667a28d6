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
from onnx import helper, numpy_helper

from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import (
    MOVES,
    add_constant,
    drop_unread_weights,
    free_name,
    only_readers,
    replace_nodes,
    shapes_of,
)

# A head has two axes behind the rows: the heads, and the numbers of one.
_HEAD_AXES = 2


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A product with a constant weight, and what follows up to the reshape into heads.

    nodes: positions, the product's first, the reshape's last.
    weight, bias: (k, n) and (n,), scaled.
    """

    nodes: tuple[int, ...]
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
    reader = _Reader(model.graph)
    for position in range(len(model.graph.node)):
        if (part := reader.part_at(position)) is not None:
            groups.setdefault(part.key, []).append(part)
    merged = [group for group in groups.values() if len(group) > 1]
    if not merged:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph, nodes = result.graph, list(model.graph.node)
    made = {group[0].nodes[0]: _nodes_of(graph, nodes, group) for group in merged}
    dropped = {position for group in merged for part in group for position in part.nodes}
    replace_nodes(
        graph,
        [
            each
            for position, node in enumerate(nodes)
            for each in (*made.get(position, ()), *([] if position in dropped else [node]))
        ],
    )
    drop_unread_weights(graph)
    return infer(result)


def _nodes_of(graph: onnx.GraphProto, nodes: list[onnx.NodeProto], group: list[_Part]) -> list[onnx.NodeProto]:
    """Return the product of a group, its reshape, and the parts under their old names."""
    first, product = group[0], nodes[group[0].nodes[0]]
    name = free_name(graph, f"{product.output[0]}_merged")
    weight = add_constant(graph, f"{name}_weight", np.concatenate([part.weight for part in group], 1))
    biases = [part.bias for part in group if part.bias is not None]
    bias = [add_constant(graph, f"{name}_bias", np.concatenate(biases))] if biases else []
    if product.op_type == "Gemm":
        made = [helper.make_node("Gemm", [first.data, weight, *bias], [name], product.name)]
    else:
        sums = f"{name}_sums" if bias else name
        made = [helper.make_node("MatMul", [first.data, weight], [sums], product.name)]
        made += [helper.make_node("Add", [sums, *bias], [name])] if bias else []
    *rows, heads, size = first.shape
    shape = add_constant(graph, f"{name}_shape", np.array([*rows, len(group), heads, size]))
    made.append(helper.make_node("Reshape", [name, shape], [f"{name}_parts"]))
    ends = [add_constant(graph, f"{name}_end{index}", np.array([index])) for index in range(len(group) + 1)]
    axis = add_constant(graph, f"{name}_axis", np.array([len(rows)]))
    for index, part in enumerate(group):
        sliced, output = f"{name}_part{index}", nodes[part.nodes[-1]].output[0]
        made.append(helper.make_node("Slice", [f"{name}_parts", *ends[index : index + 2], axis], [sliced]))
        made.append(helper.make_node("Squeeze", [sliced, axis], [output]))
    return made


class _Reader:
    """Finds the parts of a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._nodes = list(graph.node)
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._shapes = shapes_of(graph)
        self._reader_of = only_readers(graph)

    def part_at(self, position: int) -> _Part | None:
        """Return the part whose product is the node at a position, or None."""
        product = self._nodes[position]
        factors = self._factors(product)
        if factors is None:
            return None
        weight, bias = factors
        chain = [position]
        while (reader := self._reader_of.get(self._nodes[chain[-1]].output[0])) is not None:
            node = self._nodes[reader]
            chain.append(reader)
            if node.op_type == "Reshape":
                break
            constant = self._constant_of(node)
            if constant is None:
                return None
            if node.op_type == "Mul" and constant.size == 1:
                weight, bias = weight * constant.item(), None if bias is None else bias * constant.item()
            elif node.op_type == "Add" and bias is None and constant.shape == weight.shape[1:]:
                bias = constant
            else:
                return None
        reshape = self._nodes[chain[-1]]
        shape = self._shapes.get(reshape.output[0])
        if reshape.op_type != "Reshape" or shape is None or not all(shape):
            return None
        if len(shape) <= _HEAD_AXES or shape[-2] * shape[-1] != weight.shape[1]:
            return None
        if not self._is_read_by_attention(reshape):
            return None
        dtype = numpy_helper.to_array(self._weights[product.input[1]]).dtype
        return _Part(
            nodes=tuple(chain),
            data=product.input[0],
            weight=weight.astype(dtype),
            bias=None if bias is None else bias.astype(dtype),
            shape=tuple(shape),
        )

    def _factors(self, node: onnx.NodeProto) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the constant weight (k, n) of a product and its bias, or None."""
        if node.op_type not in ("Gemm", "MatMul") or node.input[0] in self._weights:
            return None
        constants = [self._weights.get(name) for name in node.input[1:] if name]
        values = [numpy_helper.to_array(tensor) for tensor in constants if tensor is not None]
        if len(values) != len(constants) or values[0].ndim != 2 or values[0].dtype.kind != "f":
            return None
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if given.get("transA") or given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0:
            return None
        weight = values[0].T if given.get("transB") else values[0]
        bias = values[1].reshape(-1) if len(values) > 1 else None
        return None if bias is not None and bias.shape != weight.shape[1:] else (weight, bias)

    def _constant_of(self, node: onnx.NodeProto) -> np.ndarray | None:
        """Return the constant operand of a node with two operands, or None."""
        constants = [self._weights[name] for name in node.input if name in self._weights]
        return numpy_helper.to_array(constants[0]) if len(constants) == 1 and len(node.input) > 1 else None

    def _is_read_by_attention(self, node: onnx.NodeProto) -> bool:
        """Return whether a product of two computed tensors alone reads a node's output, moved or scaled."""
        while (reader := self._reader_of.get(node.output[0])) is not None:
            node = self._nodes[reader]
            if node.op_type == "MatMul":
                return not any(name in self._weights for name in node.input) and node.input[0] != node.input[1]
            constant = self._constant_of(node) if node.op_type in ("Mul", "Div") else None
            if node.op_type not in MOVES and (constant is None or constant.size != 1):
                return False
        return False
