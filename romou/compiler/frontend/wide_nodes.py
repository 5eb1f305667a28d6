"""Find nodes that need fp32 for any input: statistics, angles, large integers, masks, and vectors that scale channels.

    ReduceMean, and Sub(x, mean) behind it        sums overflow, and a variance is a difference of large numbers
    Cast(position) -> Mul(frequency) -> Sin       an angle of 999 is rounded to a multiple of 0.5
    Add(scores, -1e9 * mask) -> Softmax           a masked row becomes -inf, and its Softmax NaN
    GlobalAveragePool -> Conv -> Sigmoid -> Mul   all pixels of a channel share one rounding error

The rules look at operators and shapes. They apply both to models converted to fp16 and to models stored as fp16.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Set
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import REDUCTIONS, Graph, Shapes, attributes_of, first_output, types_of

# Reductions that choose an element have no sums.
_SUMS = REDUCTIONS - {"ReduceMax", "ReduceMin"}
_NORMALIZATIONS = frozenset(
    {
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "MeanVarianceNormalization",
        "RMSNormalization",
    }
)
# Element-wise operators, almost free if they are fused.
_ARITHMETIC = frozenset(
    {
        "Abs",
        "Add",
        "Ceil",
        "Clip",
        "Div",
        "Exp",
        "Floor",
        "Log",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Pow",
        "Reciprocal",
        "Round",
        "Sign",
    }
)
ELEMENTWISE = _ARITHMETIC | {
    "HardSigmoid",
    "HardSwish",
    "Relu",
    "Sigmoid",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tanh",
    "Where",
}
MOVES = frozenset(
    {
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Pad",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul", "Einsum"})
_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"})
# Operators whose results may be terms of a sum and nothing else.
_TERMS = frozenset({"Abs", "Exp", "Mul", "Pow", "Sub"})
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16})
# fp16 represents all integers up to 2048.
_LARGE_INTEGERS = frozenset(
    getattr(TensorProto, name) for name in ("INT16", "INT32", "INT64", "UINT16", "UINT32", "UINT64")
)
# Products over at most this many elements compute angles: positions by frequencies, coordinates by directions.
_MOST_COORDINATES = 4
_RANK_OF_IMAGES = 4
# Sizes of masks. fp16 represents only even numbers from 2048 on. From 1e12 on, a sum in fp32 absorbs any fp16 score.
_MASK, _ABSORBING = 2048.0, 1e12


@dataclass(frozen=True, kw_only=True)
class WideNodes:
    """The nodes that need fp32.

    names: first outputs of the nodes.
    clamped: the nodes among them that may be fp16 if their results are clamped to its range.
    """

    names: frozenset[str]
    clamped: frozenset[str] = field(default_factory=frozenset)


def wide_nodes(model: onnx.ModelProto, *, clamps: bool = True) -> WideNodes:
    """Return the wide nodes of a folded model with inferred types.

    clamps: whether to allow clamped masks, if clamping does not change the result.
    """
    graph = _FloatGraph(model)
    masks, clamped = _masks(graph, clamps=clamps)
    names = _statistics(graph) | _angles(graph) | _integers(graph) | _vectors(graph) | masks
    return WideNodes(names=frozenset(names), clamped=frozenset(clamped))


class _FloatGraph(Graph):
    """A graph in which nodes are followed along their float tensors. A set of nodes is one of their first outputs."""

    def is_float(self, name: str) -> bool:
        return self.elements.get(name) in _FLOATS

    def floats(self, node: onnx.NodeProto) -> list[str]:
        """Return the float tensors that a node reads, without constants."""
        return [name for name in node.input if name and name not in self.constants and self.is_float(name)]

    def makers(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes that compute `floats(node)`."""
        return [self.producers[name] for name in self.floats(node) if name in self.producers]

    def are_made_by(self, node: onnx.NodeProto, names: Set[str]) -> list[bool]:
        """Return, for each of `floats(node)`, whether one of these nodes computes it."""
        makers = [self.producers.get(name) for name in self.floats(node)]
        return [maker is not None and first_output(maker) in names for maker in makers]

    def readers_of(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return [reader for name in node.output for reader, _ in self.uses(name)]

    @cached_property
    def largest_constants(self) -> dict[str, float]:
        """Largest finite magnitude of each float weight, by name."""
        magnitudes = {}
        for name, tensor in self.weights.items():
            if tensor.data_type in _FLOATS:
                values = np.abs(numpy_helper.to_array(tensor).astype(np.float64))
                magnitudes[name] = float(np.max(values, initial=0.0, where=np.isfinite(values)))
        return magnitudes


def _statistics(graph: _FloatGraph) -> set[str]:
    """Return sums of rows, their terms, and the nodes that compute with the sums."""
    sums: set[str] = set()
    pools: set[str] = set()
    for node in graph.nodes:
        first = first_output(node)
        if node.op_type in _SUMS and graph.is_float(first):
            sums.add(first)
            pools |= {first} if _is_mean_of_pixels(graph, node) else set()
        elif node.op_type in ELEMENTWISE and graph.floats(node) and all(graph.are_made_by(node, sums)):
            shapes = [graph.shapes.get(name) for name in graph.floats(node)]
            if graph.shapes.get(first) in shapes:
                sums.add(first)
    # A mean of pixels reads its input as fp16, and a cast behind it is part of its kernel.
    statistics = sums - pools
    for node in graph.nodes:
        # Around a mean of 1000, x - mean would be rounded like the mean. And 1 / deviation may exceed fp16's range.
        is_scaled = (
            node.op_type in ("Sub", "Div", "Mul")
            and len(graph.floats(node)) == 2
            and any(graph.are_made_by(node, sums))
        )
        # fp32 inputs of the model need not be rounded before their mean is subtracted.
        is_of_input = (
            node.op_type in _NORMALIZATIONS
            and node.input[0] not in graph.producers
            and graph.elements.get(node.input[0]) == TensorProto.FLOAT
        )
        statistics |= {first_output(node)} if is_scaled or is_of_input else set()
    terms: set[str] = set()
    for node in reversed(graph.nodes):
        readers = map(first_output, graph.readers_of(node))
        are_sums = [reader in sums or reader in terms for reader in readers]
        is_returned = not graph.returned.isdisjoint(node.output)
        if node.op_type in _TERMS and are_sums and all(are_sums) and not is_returned:
            terms.add(first_output(node))
    return statistics | terms


def _angles(graph: _FloatGraph) -> set[str]:
    """Return the nodes between positions and Sin, Cos, Tan, and between positions and casts to integers."""
    angles: set[str] = set()
    for node in graph.nodes:
        is_index = (
            node.op_type == "Cast"
            and graph.elements.get(node.output[0]) in _LARGE_INTEGERS
            and bool(graph.floats(node))
        )
        if node.op_type not in ("Sin", "Cos", "Tan") and not is_index:
            continue
        behind: set[str] = set()
        is_position = _follow_positions(graph, node, behind)
        # If a layer computes the angle, only the scale behind it is fp32.
        scales = {first_output(maker) for maker in graph.makers(node) if maker.op_type in ELEMENTWISE}
        angles |= behind if is_position else scales
        # A kernel reads the angle in the precision that it is stored in.
        angles |= set() if is_index else {first_output(node)}
    return angles


def _follow_positions(graph: _FloatGraph, node: onnx.NodeProto, behind: set[str]) -> bool:
    """Add the nodes before `node` to `behind`.

    Return whether all of them are cheap operators on inputs, integers and constants.
    """
    for maker in graph.makers(node):
        if first_output(maker) in behind:
            continue
        if maker.op_type in ("Cast", "Range"):
            behind.add(first_output(maker))
            if graph.floats(maker) and not _follow_positions(graph, maker, behind):
                return False
        elif maker.op_type in ELEMENTWISE | MOVES or is_of_coordinates(maker, graph.shapes):
            behind.add(first_output(maker))
            if not _follow_positions(graph, maker, behind):
                return False
        elif maker.op_type not in ("Sin", "Cos"):
            return False
    return True


def is_of_coordinates(node: onnx.NodeProto, shapes: Shapes) -> bool:
    """Return whether a product sums only a few elements."""
    if node.op_type == "Einsum":
        equation = attributes_of(node).get("equation", b"").decode()
        inputs, _, output = equation.replace(" ", "").partition("->")
        return bool(output) and set(inputs) - {",", "."} <= set(output)
    first = shapes.get(node.input[0]) if node.op_type in ("MatMul", "Gemm") else None
    if not first:
        return False
    is_transposed = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
    return first[0 if is_transposed else -1] <= _MOST_COORDINATES


def _integers(graph: _FloatGraph) -> set[str]:
    """Return float nodes with integer values: casts of integers, and arithmetic of these and constants."""
    integers: set[str] = set()
    for node in graph.nodes:
        if node.op_type == "Cast":
            if (
                graph.elements.get(node.input[0]) in _LARGE_INTEGERS
                and graph.elements.get(node.output[0]) == TensorProto.FLOAT
            ):
                integers.add(first_output(node))
        elif node.op_type in ELEMENTWISE | MOVES:
            are_integers = graph.are_made_by(node, integers)
            are_scalars = [math.prod(graph.shapes.get(name, (0,))) == 1 for name in graph.floats(node)]
            # A computed scale has to be a scalar.
            if any(are_integers) and all(map(operator.or_, are_integers, are_scalars)):
                integers.add(first_output(node))
    return integers


def _masks(graph: _FloatGraph, *, clamps: bool) -> tuple[set[str], set[str]]:
    """Return the nodes between large constants and a Softmax, and the nodes among them that may be clamped.

    If none may be clamped, the Softmax is wide as well.
    """
    wide: set[str] = set()
    clamped: set[str] = set()
    place = {first_output(node): at for at, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op_type not in ("Softmax", "LogSoftmax"):
            continue
        behind: dict[str, onnx.NodeProto] = {}
        pending = graph.makers(node)
        while pending:
            maker = pending.pop()
            if first_output(maker) not in behind and maker.op_type in ELEMENTWISE | MOVES:
                behind[first_output(maker)] = maker
                pending += graph.makers(maker)
        sizes: list[float] = []
        path: set[str] = set()
        for first in sorted(behind, key=place.__getitem__):
            maker = behind[first]
            large = [size for name in maker.input if (size := graph.largest_constants.get(name, 0.0)) >= _MASK]
            sizes += large
            if large or any(graph.are_made_by(maker, path)):
                path.add(first)
        if clamps and len(sizes) == 1 and sizes[0] >= _ABSORBING:
            clamped |= path
        elif path:
            path.add(first_output(node))
        wide |= path
    return wide, clamped


def _vectors(graph: _FloatGraph) -> set[str]:
    """Return the element-wise nodes between a global mean and a product with whole channels, and the product.

    The mean reads fp16 in its kernel, which also computes a cast behind it.
    """
    vectors: dict[str, onnx.NodeProto] = {}
    pools: set[str] = set()
    for node in graph.nodes:
        are_vectors = graph.are_made_by(node, vectors.keys())
        is_pool = node.op_type in _POOLS or _is_mean_of_pixels(graph, node)
        pools |= {first_output(node)} if is_pool else set()
        is_computed = node.op_type in ELEMENTWISE | MOVES | _PRODUCTS and are_vectors and all(are_vectors)
        if is_pool or (is_computed and _is_vector(graph, node)):
            vectors[first_output(node)] = node
    wide = {
        first_output(reader)
        for node in vectors.values()
        for reader in graph.readers_of(node)
        if first_output(reader) not in vectors and reader.op_type in ("Mul", "Add") and len(graph.floats(reader)) == 2
    }
    computed = {first: node for first, node in vectors.items() if first not in pools}
    for first, node in reversed(computed.items()):
        if any(first_output(reader) in wide for reader in graph.readers_of(node)):
            wide.add(first)
    for first, node in computed.items():
        # The layers of a classifier are large and read once, so their weights stay fp16.
        if node.op_type not in _PRODUCTS and all(
            first_output(maker) in wide or first_output(maker) in pools for maker in graph.makers(node)
        ):
            wide.add(first)
    return wide


def _is_mean_of_pixels(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether a node is the mean of each channel of an image: [N, C, H, W] to [N, C, 1, 1] or [N, C]."""
    shape, result = graph.shapes.get(node.input[0]) if node.input else None, graph.shapes.get(node.output[0])
    if (
        node.op_type != "ReduceMean"
        or shape is None
        or result is None
        or len(shape) != _RANK_OF_IMAGES
        or math.prod(shape[2:]) == 1
    ):
        return False
    return result in ((*shape[:2], 1, 1), shape[:2])


def _is_vector(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether a node computes one number for each channel."""
    shape = graph.shapes.get(first_output(node))
    return shape is not None and len(shape) >= 2 and all(extent == 1 for extent in shape[2:])


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with its fp16 wide nodes computed and stored as fp32.

    y: fp16 = Sqrt(x: fp16)      ->      y: fp16 = Cast(Sqrt(Cast(x)))      without casts between two such nodes
    """
    kinds = {kind.tensor_type.elem_type for kind in types_of(model.graph).values()}
    wanted = wide_nodes(model, clamps=False).names if TensorProto.FLOAT16 in kinds else frozenset()
    if not wanted:
        return model
    graph = Graph(model)

    def is_fp16(name: str) -> bool:
        return graph.elements.get(name) == TensorProto.FLOAT16

    def read(name: str, node: onnx.NodeProto) -> str:
        def made(wide: str) -> str:
            if name in graph.weights:
                return graph.constant(wide, numpy_helper.to_array(graph.weights[name]).astype(np.float32))
            wide = graph.free(wide)
            graph.replace(node, helper.make_node("Cast", [name], [wide], to=TensorProto.FLOAT), node)
            return wide

        return graph.once(f"{name}_fp32", made) if is_fp16(name) else name

    for node in graph.nodes:
        if first_output(node) not in wanted or node.op_type == "Cast" or not any(map(is_fp16, node.output)):
            continue
        node.input[:] = [read(name, node) for name in node.input]
        behind = []
        for i, name in enumerate(node.output):
            if is_fp16(name):
                node.output[i] = graph.once(f"{name}_fp32", graph.free)
                behind.append(helper.make_node("Cast", [node.output[i]], [name], to=TensorProto.FLOAT16))
        graph.replace(node, node, *behind)
    return infer(graph.result(drops=("Cast",)))
