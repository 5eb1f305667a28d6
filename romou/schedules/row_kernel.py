"""The kernel of a function that is made of rows: loops and stores for one config."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_equal

from romou.core.space import Config
from romou.schedules.blocks import replace_loads
from romou.schedules.emit import Vectors, guarded, launch, loop, place_of, register_type, substitute
from romou.schedules.rows import Pass, Rows
from romou.tir.primitives import ignore_nan

# Iterations of the loop over a work-item's share of a row that are written out.
MOST_UNROLLED = 8


class RowKernel:
    """Writes the passes of one config of a function as a kernel."""

    def __init__(self, func: tirx.PrimFunc, rows: Rows, config: Config) -> None:
        self.func, self.rows, self.config = func, rows, config
        self.width, self.threads = config["vector_width"], config["threads"]
        self.count, self.elements = rows.count(self.width)
        self.share = -(-self.elements // self.threads)
        self.is_across = rows.is_across
        self.vectors = Vectors(rows.axes, rows.axis, self.width)
        dtype = rows.axis.ty
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
            steps += self._reduced(each, partial) if each.reduction is not None else [self._store(each, each.value)]
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
            values[self.vectors.vector] = values.pop(self.rows.axis)
        body = substitute(tirx.SeqStmt(steps), values)
        threads = {"blockIdx.x": (self.group, groups), "threadIdx.y": (self.row, self.config["rows"]), "threadIdx.x": (self.thread, self.threads)}
        return launch(self.func, threads, body, self.buffers)

    def _buffer(self, name: str, size: int, dtype: str, scope: str = "local") -> tirx.Buffer:
        self.buffers.append(tirx.decl_buffer([size], dtype, name, scope=scope))
        return self.buffers[-1]

    def _each(self, body: tirx.Stmt) -> tirx.Stmt:
        """`body`, over the axes inside a row, for each vector of the work-item's share."""
        element = self.turn * self.threads + self.thread
        inner = list(self.rows.inner.values())
        if not self.is_across:
            inner[-1] //= self.width
        values = dict(zip(self.rows.inner, place_of(element, inner), strict=True))
        if not self.is_across:
            values[self.vectors.vector] = values.pop(self.rows.axis)
        body = guarded(element < self.elements if self.elements % self.threads else None, substitute(body, values))
        return loop(self.turn, self.share, body, "unrolled" if self.share <= MOST_UNROLLED else "serial")

    def _keep(self) -> tirx.Stmt:
        """Read the work-item's share of the row."""
        load = self.rows.shared_load
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
        kept, load = self.kept, self.rows.shared_load
        if kept is not None and load is not None:
            at = tirx.BufferLoad(kept, [self._place_of_kept()]).astype(str(load.source.dtype))
            value = replace_loads(value, load.source, lambda other: at if structural_equal(other, load) else other)
        for buffer in self.results:
            value = replace_loads(value, buffer, lambda access: self._result(access.source))
        return value

    def _result(self, buffer: tirx.Buffer) -> tirx.Expr:
        lane = self.vectors.lane if self.is_across else tirx.const(0, self.vectors.lane.ty)
        return tirx.BufferLoad(self.results[buffer], [lane]).astype(str(buffer.dtype))

    def _reduced(self, each: Pass, partial: tirx.Buffer | None) -> list[tirx.Stmt]:
        """What `_reduce` gives; a maximum that other passes subtract from what it is of (softmax) may ignore NaN, as they read that again."""
        steps = self._reduce(each, partial)
        assert each.reduction is not None
        is_one_of_many = each is not self.rows.passes[-1] and each.reduction.operation in (tirx.Max, tirx.Min)
        return [ignore_nan(tirx.SeqStmt(steps))] if is_one_of_many and self.rows.shared_load is not None else steps

    def _reduce(self, each: Pass, partial: tirx.Buffer | None) -> list[tirx.Stmt]:
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
            steps.append(loop(other, self.threads, loop(lane, self.lanes, together, "vectorized"), "unrolled" if self.threads <= MOST_UNROLLED else "serial"))
        self.results[reduction.buffer] = result
        return steps

    def _store(self, each: Pass, value: tirx.Expr) -> tirx.Stmt:
        """The elements of the work-item's share, or the row's one result by the first of its work-items."""
        place = [self.vectors.index if isinstance(index, tirx.Var) and index.same_as(self.rows.axis) else index for index in each.place]
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
        return store
