"""The graph that rules rewrite (`romou/compiler/frontend/onnx_graph.py`)."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from romou.compiler.frontend import onnx_graph
from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import Graph
from romou.compiler.frontend.scaled_sums import scale_factors


def products(count: int) -> onnx.ModelProto:
    """Return scaled products in a row, which share the scale."""
    nodes = []
    for at in range(count):
        nodes.append(helper.make_node("MatMul", [f"x{at}", f"y{at}"], [f"sum{at}"]))
        nodes.append(helper.make_node("Mul", [f"sum{at}", "scale"], [f"x{at + 1}"]))
    values = [helper.make_tensor_value_info(f"y{at}", TensorProto.FLOAT, (2, 2)) for at in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 2)) for name in ("x0", f"x{count}")]
    scale = numpy_helper.from_array(np.array(0.125, np.float32), "scale")
    graph = helper.make_graph(nodes, "products", [ends[0], *values], [ends[1]], [scale])
    return infer(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def lines_of_graph(model: onnx.ModelProto) -> int:
    """Return the number of lines of the graph's module that a rule runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != onnx_graph.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        scale_factors(model, TensorProto.FLOAT)
    finally:
        sys.settrace(before)
    return count


def test_work_is_linear_in_the_nodes() -> None:
    """A rule that rewrites every node and reads the index between two rewrites takes as long for each of them."""
    few, many = (lines_of_graph(products(count)) for count in (40, 160))
    assert few > 1000
    assert many < 5 * few


def reads(graph: Graph) -> dict[str, list[tuple[str, int]]]:
    names = {name for node in graph.nodes for name in node.input}
    return {name: [(node.output[0], index) for node, index in graph.uses(name)] for name in names}


def test_index_follows_rewrites() -> None:
    """After any rewrite, uses come in the order of the nodes, and producers are those of a graph made anew."""
    rng = np.random.default_rng(7)
    graph = Graph(products(6))
    for step in range(60):
        node = graph.nodes[rng.integers(len(graph.nodes))]
        match rng.integers(4):
            case 0:
                made = [helper.make_node("Neg", [node.input[0]], [f"negative{step}"]) for _ in range(2)]
                made[1].output[0] += "/twice"
                graph.replace(node, made[0], node, made[1])
            case 1:
                node.input[0] = "scale" if rng.integers(2) else "x0"
                graph.touch(node)
            case 2 if len(graph.nodes) > 8:
                graph.bypass(node, node.input[0])
            case 3 if (reader := graph.only_reader(node.output[0])) is not None and reader.op_type == "Mul":
                graph.absorb(reader, node)
        again = onnx.ModelProto()
        again.CopyFrom(graph.model)
        del again.graph.node[:]
        again.graph.node.extend(graph.nodes)
        anew = Graph(again)
        assert reads(graph) == reads(anew)
        assert graph.producers.keys() == anew.producers.keys()
        assert all(graph.producers[node.output[0]] is node for node in graph.nodes)


def test_subgraphs_read_tensors_as_well() -> None:
    """A tensor that a branch reads has a use without an input, so no rule takes its other reader for the only one."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (bool c, float[2] x) => (float[2] y, float[2] z) {
        s = Neg(x)
        y = If(c) <then_branch = t () => (float[2] a) { a = Abs(s) }, else_branch = e () => (float[2] b) { b = Exp(s) }>
        z = Relu(s)
    }"""
    graph = Graph(onnx.parser.parse_model(text))
    assert [(node.op_type, index) for node, index in graph.uses("s")] == [("If", -1), ("Relu", 0)]
    assert graph.only_reader("s") is None
    branch, _ = graph.uses("s")[0]
    graph.replace(branch)
    assert graph.only_reader("s") is graph.nodes[-1]
