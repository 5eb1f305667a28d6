"""The range of each input by its use: an index stays within its table, a timestep goes up to 999.

ids

        ->  Gather(table of 30522 rows)                    0 to 30521; the smallest table counts, and what is added on the way is taken off
depth of a OneHot, lengths of sequences               likewise
positions -> Cast -> Mul(frequency) -> Sin            0 to 999; a float of one element each, or called "timestep", too
bytes                                                 all of them
all others                                            what `romou.base.inputs.random_inputs` draws
"""  # noqa: E501

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from romou.base.inputs import Draw
from romou.compiler.frontend.graph import Shapes, shapes_of, types_of
from romou.compiler.frontend.wide_nodes import ELEMENTWISE, MOVES, is_of_coordinates

# Steps of a diffusion model, and as many positions: beyond what is right by luck in fp16.
_LATE_STEP, _LAST_STEP = 500, 999
_STEP_NAME = re.compile(r"(^|[^a-z])(time_?steps?|t)($|[^a-z])", re.IGNORECASE)
_INTEGERS = frozenset(
    getattr(TensorProto, name) for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)
_BYTES = frozenset({TensorProto.INT8, TensorProto.UINT8})
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})
_ANGLES = frozenset({"Cos", "Sin", "Tan"})
# Their second input is no data.
_BY_SHAPE = frozenset({"Expand", "Reshape", "Squeeze", "Tile", "Unsqueeze"})
# Of what a model multiplies a time between 0 and 1 by, to make a step of it.
_LEAST_STEPS = 100.0


@dataclass(frozen=True)
class _Node:
    """A node that reads an index, and where."""

    node: onnx.NodeProto
    shapes: Shapes

    def extent(self, index: int, axis: int) -> int | None:
        """The extent of an input along an axis; None where it is not known."""
        shape = self.shapes.get(self.node.input[index]) if index < len(self.node.input) else None
        return shape[axis] if shape and -len(shape) <= axis < len(shape) else None

    def attribute(self, name: str, default: int) -> int:
        return next((int(a.i) for a in self.node.attribute if a.name == name), default)


def _along_axis(one: _Node) -> int | None:
    return one.extent(0, one.attribute("axis", 0))


def _smallest_of_tuple(one: _Node) -> int | None:
    """Indices come in tuples, one for each of the first axes."""
    width, shape = one.extent(1, -1), one.shapes.get(one.node.input[0])
    first = one.attribute("batch_dims", 0)
    return None if width is None or not shape else min(shape[first : first + width], default=None)


# (Operator, position of the input) -> how many values the index has, counted from `_FIRST`.
_COUNTS: Mapping[tuple[str, int], Callable[[_Node], int | None]] = {
    ("Gather", 1): _along_axis,
    ("GatherElements", 1): _along_axis,
    ("ScatterElements", 1): _along_axis,
    ("Scatter", 1): _along_axis,
    ("GatherND", 1): _smallest_of_tuple,
    ("ScatterND", 1): _smallest_of_tuple,
    ("ReverseSequence", 1): lambda one: one.extent(0, one.attribute("time_axis", 0)),
    **{(name, 4): lambda one: one.extent(0, one.attribute("layout", 0)) for name in ("GRU", "LSTM", "RNN")},
}
# Lengths begin at one.
_FIRST: Mapping[str, int] = {"ReverseSequence": 1, "GRU": 1, "LSTM": 1, "RNN": 1}


def draws_of(model: onnx.ModelProto) -> dict[str, Draw]:
    """Return the numbers that each input takes, if its use says more than its type; the types of the model are
    inferred.
    """
    uses = _Uses(model)
    found = {}
    for value in model.graph.input:
        draw = uses.draw(value.name) if value.name not in uses.constants else None
        if draw is not None:
            found[value.name] = draw
    return found


class _Uses:
    """Follows inputs through a graph to where they are used."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._shapes = shapes_of(model.graph)
        self._types = {name: kind.tensor_type.elem_type for name, kind in types_of(model.graph).items()}
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            for attribute in node.attribute if node.op_type == "Constant" else ():
                if attribute.name == "value":
                    self.constants[node.output[0]] = attribute.t
        self._readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in model.graph.node:
            for i, name in enumerate(node.input):
                self._readers.setdefault(name, []).append((node, i))
        self._scales: dict[tuple[str, int], float | None] = {}

    def draw(self, name: str) -> Draw | None:
        """Return the numbers that an input takes; None if only its type is known."""
        element = self._types.get(name)
        if element in _INTEGERS:
            ranges = list(self._ranges(name, 0, set()))
            if ranges:
                low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
                return Draw(low=low, high=max(low, high))
            if element in _BYTES and name in self._readers:
                limits = np.iinfo(helper.tensor_dtype_to_np_dtype(element))
                return Draw(low=int(limits.min), high=int(limits.max))
            return self._steps(name) if self._angle_scale(name) is not None or self._is_step(name) else None
        if element not in _FLOATS or not self._is_scalar(name):
            return None
        scale = self._angle_scale(name)
        steps = self._steps(name)
        if scale is not None and abs(scale) >= _LEAST_STEPS:
            return Draw(low=steps.low / abs(scale), high=steps.high / abs(scale), is_whole=False)
        return steps if scale is not None or self._is_step(name) else None

    def _steps(self, name: str) -> Draw:
        """Any steps; one alone is a late one, whose angles are large."""
        return Draw(low=0 if math.prod(self._shapes.get(name, (0,))) != 1 else _LATE_STEP, high=_LAST_STEP)

    def _is_step(self, name: str) -> bool:
        return bool(_STEP_NAME.search(name)) and self._is_scalar(name)

    def _is_scalar(self, name: str) -> bool:
        """Whether an input has one element, or one for each of a batch."""
        shape = self._shapes.get(name)
        return shape is not None and math.prod(shape[1:]) == 1

    def _ranges(self, name: str, added: int, seen: set[str]) -> Sequence[tuple[int, int]]:
        """The lowest and the highest value with which each use finds an element. added: what was added on the way."""
        if name in seen:
            return []
        seen.add(name)
        found: list[tuple[int, int]] = []
        for node, position in self._readers.get(name, ()):
            one, first = _Node(node, self._shapes), _FIRST.get(node.op_type, 0)
            count = self._integer(node.input[1]) if node.op_type == "OneHot" and position == 0 else None
            if (node.op_type, position) in _COUNTS:
                count = _COUNTS[node.op_type, position](one)
            if count:
                found.append((max(0, first - added), first + count - 1 - added))
                continue
            more = self._added_by(node, position)
            if more is not None:
                found += self._ranges(node.output[0], added + more, seen)
        return found

    def _added_by(self, node: onnx.NodeProto, position: int) -> int | None:
        """Return the number that a node adds to the integers that it passes on; None if its results are others."""
        if node.op_type == "Cast":
            return 0 if self._types.get(node.output[0]) in _INTEGERS else None
        if node.op_type in MOVES | {"Where"}:
            return None if position == 1 and node.op_type in _BY_SHAPE else 0
        step = (
            self._integer(node.input[1 - position])
            if node.op_type == "Add" or (node.op_type == "Sub" and position == 0)
            else None
        )
        return step if node.op_type == "Add" or step is None else -step

    def _integer(self, name: str) -> int | None:
        tensor = self.constants.get(name)
        value = None if tensor is None else numpy_helper.to_array(tensor)
        return int(value.reshape(-1)[0]) if value is not None and value.size == 1 and value.dtype.kind in "iu" else None

    def _angle_scale(self, name: str, depth: int = 32) -> float | None:
        """Return the largest factor of a tensor before a Sin or a Cos; None if neither is behind it."""
        # There are more paths than tensors: twice as many after each node that reads its input twice.
        if (name, depth) not in self._scales:
            found: list[float] = []
            for node, position in self._readers.get(name, ()) if depth else ():
                if node.op_type in _ANGLES:
                    found.append(1.0)
                elif node.op_type in ELEMENTWISE | MOVES | {"Cast"} or (
                    node.op_type in ("MatMul", "Gemm", "Einsum") and is_of_coordinates(node, self._shapes)
                ):
                    behind = self._angle_scale(node.output[0], depth - 1)
                    found += [] if behind is None else [behind * self._factor(node, position)]
            self._scales[name, depth] = max(found, key=abs) if found else None
        return self._scales[name, depth]

    def _factor(self, node: onnx.NodeProto, position: int) -> float:
        """Return the constant number that a node multiplies one of its inputs by; 1 if there is none."""
        others = [
            self.constants[given] for i, given in enumerate(node.input) if i != position and given in self.constants
        ]
        if node.op_type not in ("Mul", "Div") or not others or math.prod(others[0].dims) != 1:
            return 1.0
        number = float(numpy_helper.to_array(others[0]).reshape(-1)[0])
        return number if node.op_type == "Mul" else 1 / number if number else 1.0
