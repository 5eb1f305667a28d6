"""Compute the sums of a linear attention as sums, not as a product with a column of ones.

    o = MatMul(q, MatMul(k, Pad(v, 1)))            ->      num = MatMul(q, MatMul(k, v))
    num, den = o[..., :-1], o[..., -1:]                    den = ReduceSum(Mul(q, Transpose(ReduceSum(k))))

    o = MatMul(MatMul(Pad(v, 1), k), q)            ->      the same, transposed, with rows of ones

The padded operand was a copy, and its odd extent kept products and slices from whole texels. Source: Cai et al.,
EfficientViT, ICCV 2023, whose code pads `v`.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import Graph, attributes_of, rule

# ReduceSum reads its axes as an input from this opset on.
_AXES_AS_INPUT = 13


@rule("MatMul", after=infer)
def sum_products(node: onnx.NodeProto, graph: Graph) -> None:
    """Rewrite a product with ones in an operand, if only a second product reads it, and only slices read that one."""
    second = graph.only_reader(node.output[0])
    if second is None or second.op_type != "MatMul":
        return
    # Ones are the last column of the right operands, or the last row of the left ones.
    side = list(second.input).index(node.output[0])
    shapes = [graph.shapes.get(name, ()) for name in (*node.input, *second.input)]
    rank, axis = len(shapes[0]), len(shapes[0]) - (1 if side else 2)
    if rank < 2 or {len(shape) for shape in shapes} != {rank}:
        return
    inner, slices = _without_ones(node.input[side], axis, graph), [reader for reader, _ in graph.uses(second.output[0])]
    are_sums = [_is_of_ones(reader, axis, shapes[side][axis], graph) for reader in slices]
    if inner is None or None in are_sums or second.output[0] in graph.returned:
        return
    other, query = node.input[1 - side], second.input[1 - side]
    # New names, because the shapes of the old ones are known.
    product, whole, name = (graph.free(f"{each}_of_sums") for each in (node.output[0], second.output[0], query))
    factor, turned, terms = (graph.free(f"{name}_{step}") for step in ("factor", "turned", "terms"))
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    graph.replace(node, helper.make_node("MatMul", [other, inner] if side else [inner, other], [product], node.name))
    graph.replace(
        second,
        helper.make_node("MatMul", [query, product] if side else [product, query], [whole], second.name),
        _reduce_sum(graph, other, factor, axis),
        helper.make_node("Transpose", [factor], [turned], perm=swapped),
        helper.make_node("Mul", [query, turned], [terms]),
        _reduce_sum(graph, terms, name, axis),
    )
    for reader, is_sum in zip(slices, are_sums, strict=True):
        graph.bypass(reader, name if is_sum else whole)


def _without_ones(name: str, axis: int, graph: Graph) -> str | None:
    """Return the tensor that a node has padded by one element of 1 at the end of an axis, or None."""
    node = graph.producers.get(name)
    if node is None or node.op_type not in ("Concat", "Pad"):
        return None
    rank, attributes = len(graph.shapes[name]), attributes_of(node)
    if node.op_type == "Concat":
        ones = graph.array(node.input[-1])
        if ones is None or len(node.input) != 2 or int(attributes["axis"]) % rank != axis:
            return None
        return node.input[0] if ones.shape[axis] == 1 and np.all(ones == 1) else None
    # Attributes before opset 11, axes from opset 18 on
    if len(node.input) != 3 or attributes.get("mode", b"constant") != b"constant":
        return None
    pads, value = (graph.array(each) for each in node.input[1:])
    wanted = np.arange(2 * rank) == rank + axis
    return node.input[0] if value is not None and pads is not None and value == 1 and (pads == wanted).all() else None


def _is_of_ones(node: onnx.NodeProto, axis: int, extent: int, graph: Graph) -> bool | None:
    """Return whether a node takes the last of `extent` elements of an axis, not all others. None if it does neither."""
    if node.op_type != "Slice" or node.output[0] in graph.returned:
        return None
    numbers = [graph.array(name) for name in node.input[1:]]
    if len(numbers) < 3 or any(number is None or number.size != 1 for number in numbers):
        return None
    low, high, along, *steps = (int(number.item()) for number in numbers if number is not None)
    taken = range(extent)[low : high : (steps or [1])[0]]
    is_whole = along % len(graph.shapes[node.input[0]]) == axis and taken.step == 1
    return {range(extent - 1): False, range(extent - 1, extent): True}.get(taken) if is_whole else None


def _reduce_sum(graph: Graph, name: str, output: str, axis: int) -> onnx.NodeProto:
    if graph.opset < _AXES_AS_INPUT:
        return helper.make_node("ReduceSum", [name], [output], axes=[axis], keepdims=1)
    return helper.make_node(
        "ReduceSum", [name, graph.constant(f"{output}_axes", np.array([axis]))], [output], keepdims=1
    )
