"""Inputs padded to the next larger shape of a set, and outputs cut to the sizes that they would have without.

An output's extent follows an input's by whole numbers: floor((factor * size + offset) / divisor), which holds for
convolutions, poolings, reshapes and their chains. The numbers are fitted to shapes inferred at the set's sizes and
between them.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx

from romou.base.errors import ModelError, UsageError, unknown_name
from romou.base.schema import Unbounded, made_of
from romou.compiler.frontend.onnx_graph import shapes_of
from romou.compiler.frontend.shape_sets import Shapes
from romou.compiler.frontend.size_rules import floors

logger = logging.getLogger("romou")

# Input or output and axis
Axis: TypeAlias = tuple[str, int]
# Sizes between those of the set that rules are fitted to, of one group of axes
_BETWEEN = 6
_LARGEST_DIVISOR = 256


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The extent of an output's axis, floor((factor * size + offset) / divisor) for the size of an input's axis."""

    output: int
    axis: int
    input: str
    input_axis: int
    factor: int
    offset: int
    divisor: int

    def extent(self, size: int) -> int:
        """Return the extent for a size of the input's axis."""
        return (self.factor * size + self.offset) // self.divisor


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How inputs of other sizes are run.

    values: input -> value behind its elements.
    groups: axes of inputs that have one size in each shape of the set.
    cuts: axes of outputs that are cut.
    uncut: outputs that keep the padded size, because no rule was found.
    """

    values: Mapping[str, Unbounded]
    groups: tuple[tuple[Axis, ...], ...]
    cuts: tuple[Cut, ...]
    uncut: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The padding in a sentence."""
        values = ", ".join(f"{name} with {value:g}" for name, value in self.values.items())
        uncut = f" {', '.join(self.uncut)} keep the padded size." if self.uncut else ""
        return f"Inputs of other sizes are padded to the next larger shape: {values}. Outputs are cut.{uncut}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "groups": [[list(axis) for axis in group] for group in self.groups]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Padding:
        """Return the inverse of `to_dict`. ValueError for anything else."""
        return made_of(cls, data)


def padding_of(
    fixed: Sequence[onnx.ModelProto],
    sets: Sequence[Mapping[str, tuple[int, ...]]],
    outputs: Sequence[str],
    pad: Mapping[str, float],
) -> Padding:
    """Return the padding of a set of shapes.

    fixed, sets: for each shape of the set, the model with fixed shapes and the shapes of all inputs.
    pad: input -> value.

    Raises
    ------
    UsageError
        `pad` names an unknown input, one whose shape is the same in all shapes of the set, or leaves one out.
    """
    varying = {name: None for name in sets[0] for axis, _ in enumerate(sets[0][name]) if _is_varying(sets, name, axis)}
    for name, value in pad.items():
        if name not in sets[0]:
            raise unknown_name("input in pad", str(name), list(sets[0]))
        if not isinstance(value, numbers.Real) or math.isnan(value):
            raise UsageError(f"pad={dict(pad)!r}: the value of {name} must be a number")
    missing = [name for name in varying if name not in pad]
    if missing or not set(pad) <= set(varying):
        example = ", ".join(f"{name!r}: 0" for name in varying)
        raise UsageError(
            f"pad={dict(pad)!r}: the inputs that change their size are {', '.join(varying)}",
            hint=f"Give a value for each of them and for no other: {{{example}}}.",
        )
    groups = _groups(sets, varying)
    known = [_shapes(model, outputs) for model in fixed]
    cuts, uncut = _cuts(fixed[0], sets, groups, outputs, known)
    return Padding(values={name: float(pad[name]) for name in varying}, groups=groups, cuts=cuts, uncut=uncut)


def _is_varying(sets: Sequence[Shapes], name: str, axis: int) -> bool:
    return len({shapes[name][axis] for shapes in sets}) > 1


def _groups(sets: Sequence[Shapes], varying: Mapping[str, None]) -> tuple[tuple[Axis, ...], ...]:
    """Return the axes that change together."""
    groups: dict[tuple[int, ...], list[Axis]] = {}
    for name in varying:
        for axis in range(len(sets[0][name])):
            sizes = tuple(shapes[name][axis] for shapes in sets)
            if len(set(sizes)) > 1:
                groups.setdefault(sizes, []).append((name, axis))
    return tuple(map(tuple, groups.values()))


def _shapes(model: onnx.ModelProto, outputs: Sequence[str]) -> list[tuple[int, ...] | None]:
    found = shapes_of(model.graph)
    return [found.get(name) for name in outputs]


def _cuts(
    proto: onnx.ModelProto,
    sets: Sequence[Mapping[str, tuple[int, ...]]],
    groups: Sequence[Sequence[Axis]],
    outputs: Sequence[str],
    known: Sequence[Sequence[tuple[int, ...] | None]],
) -> tuple[tuple[Cut, ...], tuple[str, ...]]:
    """Return the cuts of outputs, and the outputs without a rule."""
    points = list(zip(sets, known, strict=True))
    for group in groups:
        points += _between(proto, sets, group, outputs)
    cuts: list[Cut] = []
    uncut: dict[str, None] = {}
    for place, name in enumerate(outputs):
        shapes = [(inputs, extents[place]) for inputs, extents in points if extents[place] is not None]
        for axis in range(len(shapes[0][1] or ()) if shapes else 0):
            extents = [(inputs, (shape or ())[axis]) for inputs, shape in shapes]
            if len({extent for _, extent in extents}) == 1:
                continue
            cut = next((cut for group in groups if (cut := _rule(place, axis, group[0], extents))), None)
            if cut is None:
                uncut[name] = None
            else:
                cuts.append(cut)
    return tuple(cuts), tuple(uncut)


def _between(
    proto: onnx.ModelProto, sets: Sequence[Mapping[str, tuple[int, ...]]], group: Sequence[Axis], outputs: Sequence[str]
) -> list[tuple[Mapping[str, tuple[int, ...]], list[tuple[int, ...] | None]]]:
    """Return shapes of inputs between those of the set, in one group of axes, with the shapes of the outputs."""
    from romou.compiler.frontend.onnx_import import fix_shapes

    name, axis = group[0]
    sizes = sorted({shapes[name][axis] for shapes in sets})
    largest = max(sets, key=lambda shapes: shapes[name][axis])
    wanted: list[int] = []
    for low, high in itertools.pairwise(sizes):
        # Odd and even ones, so that rounding shows.
        wanted += [size for size in (low + 1, (low + high) // 2, (low + high) // 2 + 1, high - 1) if low < size < high]
    step = max(1, len(wanted) // _BETWEEN)
    points: list[tuple[Mapping[str, tuple[int, ...]], list[tuple[int, ...] | None]]] = []
    for size in sorted(set(wanted))[::step]:
        shapes = dict(largest)
        for member, place in group:
            shapes[member] = (*shapes[member][:place], size, *shapes[member][place + 1 :])
        try:
            model = fix_shapes(proto, shapes)
        except ModelError as error:
            logger.info("no shapes are inferred for %s=%d: %s", name, size, error.message)
            continue
        points.append((shapes, _shapes(model, outputs)))
    return points


def _rule(output: int, axis: int, of: Axis, extents: Sequence[tuple[Mapping[str, tuple[int, ...]], int]]) -> Cut | None:
    """Return the rule for an output's axis that holds for all known extents, or None."""
    name, input_axis = of
    points = sorted({(inputs[name][input_axis], extent) for inputs, extent in extents})
    sizes, counts = map(np.array, zip(*points, strict=True))
    slope = (counts[-1] - counts[0]) / (sizes[-1] - sizes[0])
    # Strides of two make powers of two.
    likeliest = sorted(range(1, _LARGEST_DIVISOR + 1), key=lambda each: (each & (each - 1) != 0, abs(each * slope - 1)))
    rule = next(floors(sizes, counts, likeliest), None) if slope > 0 else None
    if rule is None:
        return None
    factor, offset, divisor = rule
    return Cut(
        output=output, axis=axis, input=name, input_axis=input_axis, factor=factor, offset=offset, divisor=divisor
    )
