"""Axes that exporters write as a scalar, as the vector that ONNX asks for.

PyTorch's exporter wrote them for a while. onnxruntime takes them for Unsqueeze, TVM's importer for no operator.
"""

from __future__ import annotations

import onnx

from romou.compiler.frontend.onnx_graph import REDUCTIONS, Graph, rule

_WITH_BODIES = ("If", "Loop", "Scan")


@rule("Squeeze", "Unsqueeze", *REDUCTIONS, *_WITH_BODIES)
def with_vectors_of_axes(node: onnx.NodeProto, graph: Graph) -> None:
    """Write constant axes with rank 1, in graphs of control flow as well.

    Unsqueeze(x, 1)  ->  Unsqueeze(x, [1])
    """
    for attribute in node.attribute if node.op_type in _WITH_BODIES else ():
        body = onnx.ModelProto(graph=attribute.g)
        if (changed := with_vectors_of_axes(body)) is not body:
            attribute.g.CopyFrom(changed.graph)
            graph.touch(node)
    axes = None if node.op_type in _WITH_BODIES or len(node.input) < 2 else graph.array(node.input[1])
    if axes is not None and not axes.shape:
        node.input[1] = graph.constant(f"{node.output[0]}/axes", axes.reshape(1))
        graph.touch(node)
