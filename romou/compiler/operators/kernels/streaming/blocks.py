"""Recognition of functions made of rows: reductions over the same axes, and an output made from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_equal, structural_map, structural_mutate

from romou.compiler.scheduling.blocks import Reduction, axes_of, loads_of, reduction_of
from romou.compiler.scheduling.statements import register_type
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.expressions import is_equal, is_one
from romou.compiler.tir.traversal import has_var, substitute


@dataclass(frozen=True)
class Pass:
    """A block over all axes: the axes of the rows and the axes inside a row.

    value: the reduced or stored expression.
    indices: of the stored element, for the last pass.
    reduction: None for a pass that stores elements.
    """

    block: s_tir.SBlock
    value: tirx.Expr
    reduction: Reduction | None
    indices: Sequence[tirx.Expr] = ()


@dataclass(frozen=True)
class Rows:
    """The rows that a function is made of.

    data: name of the largest input.
    outer, inner: axes of the rows, and axes inside a row, with their extents.
    passes: the reductions, and the block that stores the output.
    is_normal: whether the output has an element for each element of a row (normalization), not one for the row.
    """

    data: str
    outer: dict[tirx.Var, int]
    inner: dict[tirx.Var, int]
    passes: Sequence[Pass]
    is_normal: bool

    @cached_property
    def is_across(self) -> bool:
        """True if contiguous elements belong to different rows."""
        loads = (load for p in self.passes for load in loads_of(p.value) if str(load.source.name) == self.data)
        # A scalar has no indices.
        last = next((index for load in loads for index in list(load.indices)[-1:]), None)
        return last is not None and any(last.same_as(var) for var in self.outer)

    @property
    def axes(self) -> dict[tirx.Var, int]:
        """The axes of the rows and inside a row, with their extents."""
        return {**self.outer, **self.inner}

    @property
    def axis(self) -> tirx.Var:
        """The axis of vectors."""
        return list(self.outer if self.is_across else self.inner)[-1]

    @property
    def kinds(self) -> list[str]:
        """The type in which each reduction holds its results."""
        return [register_type(str(p.reduction.buffer.dtype)) for p in self.passes if p.reduction is not None]

    @cached_property
    def is_joined(self) -> bool:
        """True if a row that is read once is contiguous, so that a vector of it may cross axes.

        sum over y, x of a[c, y, x]      ->      sum over p of a[c, 0, p]
        """
        if self.is_normal or self.is_across or self.shared_load is not None:
            return False
        pairs = itertools.pairwise(self.inner.items())
        values = [p.value for p in self.passes]
        return all(isinstance(extent, int) for extent in self.inner.values()) and all(
            are_neighbours(before, behind, extent, value) for (before, _), (behind, extent) in pairs for value in values
        )

    @property
    def contiguous(self) -> Any:
        """Elements along the axis of vectors: of the last axis, or of a row that is joined."""
        return math.prod(self.inner.values()) if self.is_joined else self.axes[self.axis]

    def vectors(self, width: int, *, may_overlap: bool = False) -> Vectors:
        """Return vectors of `width` elements, of a joined row if they may cross axes."""
        # An index beyond the last axis is one in the row.
        return Vectors({**self.axes, self.axis: self.contiguous}, self.axis, width, may_overlap=may_overlap)

    def count(self, width: Any) -> tuple[Any, Any]:
        """Return the number of rows (or vectors of rows), and of whole vectors (or elements) in a row."""
        rows, elements = (math.prod(axes.values()) for axes in (self.outer, self.inner))
        return (rows // width, elements) if self.is_across else (rows, elements // width)

    @cached_property
    def shared_load(self) -> TensorLoad | None:
        """The load of "data", over the axes, that several passes repeat, or None if there is none."""
        per_pass = [[load for load in loads_of(p.value) if str(load.source.name) == self.data] for p in self.passes]
        for load in itertools.chain.from_iterable(per_pass):
            if sum(any(structural_equal(load, other) for other in loads) for loads in per_pass) > 1:
                return load
        return None

    @cached_property
    def kept_pass(self) -> Pass | None:
        """The pass with a term that may replace the elements it is computed from, such as softmax's exponentials.

        All later passes must read nothing but that term, and both are held in the same type.
        """
        load = self.shared_load
        if load is None:
            return None
        for number, row_pass in enumerate(self.passes):
            later, term = self.passes[number + 1 :], row_pass.value
            if row_pass.reduction is None or isinstance(term, TensorLoad) or not later:
                continue
            if register_type(str(term.ty)) != register_type(str(load.source.dtype)):
                continue
            later_values = [replaced(p.value, row_pass.value, tirx.const(0, str(row_pass.value.ty))) for p in later]
            is_read = any(structural_equal(other, load) for value in later_values for other in loads_of(value))
            if not is_read and not all(same.same_as(p.value) for same, p in zip(later_values, later, strict=True)):
                return row_pass
        return None


def replaced(value: tirx.Expr, old: tirx.Expr, new: tirx.Expr) -> tirx.Expr:
    """Replace every subexpression equal to `old` by `new`."""

    def replace(expr: tirx.Expr, mutator: Any) -> tirx.Expr:
        return new if structural_equal(expr, old) else mutator.default_mutate(expr)

    return structural_mutate(value, (type(old), replace))


def rows_of(blocks: Sequence[s_tir.SBlock], data: str) -> Rows | None:
    """Return the rows that the blocks of a function are made of, or None if they have another form.

    data: name of the function's largest input.
    """
    *_, last = blocks
    reductions = [reduction for reduction in map(reduction_of, blocks) if reduction is not None]
    if len(reductions) < len(blocks) - 1 or not reductions:
        return None
    first = reductions[0]
    # A running sum reads one tensor, but not by the axis that its condition compares.
    if not (first.is_of_one_tensor or len(loads_of(first.term)) == 1):
        return None
    spatial = [axis for axis in first.block.iter_vars if not any(axis.var.same_as(r.var) for r in first.reduced)]
    outer = {var: extent for var, extent in axes_of(first.block).items() if any(var.same_as(a.var) for a in spatial)}
    inner = {var: extent for var, extent in axes_of(first.block).items() if var not in outer}
    passes = []
    for reduction in reductions:
        axes = [
            axis for axis in reduction.block.iter_vars if not any(axis.var.same_as(r.var) for r in reduction.reduced)
        ]
        ordered_axes = [*axes, *reduction.reduced]
        if not _are_equal([axis.dom.extent for axis in ordered_axes], [*outer.values(), *inner.values()]):
            return None
        values = {axis.var: var for axis, var in zip(ordered_axes, [*outer, *inner], strict=True)}
        indices = [substitute(index, values) for index in reduction.block.body.indices]
        passes.append(Pass(reduction.block, substitute(reduction.term, values), reduction, indices))
    if reduction_of(last) is not None:
        return Rows(data, outer, inner, passes, False) if _uses_rows(passes, outer) else None
    row_values = _axes_of_last(last, [r.buffer for r in reductions], outer, inner)
    if row_values is None:
        return None
    values = {axis.var: value for axis, value in zip(last.iter_vars, row_values, strict=True)}
    passes.append(Pass(last, substitute(last.body.value, values), None, row_values))
    is_normal = any(value.same_as(var) for value in row_values for var in inner)
    return Rows(data, outer, inner, passes, is_normal) if _uses_rows(passes, outer) else None


def are_neighbours(before: tirx.Var, behind: tirx.Var, extent: int | tirx.Expr, value: tirx.Expr) -> bool:
    """Return whether each buffer that `value` reads has both axes in this order, or neither.

    extent: of the axis `behind`.
    """

    def reads(node: Any) -> bool:
        return has_var(node, before) or has_var(node, behind)

    def has_both(load: TensorLoad) -> bool:
        pairs = enumerate(itertools.pairwise(load.indices))
        at = next((i for i, (a, b) in pairs if a.same_as(before) and b.same_as(behind)), None)
        others = load.indices if at is None else [*load.indices[:at], *load.indices[at + 2 :]]
        return (at is None or is_equal(load.source.shape[at + 1], extent)) and not any(map(reads, others))

    outside = structural_map(value, (TensorLoad, lambda load: tirx.const(0, load.ty.dtype)))
    return all(map(has_both, loads_of(value))) and not reads(outside)


def _are_equal(extents: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(extents) == len(others) and all(map(is_equal, extents, others))


def _axes_of_last(
    last: s_tir.SBlock, results: Sequence[tirx.Buffer], outer: Mapping[tirx.Var, int], inner: Mapping[tirx.Var, int]
) -> list[tirx.Expr] | None:
    """Map each axis of the last block to an axis of the rows, or to 0, or None if the block is not made of rows."""
    row_axes: dict[tirx.Var, tirx.Var] = {}
    axes = axes_of(last)
    loads = [load for load in loads_of(last.body.value) if any(load.source.same_as(result) for result in results)]
    for load in loads:
        for index, var in zip(load.indices, outer, strict=True):
            if isinstance(index, tirx.Var) and index in axes and is_equal(axes[index], outer[var]):
                if index in row_axes and not row_axes[index].same_as(var):
                    return None
                row_axes[index] = var
            elif not is_one(outer[var]):
                return None
    used_axes = list(row_axes.values())
    is_twice = any(a.same_as(b) for a, b in itertools.combinations(used_axes, 2))
    if (
        is_twice
        or not loads
        or any(not is_one(extent) and not any(var.same_as(n) for n in used_axes) for var, extent in outer.items())
    ):
        return None
    inner_axes = [var for var, extent in axes.items() if var not in row_axes and not is_one(extent)]
    row_inner = [var for var, extent in inner.items() if not is_one(extent)]
    if inner_axes and not _are_equal([axes[var] for var in inner_axes], [inner[var] for var in row_inner]):
        return None
    axis_map = {**row_axes, **dict(zip(inner_axes, row_inner, strict=False))}
    return [axis_map.get(var, tirx.const(0, var.ty)) for var in axes]


def _uses_rows(passes: Sequence[Pass], outer: Mapping[tirx.Var, int]) -> bool:
    """Return whether passes read earlier reductions at the same row only."""
    results = [p.reduction.buffer for p in passes if p.reduction is not None]
    loads = [
        load for p in passes for load in loads_of(p.value) if any(load.source.same_as(result) for result in results)
    ]
    return all(
        a.same_as(b) or is_one(extent)
        for load in loads
        for a, (b, extent) in zip(load.indices, outer.items(), strict=True)
    )
