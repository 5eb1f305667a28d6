"""Axes that exporters write as a scalar, as the vector that ONNX asks for.

PyTorch's exporter wrote them for a while. onnxruntime takes them for Unsqueeze, TVM's importer for no operator.
"""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from romou.compiler.frontend.onnx_graph import add_constant, constant_tensors


def with_vectors_of_axes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with constant axes of rank 1, or `model` itself if all of them are.

    Unsqueeze(x, 1)  ->  Unsqueeze(x, [1])
    """
    if not any(_scalars(graph) for graph in _graphs(model.graph)):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for graph in _graphs(result.graph):
        for node, axes in _scalars(graph):
            node.input[1] = add_constant(graph, f"{node.output[0]}/axes", numpy_helper.to_array(axes).reshape(1))
    return result


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """Return a graph and the graphs of its control flow."""
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [graph, *(found for each in inner for found in _graphs(each))]


def _scalars(graph: onnx.GraphProto) -> list[tuple[onnx.NodeProto, onnx.TensorProto]]:
    """Return the nodes whose axes are a constant of rank 0, with the constant."""
    constants = constant_tensors(graph)
    return [
        (node, constants[node.input[1]])
        for node in graph.node
        if (node.op_type in ("Squeeze", "Unsqueeze") or node.op_type.startswith("Reduce"))
        and node.domain in ("", "ai.onnx")
        and len(node.input) > 1
        and node.input[1] in constants
        and not constants[node.input[1]].dims
    ]
