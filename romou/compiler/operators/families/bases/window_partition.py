"""Rows of a matrix that are pixels of a map, in another order: the map is cut into windows, or joined from windows.

    map (b, h, w, k) -> roll -> reshape (b, h / 7, 7, w / 7, 7, k) -> transpose -> rows (b * h * w, k)         CUT
    rows (b * h * w, k) -> reshape (b, h / 7, w / 7, 7, 7, k) -> transpose -> map (b, h, w, k) -> roll         JOINED

Window attention does both: Swin in windows, MaxViT also in grids. A product that reads its rows in such an order
replaces a copy of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import Shape, digits_of, number_of, shape_of, static_shape

CUT, JOINED = "cut", "joined"


@dataclass(frozen=True, kw_only=True)
class RowOrder:
    """An order of rows.

    kind: CUT if rows of a map are read in the order of its windows, JOINED for the opposite.
    tiles: extents of the map, with each axis split in two: windows, pixels of a window. An odd number of extents starts
        with the batch.
    axes: the axes of `tiles` in the order of windows.
    shift: for each axis of the map, batch included, pixels that it is rolled towards its start before it is cut, or
        after it is joined.
    """

    kind: str
    tiles: tuple[int, ...]
    axes: tuple[int, ...]
    shift: tuple[int, ...]

    @classmethod
    def of(cls, rows: np.ndarray, tiles: Sequence[int], axes: Sequence[int]) -> RowOrder | None:
        """Return the order that reads these rows, by their numbers, or None if windows do not describe it."""
        extents = _map_of(tiles)
        # The pixel that becomes the first one of the first window.
        into, out_of = (np.array(np.unravel_index(at, extents)) for at in (rows[0], np.argmin(rows)))
        for kind, shift in ((CUT, into), (JOINED, -out_of % extents)):
            order = cls(kind=kind, tiles=tuple(tiles), axes=tuple(axes), shift=tuple(shift.tolist()))
            if np.array_equal(order.source(np.arange(rows.size)), rows):
                return order
        return None

    def source(self, row: Any) -> Any:
        """Return the row that is read as row `row`: expressions of TIR, or arrays."""
        windows = [self.tiles[axis] for axis in self.axes]
        if self.kind == CUT:
            digits = dict(zip(self.axes, digits_of(row, windows), strict=True))
            each = iter(digits[axis] for axis in range(len(self.tiles)))
            at = [number_of([next(each) for _ in side], side) for side in _sides(self.tiles)]
            return number_of(self._rolled(at), _map_of(self.tiles))
        at = self._rolled(digits_of(row, _map_of(self.tiles)))
        split = [digit for one, side in zip(at, _sides(self.tiles), strict=True) for digit in digits_of(one, side)]
        return number_of([split[axis] for axis in self.axes], windows)

    def _rolled(self, at: Sequence[Any]) -> list[Any]:
        return [
            (one + shift) % extent if shift else one
            for one, shift, extent in zip(at, self.shift, _map_of(self.tiles), strict=True)
        ]


@dataclass(frozen=True)
class RowStep:
    """An operator that only moves rows.

    source: its operand.
    readers: variables that read the operand for it.
    move: numbers of the operand's rows, in its shape without the last axis -> those of the result's.
    transposed: shape and permutation of a transpose, without the last axis.
    """

    source: relax.Var
    readers: int
    move: Callable[[np.ndarray], np.ndarray]
    transposed: tuple[Shape, tuple[int, ...]] | None = None


def steps_back(value: relax.Expr | None, bound: Mapping[relax.Var, relax.Expr]) -> Iterator[RowStep]:
    """Yield the operators from `value` back, as long as these only move rows."""
    while (step := _step_of(value, bound)) is not None:
        yield step
        value = bound.get(step.source)


def order_of(steps: Sequence[RowStep]) -> RowOrder | None:
    """Return the order in which the result of the first of `steps` has the rows of the last one's operand."""
    transposes = [step.transposed for step in steps if step.transposed is not None]
    if len(transposes) != 1:
        return None
    shape = static_shape(steps[-1].source)[:-1]
    rows = np.arange(math.prod(shape)).reshape(shape)
    for step in reversed(steps):
        rows = step.move(rows)
    ((extents, axes),) = transposes
    inverse = tuple(axes.index(axis) for axis in range(len(axes)))
    return RowOrder.of(rows.ravel(), extents, axes) or RowOrder.of(rows.ravel(), [extents[a] for a in axes], inverse)


def _step_of(value: Any, bound: Mapping[relax.Var, relax.Expr]) -> RowStep | None:
    name = op_name(value)
    if name == "relax.concat":
        return _roll_of(value, bound)
    if name not in ("relax.reshape", "relax.permute_dims") or not isinstance(source := value.args[0], relax.Var):
        return None
    before, after = shape_of(source), shape_of(value)
    if before is None or after is None or not before or not after or before[-1] != after[-1]:
        return None
    if name == "relax.reshape":
        return RowStep(source, 1, lambda rows: rows.reshape(after[:-1]))
    axes = tuple(int(axis) for axis in value.attrs.axes) if value.attrs.axes is not None else ()
    if not axes or axes[-1] != len(axes) - 1:
        return None
    return RowStep(source, 1, lambda rows: rows.transpose(axes[:-1]), (before[:-1], axes[:-1]))


def _roll_of(value: relax.Call, bound: Mapping[relax.Var, relax.Expr]) -> RowStep | None:
    """Return the roll that a concatenation of the end and the start of a tensor is."""
    fields, shape, axis = getattr(value.args[0], "fields", ()), shape_of(value), int(value.attrs.axis)
    parts: list[Any] = [bound.get(field) for field in fields if isinstance(field, relax.Var)]
    if shape is None or len(fields) != 2 or [op_name(part) for part in parts] != ["relax.strided_slice"] * 2:
        return None
    source, axis, extent = parts[0].args[0], axis % len(shape), shape[axis]
    if not isinstance(source, relax.Var) or shape_of(source) != shape or axis == len(shape) - 1:
        return None
    (end_part, start_part) = (_range_of(part, source, axis) for part in parts)
    if end_part is None or start_part is None or start_part[0] != 0 or end_part[1] < extent:
        return None
    middle = end_part[0]
    if middle != start_part[1] or not 0 < middle < extent:
        return None
    return RowStep(source, 2, lambda rows: np.roll(rows, -middle, axis))


def _range_of(part: Any, source: relax.Var, axis: int) -> tuple[int, int] | None:
    """Return the range of `source` along `axis` that a slice is, or None for any other slice."""
    of, axes, *numbers = part.args
    if not of.same_as(source) or len(axes) != 1 or int(axes[0].value) % len(static_shape(source)) != axis:
        return None
    begin, end, *steps = (int(each[0].value) for each in numbers)
    return (begin, end) if all(step == 1 for step in steps) else None


def _map_of(tiles: Sequence[int]) -> list[int]:
    return [math.prod(side) for side in _sides(tiles)]


def _sides(tiles: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the extents that each axis of the map is split into."""
    batch = len(tiles) % 2
    return [tuple(tiles[:batch])] * batch + [(tiles[i], tiles[i + 1]) for i in range(batch, len(tiles), 2)]
