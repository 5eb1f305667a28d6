"""Inputs that the declared shapes of a graph already decide become constants: the shape of a Reshape, the axes of a Squeeze, the k of a TopK.

A model that gives its shapes promises them. So a parameter that decides a shape, and nothing else, has one value, and no kernel needs to be told.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

from romou.frontend.graph import Shapes, add_constant, constants_of, shapes_of

# Returns the values of inputs by index; None or an absent entry where shapes do not decide them.
Rule = Callable[[onnx.NodeProto, Shapes], dict[int, np.ndarray] | None]


def settle_declared(proto: onnx.ModelProto) -> list[str]:
    """Replace, in place, inputs that shapes decide, and return the names of the graph's own that nothing reads any more.

    A list without elements has one value, too.
    """
    graph = proto.graph
    known = constants_of(graph)
    shapes = shapes_of(graph)
    were_read = {name for node in graph.node for name in node.input}
    for value in graph.input:
        if value.name not in known and shapes.get(value.name) == (0,):
            _replace(graph, value.name, np.zeros(shapes[value.name], helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)))
    known = constants_of(graph)
    for node in graph.node:
        rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is None or node.output[0] not in shapes:
            continue
        for index, value in (rule(node, shapes) or {}).items():
            if index < len(node.input) and node.input[index] and node.input[index] not in known:
                node.input[index] = add_constant(graph, f"{node.output[0]}_input{index}", value)
        if node.op_type in ("Squeeze", "Unsqueeze") and len(node.input) > 1 and node.input[1] not in known:
            node.input[1] = add_constant(graph, f"{node.output[0]}_shape", np.array(shapes[node.output[0]], np.int64))
            node.op_type = "Reshape"
    are_read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    return [value.name for value in graph.input if value.name in were_read - are_read and shapes.get(value.name) != (0,)]


def _replace(graph: onnx.GraphProto, name: str, value: np.ndarray) -> None:
    constant = add_constant(graph, f"{name}_empty", value)
    for node in graph.node:
        for i, given in enumerate(node.input):
            if given == name:
                node.input[i] = constant


def _result_shape(index: int) -> Rule:
    """The input is the result's shape."""
    return lambda node, shapes: {index: np.array(shapes[node.output[0]], np.int64)}


def _reshape(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    shape = shapes[node.output[0]]
    return None if 0 in shape else {1: np.array(shape, np.int64)}


def _reduced_axes(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    """The only axes whose reduction gives the result's shape; axes of one element may be among them or not, as long as another one is."""
    given, count = shapes.get(node.input[0]), shapes.get(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    if given is None or not count:
        return None
    keep = next((a.i for a in node.attribute if a.name == "keepdims"), 1)

    def result(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(1 if i in axes else d for i, d in enumerate(given) if keep or i not in axes)

    fitting = [axes for axes in itertools.combinations(range(len(given)), count[0]) if result(axes) == shapes[node.output[0]]]
    wide = {tuple(a for a in axes if given[a] != 1) for axes in fitting}
    return {1: np.array(fitting[0], np.int64)} if len(wide) == 1 else None


def _sizes(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    """Sizes are the result's shape, unless they only bound it."""
    policy = next((a.s for a in node.attribute if a.name == "keep_aspect_ratio_policy"), b"stretch")
    return {3: np.array(shapes[node.output[0]], np.int64)} if policy == b"stretch" else None


def _center_crop_pad(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    result = shapes[node.output[0]]
    axes = next((list(a.ints) for a in node.attribute if a.name == "axes"), range(len(result)))
    return {1: np.array([result[axis] for axis in axes], np.int64)}


def _tile(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    given, result = shapes.get(node.input[0]), shapes[node.output[0]]
    if given is None or 0 in given:
        return None
    return {1: np.array([r // g for g, r in zip(given, result, strict=True)], np.int64)}


def _split(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    parts = [shapes.get(name) for name in node.output]
    return {1: np.array([p[axis] for p in parts if p is not None], np.int64)} if None not in parts else None


def _top_k(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    return {1: np.array([shapes[node.output[0]][axis]], np.int64)}


def _one_hot(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    return {1: np.array(shapes[node.output[0]][axis], np.int64)}


def _window(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    return {0: np.array(shapes[node.output[0]][0], np.int64)}


def _affine_grid(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    """The number of channels is the only one of the sizes that is not in the grid's shape, and the grid does not depend on it."""
    batch, *extents, _ = shapes[node.output[0]]
    return {1: np.array([batch, 1, *extents], np.int64)}


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_RULES: dict[str, Rule] = {
    **{f"Reduce{name}": _reduced_axes for name in _REDUCTIONS},
    **{f"{name}Window": _window for name in ("Blackman", "Hamming", "Hann")},
    "AffineGrid": _affine_grid,
    "CenterCropPad": _center_crop_pad,
    "ConstantOfShape": _result_shape(0),
    "Expand": _result_shape(1),
    "MaxUnpool": _result_shape(2),
    "OneHot": _one_hot,
    "Reshape": _reshape,
    "Resize": _sizes,
    "Split": _split,
    "Squeeze": lambda node, shapes: None,
    "Tile": _tile,
    "TopK": _top_k,
    "Unsqueeze": lambda node, shapes: None,
}
