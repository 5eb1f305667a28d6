"""Reductions of whole rows and what is made of them: softmax, layer and group norm, means and sums over trailing or spatial axes, L2 norms.

m[i] = max over k of x[i, k];  s[i] = sum over k of exp(x[i, k] - m[i]);  out[i, k] = exp(x[i, k] - m[i]) / s[i]

row           the elements that are reduced together; `threads` work-items share a row, each takes every `threads`-th vector of it, and they
              combine what they have in local memory (Romou paper, Section 5.3: its answer to few outputs and a long reduction)
work group    `rows` rows
vector        `vector_width` neighbours in memory: of a row, each lane with a partial result of its own, or of as many rows
keep          where the row stays between the passes over it: "memory" reads it again, "registers" and "local" read it once
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_equal

from romou.core.knob import Choice, Knob
from romou.core.limits import Limits
from romou.core.space import Columns, Config, Space
from romou.schedules.blocks import Reduction, is_regular, loads_of, reduction_of, reductions_of, replace_loads, split_tuples
from romou.schedules.emit import Vectors, guarded, launch, loop, place_of, register_type, substitute
from romou.schedules.loops import VECTOR_WIDTH
from romou.schedules.streaming import Points, StreamingTemplate
from romou.tir.primitives import LANES

FAMILY = "row_reduction"
_THREADS, _GROUP_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 2, 4, 8, 16, 32, 64)
KNOBS = (
    VECTOR_WIDTH,
    Knob(name="threads", choices=_THREADS, default=1, help="work-items that share a row"),
    Knob(name="rows", choices=_GROUP_ROWS, default=1, help="rows of a work group", scales_outputs=True),
    Knob(name="keep", choices=("registers", "local", "memory"), default="registers", help="where a row stays between the passes over it"),
)
# Turns of the loop over a work-item's share of a row that are written out, and numbers of it that are kept in registers.
_MOST_UNROLLED, _MOST_KEPT = 8, 32
_FLOAT_BYTES = 4
# Numbers that a work group reads, unless it has but one row: longer rows keep a group busy by themselves.
_MOST_OF_GROUP = 1 << 16


def template_of(func: tirx.PrimFunc) -> RowReduction | None:
    """The template of a function whose reductions all run over the same axes of the same rows; None for any other."""
    split = split_tuples(func)
    if not is_regular(split) or not reductions_of(split):
        return None
    made = RowReduction(func)
    return made if made.rows is not None else None


@dataclass(frozen=True)
class _Pass:
    """A block over the axes of all: those that tell rows apart, and those inside of a row.

    value: what it reduces or stores.   place: of what is stored, for the last one.
    reduction: None for the one that stores elements.
    """

    block: s_tir.SBlock
    value: tirx.Expr
    reduction: Reduction | None
    place: Sequence[tirx.Expr] = ()


@dataclass(frozen=True)
class _Rows:
    """How the function is made of rows.

    outer, inner: axes that tell rows apart, and axes inside of a row, each with its extent.
    passes: the reductions, and the block that stores what comes of them.
    is_normal: whether the last one gives an element for each of the row, not one for the row.
    """

    outer: dict[tirx.Var, int]
    inner: dict[tirx.Var, int]
    passes: Sequence[_Pass]
    is_normal: bool


class RowReduction(StreamingTemplate):
    """Rows shared by work-items."""

    family = FAMILY
    knobs = KNOBS
    knobs_of_traffic = ("vector_width", "threads", "rows")

    @cached_property
    def rows(self) -> _Rows | None:
        """How the function is made of rows; None where it is not."""
        *_, last = self.blocks
        reductions = [reduction for reduction in map(reduction_of, self.blocks) if reduction is not None]
        if len(reductions) < len(self.blocks) - 1 or not reductions:
            return None
        first = reductions[0]
        if not first.is_of_one_tensor:
            return None
        spatial = [axis for axis in first.block.iter_vars if not any(axis.var.same_as(r.var) for r in first.reduced)]
        outer = {axis.var: int(axis.dom.extent) for axis in spatial}
        inner = {axis.var: int(axis.dom.extent) for axis in first.reduced}
        passes = []
        for reduction in reductions:
            axes = [axis for axis in reduction.block.iter_vars if not any(axis.var.same_as(r.var) for r in reduction.reduced)]
            mine = [*axes, *reduction.reduced]
            if [int(axis.dom.extent) for axis in mine] != [*outer.values(), *inner.values()]:
                return None
            values = {axis.var: var for axis, var in zip(mine, [*outer, *inner], strict=True)}
            place = [substitute(index, values) for index in reduction.block.body.indices]
            passes.append(_Pass(reduction.block, substitute(reduction.term, values), reduction, place))
        if reduction_of(last) is not None:
            return _Rows(outer, inner, passes, False) if self._uses_rows(passes, outer) else None
        meaning = self._axes_of_last(last, [r.buffer for r in reductions], outer, inner)
        if meaning is None:
            return None
        values = {axis.var: value for axis, value in zip(last.iter_vars, meaning, strict=True)}
        passes.append(_Pass(last, substitute(last.body.value, values), None, meaning))
        is_normal = any(value.same_as(var) for value in meaning for var in inner)
        return _Rows(outer, inner, passes, is_normal) if self._uses_rows(passes, outer) else None

    @staticmethod
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
        if is_twice or not loads or any(extent > 1 and not any(var.same_as(n) for n in named) for var, extent in outer.items()):
            return None
        rest = [var for var, extent in axes.items() if var not in found and extent > 1]
        inside = [var for var, extent in inner.items() if extent > 1]
        if rest and [axes[var] for var in rest] != [inner[var] for var in inside]:
            return None
        meaning = {**found, **dict(zip(rest, inside, strict=False))}
        return [meaning.get(var, tirx.const(0, var.ty)) for var in axes]

    @staticmethod
    def _uses_rows(passes: Sequence[_Pass], outer: Mapping[tirx.Var, int]) -> bool:
        """Whether passes read what reductions before them gave at the row itself, and nowhere else."""
        results = [p.reduction.buffer for p in passes if p.reduction is not None]
        loads = [load for p in passes for load in loads_of(p.value) if any(load.source.same_as(result) for result in results)]
        return all(a.same_as(b) or extent == 1 for load in loads for a, (b, extent) in zip(load.indices, outer.items(), strict=True))

    @property
    def _rows(self) -> _Rows:
        assert self.rows is not None, "`template_of` found it"
        return self.rows

    @cached_property
    def _is_across(self) -> bool:
        """Whether neighbours in memory belong to different rows."""
        load = next((load for p in self._rows.passes for load in loads_of(p.value) if str(load.source.name) == self.names["data"]), None)
        return load is not None and any(load.indices[-1].same_as(var) for var in self._rows.outer)

    @cached_property
    def _axis(self) -> tirx.Var:
        """The axis along which vectors lie."""
        return list(self._rows.outer if self._is_across else self._rows.inner)[-1]

    def _axes(self) -> dict[tirx.Var, int]:
        return {**self._rows.outer, **self._rows.inner}

    def _count(self, width: Any) -> tuple[Any, Any]:
        """Rows (or vectors of them) and vectors (or elements) of a row."""
        rows, elements = (math.prod(axes.values()) for axes in (self._rows.outer, self._rows.inner))
        return (rows // width, elements) if self._is_across else (rows, elements // width)

    @cached_property
    def _kept(self) -> TensorLoad | None:
        """The load of the data, over the axes, that more than one pass does; None where there is none."""
        per_pass = [[load for load in loads_of(p.value) if str(load.source.name) == self.names["data"]] for p in self._rows.passes]
        for load in itertools.chain.from_iterable(per_pass):
            if sum(any(structural_equal(load, other) for other in loads) for loads in per_pass) > 1:
                return load
        return None

    def space(self, limits: Limits) -> Space:
        """The knobs of this operator on a device with these limits."""
        (rows, elements), most = self._count(1), limits.max_work_group_size
        own: dict[str, Sequence[Choice]] = {
            "vector_width": self._widths(self._axes()[self._axis]),
            "threads": [t for t in _THREADS if t <= most and t < 2 * elements],
            "rows": [r for r in _GROUP_ROWS if r == 1 or (r <= most and r < 2 * rows and r * elements <= _MOST_OF_GROUP)],
            "keep": ["memory"] if self._kept is None else ["registers", "local", "memory"],
        }
        space = Space.of(self.knobs, limits, own)

        def is_allowed(config: Columns) -> Any:
            width = config["vector_width"]
            rows, elements = self._count(width)
            share = -(-elements // config["threads"])
            return (
                (config["threads"] * config["rows"] <= most)
                & ((config["rows"] == 1) | (config["rows"] < 2 * rows))
                & ((config["threads"] == 1) | (config["threads"] < 2 * elements))
                # A register has no address: what is kept there is written out.
                & ((config["keep"] != "registers") | ((share * width <= _MOST_KEPT) & (share <= _MOST_UNROLLED)))
                & (self.local_memory_bytes(config) <= limits.local_memory_bytes)
            )

        space.add_constraint(is_allowed)
        return space

    def default_config(self, limits: Limits) -> Config:
        """Up to four vectors of a row for each work-item, groups of 64, the row kept in registers where it fits.

        Without warps (CPUs), where work-items wait for each other one by one, each has rows to itself.
        """
        space = self.space(limits)
        width = space.knobs["vector_width"][0]
        _, elements = self._count(width)
        most, size = (elements, 8) if limits.warp_size == 1 else (4, 64)
        groups = itertools.product(space.knobs["keep"], space.knobs["threads"], space.knobs["rows"])
        configs = [space.default(vector_width=width, threads=t, rows=r, keep=keep) for keep, t, r in groups]

        def cost(config: Config) -> tuple[float, ...]:
            share = -(-elements // config["threads"])
            is_shared = config["threads"] if limits.warp_size == 1 else 0
            group = config["threads"] * config["rows"]
            return (is_shared, space.knobs["keep"].index(config["keep"]), max(0, share - most), abs(math.log2(group / size)), config["threads"])

        return min((c for c in configs if space.is_valid(c)), key=cost)

    def local_memory_bytes(self, columns: Columns) -> Any:
        """Partial results, and rows that are kept there; numbers are single precision."""
        rows, width = columns["rows"], columns["vector_width"]
        _, elements = self._count(1)
        partial = (columns["threads"] > 1) * columns["threads"] * rows
        kept = (columns["keep"] == "local") * rows * elements
        return _FLOAT_BYTES * (partial + kept) * (width if self._is_across else 1)

    def is_staged(self, columns: Columns) -> Any:
        """Whether rows are kept in local memory."""
        return columns["keep"] == "local"

    def local_loads(self, columns: Columns) -> Any:
        """A work-item's share of the row in each pass, and all partial results of the row for each reduction."""
        width, threads = columns["vector_width"], columns["threads"]
        share = -(-self._count(width)[1] // threads) * width
        reductions = sum(p.reduction is not None for p in self._rows.passes)
        partial = (threads > 1) * threads * (width if self._is_across else 1)
        return (columns["keep"] == "local") * _FLOAT_BYTES * (len(self._rows.passes) * share + reductions * partial)

    def work_group_size(self, columns: Columns) -> Any:
        """Work-items of a group, for all its rows."""
        return columns["threads"] * columns["rows"]

    def work_groups(self, columns: Columns) -> Any:
        """Enough for all rows."""
        return -(-self._count(columns["vector_width"])[0] // columns["rows"])

    def vectors(self, width: int) -> list[tuple[Vectors, tirx.Expr]]:
        """All passes."""
        return [(Vectors(self._axes(), self._axis, width), p.value) for p in self._rows.passes]

    @property
    def works_in_texels(self) -> bool:
        """Whether the output may lie in an image: rows whose neighbours are those in memory."""
        return super().works_in_texels and self._is_across and self._axes()[self._axis] == LANES

    # Traffic

    def points_of_group(self, knobs: Mapping[str, int]) -> Points:
        """All elements of the first rows."""
        rows, elements = self._count(knobs["vector_width"])
        return self._points(np.minimum(np.arange(knobs["rows"]), rows - 1), np.arange(elements), knobs["vector_width"])

    def points_of_one(self, knobs: Mapping[str, int]) -> Points:
        """Every `threads`-th vector of the first row; the first one where a loop repeats it."""
        _, elements = self._count(knobs["vector_width"])
        share = np.arange(0, elements, knobs["threads"])
        return self._points(np.arange(1), share if len(share) <= _MOST_UNROLLED else share[:1], knobs["vector_width"])

    def same_group(self, knobs: Mapping[str, int]) -> Hashable:
        """Group configs by the rows of a work group."""
        return knobs["rows"] * (knobs["vector_width"] if self._is_across else 1)

    def same_one(self, knobs: Mapping[str, int]) -> Hashable:
        """Group configs by a work-item's share of a row."""
        return knobs["vector_width"], knobs["threads"]

    def repeats(self, block: s_tir.SBlock, knobs: Mapping[str, int]) -> int:
        """The loop over a work-item's share of a row; what only rows have is outside of it."""
        share = -(-self._count(knobs["vector_width"])[1] // knobs["threads"])
        is_inside = reduction_of(block) is not None or self._rows.is_normal
        return share if share > _MOST_UNROLLED and is_inside else 1

    def _points(self, rows: np.ndarray, elements: np.ndarray, width: int) -> Points:
        outer, inner = (list(axes.values()) for axes in (self._rows.outer, self._rows.inner))
        across = self._is_across
        (outer if across else inner)[-1] //= width
        row = [p[:, None, None] for p in np.unravel_index(rows, outer)]
        element = [p[None, :, None] for p in np.unravel_index(elements, inner)]
        vector = row if across else element
        vector[-1] = vector[-1] * width + np.arange(width)
        values = dict(zip(self._axes(), [*row, *element], strict=True))

        def points(block: s_tir.SBlock) -> list[np.ndarray]:
            (mine,) = (p for p in self._rows.passes if p.block.same_as(block))
            if mine.reduction is None:
                return [values.get(place, np.asarray(0)) if isinstance(place, tirx.Var) else np.asarray(0) for place in mine.place]
            reduced = [axis.var for axis in mine.reduction.reduced]
            spatial = iter([*row])
            inside = iter([*element])
            return [next(inside if any(axis.var.same_as(r) for r in reduced) else spatial) for axis in block.iter_vars]

        return points

    def stored_by_a_group(self, knobs: Mapping[str, int]) -> int:
        """Numbers that a work group stores: its rows, or one for each of them."""
        width = knobs["vector_width"]
        rows, elements = self._count(width)
        return int(min(knobs["rows"], rows)) * ((width * elements) if self._rows.is_normal else width if self._is_across else 1)

    # The kernel

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        """Scheduled TIR for a config: a module with the one function `main`."""
        return _Kernel(self, config).module()


class _Kernel:
    """Writes the passes of one config."""

    def __init__(self, template: RowReduction, config: Config) -> None:
        self.template, self.config = template, config
        self.rows = template._rows
        self.width, self.threads = config["vector_width"], config["threads"]
        self.count, self.elements = template._count(self.width)
        self.share = -(-self.elements // self.threads)
        self.is_across = template._is_across
        self.vectors = Vectors(template._axes(), template._axis, self.width)
        dtype = template._axis.ty
        self.group, self.row, self.thread, self.turn = (tirx.Var(name, dtype) for name in ("group", "row", "thread", "turn"))
        self.buffers: list[tirx.Buffer] = []
        # Lanes of a result: one for each of the rows that neighbours belong to.
        self.lanes = self.width if self.is_across else 1
        self.results: dict[tirx.Buffer, tirx.Buffer] = {}
        self.kept: tirx.Buffer | None = None

    def module(self) -> tvm.IRModule:
        """A module with the one function `main`."""
        steps = [self._keep()] if self.config["keep"] != "memory" else []
        kinds = {register_type(str(p.reduction.buffer.dtype)) for p in self.rows.passes if p.reduction is not None}
        partial = self._buffer("partial", self.config["rows"] * self.threads * self.lanes, kinds.pop(), "shared") if self.threads > 1 else None
        for each in self.rows.passes:
            steps += self._reduce(each, partial) if each.reduction is not None else [self._store(each, each.value)]
        last = self.rows.passes[-1]
        if last.reduction is not None:
            steps.append(self._store(last, self._result(last.reduction.buffer)))
        position = self.group * self.config["rows"] + self.row
        groups = -(-self.count // self.config["rows"])
        index = tirx.min(position, tirx.const(self.count - 1, position.ty)) if self.count % self.config["rows"] else position
        outer = list(self.rows.outer.values())
        if self.is_across:
            outer[-1] //= self.width
        values = dict(zip(self.rows.outer, place_of(index, outer), strict=True))
        if self.is_across:
            values[self.vectors.vector] = values.pop(self.template._axis)
        body = substitute(tirx.SeqStmt(steps), values)
        threads = {"blockIdx.x": (self.group, groups), "threadIdx.y": (self.row, self.config["rows"]), "threadIdx.x": (self.thread, self.threads)}
        return launch(self.template.simplified, threads, body, self.buffers)

    def _buffer(self, name: str, size: int, dtype: str, scope: str = "local") -> tirx.Buffer:
        self.buffers.append(tirx.decl_buffer([size], dtype, name, scope=scope))
        return self.buffers[-1]

    def _each(self, body: tirx.Stmt) -> tirx.Stmt:
        """`body`, over the axes inside of a row, for each vector of the work-item's share."""
        element = self.turn * self.threads + self.thread
        inner = list(self.rows.inner.values())
        if not self.is_across:
            inner[-1] //= self.width
        values = dict(zip(self.rows.inner, place_of(element, inner), strict=True))
        if not self.is_across:
            values[self.vectors.vector] = values.pop(self.template._axis)
        body = guarded(element < self.elements if self.elements % self.threads else None, substitute(body, values))
        return loop(self.turn, self.share, body, "unrolled" if self.share <= _MOST_UNROLLED else "serial")

    def _keep(self) -> tirx.Stmt:
        """Read the work-item's share of the row."""
        load = self.template._kept
        assert load is not None, "the knob `keep` says so only where there is one"
        is_local = self.config["keep"] == "local"
        size = self.config["rows"] * self.elements * self.width if is_local else self.share * self.width
        kind = register_type(str(load.source.dtype))
        self.kept = self._buffer("kept", size, kind, "shared" if is_local else "local")
        store, tiles = self.vectors.store(self.kept, [self._place_of_kept()], load.astype(kind))
        self.buffers += tiles
        return self._each(store)

    def _place_of_kept(self) -> tirx.Expr:
        element = self.turn
        if self.config["keep"] == "local":
            element = self.row * self.elements + self.turn * self.threads + self.thread
        return element * self.width + self.vectors.lane

    def _value(self, value: tirx.Expr) -> tirx.Expr:
        """An expression over the axes with what is kept and what was reduced in the place of their loads."""
        kept, load = self.kept, self.template._kept
        if kept is not None and load is not None:
            at = tirx.BufferLoad(kept, [self._place_of_kept()]).astype(str(load.source.dtype))
            value = replace_loads(value, load.source, lambda other: at if structural_equal(other, load) else other)
        for buffer in self.results:
            value = replace_loads(value, buffer, lambda access: self._result(access.source))
        return value

    def _result(self, buffer: tirx.Buffer) -> tirx.Expr:
        lane = self.vectors.lane if self.is_across else tirx.const(0, self.vectors.lane.ty)
        return tirx.BufferLoad(self.results[buffer], [lane]).astype(str(buffer.dtype))

    def _reduce(self, each: _Pass, partial: tirx.Buffer | None) -> list[tirx.Stmt]:
        """Each work-item its share, then all of the row together."""
        reduction, lane, dtype = each.reduction, self.vectors.lane, self.vectors.lane.ty
        assert reduction is not None
        kind = register_type(str(reduction.buffer.dtype))
        first, name = reduction.start.astype(kind), str(reduction.buffer.name)
        sums = self._buffer(f"{name}_share", self.width, kind)
        mine = tirx.BufferLoad(sums, [lane])
        start = loop(lane, self.width, tirx.BufferStore(sums, first, [lane]), "vectorized")
        store, tiles = self.vectors.store(sums, [lane], reduction.combine(mine, self._value(each.value).astype(kind)))
        self.buffers += tiles
        steps = [start, self._each(store)]
        result = self._buffer(name, self.lanes, kind)
        if self.is_across:
            total: tirx.Expr = mine
        else:
            total = tirx.BufferLoad(sums, [tirx.const(0, dtype)])
            for other in range(1, self.width):
                total = reduction.combine(total, tirx.BufferLoad(sums, [tirx.const(other, dtype)]))
        if partial is None:
            steps.append(loop(lane, self.lanes, tirx.BufferStore(result, total, [lane]), "vectorized"))
        else:
            other = tirx.Var("other", dtype)
            place = (self.row * self.threads + self.thread) * self.lanes + lane
            steps.append(loop(lane, self.lanes, tirx.BufferStore(partial, total, [place]), "vectorized"))
            # Every work-item adds up all of them: one barrier, and reads that the whole row shares.
            steps.append(loop(lane, self.lanes, tirx.BufferStore(result, first, [lane]), "vectorized"))
            theirs = tirx.BufferLoad(partial, [(self.row * self.threads + other) * self.lanes + lane])
            together = tirx.BufferStore(result, reduction.combine(tirx.BufferLoad(result, [lane]), theirs), [lane])
            steps.append(loop(other, self.threads, loop(lane, self.lanes, together, "vectorized"), "unrolled" if self.threads <= _MOST_UNROLLED else "serial"))
        self.results[reduction.buffer] = result
        return steps

    def _store(self, each: _Pass, value: tirx.Expr) -> tirx.Stmt:
        """The elements of the work-item's share, or the row's one result by the first of its work-items."""
        place = [self.vectors.index if isinstance(index, tirx.Var) and index.same_as(self.template._axis) else index for index in each.place]
        position = self.group * self.config["rows"] + self.row
        conditions = [position < self.count] if self.count % self.config["rows"] else []
        output = each.block.body.buffer
        if self.rows.is_normal:
            store, tiles = self.vectors.store(output, place, self._value(value))
            store = self._each(store)
        else:
            vectors = self.vectors if self.is_across else Vectors({}, self.template._axis, 1)
            store, tiles = vectors.store(output, place, self._value(value))
            if self.threads > 1:
                conditions.append(self.thread < 1)
        self.buffers += tiles
        for condition in conditions:
            store = guarded(condition, store)
        return store
