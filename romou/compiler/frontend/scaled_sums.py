"""Move a scale behind a sum of products into a factor, so that an fp16 sum does not overflow before it is scaled.

    Mul(MatMul(q, Transpose(k)), 0.125)      ->      MatMul(Mul(q, 0.125), Transpose(k))            Div likewise
    Mul(Conv(x, w, b), 0.125)                ->      Conv(x, 0.125 * w, 0.125 * b)

A factor is scaled before it is transposed, so that the scale fuses into the kernel that computes the factor.
"""

from __future__ import annotations

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
    types_of,
)

# A smaller scale would make a factor of unit size subnormal: fp16's normal numbers end at 6e-5.
_SMALLEST = 1e-3
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})


def scale_factors(model: onnx.ModelProto, element: int) -> onnx.ModelProto:
    """Return a folded model with scales moved into factors, or `model` itself if there are none.

    element: the float type of the sums to rewrite.
    """
    moved = _Moved(model, element)
    return moved.result() if moved.has_changed else model


class _Moved:
    """The nodes of a model by position, while scales are moved."""

    def __init__(self, model: onnx.ModelProto, element: int) -> None:
        self._model = model
        self._graph = onnx.ModelProto()
        self._graph.CopyFrom(model)
        self._nodes: list[onnx.NodeProto] = list(self._graph.graph.node)
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._shapes = shapes_of(model.graph)
        self._types = {name: kind.tensor_type.elem_type for name, kind in types_of(model.graph).items()}
        self._element = element
        self._maker = {name: i for i, node in enumerate(self._nodes) for name in node.output}
        self._reader_of = only_readers(model.graph)
        self._dropped: set[int] = set()
        self._before: dict[int, list[onnx.NodeProto]] = {}
        for i, node in enumerate(model.graph.node):
            if i not in self._dropped and node.op_type in ("Mul", "Div"):
                self._move(i)

    @property
    def has_changed(self) -> bool:
        return bool(self._dropped)

    def result(self) -> onnx.ModelProto:
        graph = self._graph.graph
        nodes = [
            kept_node
            for i, node in enumerate(self._nodes)
            for kept_node in (*self._before.get(i, ()), *([] if i in self._dropped else [node]))
        ]
        replace_nodes(graph, nodes)
        drop_unread_weights(graph)
        return infer(self._graph)

    def _move(self, position: int) -> None:
        """Move a scale from behind a product into a factor, or from a factor to before its transposes."""
        node = self._nodes[position]
        operands = self._scale_of(node)
        if operands is None or self._types.get(node.output[0]) != self._element:
            return
        name, scale = operands
        product = self._maker.get(name)
        if product is not None and self._nodes[product].op_type in _PRODUCTS and name in self._reader_of:
            if self._scale_product(product, scale):
                self._dropped.add(position)
                self._nodes[product].output[0] = node.output[0]
        elif (
            self._is_factor(node.output[0])
            and product is not None
            and self._nodes[product].op_type in MOVES
            and name in self._reader_of
        ):
            # Scale the factor before it is transposed.
            reader = self._reader_of[node.output[0]]
            self._dropped.add(position)
            self._nodes[reader].input[:] = [
                name if input_name == node.output[0] else input_name for input_name in self._nodes[reader].input
            ]
            self._scale_input(product, 0, scale)

    def _is_factor(self, name: str) -> bool:
        """Return whether only one product reads a tensor, directly or transposed."""
        while name in self._reader_of:
            reader = self._nodes[self._reader_of[name]]
            if reader.op_type not in MOVES:
                return reader.op_type == "MatMul" and reader.input[0] != reader.input[1]
            name = reader.output[0]
        return False

    def _scale_of(self, node: onnx.NodeProto) -> tuple[str, np.ndarray] | None:
        """Return the tensor that a node scales down by a constant, and the constant. None for any other node."""
        constants = [name for name in node.input if name in self._weights]
        others = [name for name in node.input if name not in self._weights]
        if len(constants) != 1 or len(others) != 1 or (node.op_type == "Div" and node.input[0] != others[0]):
            return None
        value = numpy_helper.to_array(self._weights[constants[0]])
        if value.size != 1 or value.dtype.kind != "f" or value.ndim > len(self._shapes.get(others[0], ())):
            return None
        number = value.astype(np.float64).reshape(())
        scale = 1 / number if node.op_type == "Div" and number else number
        return (others[0], np.asarray(scale)) if _SMALLEST <= abs(float(scale)) < 1 else None

    def _scale_product(self, position: int, scale: np.ndarray) -> bool:
        """Scale the product's constant factors, or else its smaller one. Return whether one could be scaled."""
        node = self._nodes[position]
        constants = [i for i, name in enumerate(node.input) if name in self._weights]
        if node.op_type != "MatMul" and constants != [i for i, name in enumerate(node.input) if i and name]:
            return False
        if constants:
            for i in constants if node.op_type != "MatMul" else constants[:1]:
                value = numpy_helper.to_array(self._weights[node.input[i]])
                node.input[i] = add_constant(
                    self._graph.graph, f"{node.input[i]}_scaled", (value * scale).astype(value.dtype)
                )
            return True
        sizes = [int(np.prod(self._shapes.get(name, (np.iinfo(np.int32).max,)))) for name in node.input]
        self._scale_input(position, int(sizes[1] < sizes[0]), scale)
        return True

    def _scale_input(self, position: int, index: int, scale: np.ndarray) -> None:
        """Scale an input of a node, before the nodes that transpose or reshape it."""
        name = self._nodes[position].input[index]
        while (
            (maker := self._maker.get(name)) is not None
            and self._nodes[maker].op_type in MOVES
            and name in self._reader_of
        ):
            position, index = maker, 0
            name = self._nodes[position].input[0]
        graph = self._graph.graph
        dtype = helper.tensor_dtype_to_np_dtype(self._element)
        scaled = free_name(graph, f"{name}_scaled")
        while any(scaled in node.output for nodes in self._before.values() for node in nodes):
            scaled += "_"
        self._before.setdefault(position, []).append(
            helper.make_node("Mul", [name, add_constant(graph, f"{name}_scale", scale.astype(dtype))], [scaled])
        )
        self._nodes[position].input[index] = scaled
