"""What the steps before import ask of an ONNX graph: static shapes, constants, and names that are free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
import onnx.checker
from onnx import numpy_helper

# Shape by tensor name, of those that are static.
Shapes = dict[str, tuple[int, ...]]


def shapes_of(graph: onnx.GraphProto) -> Shapes:
    found = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if (
            value.type.HasField("tensor_type")
            and tensor.HasField("shape")
            and all(d.HasField("dim_value") for d in tensor.shape.dim)
        ):
            found[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
    return found


def types_of(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """Type by tensor name, of inputs, outputs and what shape inference found."""
    return {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}


def constants_of(graph: onnx.GraphProto) -> set[str]:
    """Names of initializers and of the outputs of Constant nodes."""
    return {tensor.name for tensor in graph.initializer} | {
        node.output[0] for node in graph.node if node.op_type == "Constant"
    }


def add_constant(graph: onnx.GraphProto, wanted: str, value: np.ndarray) -> str:
    """Add an initializer under a name that is free, and return the name."""
    name = free_name(graph, wanted)
    graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def free_name(graph: onnx.GraphProto, wanted: str) -> str:
    taken = _taken(graph)
    while wanted in taken:
        wanted += "_"
    return wanted


def free_prefix(graph: onnx.GraphProto, wanted: str) -> str:
    """`wanted`, made longer until no name of the graph begins so: for many names at a time."""
    taken = _taken(graph)
    while any(name.startswith(wanted) for name in taken):
        wanted += "_"
    return wanted


def _taken(graph: onnx.GraphProto) -> set[str]:
    return (
        {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input} | set(_names(graph.node))
    )


def _names(nodes: Iterable[onnx.NodeProto]) -> Iterable[str]:
    for node in nodes:
        yield from node.input
        yield from node.output


def replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    """Put these nodes in the place of the graph's; they may be the graph's own."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def check(model: onnx.ModelProto) -> None:
    """Raise onnx.checker.ValidationError for a broken model. Inputs and outputs need no shape, which the checker wants
    and onnxruntime does not.
    """
    tensors = [
        value.type.tensor_type
        for value in (*model.graph.input, *model.graph.output)
        if value.type.WhichOneof("value") == "tensor_type"
    ]
    bare = [tensor for tensor in tensors if not tensor.HasField("shape")]
    for tensor in bare:
        tensor.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    finally:
        for tensor in bare:
            tensor.ClearField("shape")


def captured(node: onnx.NodeProto) -> Iterator[str]:
    """Names that the branches and bodies of a node read, from outside too."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (output.name for output in graph.output)
            for inner in graph.node:
                yield from inner.input
                yield from captured(inner)


def drop_unread_weights(graph: onnx.GraphProto) -> None:
    """Leave out initializers that nothing reads any more."""
    read = {name for node in graph.node for name in (*node.input, *captured(node))} | {
        value.name for value in (*graph.input, *graph.output)
    }
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
