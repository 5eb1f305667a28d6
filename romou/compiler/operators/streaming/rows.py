"""How a function is made of rows: reductions over the same axes of the same rows, and what is stored of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_equal, structural_mutate

from romou.compiler.scheduling.blocks import Reduction, loads_of, reduction_of, substitute


@dataclass(frozen=True)
class Pass:
    """A block over the axes of all: those that tell rows apart, and those inside a row.

    value: what it reduces or stores.   place: of what is stored, for the last one.
    reduction: None for the one that stores elements.
    """

    block: s_tir.SBlock
    value: tirx.Expr
    reduction: Reduction | None
    place: Sequence[tirx.Expr] = ()


@dataclass(frozen=True)
class Rows:
    """The rows that a function is made of.

    data: name of the largest input.
    outer, inner: axes that tell rows apart, and axes inside a row, each with its extent.
    passes: the reductions, and the block that stores what comes of them.
    is_normal: whether the last one gives an element for each of the row, not one for the row.
    """

    data: str
    outer: dict[tirx.Var, int]
    inner: dict[tirx.Var, int]
    passes: Sequence[Pass]
    is_normal: bool

    @cached_property
    def is_across(self) -> bool:
        """Whether neighbours in memory belong to different rows."""
        load = next(
            (load for p in self.passes for load in loads_of(p.value) if str(load.source.name) == self.data), None
        )
        return load is not None and any(load.indices[-1].same_as(var) for var in self.outer)

    @property
    def axes(self) -> dict[tirx.Var, int]:
        """The axes of rows and those inside a row, each with its extent."""
        return {**self.outer, **self.inner}

    @property
    def axis(self) -> tirx.Var:
        """The axis along which vectors lie."""
        return list(self.outer if self.is_across else self.inner)[-1]

    def count(self, width: Any) -> tuple[Any, Any]:
        """Number of rows (or vectors of them), and of vectors (or elements) of a row."""
        rows, elements = (math.prod(axes.values()) for axes in (self.outer, self.inner))
        return (rows // width, elements) if self.is_across else (rows, elements // width)

    @cached_property
    def shared_load(self) -> TensorLoad | None:
        """The load of the data, over the axes, that more than one pass does; None where there is none."""
        per_pass = [[load for load in loads_of(p.value) if str(load.source.name) == self.data] for p in self.passes]
        for load in itertools.chain.from_iterable(per_pass):
            if sum(any(structural_equal(load, other) for other in loads) for loads in per_pass) > 1:
                return load
        return None

    @cached_property
    def kept_pass(self) -> Pass | None:
        """The pass whose term takes the place of what it is made of, where a row is kept and all later passes look at
        nothing else: softmax's exponentials.
        """
        load = self.shared_load
        for at, each in enumerate(self.passes):
            after = self.passes[at + 1 :]
            if load is None or each.reduction is None or isinstance(each.value, TensorLoad) or not after:
                continue
            rest = [replaced(p.value, each.value, tirx.const(0, str(each.value.ty))) for p in after]
            is_read = any(structural_equal(other, load) for value in rest for other in loads_of(value))
            if not is_read and not all(same.same_as(p.value) for same, p in zip(rest, after, strict=True)):
                return each
        return None


def replaced(value: tirx.Expr, old: tirx.Expr, new: tirx.Expr) -> tirx.Expr:
    """An expression with every part equal to `old` replaced; itself where there is none."""

    def replace(expr: tirx.Expr, mutator: Any) -> tirx.Expr:
        return new if structural_equal(expr, old) else mutator.default_mutate(expr)

    return structural_mutate(value, (type(old), replace))


def rows_of(blocks: Sequence[s_tir.SBlock], data: str) -> Rows | None:
    """Return how the blocks of a function are made of rows; None where they are not. data: name of its largest input."""  # noqa: E501
    *_, last = blocks
    reductions = [reduction for reduction in map(reduction_of, blocks) if reduction is not None]
    if len(reductions) < len(blocks) - 1 or not reductions:
        return None
    first = reductions[0]
    if not first.is_of_one_tensor:
        return None
    spatial = [axis for axis in first.block.iter_vars if not any(axis.var.same_as(r.var) for r in first.reduced)]
    outer = {axis.var: int(axis.dom.extent) for axis in spatial}
    inner = {axis.var: int(axis.dom.extent) for axis in first.reduced}
    passes = []
    for reduction in reductions:
        axes = [
            axis for axis in reduction.block.iter_vars if not any(axis.var.same_as(r.var) for r in reduction.reduced)
        ]
        mine = [*axes, *reduction.reduced]
        if [int(axis.dom.extent) for axis in mine] != [*outer.values(), *inner.values()]:
            return None
        values = {axis.var: var for axis, var in zip(mine, [*outer, *inner], strict=True)}
        place = [substitute(index, values) for index in reduction.block.body.indices]
        passes.append(Pass(reduction.block, substitute(reduction.term, values), reduction, place))
    if reduction_of(last) is not None:
        return Rows(data, outer, inner, passes, False) if _uses_rows(passes, outer) else None
    meaning = _axes_of_last(last, [r.buffer for r in reductions], outer, inner)
    if meaning is None:
        return None
    values = {axis.var: value for axis, value in zip(last.iter_vars, meaning, strict=True)}
    passes.append(Pass(last, substitute(last.body.value, values), None, meaning))
    is_normal = any(value.same_as(var) for value in meaning for var in inner)
    return Rows(data, outer, inner, passes, is_normal) if _uses_rows(passes, outer) else None


def _axes_of_last(
    last: s_tir.SBlock, results: Sequence[tirx.Buffer], outer: Mapping[tirx.Var, int], inner: Mapping[tirx.Var, int]
) -> list[tirx.Expr] | None:
    """For each axis of the last block the one that it stands for, or 0; None where it is not made of rows."""
    found: dict[tirx.Var, tirx.Var] = {}
    axes = {axis.var: int(axis.dom.extent) for axis in last.iter_vars}
    loads = [load for load in loads_of(last.body.value) if any(load.source.same_as(result) for result in results)]
    for load in loads:
        for index, var in zip(load.indices, outer, strict=True):
            if isinstance(index, tirx.Var) and index in axes and axes[index] == outer[var]:
                if index in found and not found[index].same_as(var):
                    return None
                found[index] = var
            elif outer[var] != 1:
                return None
    named = list(found.values())
    is_twice = any(a.same_as(b) for a, b in itertools.combinations(named, 2))
    if (
        is_twice
        or not loads
        or any(extent > 1 and not any(var.same_as(n) for n in named) for var, extent in outer.items())
    ):
        return None
    rest = [var for var, extent in axes.items() if var not in found and extent > 1]
    inside = [var for var, extent in inner.items() if extent > 1]
    if rest and [axes[var] for var in rest] != [inner[var] for var in inside]:
        return None
    meaning = {**found, **dict(zip(rest, inside, strict=False))}
    return [meaning.get(var, tirx.const(0, var.ty)) for var in axes]


def _uses_rows(passes: Sequence[Pass], outer: Mapping[tirx.Var, int]) -> bool:
    """Whether passes read what reductions before them gave at the row itself, and nowhere else."""
    results = [p.reduction.buffer for p in passes if p.reduction is not None]
    loads = [
        load for p in passes for load in loads_of(p.value) if any(load.source.same_as(result) for result in results)
    ]
    return all(
        a.same_as(b) or extent == 1
        for load in loads
        for a, (b, extent) in zip(load.indices, outer.items(), strict=True)
    )
