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


def first_nodes(count: int, values: Values) -> onnx.ModelProto:
    """Return a model of the first `count` nodes.

    Its outputs are tensors of known types that none of these nodes reads, or that the model returns.
    """
    nodes = values.nodes[:count]
    read = {name for node in nodes for name in inputs_of(node)}
    outputs = [
        name
        for node in nodes
        for name in node.output
        if name and (name not in read or name in values.returned) and values.is_carried(name)
    ]
    prefix = values.part(nodes, outputs)
    prefix.graph.value_info.extend(values.model.graph.value_info)
    return prefix
