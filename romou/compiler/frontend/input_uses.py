"""Ranges of inputs, from their uses in the graph.

input                                              range
ids -> Gather(table of 30522 rows)                 0 to 30521 (the smallest table, less any constant added before)
depth of a OneHot, lengths of sequences            likewise
mask -> ReduceSum -> length of a cache             1
positions -> Cast -> Mul(frequency) -> Sin         0 to 999, also for a scalar float or an input named "timestep"
bytes                                              all values
all others                                         values that `romou.base.inputs.random_inputs` draws
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from romou.base.inputs import Draw
from romou.compiler.frontend.onnx_graph import Graph, Shapes
from romou.compiler.frontend.wide_nodes import ELEMENTWISE, MOVES, is_of_coordinates

# Diffusion models have 1000 steps. Positions in this range are large enough to reveal errors of fp16.
_LATE_STEP, _LAST_STEP = 500, 999
_STEP_NAME = re.compile(r"(^|[^a-z])(time_?steps?|t)($|[^a-z])", re.IGNORECASE)
_INTEGERS = frozenset(
    getattr(TensorProto, name) for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)
_BYTES = frozenset({TensorProto.INT8, TensorProto.UINT8})
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})
_ANGLES = frozenset({"Cos", "Sin", "Tan"})
# Operators whose second input is no data.
_BY_SHAPE = frozenset({"Expand", "Reshape", "Squeeze", "Tile", "Unsqueeze"})
# Smallest factor that turns a time between 0 and 1 into a step.
_LEAST_STEPS = 100.0


@dataclass(frozen=True)
class _Node:
    """A node that reads an index."""

    node: onnx.NodeProto
    shapes: Shapes

    def extent(self, index: int, axis: int) -> int | None:
        """Return the extent of an input along an axis, or None if it is unknown."""
        shape = self.shapes.get(self.node.input[index]) if index < len(self.node.input) else None
        return shape[axis] if shape and -len(shape) <= axis < len(shape) else None

    def attribute(self, name: str, default: int) -> int:
        return next((int(a.i) for a in self.node.attribute if a.name == name), default)


def _along_axis(node: _Node) -> int | None:
    return node.extent(0, node.attribute("axis", 0))


def _smallest_of_tuple(node: _Node) -> int | None:
    """Return the smallest extent of the first axes. Each index is a tuple with one number for each of them."""
    width, shape = node.extent(1, -1), node.shapes.get(node.node.input[0])
    first = node.attribute("batch_dims", 0)
    return None if width is None or not shape else min(shape[first : first + width], default=None)


def _one_if_cached(node: _Node) -> int | None:
    return 1 if node.extent(3, 2) else None


# (Operator, position of the input) -> number of values of the index, counted from `_FIRST`.
_COUNTS: Mapping[tuple[str, int], Callable[[_Node], int | None]] = {
    ("Gather", 1): _along_axis,
    ("GatherElements", 1): _along_axis,
    ("ScatterElements", 1): _along_axis,
    ("Scatter", 1): _along_axis,
    ("GatherND", 1): _smallest_of_tuple,
    ("ScatterND", 1): _smallest_of_tuple,
    ("GatherBlockQuantized", 1): lambda node: node.extent(0, node.attribute("gather_axis", 0)),
    # A cache is full, because onnxruntime leaves the rest of it undefined.
    **dict.fromkeys((("GroupQueryAttention", 5), ("GroupQueryAttention", 6)), _one_if_cached),
    ("GroupQueryAttention", 9): lambda node: node.extent(7, 0),
    ("RotaryEmbedding", 1): lambda node: node.extent(2, 0),
    ("ReverseSequence", 1): lambda node: node.extent(0, node.attribute("time_axis", 0)),
    **{(name, 4): lambda node: node.extent(0, node.attribute("layout", 0)) for name in ("GRU", "LSTM", "RNN")},
}
# (Operator, position of the input) -> first value. Sequence lengths begin at one.
_FIRST: Mapping[tuple[str, int], Callable[[_Node], int]] = {
    **dict.fromkeys((("ReverseSequence", 1), ("GRU", 4), ("LSTM", 4), ("RNN", 4)), lambda node: 1),
    ("GroupQueryAttention", 5): lambda node: (node.extent(3, 2) or 1) - 1,
    ("GroupQueryAttention", 6): lambda node: node.extent(3, 2) or 0,
}


def draws_of(model: onnx.ModelProto) -> dict[str, Draw]:
    """Return the range of each input that its use restricts. Types must have been inferred."""
    uses = _Uses(model)
    found = {value.name: uses.draw(value.name) for value in model.graph.input if value.name not in uses.constants}
    return {name: draw for name, draw in found.items() if draw is not None}


class _Uses(Graph):
    """Paths from inputs to their uses in a graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self._scales: dict[tuple[str, int], float | None] = {}

    def draw(self, name: str) -> Draw | None:
        """Return the range of an input, or None if its use does not restrict it."""
        element = self.elements.get(name)
        if element in _INTEGERS:
            ranges = list(self._ranges(name, 0, set()))
            if ranges:
                low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
                return Draw(low=low, high=max(low, high))
            if element in _BYTES and self.uses(name):
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
        """Return the range of steps. A single step is a late one, because its angles are large."""
        return Draw(low=0 if math.prod(self.shapes.get(name, (0,))) != 1 else _LATE_STEP, high=_LAST_STEP)

    def _is_step(self, name: str) -> bool:
        return bool(_STEP_NAME.search(name)) and self._is_scalar(name)

    def _is_scalar(self, name: str) -> bool:
        """Return whether an input has one element, or one for each element of the batch."""
        shape = self.shapes.get(name)
        return shape is not None and math.prod(shape[1:]) == 1

    def _ranges(self, name: str, added: int, seen: set[str]) -> Sequence[tuple[int, int]]:
        """Return the valid range for each use. added: constants added on the path so far."""
        if name in seen:
            return []
        seen.add(name)
        ranges: list[tuple[int, int]] = []
        for node, position in self.uses(name):
            reader = _Node(node, self.shapes)
            first = _FIRST[node.op_type, position](reader) if (node.op_type, position) in _FIRST else 0
            count = self._integer(node.input[1]) if node.op_type == "OneHot" and position == 0 else None
            if (node.op_type, position) in _COUNTS:
                count = _COUNTS[node.op_type, position](reader)
            if count:
                ranges.append((max(0, first - added), first + count - 1 - added))
                continue
            if node.op_type == "ReduceSum" and position == 0 and self._ranges(node.output[0], 0, seen):
                # A length is the sum of a mask.
                ranges.append((1, 1))
                continue
            more = self._added_by(node, position)
            if more is not None:
                ranges += self._ranges(node.output[0], added + more, seen)
        return ranges

    def _added_by(self, node: onnx.NodeProto, position: int) -> int | None:
        """Return the number that a node adds to integers that it passes on, or None if it computes something else."""
        if node.op_type == "Cast":
            return 0 if self.elements.get(node.output[0]) in _INTEGERS else None
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
        """Return the largest factor of a tensor before a Sin or Cos, or None if no path leads to one."""
        # Memoized, because the number of paths may be exponential in the number of tensors.
        if (name, depth) not in self._scales:
            factors: list[float] = []
            for node, position in self.uses(name) if depth else ():
                if node.op_type in _ANGLES:
                    factors.append(1.0)
                elif node.op_type in ELEMENTWISE | MOVES | {"Cast"} or (
                    node.op_type in ("MatMul", "Gemm", "Einsum") and is_of_coordinates(node, self.shapes)
                ):
                    behind = self._angle_scale(node.output[0], depth - 1)
                    factors += [] if behind is None else [behind * self._factor(node, position)]
            self._scales[name, depth] = max(factors, key=abs) if factors else None
        return self._scales[name, depth]

    def _factor(self, node: onnx.NodeProto, position: int) -> float:
        """Return the constant scalar that a node multiplies its input by, or 1 if there is none."""
        constants = [
            self.constants[name] for i, name in enumerate(node.input) if i != position and name in self.constants
        ]
        if node.op_type not in ("Mul", "Div") or not constants or math.prod(constants[0].dims) != 1:
            return 1.0
        number = float(numpy_helper.to_array(constants[0]).reshape(-1)[0])
        return number if node.op_type == "Mul" else 1 / number if number else 1.0
