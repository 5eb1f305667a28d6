"""The kernel of a row reduction for one config, written out as loops and stores.

for each pass:  share of each work-item  ->  sub-groups  ->  partial results in local memory  ->  result of the row
last pass:      stores an element for each element of the row, or the row's result
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm_ffi.structural import structural_equal, structural_mutate

from romou.base.space import Config
from romou.compiler.operators.kernels.streaming.blocks import Pass, Rows, replaced
from romou.compiler.scheduling.blocks import Reduction, loads_of, replace_loads
from romou.compiler.scheduling.kernel_builder import Array, Index, KernelBuilder
from romou.compiler.scheduling.statements import register_type, unravel
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import bounds_of, count_of, is_equal, is_free, is_multiple, largest
from romou.compiler.tir.primitives import LANES, OWN_MEMORY, ignore_nan, is_image
from romou.compiler.tir.traversal import nodes_in, substitute
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


class RowKernel(KernelBuilder):
    """The kernel of one config, pass by pass.

    has_reductions: whether sub-groups have reduction functions. If not, their work-items exchange values in pairs.
    """

    def __init__(self, func: tirx.PrimFunc, rows: Rows, config: Config, *, has_reductions: bool = True) -> None:
        super().__init__(rows.axis.ty)
        self.func, self.rows, self.config, self.has_reductions = func, rows, config, has_reductions
        self.width, self.threads, self.rows_of_group = (int(config[n]) for n in ("vector_width", "threads", "rows"))
        self.sub_group = int(config.get("sub_group", 1))
        self.parts = int(parts_left(self.threads, self.sub_group))
        self.count, self.elements = rows.count(self.width)
        self.most_elements = largest(self.elements, bounds_of(func))
        self.iterations = -(-self.most_elements // self.threads)
        self.is_across = rows.is_across
        self.vectors = rows.vectors(self.width)
        self.group = self.axis("blockIdx.x", "group", count_of(self.count, self.rows_of_group))
        self.thread, self.row = self.work_items(
            "row", self.threads, self.rows_of_group, has_sub_groups=self.sub_group > 1
        )
        # The iteration over a work-item's share, in blocks of `_each`.
        self.iteration = tirx.Var("iteration", self.index_type)
        # Lanes of a result: one for each row in a vector across rows.
        self.lanes_of_result = self.width if self.is_across else 1
        self.results: dict[tirx.Buffer, Array] = {}
        # The part of a row that is kept: its elements, or the values that a pass computed from them.
        self.kept: Array | None = None
        self.kept_term: tirx.Expr | None = None
        # Expressions computed once for a row, with their registers, and their statements before they are placed.
        self.of_row: list[tuple[tirx.Expr, Array]] = []
        self.pending: list[tirx.Stmt] = []

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        position = self.group * self.rows_of_group + self.row
        is_whole = is_multiple(self.count, self.rows_of_group)
        index = position if is_whole else tirx.min(position, self.constant(self.count - 1))
        outer = list(self.rows.outer.values())
        if self.is_across:
            outer[-1] //= self.width
        values = dict(zip(self.rows.outer, unravel(index, outer), strict=True))
        if self.is_across:
            values[self.vectors.vector] = values.pop(self.rows.axis)
        with self.inside(lambda body: substitute(body, values)):
            self._passes(position)
        return self.launched(self.func)

    def _passes(self, position: tirx.Expr) -> None:
        """Write all passes. position: the row's number."""
        if self.config["keep"] != "memory":
            self._keep()
        sizes = {"partial": self.parts} if self.parts > 1 else {}
        if self.config.get("combine") == TREE:
            sizes["second"] = int(second_partials(self.threads))
        partials = {
            kind: [
                self.array(name, self.rows_of_group, size * self.lanes_of_result, dtype=kind, scope="shared")
                for name, size in sizes.items()
            ]
            for kind in dict.fromkeys(self.rows.kinds)
        }
        for row_pass in self.rows.passes:
            if row_pass.reduction is not None:
                self._reduce(row_pass, partials[register_type(str(row_pass.reduction.buffer.dtype))])
            else:
                self._store(row_pass, row_pass.value, position)
        last = self.rows.passes[-1]
        if last.reduction is not None:
            self._store(last, self._result(last.reduction.buffer), position)

    @contextlib.contextmanager
    def _each(self, sums: Array | None = None) -> Iterator[None]:
        """Run the block for each vector of the work-item's share of a row.

        sums: the accumulator of the block. A long share is accumulated in several sums.
        """
        with self.captured() as block:
            yield
        (body,) = block
        body = substitute(body, self._elements(self.vectors, self.iteration * self.threads + self.thread))
        count, size = (1, self.iterations) if sums is None else sums_of(self.iterations)
        is_whole = is_equal(self.elements, self.threads * count * size)

        def run(iteration: tirx.Expr, *, is_inside: bool = is_whole) -> None:
            with self.when(None if is_inside else iteration * self.threads + self.thread < self.elements):
                self.emit(substitute(body, {self.iteration: iteration}))

        is_unrolled = self.iterations <= MOST_UNROLLED or self.config["keep"] == "registers"
        if sums is not None and count > 1:
            total = self.array(f"{sums.buffer.name}_total", self.width, dtype=str(sums.buffer.dtype))
            total.fill(0)
            with self.loop("one", count) as chunk:
                sums.fill(0)
                with self.loop("inside", size) as inside:
                    run(chunk * size + inside)
                for lane in self.lanes_of(total):
                    total[lane] += sums[lane]
            for lane in self.lanes_of(sums):
                sums[lane] = total[lane]
        elif is_whole or is_unrolled:
            with self.loop("iteration", self.iterations, "unrolled" if is_unrolled else "serial") as iteration:
                run(iteration)
        elif is_free(self.elements):
            with self.loop("iteration", count_of(self.elements, self.threads)) as iteration:
                run(iteration)
        else:
            # Only the last iteration is guarded.
            with self.loop("full", self.iterations - 1) as iteration:
                run(iteration, is_inside=True)
            run(self.constant(self.iterations - 1))

    def _elements(self, vectors: Vectors, number: tirx.Expr) -> dict[tirx.Var, tirx.Expr]:
        """Return the value of each axis inside a row, or of `vector`, in the row's vector of that number."""
        *inner, last = self.rows.inner.values()
        if self.rows.is_joined:
            # The vector after the whole ones has a number, too.
            values = [*[self.constant(0)] * len(inner), number]
        else:
            values = unravel(number, [*inner, last if self.is_across else last // vectors.width])
        if self.is_across:
            return dict(zip(self.rows.inner, values, strict=True))
        axes = [*list(self.rows.inner)[:-1], vectors.vector]
        return dict(zip(axes, [*values[:-1], vectors.begin(values[-1])], strict=True))

    # Values

    def _keep(self) -> None:
        """Read the work-item's share of the row."""
        load = self.rows.shared_load
        assert load is not None, "the knob `keep` says so only where there is one"
        kind = register_type(str(load.source.dtype))
        if self.config["keep"] == "local":
            shape = (self.rows_of_group, self.most_elements, self.width)
            self.kept = self.array("kept", *shape, dtype=kind, scope=OWN_MEMORY)
        else:
            self.kept = self.array("kept", self.iterations, self.width, dtype=kind)
        with self._each():
            self._put_kept(self.kept, load)

    def _put_kept(self, kept: Array, value: tirx.Expr) -> None:
        place, _ = kept.place(*self._kept_index())
        self.emit_with(self.vectors.store(kept.buffer, [place], value.astype(str(kept.buffer.dtype))))

    def _kept_index(self) -> tuple[tirx.Expr, ...]:
        if self.config["keep"] == "local":
            return self.row, self.iteration * self.threads + self.thread, self.vectors.lane
        return self.iteration, self.vectors.lane

    def _value(self, value: tirx.Expr) -> tirx.Expr:
        """Replace loads of kept values and of reductions in an expression over the axes."""
        kept, load = self.kept, self.rows.shared_load
        if kept is not None and load is not None:
            replaced_term: tirx.Expr = load if self.kept_term is None else self.kept_term
            value = replaced(value, replaced_term, kept[self._kept_index()].astype(str(replaced_term.ty)))
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
        is_of_row = all(self._is_result(load) or self._is_one_number(load) for load in loads)
        if (
            not loads
            or not is_of_row
            or any(var in self.rows.inner for var in nodes_in(expr, tirx.Var))
            or "float" not in str(expr.ty)
            or (isinstance(expr, TensorLoad) and not self._is_one_number(expr))
        ):
            return mutator.default_mutate(expr)
        register = next((array for other, array in self.of_row if structural_equal(other, expr)), None)
        if register is None:
            register = self.array("of_row", 1, dtype=register_type(str(expr.ty)))
            self.of_row.append((expr, register))
            with self.captured() as block:
                register[0] = expr.astype(str(register.buffer.dtype))
            self.pending += block
        return register[0].astype(str(expr.ty))

    def _is_result(self, load: TensorLoad) -> bool:
        return any(load.source.same_as(array.buffer) for array in self.results.values())

    def _is_one_number(self, load: TensorLoad) -> bool:
        """Return whether a load reads one fixed element of an input, such as a mask's fill value."""
        is_input = any(load.source.same_as(parameter) for parameter in self.func.params)
        return is_input and not is_image(load.source) and all(isinstance(index, tirx.IntImm) for index in load.indices)

    def _emit_pending(self) -> None:
        """Emit the pending statements, which must precede the uses of their values."""
        pending, self.pending = self.pending, []
        for stmt in pending:
            self.emit(stmt)

    def _result(self, buffer: tirx.Buffer) -> tirx.Expr:
        result = self.results[buffer]
        return result[self.vectors.lane if self.is_across else 0].astype(str(buffer.dtype))

    # Reductions

    def _reduce(self, row_pass: Pass, partials: Sequence[Array]) -> None:
        """Reduce each work-item's share, then combine the shares of the row.

        NaN is not handled if a later pass restores it: softmax's maximum may ignore NaN, because the passes that
        subtract it read the elements again.
        """
        reduction = row_pass.reduction
        assert reduction is not None
        is_intermediate = row_pass is not self.rows.passes[-1] and reduction.operation in (tirx.Max, tirx.Min)
        may_lose_nan = is_intermediate and self.rows.shared_load is not None
        keeps_nan = not may_lose_nan and reduction.operation is not tirx.Add
        with self.inside(ignore_nan) if may_lose_nan else contextlib.nullcontext():
            sums = self._reduce_share(row_pass, reduction)
            result = self.array(str(reduction.buffer.name), self.lanes_of_result, dtype=str(sums.buffer.dtype))
            totals = sums
            if not partials or self.sub_group > 1:
                self._put_total(reduction, sums, result, lambda lane: (lane,))
                totals = result
            if self.sub_group > 1:
                self._reduce_sub_groups(reduction, result, keeps_nan=keeps_nan)
            if partials:
                self._reduce_partials(reduction, totals, partials, result)
        self.results[reduction.buffer] = result

    def _reduce_share(self, row_pass: Pass, reduction: Reduction) -> Array:
        """Reduce the work-item's share of a row in each lane.

        The values that later passes read again are kept instead of the elements that they were computed from
        (`Rows.kept_pass`). Softmax thus computes each exponential once.
        """
        kind, lane = register_type(str(reduction.buffer.dtype)), self.vectors.lane
        sums = self.array(f"{reduction.buffer.name}_share", self.width, dtype=kind)
        sums.fill(reduction.start.astype(kind))
        kept = None
        if self.kept is not None and row_pass is self.rows.kept_pass:
            kept, self.kept_term = self._value(row_pass.value), row_pass.value
        term = self._value(row_pass.value).astype(kind)
        self._emit_pending()
        with self._each(sums if reduction.operation is tirx.Add else None):
            if self.kept is not None and kept is not None:
                self._put_kept(self.kept, kept)
            self.emit_with(self.vectors.store(sums.buffer, [lane], reduction.combine(sums[lane], term)))
        self._reduce_tail(reduction, sums, term)
        return sums

    def _reduce_tail(self, reduction: Reduction, sums: Array, term: tirx.Expr) -> None:
        """Reduce the elements after the row's last whole vector, which the last work-item reads in a vector."""
        tail = self.rows.vectors(self.width, may_overlap=True)
        if not tail.repeated:
            return
        values = self._elements(tail, self.constant(self.elements))
        whole = self.array("tail", self.width, dtype=str(sums.buffer.dtype))
        with self.when(self.thread >= self.threads - 1 if self.threads > 1 else None):
            with self.inside(lambda stmt: substitute(stmt, values)):
                self.emit_with(tail.store(whole.buffer, [tail.lane], term))
            for lane in range(tail.repeated, self.width):
                sums[lane] = reduction.combine(sums[lane], whole[lane])

    def _put_total(
        self, reduction: Reduction, sums: Array, target: Array, at: Callable[[tirx.Expr], tuple[Index, ...]]
    ) -> None:
        """Store the lanes' reduction in each lane of a result. at: lane -> place in the target."""
        with self.lanes(self.lanes_of_result) as lane:
            lanes = [lane] if self.is_across else range(sums.shape[0])
            target[at(lane)] = functools.reduce(reduction.combine, [sums[each] for each in lanes])

    def _reduce_sub_groups(self, reduction: Reduction, result: Array, *, keeps_nan: bool) -> None:
        """Reduce `result` over the work-items of a row in the same sub-group."""
        size, lanes = min(self.threads, self.sub_group), range(self.lanes_of_result)
        if size < self.sub_group or not self.has_reductions:
            distances = [1 << power for power in reversed(range(size.bit_length() - 1))]
            shuffle = functools.partial(sub_group_shuffle_xor, size=self.sub_group)
            self.exchange(result, lanes, distances, reduction.combine, shuffle)
            return
        operation = SUB_GROUP_OPERATIONS[reduction.operation] + ("_with_nan" if keeps_nan else "")
        for lane in lanes:
            result[lane] = sub_group_reduce(operation, result[lane], self.sub_group)

    def _reduce_partials(self, reduction: Reduction, totals: Array, partials: Sequence[Array], result: Array) -> None:
        """Reduce the totals of a row's work-items, or sub-groups, in local memory."""
        (partial, *second), lanes = partials, self.lanes_of_result
        own = self.thread // self.sub_group
        with self.when(None if self.sub_group == 1 else self.thread % self.sub_group < 1):
            self._put_total(reduction, totals, partial, lambda lane: (self.row, own * lanes + lane))
        if second:
            # Each of a few work-items adds up the same number of neighbours.
            count = int(second_partials(self.threads))
            of_neighbours = partial.viewed(self.rows_of_group * count, self.threads // count * lanes)
            with self.when(self.thread < count):
                self._together(reduction, of_neighbours, self.row * count + self.thread, result)
                (partial,) = second
                with self.lanes(lanes) as lane:
                    partial[self.row, self.thread * lanes + lane] = result[lane]
        # Every work-item adds up the remaining parts: one barrier, and broadcast reads.
        self._together(reduction, partial, self.row, result)

    def _together(self, reduction: Reduction, parts: Array, row: tirx.Expr, result: Array) -> None:
        """Reduce a row of `parts` into `result`, in vectors of four if they fit."""
        lanes, count = self.lanes_of_result, parts.shape[1] // self.lanes_of_result
        width = 1 if self.is_across or count % LANES else LANES
        dtype, steps = str(result.buffer.dtype), count // width
        accumulator = self.array("vector", lanes * width, dtype=dtype) if width > 1 else result
        accumulator.fill(reduction.start.astype(dtype))
        others = self.loop("other", steps, "unrolled" if steps <= MOST_UNROLLED else "serial")
        with others as other, self.lanes(lanes * width) as lane:
            accumulator[lane] = reduction.combine(accumulator[lane], parts[row, other * (lanes * width) + lane])
        if width > 1:
            result[0] = functools.reduce(reduction.combine, [accumulator[at] for at in range(width)])

    # Results

    def _store(self, row_pass: Pass, value: tirx.Expr, position: tirx.Expr) -> None:
        """Store the elements of the work-item's share, or the row's result by its first work-item."""
        indices = [
            self.vectors.index if isinstance(index, tirx.Var) and index.same_as(self.rows.axis) else index
            for index in row_pass.indices
        ]
        vectors = self.vectors if self.rows.is_normal or self.is_across else Vectors({}, self.rows.axis, 1)
        stored = vectors.store(row_pass.block.body.buffer, indices, self._value(value))
        self._emit_pending()
        is_row = None if is_multiple(self.count, self.rows_of_group) else position < self.count
        if self.rows.is_normal:
            with self.when(is_row), self._each():
                self.emit_with(stored)
        else:
            with self.when(self.thread < 1 if self.threads > 1 else None), self.when(is_row):
                self.emit_with(stored)


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
