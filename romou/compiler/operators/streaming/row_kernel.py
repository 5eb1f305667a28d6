"""The kernel of a row reduction for one config, written out as loops and stores.

for each pass:  share of each work-item  ->  sub-groups  ->  partial results in local memory  ->  result of the row
last pass:      stores an element for each element of the row, or the row's result
"""

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
from romou.compiler.scheduling.kernel_writer import KernelWriter
from romou.compiler.scheduling.statements import guarded, launch, loop, register_type, unravel
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.primitives import LANES, OWN_MEMORY, ignore_nan, is_image
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.dialect import sub_group_reduce, sub_group_shuffle_xor

# The loop over a work-item's share of a row is unrolled up to this many iterations.
MOST_UNROLLED = 8
# Expressions that may be computed once for a row.
_COMPUTED = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, Call, TensorLoad)
# Choices of the knob `combine`, and the fewest work-items of a row that allow `TREE`.
SERIAL, TREE = "serial", "tree"
LEAST_OF_TREE = 16


def second_partials(threads: Any) -> Any:
    """Return the number of partial results that `TREE` leaves for its second step.

    That is about the square root of `threads`, which may be an array.
    """
    return 2 ** np.ceil(np.log2(threads) / 2).astype(int)


# Reductions that sub-groups have functions for.
SUB_GROUP_OPERATIONS: dict[type, str] = {tirx.Add: "add", tirx.Max: "max", tirx.Min: "min"}


def parts_left(threads: Any, sub_group: Any) -> Any:
    """Return the partial results of a row after its sub-groups have reduced their own.

    threads, sub_group: numbers, or arrays of many configs.
    """
    return np.maximum(threads // sub_group, 1)


# Longest chain of fp32 additions: 1,024 equal numbers lose up to 6e-5.
_MOST_IN_A_SUM = 1024


def sums_of(share: int) -> tuple[int, int]:
    """Return the number and the length of the sums that a work-item's share of a row is split into.

    For a long share, both are about its square root.
    """
    if share <= _MOST_IN_A_SUM:
        return 1, share
    size = 2 ** math.ceil(math.log2(share) / 2)
    return -(-share // size), size


class RowKernel(KernelWriter):
    """The writer of one config's kernel, pass by pass.

    has_reductions: whether sub-groups have reduction functions. If not, their work-items exchange values in pairs.
    """

    def __init__(self, func: tirx.PrimFunc, rows: Rows, config: Config, *, has_reductions: bool = True) -> None:
        self.func, self.rows, self.config, self.has_reductions = func, rows, config, has_reductions
        self.width, self.threads = config["vector_width"], config["threads"]
        self.sub_group = int(config.get("sub_group", 1))
        self.parts = int(parts_left(self.threads, self.sub_group))
        self.count, self.elements = rows.count(self.width)
        self.share = -(-self.elements // self.threads)
        self.is_across = rows.is_across
        self.vectors = Vectors(rows.axes, rows.axis, self.width)
        dtype = rows.axis.ty
        self.group, self.row, self.thread, self.iteration = (
            tirx.Var(name, dtype) for name in ("group", "row", "thread", "turn")
        )
        super().__init__()
        # Lanes of a result: one for each row in a vector across rows.
        self.lanes = self.width if self.is_across else 1
        self.results: dict[tirx.Buffer, tirx.Buffer] = {}
        # The part of a row that is kept: its elements, or the values that a pass computed from them.
        self.kept: tirx.Buffer | None = None
        self.kept_term: tirx.Expr | None = None
        # Expressions computed once for a row, with their registers, and their statements before they are placed.
        self.of_row: list[tuple[tirx.Expr, tirx.Buffer]] = []
        self.pending: list[tirx.Stmt] = []

    def module(self) -> tvm.IRModule:
        """Return a module whose `main` is the kernel."""
        steps = [self._keep()] if self.config["keep"] != "memory" else []
        sizes = {"partial": self.parts} if self.parts > 1 else {}
        if self.config.get("combine") == TREE:
            sizes["second"] = int(second_partials(self.threads))
        partials = {
            kind: [
                self._buffer(name, self.config["rows"] * size * self.lanes, kind, "shared")
                for name, size in sizes.items()
            ]
            for kind in dict.fromkeys(self.rows.kinds)
        }
        for row_pass in self.rows.passes:
            if row_pass.reduction is not None:
                steps += self._reduced(row_pass, partials[register_type(str(row_pass.reduction.buffer.dtype))])
            else:
                steps.append(self._store(row_pass, row_pass.value))
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
            # Sub-groups are formed along x first, and on some drivers along no other axis.
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

    def _each(self, body: tirx.Stmt, sums: tirx.Buffer | None = None) -> tirx.Stmt:
        """Run `body` for each vector of the work-item's share of a row.

        sums: the accumulator of `body`. A long share is accumulated in several sums.
        """
        element = self.iteration * self.threads + self.thread
        inner = list(self.rows.inner.values())
        if not self.is_across:
            inner[-1] //= self.width
        values = dict(zip(self.rows.inner, unravel(element, inner), strict=True))
        if not self.is_across:
            values[self.vectors.vector] = values.pop(self.rows.axis)
        count, size = (1, self.share) if sums is None else sums_of(self.share)
        is_whole = self.elements == self.threads * count * size
        whole = substitute(body, values)
        body = guarded(None if is_whole else element < self.elements, whole)
        if sums is None or count == 1:
            is_unrolled = self.share <= MOST_UNROLLED or self.config["keep"] == "registers"
            if is_whole or is_unrolled:
                return loop(self.iteration, self.share, body, "unrolled" if is_unrolled else "serial")
            # Only the last iteration is guarded.
            iteration = tirx.Var("full", self.iteration.ty)
            full = loop(iteration, self.share - 1, substitute(whole, {self.iteration: iteration}))
            return tirx.SeqStmt([full, substitute(body, {self.iteration: tirx.const(self.share - 1, "int32")})])
        total, lane = self._buffer(f"{sums.name}_total", self.width, str(sums.dtype)), self.vectors.lane
        so_far, added = (tirx.BufferLoad(buffer, [lane]) for buffer in (total, sums))
        zero = tirx.const(0, str(sums.dtype))

        def in_lanes(buffer: tirx.Buffer, value: tirx.Expr) -> tirx.Stmt:
            return loop(lane, self.width, tirx.BufferStore(buffer, value, [lane]), "vectorized")

        chunk, inside = (tirx.Var(name, self.iteration.ty) for name in ("one", "inside"))
        short = loop(inside, size, substitute(body, {self.iteration: chunk * size + inside}))
        steps = [in_lanes(sums, zero), short, in_lanes(total, so_far + added)]
        return tirx.SeqStmt([in_lanes(total, zero), loop(chunk, count, tirx.SeqStmt(steps)), in_lanes(sums, so_far)])

    def _keep(self) -> tirx.Stmt:
        """Read the work-item's share of the row."""
        load = self.rows.shared_load
        assert load is not None, "the knob `keep` says so only where there is one"
        is_local = self.config["keep"] == "local"
        size = self.config["rows"] * self.elements * self.width if is_local else self.share * self.width
        kind = register_type(str(load.source.dtype))
        self.kept = self._buffer("kept", size, kind, OWN_MEMORY if is_local else "local")
        store, tiles = self.vectors.store(self.kept, [self._kept_index()], load.astype(kind))
        self.buffers += tiles
        return self._each(store)

    def _kept_index(self) -> tirx.Expr:
        element = self.iteration
        if self.config["keep"] == "local":
            element = self.row * self.elements + self.iteration * self.threads + self.thread
        return element * self.width + self.vectors.lane

    def _value(self, value: tirx.Expr) -> tirx.Expr:
        """Replace loads of kept values and of reductions in an expression over the axes."""
        kept, load = self.kept, self.rows.shared_load
        if kept is not None and load is not None:
            replaced_term: tirx.Expr = load if self.kept_term is None else self.kept_term
            element = tirx.BufferLoad(kept, [self._kept_index()])
            value = replaced(value, replaced_term, element.astype(str(replaced_term.ty)))
        value = structural_mutate(value, (tirx.Div, self._times_reciprocal))
        for buffer in self.results:
            value = replace_loads(value, buffer, lambda access: self._result(access.source))
        return value if self.is_across else structural_mutate(value, (_COMPUTED, self._once_a_row))

    def _times_reciprocal(self, quotient: tirx.Div, mutator: Any) -> tirx.Expr:
        """Replace a division by a row's sum of exponentials: x / s -> x * (1 / s).

        The sum is at least 1, so its reciprocal is as exact.
        """
        new = mutator.default_mutate(quotient)
        source = new.b.source if isinstance(new.b, TensorLoad) else None
        of_exponentials = any(
            p.reduction is not None and p.reduction.buffer.same_as(source) and _is_of_exponentials(p)
            for p in self.rows.passes
        )
        return new.a * (tirx.const(1.0, str(new.ty)) / new.b) if of_exponentials else new

    def _once_a_row(self, expr: tirx.Expr, mutator: Any) -> tirx.Expr:
        """Hoist an expression of a row's results into a register before the loop over the row."""
        loads = loads_of(expr)
        is_of_row = all(load.source in self.results.values() or self._is_one_number(load) for load in loads)
        variables = [var for var in nodes_in(expr, tirx.Var) if not isinstance(var, tirx.Buffer)]
        if (
            not loads
            or not is_of_row
            or variables
            or "float" not in str(expr.ty)
            or (isinstance(expr, TensorLoad) and not self._is_one_number(expr))
        ):
            return mutator.default_mutate(expr)
        register = next((buffer for other, buffer in self.of_row if structural_equal(other, expr)), None)
        if register is None:
            register = self._buffer("of_row", 1, register_type(str(expr.ty)))
            self.of_row.append((expr, register))
            self.pending.append(tirx.BufferStore(register, expr.astype(str(register.dtype)), [0]))
        return tirx.BufferLoad(register, [tirx.const(0, self.vectors.lane.ty)]).astype(str(expr.ty))

    def _is_one_number(self, load: TensorLoad) -> bool:
        """Return whether a load reads one fixed element of an input, such as a mask's fill value."""
        is_input = any(load.source.same_as(parameter) for parameter in self.func.params)
        return is_input and not is_image(load.source) and all(isinstance(index, tirx.IntImm) for index in load.indices)

    def _computed(self) -> list[tirx.Stmt]:
        """Take the pending statements, which must precede the uses of their values."""
        pending, self.pending = self.pending, []
        return pending

    def _result(self, buffer: tirx.Buffer) -> tirx.Expr:
        lane = self.vectors.lane if self.is_across else tirx.const(0, self.vectors.lane.ty)
        return tirx.BufferLoad(self.results[buffer], [lane]).astype(str(buffer.dtype))

    def _reduced(self, row_pass: Pass, partials: Sequence[tirx.Buffer]) -> list[tirx.Stmt]:
        """Reduce a pass, without NaN handling if a later pass restores NaN.

        Softmax's maximum may ignore NaN, because the passes that subtract it read the elements again.
        """
        assert row_pass.reduction is not None
        is_intermediate = row_pass is not self.rows.passes[-1] and row_pass.reduction.operation in (tirx.Max, tirx.Min)
        may_lose_nan = is_intermediate and self.rows.shared_load is not None
        keeps_nan = not may_lose_nan and row_pass.reduction.operation is not tirx.Add
        steps = self._reduce(row_pass, partials, keeps_nan=keeps_nan)
        return [ignore_nan(tirx.SeqStmt(steps))] if may_lose_nan else steps

    def _reduce(self, row_pass: Pass, partials: Sequence[tirx.Buffer], *, keeps_nan: bool) -> list[tirx.Stmt]:
        """Reduce each work-item's share, then combine the shares of the row."""
        reduction, lane, dtype = row_pass.reduction, self.vectors.lane, self.vectors.lane.ty
        assert reduction is not None
        kind = register_type(str(reduction.buffer.dtype))
        identity, name = reduction.start.astype(kind), str(reduction.buffer.name)
        sums = self._buffer(f"{name}_share", self.width, kind)
        lane_sum = tirx.BufferLoad(sums, [lane])
        start = loop(lane, self.width, tirx.BufferStore(sums, identity, [lane]), "vectorized")
        share = self._kept_term(row_pass)
        term = self._value(row_pass.value).astype(kind)
        store, tiles = self.vectors.store(sums, [lane], reduction.combine(lane_sum, term))
        self.buffers += tiles
        body = tirx.SeqStmt([*share, store]) if share else store
        steps = [start, *self._computed(), self._each(body, sums if reduction.operation is tirx.Add else None)]
        result = self._buffer(name, self.lanes, kind)
        if self.is_across:
            total: tirx.Expr = lane_sum
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
            index = (self.row * count + self.thread // self.sub_group) * self.lanes + lane
            is_first = None if self.sub_group == 1 else self.thread % self.sub_group < 1
            steps.append(
                guarded(is_first, loop(lane, self.lanes, tirx.BufferStore(partial, total, [index]), "vectorized"))
            )
            if second:
                # Each of a few work-items adds up the same number of neighbours.
                count = int(second_partials(self.threads))
                neighbours, index = self.threads // count, self.row * count + self.thread
                few = self._together(reduction, partial, result, identity, index * neighbours, neighbours)
                (partial,) = second
                store = tirx.BufferStore(partial, tirx.BufferLoad(result, [lane]), [index * self.lanes + lane])
                few.append(loop(lane, self.lanes, store, "vectorized"))
                steps.append(guarded(self.thread < count, tirx.SeqStmt(few)))
            # Every work-item adds up the remaining parts: one barrier, and broadcast reads.
            steps += self._together(reduction, partial, result, identity, self.row * count, count)
        self.results[reduction.buffer] = result
        return steps

    def _in_sub_groups(self, reduction: Reduction, result: tirx.Buffer, *, keeps_nan: bool) -> list[tirx.Stmt]:
        """Reduce `result` over the work-items of a row in the same sub-group.

        Every call is its own statement: passes duplicate operands, and all work-items must reach the call.
        """
        lane, size = self.vectors.lane, min(self.threads, self.sub_group)
        own_value = tirx.BufferLoad(result, [lane])

        def in_lanes(buffer: tirx.Buffer, value: tirx.Expr) -> tirx.Stmt:
            return loop(lane, self.lanes, tirx.BufferStore(buffer, value, [lane]), "unrolled")

        if size == self.sub_group and self.has_reductions:
            operation = SUB_GROUP_OPERATIONS[reduction.operation] + ("_with_nan" if keeps_nan else "")
            return [in_lanes(result, sub_group_reduce(operation, own_value, self.sub_group))]
        received = self._buffer("other_share", self.lanes, str(result.dtype))
        steps, distance = [], size // 2
        while distance:
            steps.append(in_lanes(received, sub_group_shuffle_xor(own_value, distance, self.sub_group)))
            steps.append(in_lanes(result, reduction.combine(own_value, tirx.BufferLoad(received, [lane]))))
            distance //= 2
        return steps

    def _together(
        self,
        reduction: Reduction,
        partial: tirx.Buffer,
        result: tirx.Buffer,
        identity: tirx.Expr,
        start: tirx.Expr,
        count: int,
    ) -> list[tirx.Stmt]:
        """Reduce `count` partial results from `start` on into `result`, in vectors of four if they fit."""
        dtype = self.vectors.lane.ty
        width = 1 if self.is_across or count % LANES else LANES
        # A new lane variable, because the vectors of a row may have fewer lanes.
        lane = tirx.Var("part", dtype) if width > 1 else self.vectors.lane
        lanes, steps = self.lanes * width, count // width
        accumulator = self._buffer("vector", lanes, str(result.dtype)) if width > 1 else result
        other = tirx.Var("other", dtype)
        partial_vector = tirx.BufferLoad(partial, [(start + other * width) * self.lanes + lane])
        total = reduction.combine(tirx.BufferLoad(accumulator, [lane]), partial_vector)
        accumulate = tirx.BufferStore(accumulator, total, [lane])
        kind = "unrolled" if steps <= MOST_UNROLLED else "serial"
        clear = loop(lane, lanes, tirx.BufferStore(accumulator, identity, [lane]), "vectorized")
        stmts = [clear, loop(other, steps, loop(lane, lanes, accumulate, "vectorized"), kind)]
        if width > 1:
            elements = [tirx.BufferLoad(accumulator, [tirx.const(at, dtype)]) for at in range(width)]
            stmts.append(tirx.BufferStore(result, functools.reduce(reduction.combine, elements), [0]))
        return stmts

    def _kept_term(self, row_pass: Pass) -> list[tirx.Stmt]:
        """Store the values that a pass reduces over the elements they were computed from (`Rows.kept_pass`).

        Softmax thus computes each exponential once.
        """
        if self.kept is None or row_pass is not self.rows.kept_pass:
            return []
        term = row_pass.value
        value = self._value(term).astype(str(self.kept.dtype))
        store, tiles = self.vectors.store(self.kept, [self._kept_index()], value)
        self.buffers += tiles
        self.kept_term = term
        return [store]

    def _store(self, row_pass: Pass, value: tirx.Expr) -> tirx.Stmt:
        """Store the elements of the work-item's share, or the row's result by its first work-item."""
        indices = [
            self.vectors.index if isinstance(index, tirx.Var) and index.same_as(self.rows.axis) else index
            for index in row_pass.indices
        ]
        position = self.group * self.config["rows"] + self.row
        conditions = [position < self.count] if self.count % self.config["rows"] else []
        output = row_pass.block.body.buffer
        if self.rows.is_normal:
            store, tiles = self.vectors.store(output, indices, self._value(value))
            store = self._each(store)
        else:
            vectors = self.vectors if self.is_across else Vectors({}, self.rows.axis, 1)
            store, tiles = vectors.store(output, indices, self._value(value))
            if self.threads > 1:
                conditions.append(self.thread < 1)
        self.buffers += tiles
        for condition in conditions:
            store = guarded(condition, store)
        return tirx.SeqStmt([*before, store]) if (before := self._computed()) else store


def _is_of_exponentials(row_pass: Pass) -> bool:
    """Return whether a pass sums exponentials of differences to the maximum, as softmax does.

    One of them is exp(0), so the sum is at least 1.
    """
    assert row_pass.reduction is not None
    term = row_pass.value
    return (
        row_pass.reduction.operation is tirx.Add
        and op_name(term) in ("tirx.exp", "prim.exp")
        and isinstance(term.args[0], tirx.Sub)
    )
