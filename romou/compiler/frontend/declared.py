"""Replace inputs that declared shapes determine by constants, such as the shape of a Reshape or the k of a TopK.

A model that declares the result's shape fixes the value of a parameter that determines only this shape. So the
parameter can be a constant. If it is an input of the model, each run checks that its value keeps the declared shapes.
"""

from __future__ import annotations

import base64
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from romou.base.errors import ModelError, UsageError
from romou.base.schema import made_of
from romou.compiler.frontend.onnx_graph import REDUCTIONS, Graph, Shapes, attributes_of, rule, shapes_of, type_name

logger = logging.getLogger("romou")

# Values of a node's inputs by index. None, or an absent entry, if shapes do not determine them.
Rule = Callable[[onnx.NodeProto, Shapes], dict[int, np.ndarray] | None]


@dataclass(frozen=True, kw_only=True)
class Settled:
    """An input of the model with a value that the declared shapes determine.

    name, dtype: of the input.
    value: the determined value.
    reader: a serialized model of the node that reads the input, with the declared shapes.
    """

    name: str
    dtype: str
    value: int | list[int]
    reader: bytes

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "value": self.value,
            "reader": base64.b64encode(self.reader).decode(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Settled:
        """Return the inverse of `to_dict`. KeyError or ValueError for anything else."""
        return made_of(cls, {**data, "reader": base64.b64decode(made_of(str, data["reader"]))})

    @property
    def array(self) -> np.ndarray:
        """The value as an array of the input's type."""
        return np.array(self.value, self.dtype)

    def check(self, given: np.ndarray) -> None:
        """Raise UsageError if `given` changes the shapes of the node's results.

        Other values with the same result, such as -1 for an extent, are accepted.
        """
        if np.array_equal(given, self.array):
            return
        model = onnx.load_from_string(self.reader)
        declared = shapes_of(model.graph)
        wanted = [declared[value.name] for value in model.graph.output]
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        model.graph.initializer.append(onnx.numpy_helper.from_array(given, self.name))
        try:
            shapes = shapes_of(onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph)
            is_kept = [shapes.get(value.name) for value in model.graph.output] == wanted
        except (onnx.shape_inference.InferenceError, ValueError):
            is_kept = False
        if not is_kept:
            node = model.graph.node[0]
            results = ", ".join(
                f"{value.name!r} {list(shape)}" for value, shape in zip(model.graph.output, wanted, strict=True)
            )
            raise UsageError(
                f"input {self.name!r} = {given.tolist()} contradicts the model, which declares that {node.op_type}"
                f" makes {results}: that takes {self.value}",
                hint="Declare the shapes that such runs have, and compile the model again.",
                input=self.name,
            )


def check_settled(settled: Sequence[Settled], inputs: Mapping[str, Any]) -> None:
    """Raise UsageError for the first input of a run that contradicts the declared shapes."""
    for entry in settled:
        entry.check(np.asarray(inputs[entry.name]))


def settle_declared(model: onnx.ModelProto, settled: list[Settled]) -> onnx.ModelProto:
    """Return the model with constants for inputs of nodes that shapes determine.

    An empty list has only one value, so it is replaced as well.

    settled: receives the model's inputs among them.
    """
    result = _settle(_without_empty(model), settled)
    if settled:
        names = ", ".join(dict.fromkeys(entry.name for entry in settled))
        logger.warning("the shapes that the model declares decide %s: a run with another value is refused", names)
    return result


def _without_empty(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with constants in place of its empty lists."""
    graph = Graph(model)
    for value in model.graph.input:
        if value.name not in graph.constants and graph.shapes.get(value.name) == (0,):
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            constant = graph.constant(f"{value.name}_empty", np.zeros(0, dtype))
            for reader, index in graph.uses(value.name):
                if index >= 0:
                    reader.input[index] = constant
                    graph.touch(reader)
    return graph.result()


def _settled(graph: Graph, node: onnx.NodeProto, name: str, value: np.ndarray) -> list[Settled]:
    """Return the input of the model that a node reads under a name, or nothing for other tensors."""
    proto, types = graph.model, graph.types
    if all(given.name != name for given in proto.graph.input):
        return []
    shape = tuple(d.dim_value for d in types[name].tensor_type.shape.dim)
    if np.size(value) != math.prod(shape):
        asked = f"the shapes that the model declares around {node.op_type} ask for {np.size(value)} numbers"
        raise ModelError(f"input {name!r} has the shape {list(shape)}, but {asked}")
    infos = {n: onnx.helper.make_value_info(n, types[n]) for n in (*node.input, *node.output) if n in types}
    weights = [graph.weights[n] for n in dict.fromkeys(node.input) if n in graph.weights]
    inputs = [infos[n] for n in dict.fromkeys(node.input) if n in infos and n not in graph.weights]
    single = helper.make_graph([node], "reader", inputs, [infos[n] for n in node.output if n], weights)
    reader = helper.make_model(single, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    return [
        Settled(
            name=name,
            dtype=type_name(types[name].tensor_type.elem_type),
            value=np.reshape(value, shape).tolist(),
            reader=reader.SerializeToString(),
        )
    ]


def _changed_axes(node: onnx.NodeProto, shapes: Shapes) -> np.ndarray | None:
    """Return the first axes that a Squeeze removes, or an Unsqueeze adds, to give the declared shape."""
    shape, result, count = (shapes.get(name) for name in (node.input[0], node.output[0], node.input[1]))
    if shape is None or result is None or count is None:
        return None
    wide, narrow = (shape, result) if node.op_type == "Squeeze" else (result, shape)
    fitting = (
        axes
        for axes in itertools.combinations(range(len(wide)), math.prod(count))
        if tuple(d for i, d in enumerate(wide) if i not in axes) == narrow
    )
    return next((np.array(axes, np.int64) for axes in fitting), None)


def _result_shape(index: int) -> Rule:
    """Return the rule for an operator that takes the result's shape as its input `index`."""
    return lambda node, shapes: {index: np.array(shapes[node.output[0]], np.int64)}


def _reshape(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    shape = shapes[node.output[0]]
    return None if 0 in shape else {1: np.array(shape, np.int64)}


def _reduced_axes(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    """Return the axes of a reduction if only these give the result's shape.

    Axes of extent 1 may or may not be among them, if another axis is.
    """
    shape = shapes.get(node.input[0])
    count = shapes.get(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    if shape is None or not count:
        return None
    keep = attributes_of(node).get("keepdims", 1)

    def result(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(1 if i in axes else d for i, d in enumerate(shape) if keep or i not in axes)

    fitting = [
        axes for axes in itertools.combinations(range(len(shape)), count[0]) if result(axes) == shapes[node.output[0]]
    ]
    wide = {tuple(a for a in axes if shape[a] != 1) for axes in fitting}
    return {1: np.array(fitting[0], np.int64)} if len(wide) == 1 else None


def _sizes(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    """Return the sizes of a Resize, which are the result's shape unless the policy only bounds them."""
    policy = attributes_of(node).get("keep_aspect_ratio_policy", b"stretch")
    result = shapes[node.output[0]]
    axes = attributes_of(node).get("axes", range(len(result)))
    return {3: np.array([result[axis] for axis in axes], np.int64)} if policy == b"stretch" else None


def _center_crop_pad(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    result = shapes[node.output[0]]
    axes = attributes_of(node).get("axes", range(len(result)))
    return {1: np.array([result[axis] for axis in axes], np.int64)}


def _tile(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    shape, result = shapes.get(node.input[0]), shapes[node.output[0]]
    if shape is None or 0 in shape:
        return None
    return {1: np.array([r // g for g, r in zip(shape, result, strict=True)], np.int64)}


def _split(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    axis = attributes_of(node).get("axis", 0)
    parts = [shapes.get(name) for name in node.output]
    return {1: np.array([p[axis] for p in parts if p is not None], np.int64)} if None not in parts else None


def _top_k(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    axis = attributes_of(node).get("axis", -1)
    return {1: np.array([shapes[node.output[0]][axis]], np.int64)}


def _one_hot(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    axis = attributes_of(node).get("axis", -1)
    return {1: np.array(shapes[node.output[0]][axis], np.int64)}


def _window(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    return {0: np.array(shapes[node.output[0]][0], np.int64)}


def _affine_grid(node: onnx.NodeProto, shapes: Shapes) -> dict[int, np.ndarray] | None:
    """Return the sizes of an AffineGrid. Its shape lacks only the channels, which do not affect the grid."""
    batch, *extents, _ = shapes[node.output[0]]
    return {1: np.array([batch, 1, *extents], np.int64)}


_RULES: dict[str, Rule] = {
    **dict.fromkeys(REDUCTIONS, _reduced_axes),
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


@rule(*_RULES)
def _settle(node: onnx.NodeProto, graph: Graph, settled: list[Settled]) -> None:
    """Replace the inputs of a node that shapes determine by constants. An axis is one of a Reshape."""
    shapes, result = graph.shapes, node.output[0]
    if result not in shapes:
        return
    for index, value in (_RULES[node.op_type](node, shapes) or {}).items():
        if index < len(node.input) and node.input[index] and node.input[index] not in graph.constants:
            settled += _settled(graph, node, node.input[index], value)
            node.input[index] = graph.constant(f"{result}_input{index}", value)
            graph.touch(node)
    if node.op_type in ("Squeeze", "Unsqueeze") and len(node.input) > 1 and node.input[1] not in graph.constants:
        if (axes := _changed_axes(node, shapes)) is not None:
            settled += _settled(graph, node, node.input[1], axes)
        node.input[1] = graph.constant(f"{result}_shape", np.array(shapes[result], np.int64))
        node.op_type = "Reshape"
        graph.touch(node)
