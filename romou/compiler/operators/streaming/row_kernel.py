"""The kernel of a function that is made of rows: loops and stores for one config."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm_ffi.structural import structural_equal, structural_mutate

from romou.base.space import Config
from romou.compiler.operators.streaming.rows import Pass, Rows, replaced
from romou.compiler.scheduling.blocks import Reduction, loads_of, replace_loads, substitute
from romou.compiler.scheduling.statements import guarded, launch, loop, register_type, unravel
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.primitives import LANES, OWN_MEMORY, ignore_nan, is_image
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.dialect import sub_group_reduce, sub_group_shuffle_xor

# Iterations of the loop over a work-item's share of a row that are written out.
MOST_UNROLLED = 8
# What may be computed once for a row.
_COMPUTED = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, Call, TensorLoad)
# Choices of the knob `combine`, and the work-items of a row from which on there is a second step.
SERIAL, TREE = "serial", "tree"
LEAST_OF_TREE = 16


def second_partials(threads: Any) -> Any:
    """Partial results of a row that `TREE` leaves for its second step: about the square root of as many as there are
    work-items, which may be an array.
    """
    return 2 ** np.ceil(np.log2(threads) / 2).astype(int)


# What sub-groups find by a function of their own.
SUB_GROUP_OPERATIONS: dict[type, str] = {tirx.Add: "add", tirx.Max: "max", tirx.Min: "min"}


def parts_left(threads: Any, sub_group: Any) -> Any:
    """Partial results of a row after each of its sub-groups has added up its own; numbers or arrays."""
    return np.maximum(threads // sub_group, 1)


# Numbers that are added up one after another in fp32: 1,024 equal ones lose up to 6e-5.
_MOST_IN_A_SUM = 1024


def sums_of(share: int) -> tuple[int, int]:
    """Return how many sums a work-item's share of a row is added up in, and how long each is. Of a long row both are
    about its square root.
    """
    if share <= _MOST_IN_A_SUM:
        return 1, share
    size = 2 ** math.ceil(math.log2(share) / 2)
    return -(-share // size), size


class RowKernel:
    """Writes the passes of one config of a function as a kernel.

    has_reductions: whether sub-groups have functions that reduce; else their work-items exchange what they have in
    pairs.
    """

    def __init__(self, func: tirx.PrimFunc, rows: Rows, config: Config, *, has_reductions: bool = True) -> None:
        self.func, self.rows, self.config, self.has_reductions = func, rows, config, has_reductions
        self.width, self.threads, self.sub_group = (
            config["vector_width"],
            config["threads"],
            int(config.get("sub_group", 1)),
        )
        self.parts = int(parts_left(self.threads, self.sub_group))
        self.count, self.elements = rows.count(self.width)
        self.share = -(-self.elements // self.threads)
        self.is_across = rows.is_across
        self.vectors = Vectors(rows.axes, rows.axis, self.width)
        dtype = rows.axis.ty
        self.group, self.row, self.thread, self.turn = (
            tirx.Var(name, dtype) for name in ("group", "row", "thread", "turn")
        )
        self.buffers: list[tirx.Buffer] = []
        # Lanes of a result: one for each of the rows that neighbours belong to.
        self.lanes = self.width if self.is_across else 1
        self.results: dict[tirx.Buffer, tirx.Buffer] = {}
        # What is kept of a row: its numbers, or what a pass made of them.
        self.kept: tirx.Buffer | None = None
        self.kept_term: tirx.Expr | None = None
        # What was computed once for a row, each with its register; and the statements that do so and have no place yet.
        self.of_row: list[tuple[tirx.Expr, tirx.Buffer]] = []
        self.pending: list[tirx.Stmt] = []

    def module(self) -> tvm.IRModule:
        """A module with the one function `main`."""
        steps = [self._keep()] if self.config["keep"] != "memory" else []
        kinds = {register_type(str(p.reduction.buffer.dtype)) for p in self.rows.passes if p.reduction is not None}
        sizes = {"partial": self.parts} if self.parts > 1 else {}
        if self.config.get("combine") == TREE:
            sizes["second"] = int(second_partials(self.threads))
        kind = kinds.pop()
        partials = [
            self._buffer(name, self.config["rows"] * size * self.lanes, kind, "shared") for name, size in sizes.items()
        ]
        for each in self.rows.passes:
            steps += self._reduced(each, partials) if each.reduction is not None else [self._store(each, each.value)]
        last = self.rows.passes[-1]
        if last.reduction is not None:
            steps.append(self._store(last, self._result(last.reduction.buffer)))
        position = self.group * self.config["rows"] + self.row
        groups = -(-self.count // self.config["rows"])
        index = (
            tirx.min(position, tirx.const(self.count - 1, position.ty))
            if self.count % self.config["rows"]
            else position
        )
        outer = list(self.rows.outer.values())
        if self.is_across:
            outer[-1] //= self.width
        values = dict(zip(self.rows.outer, unravel(index, outer), strict=True))
        if self.is_across:
            values[self.vectors.vector] = values.pop(self.rows.axis)
        body = substitute(tirx.SeqStmt(steps), values)
        if self.sub_group > 1:
            # Sub-groups are made along x first, by some drivers along no other axis.
            item = tirx.Var("item", self.thread.ty)
            body = substitute(body, {self.thread: item % self.threads, self.row: item // self.threads})
            in_row = {"blockIdx.x": (self.group, groups), "threadIdx.x": (item, self.threads * self.config["rows"])}
            return launch(self.func, in_row, body, self.buffers)
        threads = {
            "blockIdx.x": (self.group, groups),
            "threadIdx.y": (self.row, self.config["rows"]),
            "threadIdx.x": (self.thread, self.threads),
        }
        return launch(self.func, threads, body, self.buffers)

    def _buffer(self, name: str, size: int, dtype: str, scope: str = "local") -> tirx.Buffer:
        self.buffers.append(tirx.decl_buffer([size], dtype, name, scope=scope))
        return self.buffers[-1]

    def _each(self, body: tirx.Stmt, sums: tirx.Buffer | None = None) -> tirx.Stmt:
        """`body`, over the axes inside a row, for each vector of the work-item's share. sums: what it adds up; a long
        share is added up in several sums.
        """
        element = self.turn * self.threads + self.thread
        inner = list(self.rows.inner.values())
        if not self.is_across:
            inner[-1] //= self.width
        values = dict(zip(self.rows.inner, unravel(element, inner), strict=True))
        if not self.is_across:
            values[self.vectors.vector] = values.pop(self.rows.axis)
        count, size = (1, self.share) if sums is None else sums_of(self.share)
        is_whole = self.elements == self.threads * count * size
        body = guarded(None if is_whole else element < self.elements, substitute(body, values))
        if sums is None or count == 1:
            return loop(self.turn, self.share, body, "unrolled" if self.share <= MOST_UNROLLED else "serial")
        total, lane = self._buffer(f"{sums.name}_total", self.width, str(sums.dtype)), self.vectors.lane
        (so_far, added), zero = (
            (tirx.BufferLoad(buffer, [lane]) for buffer in (total, sums)),
            tirx.const(0, str(sums.dtype)),
        )

        def in_lanes(buffer: tirx.Buffer, value: tirx.Expr) -> tirx.Stmt:
            return loop(lane, self.width, tirx.BufferStore(buffer, value, [lane]), "vectorized")

        one, inside = (tirx.Var(name, self.turn.ty) for name in ("one", "inside"))
        short = loop(inside, size, substitute(body, {self.turn: one * size + inside}))
        steps = [in_lanes(sums, zero), short, in_lanes(total, so_far + added)]
        return tirx.SeqStmt([in_lanes(total, zero), loop(one, count, tirx.SeqStmt(steps)), in_lanes(sums, so_far)])

    def _keep(self) -> tirx.Stmt:
        """Read the work-item's share of the row."""
        load = self.rows.shared_load
        assert load is not None, "the knob `keep` says so only where there is one"
        is_local = self.config["keep"] == "local"
        size = self.config["rows"] * self.elements * self.width if is_local else self.share * self.width
        kind = register_type(str(load.source.dtype))
        self.kept = self._buffer("kept", size, kind, OWN_MEMORY if is_local else "local")
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
        kept, load = self.kept, self.rows.shared_load
        if kept is not None and load is not None:
            of_what: tirx.Expr = load if self.kept_term is None else self.kept_term
            value = replaced(value, of_what, tirx.BufferLoad(kept, [self._place_of_kept()]).astype(str(of_what.ty)))
        value = structural_mutate(value, (tirx.Div, self._times_reciprocal))
        for buffer in self.results:
            value = replace_loads(value, buffer, lambda access: self._result(access.source))
        return value if self.is_across else structural_mutate(value, (_COMPUTED, self._once_a_row))

    def _times_reciprocal(self, quotient: tirx.Div, mutator: Any) -> tirx.Expr:
        """Softmax divides by the sum of a row once: x / s
        ->  x * (1 / s). Such a sum is no less than one, so its reciprocal is as exact.
        """
        new = mutator.default_mutate(quotient)
        source = new.b.source if isinstance(new.b, TensorLoad) else None
        of_exponentials = any(
            p.reduction is not None and p.reduction.buffer.same_as(source) and _is_of_exponentials(p)
            for p in self.rows.passes
        )
        return new.a * (tirx.const(1.0, str(new.ty)) / new.b) if of_exponentials else new

    def _once_a_row(self, expr: tirx.Expr, mutator: Any) -> tirx.Expr:
        """What is made of a row's results alone gets a register, and is computed before the loop over the row."""
        loads = loads_of(expr)
        of_row = all(load.source in self.results.values() or self._is_one_number(load) for load in loads)
        variables = [var for var in nodes_in(expr, tirx.Var) if not isinstance(var, tirx.Buffer)]
        if (
            not loads
            or not of_row
            or variables
            or "float" not in str(expr.ty)
            or (isinstance(expr, TensorLoad) and not self._is_one_number(expr))
        ):
            return mutator.default_mutate(expr)
        known = next((buffer for other, buffer in self.of_row if structural_equal(other, expr)), None)
        if known is None:
            known = self._buffer("of_row", 1, register_type(str(expr.ty)))
            self.of_row.append((expr, known))
            self.pending.append(tirx.BufferStore(known, expr.astype(str(known.dtype)), [0]))
        return tirx.BufferLoad(known, [tirx.const(0, self.vectors.lane.ty)]).astype(str(expr.ty))

    def _is_one_number(self, load: TensorLoad) -> bool:
        """Whether a load is of the same number of an input in every row: what masks are filled with."""
        is_input = any(load.source.same_as(parameter) for parameter in self.func.params)
        return is_input and not is_image(load.source) and all(isinstance(index, tirx.IntImm) for index in load.indices)

    def _computed(self) -> list[tirx.Stmt]:
        """Take the statements that have to stand before what the last values are used for."""
        pending, self.pending = self.pending, []
        return pending

    def _result(self, buffer: tirx.Buffer) -> tirx.Expr:
        lane = self.vectors.lane if self.is_across else tirx.const(0, self.vectors.lane.ty)
        return tirx.BufferLoad(self.results[buffer], [lane]).astype(str(buffer.dtype))

    def _reduced(self, each: Pass, partials: Sequence[tirx.Buffer]) -> list[tirx.Stmt]:
        """What `_reduce` gives; a maximum that other passes subtract from what it is of (softmax) may ignore NaN, as
        they read that again.
        """
        assert each.reduction is not None
        is_one_of_many = each is not self.rows.passes[-1] and each.reduction.operation in (tirx.Max, tirx.Min)
        may_lose_nan = is_one_of_many and self.rows.shared_load is not None
        steps = self._reduce(each, partials, keeps_nan=not may_lose_nan and each.reduction.operation is not tirx.Add)
        return [ignore_nan(tirx.SeqStmt(steps))] if may_lose_nan else steps

    def _reduce(self, each: Pass, partials: Sequence[tirx.Buffer], *, keeps_nan: bool) -> list[tirx.Stmt]:
        """Each work-item its share, then all of the row together."""
        reduction, lane, dtype = each.reduction, self.vectors.lane, self.vectors.lane.ty
        assert reduction is not None
        kind = register_type(str(reduction.buffer.dtype))
        first, name = reduction.start.astype(kind), str(reduction.buffer.name)
        sums = self._buffer(f"{name}_share", self.width, kind)
        mine = tirx.BufferLoad(sums, [lane])
        start = loop(lane, self.width, tirx.BufferStore(sums, first, [lane]), "vectorized")
        share = self._kept_term(each)
        store, tiles = self.vectors.store(sums, [lane], reduction.combine(mine, self._value(each.value).astype(kind)))
        self.buffers += tiles
        body = tirx.SeqStmt([*share, store]) if share else store
        steps = [start, *self._computed(), self._each(body, sums if reduction.operation is tirx.Add else None)]
        result = self._buffer(name, self.lanes, kind)
        if self.is_across:
            total: tirx.Expr = mine
        else:
            total = functools.reduce(
                reduction.combine, (tirx.BufferLoad(sums, [tirx.const(at, dtype)]) for at in range(self.width))
            )
        if not partials or self.sub_group > 1:
            steps.append(loop(lane, self.lanes, tirx.BufferStore(result, total, [lane]), "vectorized"))
            total = tirx.BufferLoad(result, [lane])
        if self.sub_group > 1:
            steps += self._in_sub_groups(reduction, result, keeps_nan=keeps_nan)
        if partials:
            (partial, *second), count = partials, self.parts
            place = (self.row * count + self.thread // self.sub_group) * self.lanes + lane
            is_first = None if self.sub_group == 1 else self.thread % self.sub_group < 1
            steps.append(
                guarded(is_first, loop(lane, self.lanes, tirx.BufferStore(partial, total, [place]), "vectorized"))
            )
            if second:
                # A few work-items add up as many neighbours each.
                count = int(second_partials(self.threads))
                few = self._together(
                    reduction,
                    partial,
                    result,
                    first,
                    (self.row * count + self.thread) * (self.threads // count),
                    self.threads // count,
                )
                (partial,) = second
                place = (self.row * count + self.thread) * self.lanes + lane
                few.append(
                    loop(
                        lane,
                        self.lanes,
                        tirx.BufferStore(partial, tirx.BufferLoad(result, [lane]), [place]),
                        "vectorized",
                    )
                )
                steps.append(guarded(self.thread < count, tirx.SeqStmt(few)))
            # Every work-item adds up all that is left: one barrier, and reads that the whole row shares.
            steps += self._together(reduction, partial, result, first, self.row * count, count)
        self.results[reduction.buffer] = result
        return steps

    def _in_sub_groups(self, reduction: Reduction, result: tirx.Buffer, *, keeps_nan: bool) -> list[tirx.Stmt]:
        """Reduce `result` over the work-items of a row that are in the same sub-group, for each of them.

        Every call is a statement of its own: passes repeat operands, and no call may stand where only some work-items
        come by.
        """
        lane, together = self.vectors.lane, min(self.threads, self.sub_group)
        mine = tirx.BufferLoad(result, [lane])

        def in_lanes(buffer: tirx.Buffer, value: tirx.Expr) -> tirx.Stmt:
            return loop(lane, self.lanes, tirx.BufferStore(buffer, value, [lane]), "unrolled")

        if together == self.sub_group and self.has_reductions:
            operation = SUB_GROUP_OPERATIONS[reduction.operation] + ("_with_nan" if keeps_nan else "")
            return [in_lanes(result, sub_group_reduce(operation, mine, self.sub_group))]
        other = self._buffer("other_share", self.lanes, str(result.dtype))
        steps, apart = [], together // 2
        while apart:
            steps.append(in_lanes(other, sub_group_shuffle_xor(mine, apart, self.sub_group)))
            steps.append(in_lanes(result, reduction.combine(mine, tirx.BufferLoad(other, [lane]))))
            apart //= 2
        return steps

    def _together(
        self,
        reduction: Reduction,
        partial: tirx.Buffer,
        result: tirx.Buffer,
        first: tirx.Expr,
        start: tirx.Expr,
        count: int,
    ) -> list[tirx.Stmt]:
        """Reduce `count` partial results from `start` on to `result`; four at a time where that are whole vectors."""
        dtype = self.vectors.lane.ty
        width = 1 if self.is_across or count % LANES else LANES
        # Not the lane of a row's vectors, of which there may be fewer.
        lane = tirx.Var("part", dtype) if width > 1 else self.vectors.lane
        lanes, steps = self.lanes * width, count // width
        into = self._buffer("vector", lanes, str(result.dtype)) if width > 1 else result
        other = tirx.Var("other", dtype)
        theirs = tirx.BufferLoad(partial, [(start + other * width) * self.lanes + lane])
        together = tirx.BufferStore(into, reduction.combine(tirx.BufferLoad(into, [lane]), theirs), [lane])
        made = [
            loop(lane, lanes, tirx.BufferStore(into, first, [lane]), "vectorized"),
            loop(
                other,
                steps,
                loop(lane, lanes, together, "vectorized"),
                "unrolled" if steps <= MOST_UNROLLED else "serial",
            ),
        ]
        if width > 1:
            each = [tirx.BufferLoad(into, [tirx.const(at, dtype)]) for at in range(width)]
            made.append(tirx.BufferStore(result, functools.reduce(reduction.combine, each), [0]))
        return made

    def _kept_term(self, each: Pass) -> list[tirx.Stmt]:
        """Statements that keep what a pass reduces in the place of what it is made of (`Rows.kept_pass`). Softmax
        computes each exponential once so.
        """
        if self.kept is None or each is not self.rows.kept_pass:
            return []
        term = each.value
        store, tiles = self.vectors.store(
            self.kept, [self._place_of_kept()], self._value(term).astype(str(self.kept.dtype))
        )
        self.buffers += tiles
        self.kept_term = term
        return [store]

    def _store(self, each: Pass, value: tirx.Expr) -> tirx.Stmt:
        """The elements of the work-item's share, or the row's one result by the first of its work-items."""
        place = [
            self.vectors.index if isinstance(index, tirx.Var) and index.same_as(self.rows.axis) else index
            for index in each.place
        ]
        position = self.group * self.config["rows"] + self.row
        conditions = [position < self.count] if self.count % self.config["rows"] else []
        output = each.block.body.buffer
        if self.rows.is_normal:
            store, tiles = self.vectors.store(output, place, self._value(value))
            store = self._each(store)
        else:
            vectors = self.vectors if self.is_across else Vectors({}, self.rows.axis, 1)
            store, tiles = vectors.store(output, place, self._value(value))
            if self.threads > 1:
                conditions.append(self.thread < 1)
        self.buffers += tiles
        for condition in conditions:
            store = guarded(condition, store)
        return tirx.SeqStmt([*before, store]) if (before := self._computed()) else store


def _is_of_exponentials(each: Pass) -> bool:
    """Whether a pass sums up exponentials of what the row's maximum was taken away from, of which one is 1."""
    assert each.reduction is not None
    term = each.value
    return (
        each.reduction.operation is tirx.Add
        and op_name(term) in ("tirx.exp", "prim.exp")
        and isinstance(term.args[0], tirx.Sub)
    )
