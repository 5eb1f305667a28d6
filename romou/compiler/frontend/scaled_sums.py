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
from romou.compiler.frontend.onnx_graph import MOVES, Graph, rule

# A smaller scale would make a factor of unit size subnormal: fp16's normal numbers end at 6e-5.
_SMALLEST = 1e-3
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})


@rule("Mul", "Div", after=infer)
def scale_factors(node: onnx.NodeProto, graph: Graph, element: int) -> None:
    """Move the scale of a product into a factor, or the scale of a factor before its transposes.

    element: the float type of the sums to rewrite.
    """
    scaled = _scaled(node, graph)
    if scaled is None or graph.elements.get(node.output[0]) != element:
        return
    name, scale = scaled
    product = graph.producers.get(name)
    if product is None or graph.only_reader(name) is None:
        return
    if product.op_type in _PRODUCTS:
        if _scale_product(product, scale, graph, element):
            graph.absorb(node, product)
    elif product.op_type in MOVES and _is_factor(node.output[0], graph):
        graph.bypass(node, name)
        _scale_input(product, 0, scale, graph, element)


def _scaled(node: onnx.NodeProto, graph: Graph) -> tuple[str, np.ndarray] | None:
    """Return the tensor that a node scales down by a constant, and the constant. None for any other node."""
    constants = [name for name in node.input if name in graph.weights]
    others = [name for name in node.input if name not in graph.weights]
    if len(constants) != 1 or len(others) != 1 or (node.op_type == "Div" and node.input[0] != others[0]):
        return None
    value = graph.array(constants[0])
    if value is None or value.size != 1 or value.dtype.kind != "f" or value.ndim > len(graph.shapes.get(others[0], ())):
        return None
    number = value.astype(np.float64).reshape(())
    scale = 1 / number if node.op_type == "Div" and number else number
    return (others[0], np.asarray(scale)) if _SMALLEST <= abs(float(scale)) < 1 else None


def _is_factor(name: str, graph: Graph) -> bool:
    """Return whether only one product reads a tensor, directly or transposed."""
    while (reader := graph.only_reader(name)) is not None:
        if reader.op_type not in MOVES:
            return reader.op_type == "MatMul" and reader.input[0] != reader.input[1]
        name = reader.output[0]
    return False


def _scale_product(node: onnx.NodeProto, scale: np.ndarray, graph: Graph, element: int) -> bool:
    """Scale the product's constant factors, or else its smaller one. Return whether one could be scaled."""
    constants = [i for i, name in enumerate(node.input) if name in graph.weights]
    if node.op_type != "MatMul" and constants != [i for i, name in enumerate(node.input) if i and name]:
        return False
    for i in constants if node.op_type != "MatMul" else constants[:1]:
        value = numpy_helper.to_array(graph.weights[node.input[i]])
        node.input[i] = graph.constant(f"{node.input[i]}_scaled", (value * scale).astype(value.dtype))
    if not constants:
        sizes = [int(np.prod(graph.shapes.get(name, (np.iinfo(np.int32).max,)))) for name in node.input]
        _scale_input(node, int(sizes[1] < sizes[0]), scale, graph, element)
    return True


def _scale_input(node: onnx.NodeProto, index: int, scale: np.ndarray, graph: Graph, element: int) -> None:
    """Scale an input of a node, before the nodes that transpose or reshape it."""
    name = node.input[index]
    while (maker := graph.producers.get(name)) is not None and maker.op_type in MOVES and graph.only_reader(name):
        node, index, name = maker, 0, maker.input[0]
    node.input[index] = graph.free(f"{name}_scaled")
    factor = graph.constant(f"{name}_scale", scale.astype(helper.tensor_dtype_to_np_dtype(element)))
    graph.replace(node, helper.make_node("Mul", [name, factor], [node.input[index]]), node)
