"""The first ONNX operator of a model with a wrong output, found by bisection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper

from romou.compiler.frontend.onnx_graph import inputs_of
from romou.compiler.frontend.prefix import first_failing
from romou.compiler.frontend.reference import run_onnxruntime

# Whether a part of a model has wrong outputs, on tensors by name.
IsWrong: TypeAlias = "Callable[[onnx.ModelProto, Mapping[str, np.ndarray]], bool]"
# Nodes with right kernels whose outputs differ, after which the search for a wrong one gives up.
_MOST_AMPLIFIERS = 16


def first_wrong(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], is_wrong: IsWrong) -> onnx.NodeProto:
    """Return the first node that leaves a wrong tensor to later nodes.

    A wrong tensor leads to the outputs, directly or through other wrong tensors. So if a tensor is wrong behind one
    node, some tensor is wrong behind all later ones.
    """
    at = first_failing(len(model.graph.node), lambda count: is_wrong(_nodes_between(model, 0, count, {}), inputs))
    return _node_at(model, at)


def first_wrong_on_equal_inputs(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], is_wrong: IsWrong
) -> onnx.NodeProto | None:
    """Return the first node that leaves a wrong tensor although it reads right ones. None if there is none.

    Activations that are quantized anew amplify rounding, so a right node leaves other numbers if its inputs differ in
    the last place. Behind each such node the bisection starts again, from onnxruntime's tensors.
    """
    tensors, count, begin = _all_tensors(model, inputs), len(model.graph.node), 0
    if tensors is None:
        return None

    def is_wrong_between(begin: int, end: int) -> bool:
        return is_wrong(_nodes_between(model, begin, end, tensors), tensors)

    for _ in range(_MOST_AMPLIFIERS):
        if begin == count or not is_wrong_between(begin, count):
            return None
        at = begin + first_failing(count - begin, lambda nodes, begin=begin: is_wrong_between(begin, begin + nodes))  # type: ignore[misc]
        if is_wrong_between(at, at + 1):
            return _node_at(model, at)
        begin = at + 1
    return None


def _node_at(model: onnx.ModelProto, at: int) -> onnx.NodeProto:
    node = model.graph.node[at]
    assert isinstance(node, onnx.NodeProto)
    return node


def _all_tensors(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Return onnxruntime's values of the inputs and of all tensors between nodes. None if it cannot run the model."""
    known = {value.name for value in model.graph.output}
    everything = onnx.ModelProto()
    everything.CopyFrom(model)
    everything.graph.output.extend(value for value in model.graph.value_info if value.name not in known)
    values = run_onnxruntime(everything, inputs, is_optimized=False)
    if values is None:
        return None
    return dict(inputs) | {value.name: array for value, array in zip(everything.graph.output, values, strict=True)}


def _nodes_between(model: onnx.ModelProto, begin: int, end: int, tensors: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return a model of some nodes, which reads the tensors of the nodes before them.

    Its outputs are their tensors that later nodes or the model's outputs need.

    tensors: values of the tensors before them.
    """
    nodes, later = list(model.graph.node[begin:end]), model.graph.node[end:]
    written = {name for node in nodes for name in node.output if name}
    read = {name for node in nodes for name in inputs_of(node)}
    earlier = {name: node for node in model.graph.node[:begin] for name in node.output if name in read}
    # Shapes that a node reads have to be constants.
    constants = {name: node for name, node in earlier.items() if node.op_type == "Constant"}
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in tensors.items()
        if name in earlier and name not in constants
    ]
    needed = {name for node in later for name in inputs_of(node)} | {output.name for output in model.graph.output}
    value_of: Mapping[str, onnx.ValueInfoProto] = {
        value.name: value for value in (*model.graph.value_info, *model.graph.output)
    }
    part = onnx.ModelProto()
    part.CopyFrom(model)
    for field, kept in (
        (part.graph.node, [*constants.values(), *nodes]),
        (part.graph.output, [value_of[name] for name in sorted(written & needed) if name in value_of]),
        (part.graph.input, [*given, *(value for value in model.graph.input if value.name in read)]),
        (part.graph.initializer, [weight for weight in model.graph.initializer if weight.name in read]),
        (part.graph.value_info, [value for value in model.graph.value_info if value.name in written - needed]),
    ):
        del field[:]
        field.extend(kept)
    return part
