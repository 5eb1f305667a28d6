"""The first nodes of a model, as a model of its own: a node that a step of the compiler fails at is found by bisection."""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable

import onnx

from romou.compiler.frontend.host_groups import Values, inputs_of


def first_failing(count: int, fails: Callable[[int], bool]) -> int:
    """Index of the node with which models of the first nodes begin to fail, where the one of all `count` nodes does.

    Whatever fails with some nodes is taken to fail with more.
    """
    right, wrong = 0, count
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (right, middle) if fails(middle) else (middle, wrong)
    return wrong - 1


def first_nodes(model: onnx.ModelProto, count: int, values: Values) -> onnx.ModelProto:
    """The model as far as its first `count` nodes; its outputs are their tensors of known types that nothing among them
    reads, or the model returns.
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
