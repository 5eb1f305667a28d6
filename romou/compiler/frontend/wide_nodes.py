"""Find nodes that need fp32 for any input: statistics, angles, large integers, masks, and vectors that scale channels.

    ReduceMean, and Sub(x, mean) behind it        sums overflow, and a variance is a difference of large numbers
    Cast(position) -> Mul(frequency) -> Sin       an angle of 999 is rounded to a multiple of 0.5
    Add(scores, -1e9 * mask) -> Softmax           a masked row becomes -inf, and its Softmax NaN
    GlobalAveragePool -> Conv -> Sigmoid -> Mul   all pixels of a channel share one rounding error

The rules look at operators and shapes. They apply both to models converted to fp16 and to models stored as fp16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import (
    Graph,
    Shapes,
    constants_of,
    shapes_of,
    types_of,
)

REDUCTIONS = frozenset(
    f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Mean", "Prod", "Sum", "SumSquare")
)
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
    graph = _OnnxGraph(model)
    names = _statistics(graph) | _angles(graph) | _integers(graph) | _vectors(graph)
    masks, clamped = _masks(graph, clamps=clamps)
    names |= masks
    return WideNodes(names=frozenset(graph.first[i] for i in names), clamped=frozenset(graph.first[i] for i in clamped))


class _OnnxGraph:
    """The nodes of a graph by position, with the producer and the readers of each tensor."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes: Sequence[onnx.NodeProto] = list(model.graph.node)
        self.shapes: Shapes = shapes_of(model.graph)
        self.constants = constants_of(model.graph)
        self.weights: Mapping[str, TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}
        self.types = {name: kind.tensor_type.elem_type for name, kind in types_of(model.graph).items()}
        self.types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.readers: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in node.input:
                self.readers.setdefault(name, []).append(i)
        self.returned = {value.name for value in model.graph.output}
        self.first = [next((name for name in node.output if name), "") for node in self.nodes]

    def is_float(self, name: str) -> bool:
        return self.types.get(name) in _FLOATS

    def floats(self, position: int) -> list[str]:
        """Return the float tensors that a node reads, without constants."""
        return [
            name for name in self.nodes[position].input if name and name not in self.constants and self.is_float(name)
        ]

    def makers(self, position: int) -> list[int]:
        """Return the nodes that compute `floats(position)`."""
        return [self.maker[name] for name in self.floats(position) if name in self.maker]

    def readers_of(self, position: int) -> list[int]:
        return [reader for name in self.nodes[position].output for reader in self.readers.get(name, ())]

    def size(self, name: str) -> int | None:
        return math.prod(self.shapes[name]) if name in self.shapes else None

    @cached_property
    def largest_constants(self) -> dict[str, float]:
        """Largest finite magnitude of each float weight, by name."""
        magnitudes = {}
        for name, tensor in self.weights.items():
            if tensor.data_type in _FLOATS:
                values = np.abs(numpy_helper.to_array(tensor).astype(np.float64))
                magnitudes[name] = float(np.max(values, initial=0.0, where=np.isfinite(values)))
        return magnitudes


def _statistics(graph: _OnnxGraph) -> set[int]:
    """Return sums of rows, their terms, and the nodes that compute with the sums."""
    sums: set[int] = set()
    pools: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if node.op_type in REDUCTIONS and graph.is_float(graph.first[i]):
            sums.add(i)
            pools |= {i} if _is_mean_of_pixels(graph, node) else set()
        elif (
            node.op_type in ELEMENTWISE
            and graph.floats(i)
            and all(graph.maker.get(name) in sums for name in graph.floats(i))
        ):
            shapes = [graph.shapes.get(name) for name in graph.floats(i)]
            if graph.shapes.get(graph.first[i]) in shapes:
                sums.add(i)
    # A mean of pixels reads its input as fp16, and a cast behind it is part of its kernel.
    statistics = sums - pools
    for i, node in enumerate(graph.nodes):
        # Around a mean of 1000, x - mean would be rounded like the mean. And 1 / deviation may exceed fp16's range.
        if (
            node.op_type in ("Sub", "Div", "Mul")
            and len(graph.floats(i)) == 2
            and any(maker in sums for maker in graph.makers(i))
        ):
            statistics.add(i)
        elif (
            node.op_type in _NORMALIZATIONS
            and node.input[0] not in graph.maker
            and graph.types.get(node.input[0]) == TensorProto.FLOAT
        ):
            # fp32 inputs of the model need not be rounded before their mean is subtracted.
            statistics.add(i)
    terms: set[int] = set()
    for i in reversed(range(len(graph.nodes))):
        readers = graph.readers_of(i)
        is_returned = any(name in graph.returned for name in graph.nodes[i].output)
        if (
            graph.nodes[i].op_type in _TERMS
            and readers
            and not is_returned
            and all(reader in sums or reader in terms for reader in readers)
        ):
            terms.add(i)
    return statistics | terms


def _angles(graph: _OnnxGraph) -> set[int]:
    """Return the nodes between positions and Sin, Cos, Tan, and between positions and casts to integers."""
    angles: set[int] = set()
    for i, node in enumerate(graph.nodes):
        is_index = (
            node.op_type == "Cast" and graph.types.get(node.output[0]) in _LARGE_INTEGERS and bool(graph.floats(i))
        )
        if node.op_type not in ("Sin", "Cos", "Tan") and not is_index:
            continue
        behind: set[int] = set()
        is_position = _follow_positions(graph, i, behind)
        # If a layer computes the angle, only the scale behind it is fp32.
        scales = {maker for maker in graph.makers(i) if graph.nodes[maker].op_type in ELEMENTWISE}
        angles |= behind if is_position else scales
        # A kernel reads the angle in the precision that it is stored in.
        angles |= set() if is_index else {i}
    return angles


def _follow_positions(graph: _OnnxGraph, position: int, behind: set[int]) -> bool:
    """Add the nodes before `position` to `behind`.

    Return whether all of them are cheap operators on inputs, integers and constants.
    """
    for maker in graph.makers(position):
        if maker in behind:
            continue
        node = graph.nodes[maker]
        if node.op_type in ("Cast", "Range"):
            behind.add(maker)
            if graph.floats(maker) and not _follow_positions(graph, maker, behind):
                return False
        elif node.op_type in ELEMENTWISE | MOVES or is_of_coordinates(node, graph.shapes):
            behind.add(maker)
            if not _follow_positions(graph, maker, behind):
                return False
        elif node.op_type not in ("Sin", "Cos"):
            return False
    return True


def is_of_coordinates(node: onnx.NodeProto, shapes: Shapes) -> bool:
    """Return whether a product sums only a few elements."""
    if node.op_type == "Einsum":
        equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
        inputs, _, output = equation.replace(" ", "").partition("->")
        return bool(output) and set(inputs) - {",", "."} <= set(output)
    first = shapes.get(node.input[0]) if node.op_type in ("MatMul", "Gemm") else None
    if not first:
        return False
    is_transposed = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
    return first[0 if is_transposed else -1] <= _MOST_COORDINATES


def _integers(graph: _OnnxGraph) -> set[int]:
    """Return float nodes with integer values: casts of integers, and arithmetic of these and constants."""
    integers: set[int] = set()
    for i, node in enumerate(graph.nodes):
        read = graph.floats(i)
        if node.op_type == "Cast":
            if (
                graph.types.get(node.input[0]) in _LARGE_INTEGERS
                and graph.types.get(node.output[0]) == TensorProto.FLOAT
            ):
                integers.add(i)
        elif node.op_type in ELEMENTWISE | MOVES:
            are_integers = [graph.maker.get(name) in integers for name in read]
            # A computed scale has to be a scalar.
            if any(are_integers) and all(
                is_integer or graph.size(name) == 1 for is_integer, name in zip(are_integers, read, strict=True)
            ):
                integers.add(i)
    return integers


def _masks(graph: _OnnxGraph, *, clamps: bool) -> tuple[set[int], set[int]]:
    """Return the nodes between large constants and a Softmax, and the nodes among them that may be clamped.

    If none may be clamped, the Softmax is wide as well.
    """
    wide: set[int] = set()
    clamped: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if node.op_type not in ("Softmax", "LogSoftmax"):
            continue
        behind: set[int] = set()
        pending = graph.makers(i)
        while pending:
            maker = pending.pop()
            if maker not in behind and graph.nodes[maker].op_type in ELEMENTWISE | MOVES:
                behind.add(maker)
                pending += graph.makers(maker)
        sizes = [graph.largest_constants.get(name, 0.0) for maker in behind for name in graph.nodes[maker].input]
        sizes = [size for size in sizes if size >= _MASK]
        path: set[int] = set()
        for maker in sorted(behind):
            is_mask = any(graph.largest_constants.get(name, 0.0) >= _MASK for name in graph.nodes[maker].input)
            if is_mask or any(before in path for before in graph.makers(maker)):
                path.add(maker)
        if clamps and len(sizes) == 1 and sizes[0] >= _ABSORBING:
            clamped |= path
        elif path:
            path.add(i)
        wide |= path
    return wide, clamped


def _vectors(graph: _OnnxGraph) -> set[int]:
    """Return the element-wise nodes between a global mean and a product with whole channels, and the product.

    The mean reads fp16 in its kernel, which also computes a cast behind it.
    """
    vectors = {i for i, node in enumerate(graph.nodes) if node.op_type in _POOLS or _is_mean_of_pixels(graph, node)}
    pools = set(vectors)
    for i, node in enumerate(graph.nodes):
        read = graph.floats(i)
        if (
            node.op_type in ELEMENTWISE | MOVES | _PRODUCTS
            and read
            and all(graph.maker.get(name) in vectors for name in read)
            and _is_vector(graph, i)
        ):
            vectors.add(i)
    gated = {
        reader
        for i in vectors
        for reader in graph.readers_of(i)
        if reader not in vectors and graph.nodes[reader].op_type in ("Mul", "Add") and len(graph.floats(reader)) == 2
    }
    gating: set[int] = set()
    for i in sorted(vectors - pools, reverse=True):
        if any(reader in gating or reader in gated for reader in graph.readers_of(i)):
            gating.add(i)
    wide = gated | gating
    for i in sorted(vectors - pools):
        # The layers of a classifier are large and read once, so their weights stay fp16.
        if graph.nodes[i].op_type not in _PRODUCTS and all(
            maker in wide or maker in pools for maker in graph.makers(i)
        ):
            wide.add(i)
    return wide


def _is_mean_of_pixels(graph: _OnnxGraph, node: onnx.NodeProto) -> bool:
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


def _is_vector(graph: _OnnxGraph, position: int) -> bool:
    """Return whether a node computes one number for each channel."""
    shape = graph.shapes.get(graph.first[position])
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

    for node in list(graph.nodes):
        first = next((name for name in node.output if name), "")
        if first not in wanted or node.op_type == "Cast" or not any(map(is_fp16, node.output)):
            continue
        node.input[:] = [read(name, node) for name in node.input]
        behind = []
        for i, name in enumerate(node.output):
            if is_fp16(name):
                node.output[i] = graph.once(f"{name}_fp32", graph.free)
                behind.append(helper.make_node("Cast", [node.output[i]], [name], to=TensorProto.FLOAT16))
        graph.replace(node, node, *behind)
    return infer(graph.result(drops=("Cast",)))
