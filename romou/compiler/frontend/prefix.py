"""Prefixes of a model, to find the node at fault by bisection if a step of the compiler fails."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from romou.compiler.frontend.host_groups import Values
from romou.compiler.frontend.onnx_graph import inputs_of


def first_failing(count: int, fails: Callable[[int], bool]) -> int:
    """Return the index of the first failing node, given that the model of all `count` nodes fails.

    fails: whether the first `n` nodes fail. A prefix that contains a failing prefix is assumed to fail.
    """
    right, wrong = 0, count
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (right, middle) if fails(middle) else (middle, wrong)
    return wrong - 1


def first_nodes(model: onnx.ModelProto, count: int, values: Values) -> onnx.ModelProto:
    """Return a model of the first `count` nodes.

    Its outputs are tensors of known types that none of these nodes reads, or that the model returns.
    """
    nodes = list(model.graph.node[:count])
    read = {name for node in nodes for name in inputs_of(node)}
    returned = {value.name for value in model.graph.output}
    outputs = [
        name
        for node in nodes
        for name in node.output
        if name and (name not in read or name in returned) and values.is_carried(name)
    ]
    constants = [values.constants[name] for name in sorted(read & values.constants.keys())]
    inputs = [value for value in model.graph.input if value.name in read and value.name not in values.constants]
    infos = [onnx.helper.make_value_info(name, values.types[name]) for name in outputs]
    graph = onnx.helper.make_graph(nodes, "first", inputs, infos, constants, value_info=list(model.graph.value_info))
    return onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions, graph=graph
    )
