"""Helpers for ONNX graphs: static shapes, types, constants, unused names, and replacing nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
import onnx.checker
from google.protobuf.message import EncodeError
from onnx import numpy_helper

from romou.base.errors import ModelError

# Tensor name -> shape, only for static shapes.
Shapes = dict[str, tuple[int, ...]]
# Operators that change no value.
MOVES = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def type_name(element: int) -> str:
    """Return NumPy's name of an ONNX element type."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element)).name


def shapes_of(graph: onnx.GraphProto) -> Shapes:
    """Return the static shapes of a graph's tensors."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if (
            value.type.HasField("tensor_type")
            and tensor.HasField("shape")
            and all(d.HasField("dim_value") for d in tensor.shape.dim)
        ):
            shapes[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
    return shapes


def types_of(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """Return the types of inputs, outputs and tensors that shape inference has recorded, by name."""
    return {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's standard operators that a model imports."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)


def constant_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return initializers, and the tensors of Constant nodes, by name."""
    values = [
        (n.output[0], a.t) for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"
    ]
    return {**{tensor.name: tensor for tensor in graph.initializer}, **dict(values)}


def constants_of(graph: onnx.GraphProto) -> set[str]:
    """Return the names of initializers and of the outputs of Constant nodes."""
    return {tensor.name for tensor in graph.initializer} | {
        node.output[0] for node in graph.node if node.op_type == "Constant"
    }


def add_constant(graph: onnx.GraphProto, wanted: str, value: np.ndarray) -> str:
    """Add an initializer under an unused name, and return the name."""
    name = free_name(graph, wanted)
    graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def free_name(graph: onnx.GraphProto, wanted: str) -> str:
    taken = _taken(graph)
    while wanted in taken:
        wanted += "_"
    return wanted


def free_prefix(graph: onnx.GraphProto, wanted: str) -> str:
    """Return `wanted`, extended until no name of the graph begins with it."""
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
    """Replace a graph's nodes. `nodes` may contain nodes of the graph."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def check(model: onnx.ModelProto) -> None:
    """Raise onnx.checker.ValidationError for a broken model, and ModelError for one that protobuf cannot write.

    Inputs and outputs need no shape. The checker requires one, onnxruntime does not.
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
    except EncodeError as error:
        raise ModelError(
            "the model in memory is larger than 2 GiB, which protobuf does not write",
            hint="Save it with its weights as external data, and give the path.",
        ) from error
    finally:
        for tensor in bare:
            tensor.ClearField("shape")


def inputs_of(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node and its subgraphs read from outside, each once."""
    return list(dict.fromkeys(name for name in (*node.input, *captured(node)) if name))


def captured(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of values outside of a node's subgraphs that these read."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own |= {name for inner in graph.node for name in inner.output}
            read = [name for inner in graph.node for name in inputs_of(inner)]
            yield from (name for name in (*read, *(value.name for value in graph.output)) if name not in own)


def only_readers(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the position of the node that alone reads a value, once, by the value's name.

    Outputs of the graph and what subgraphs read have none.
    """
    kept = {value.name for value in graph.output} | {name for node in graph.node for name in captured(node)}
    readers: dict[str, list[int]] = {}
    for position, node in enumerate(graph.node):
        for name in node.input:
            readers.setdefault(name, []).append(position)
    return {name: found[0] for name, found in readers.items() if len(found) == 1 and name not in kept}


def drop_unread_weights(graph: onnx.GraphProto) -> None:
    """Remove initializers that nothing reads any more."""
    read = {name for node in graph.node for name in inputs_of(node)} | {
        value.name for value in (*graph.input, *graph.output)
    }
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def without_unread(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes without dequantizations and transposes that nothing reads."""
    while True:
        read = outputs | {name for node in nodes for name in inputs_of(node)}
        live = [n for n in nodes if n.op_type not in ("DequantizeLinear", "Transpose") or read & set(n.output)]
        if len(live) == len(nodes):
            return live
        nodes = live
