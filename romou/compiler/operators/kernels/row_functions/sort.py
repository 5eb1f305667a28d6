"""The kernels that find the first k elements of each row in an order: positions, from keys that are integers.

    row of up to `run` elements     a partial bitonic sort in local memory, by one work group
    longer row                      runs of it, sorted likewise  ->  a merge of up to 16 runs  ->  ...
    few of a row, on a CPU          one work-item inserts what it reads into a short ordered list of its own

A pair (key, position) is unique, so the order is total: ties come by their position, and no step needs to be stable.

    sort     runs of 1, 2, 4, ... `kept` pairs are merged in local memory, all in ascending order
    prune    of two neighbouring runs, the first `kept` pairs stay: pair i of one, or pair `kept` - 1 - i of the other
    merge    the place of a pair is the sum of its places in all runs, which binary searches find
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import tirx

from romou.compiler.scheduling.kernel_builder import Array, Index, KernelBuilder
from romou.compiler.scheduling.statements import barrier
from romou.compiler.tir.expressions import count_of, is_multiple
from romou.compiler.tir.primitives import OWN_MEMORY
from tvm_patches.onnx_converters.sorted_rows import Rows, key_type, largest_key, sort_key

# Runs that one kernel merges, and its work-items of a group.
MOST_MERGED, _MERGE_GROUP = 16, 128


def power_above(number: int) -> int:
    """Return the least power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()


def bits_of(power: int) -> int:
    """Return the logarithm of a power of two."""
    return power.bit_length() - 1


@dataclass(frozen=True, kw_only=True)
class RowSort:
    """A sort of rows.

    k: positions that are wanted of each row.
    dtype: of the elements.
    run: elements that a work group sorts in local memory, a power of two.
    inserts: whether a work-item that has a row for itself keeps an ordered list of `k` pairs. Of n random elements,
        about k * ln(n / k) are inserted, and the others are compared with the last pair only. GPUs would keep the list
        outside registers.
    """

    rows: Rows
    k: int
    dtype: str
    is_largest: bool
    run: int
    inserts: bool = False

    @property
    def runs(self) -> int:
        """Runs of a row."""
        return -(-self.rows.n // self.run)

    @property
    def kept(self) -> int:
        """Pairs of a run that are sorted: a power of two, at least 2. All, if all are wanted."""
        return self.run if self.k == self.rows.n else min(max(2, power_above(self.k)), self.run)

    @property
    def levels(self) -> list[tuple[int, int]]:
        """The number of a row's runs and their length, before each merge and after the last one."""
        levels = [(self.runs, min(self.k, self.run))]
        while levels[-1][0] > 1:
            runs, length = levels[-1]
            levels.append((-(-runs // MOST_MERGED), min(self.k, MOST_MERGED * length)))
        return levels

    def kernels(
        self, x: tirx.Buffer, y: tirx.Buffer, threads: int, group_rows: int
    ) -> tuple[list[tirx.Stmt], list[tirx.Buffer]]:
        """Return the kernels of a function, and their workspaces. `y` gets positions.

        threads: work-items of a row.
        group_rows: rows of a work group. 1, if a row has several runs that are sorted.
        """
        if self.inserts and threads == 1:
            return [_insertion(self, x, y, group_rows)], []
        pairs = [_Workspace(f"level{at}", self, *level) for at, level in enumerate(self.levels[:-1])]
        targets: list[_Target] = [*pairs, _Result(self.rows, y)]
        kernels = [_LocalSort(self, threads, group_rows).kernel(x, targets[0])]
        kernels += [_merged(self, pairs[at], length, targets[at + 1]) for at, (_, length) in enumerate(self.levels[1:])]
        return kernels, [buffer for each in pairs for buffer in each.buffers]

    @property
    def key_type(self) -> str:
        return key_type(self.dtype)


@dataclass(frozen=True)
class _Result:
    """The output, which has the positions of whole rows."""

    rows: Rows
    y: tirx.Buffer

    def store(self, k: KernelBuilder, row: tirx.Expr, _run: Index, place: tirx.Expr, pairs: _Pairs, at: Index) -> None:
        k.write(self.y, self.rows.index(row, place), pairs.positions[at].astype(str(self.y.dtype)))


class _Workspace:
    """The pairs of all runs of all rows in memory.

    runs, length: of a row, and of a run.
    """

    def __init__(self, name: str, work: RowSort, runs: int, length: int) -> None:
        self.runs, self.length = runs, length
        size = [work.rows.count * runs * length]
        names = (f"{name}_keys", f"{name}_positions")
        self.buffers = [tirx.decl_buffer(size, work.key_type, each, scope="global") for each in names]

    def pairs(self, k: KernelBuilder) -> _Pairs:
        """Return the pairs for a kernel, all in a row."""
        return _Pairs(*(Array(k, buffer, buffer.shape) for buffer in self.buffers))

    def store(self, k: KernelBuilder, row: tirx.Expr, run: Index, place: tirx.Expr, pairs: _Pairs, at: Index) -> None:
        self.pairs(k).move((row * self.runs + run) * self.length + place, pairs, at)


# The memory into which a kernel stores a pair, given its row, run and place in the run.
_Target: TypeAlias = "_Result | _Workspace"


@dataclass(frozen=True)
class _Pairs:
    """Keys with their positions, in memory. Both have one type, because an array of GLSL has one."""

    keys: Array
    positions: Array

    @classmethod
    def of(cls, k: KernelBuilder, name: str, size: int, kind: str, scope: str = "local") -> _Pairs:
        """Declare pairs of a kernel."""
        return cls(*(k.array(f"{name}_{part}", size, dtype=kind, scope=scope) for part in ("keys", "positions")))

    def move(self, at: Index, other: _Pairs, place: Index) -> None:
        """Store a pair of `other` here."""
        self.keys[at] = other.keys[place]
        self.positions[at] = other.positions[place]

    def comes_before(self, at: Index, other: _Pairs, place: Index) -> tirx.Expr:
        """Return whether the pair at one place comes before a pair of `other`."""
        key, key_of_other = self.keys[at], other.keys[place]
        is_first = tirx.all(tirx.EQ(key, key_of_other), self.positions[at] < other.positions[place])
        return tirx.any(key < key_of_other, is_first)


def _insertion(work: RowSort, x: tirx.Buffer, y: tirx.Buffer, group_rows: int) -> tirx.Stmt:
    """Return the kernel of work-items that have a row each."""
    k, rows, last = KernelBuilder(), work.rows, work.k - 1
    group = k.axis("blockIdx.x", "group", count_of(rows.count, group_rows))
    row = group * group_rows + k.axis("threadIdx.x", "item", group_rows)
    first, new = (_Pairs.of(k, name, size, work.key_type) for name, size in (("first", work.k), ("new", 1)))
    value = k.array("value", 1, dtype=work.dtype)
    with k.when(None if is_multiple(rows.count, group_rows) else row < rows.count):
        with k.loop("place", work.k) as place:
            first.keys[place] = largest_key(work.key_type)
            first.positions[place] = rows.n
        with k.loop("position", rows.n) as position:
            value[0] = k.read(x, *rows.index(row, position))
            new.keys[0] = sort_key(value[0], is_largest=work.is_largest)
            new.positions[0] = position.astype(work.key_type)
            with k.when(new.comes_before(0, first, last)):
                with k.loop("step", last) as step:
                    place = last - step
                    with k.when(new.comes_before(0, first, place - 1)):
                        first.move(place, first, place - 1)
                    with k.otherwise(), k.when(new.comes_before(0, first, place)):
                        first.move(place, new, 0)
                with k.when(new.comes_before(0, first, 0)):
                    first.move(0, new, 0)
        with k.loop("place", work.k) as place:
            _Result(rows, y).store(k, row, 0, place, first, place)
    return k.as_stage()


class _LocalSort(KernelBuilder):
    """The kernel of a work group that sorts runs in local memory.

    threads: work-items of a row.
    rows: rows of the group.
    """

    def __init__(self, work: RowSort, threads: int, rows: int) -> None:
        super().__init__()
        self.work, self.items, self.rows, self.half = work, threads * rows, rows, rows * work.run // 2
        self.group = self.axis("blockIdx.x", "group", count_of(work.rows.count, rows) * work.runs)
        self.item = self.axis("threadIdx.x", "item", self.items)
        self.pairs = _Pairs.of(self, "local", rows * work.run, work.key_type, OWN_MEMORY)
        self.mine, self.other = (_Pairs.of(self, name, 1, work.key_type) for name in ("mine", "other"))

    def kernel(self, x: tirx.Buffer, target: _Target) -> tirx.Stmt:
        """Return the kernel as one of a function's."""
        self._load(x)
        self._wait()
        self._sort()
        self._prune()
        self._store(target)
        return self.as_stage()

    def _wait(self) -> None:
        self.emit(barrier())

    def _each(self, count: Index) -> AbstractContextManager[tirx.Expr]:
        """Return a loop over the work-item's share of `count` steps."""
        return self.spread(count, self.item, self.items, most=None if isinstance(count, int) else self.half)

    def _row_and_run(self, place: tirx.Expr, length: int) -> tuple[tirx.Expr, Index]:
        """Return the row and the run of a place in the group's runs, of which each has `length` places."""
        if self.work.runs > 1:
            return self.group // self.work.runs, self.group % self.work.runs
        return self.group * self.rows + place // length, 0

    def _load(self, x: Any) -> None:
        work, rows, run = self.work, self.work.rows, self.work.run
        value, last = self.array("value", 1, dtype=work.dtype), largest_key(work.key_type)
        with self._each(self.rows * run) as place:
            row, number = self._row_and_run(place, run)
            position = number * run + place % run
            read = rows.index(row if is_multiple(rows.count, self.rows) else tirx.min(row, rows.count - 1), position)
            self.pairs.positions[place] = position.astype(work.key_type)
            if rows.n % run:
                self.pairs.keys[place] = last
            with self.when(position < rows.n if rows.n % run else None):
                value[0] = self.read(x, *read)
                self.pairs.keys[place] = sort_key(value[0], is_largest=work.is_largest)

    def _exchange(self, first: tirx.Expr, second: tirx.Expr) -> None:
        """Put two pairs in order."""
        self.mine.move(0, self.pairs, first)
        self.other.move(0, self.pairs, second)
        with self.when(self.other.comes_before(0, self.mine, 0)):
            self.pairs.move(first, self.other, 0)
            self.pairs.move(second, self.mine, 0)

    def _sort(self) -> None:
        """Sort runs of `kept` pairs."""
        with self.loop("level", bits_of(self.work.kept)) as level:
            with self._each(self.half) as at:
                width = _int(1) << level
                begin, inside = (at >> level) << (level + 1), at & (width - 1)
                self._exchange(begin + inside, begin + width * 2 - 1 - inside)
            self._wait()
            with self.loop("step", level) as step:
                with self._each(self.half) as at:
                    stride = _int(1) << (level - 1 - step)
                    first = at * 2 - (at & (stride - 1))
                    self._exchange(first, first + stride)
                self._wait()

    def _prune(self) -> None:
        """Halve the number of runs until one is left."""
        kept = self.work.kept
        bits = bits_of(kept)
        with self.loop("round", bits_of(self.work.run // kept)) as halving:
            with self._each(_int(self.half) >> halving) as at:
                begin, inside = (at >> bits) << (halving + 1 + bits), at & (kept - 1)
                second = begin + (_int(kept) << halving) + kept - 1 - inside
                with self.when(self.pairs.comes_before(second, self.pairs, begin + inside)):
                    self.pairs.move(begin + inside, self.pairs, second)
            self._wait()
            with self.loop("step", bits) as step:
                with self._each(_int(self.half) >> (halving + 1)) as at:
                    stride = _int(kept // 2) >> step
                    begin, inside = (at >> (bits - 1)) << (halving + 1 + bits), at & (kept // 2 - 1)
                    first = begin + inside * 2 - (inside & (stride - 1))
                    self._exchange(first, first + stride)
                self._wait()

    def _store(self, target: _Target) -> None:
        wanted, rows = min(self.work.k, self.work.run), self.work.rows.count
        with self._each(self.rows * wanted) as at:
            row, number = self._row_and_run(at, wanted)
            place = at // wanted * self.work.run + at % wanted
            with self.when(None if is_multiple(rows, self.rows) else row < rows):
                target.store(self, row, number, at % wanted, self.pairs, place)


def _merged(work: RowSort, level: _Workspace, length_after: int, target: _Target) -> tirx.Stmt:
    """Return the kernel that merges runs, up to `MOST_MERGED` each: a work-item finds the place of one pair."""
    k, runs, length = KernelBuilder(), level.runs, level.length
    count, pairs = work.rows.count * runs * length, level.pairs(k)
    group = k.axis("blockIdx.x", "group", count_of(count, _MERGE_GROUP))
    at = group * _MERGE_GROUP + k.axis("threadIdx.x", "item", _MERGE_GROUP)
    mine = _Pairs.of(k, "mine", 1, work.key_type)
    rank, below = (k.array(name, 1, dtype="int32") for name in ("rank", "below"))
    with k.when(None if is_multiple(count, _MERGE_GROUP) else at < count):
        row, run = at // (runs * length), at // length % runs
        mine.move(0, pairs, at)
        rank[0] = 0
        first = run // MOST_MERGED * MOST_MERGED
        has_fewer = runs > MOST_MERGED and runs % MOST_MERGED
        with k.loop("other", min(runs, MOST_MERGED)) as other, k.when(first + other < runs if has_fewer else None):
            below[0] = 0
            with k.loop("step", length.bit_length()) as step:
                # All pairs up to the last one come before `mine` if this one does.
                end = below[0] + (_int(1 << (length.bit_length() - 1)) >> step)
                last = (row * runs + first + other) * length + tirx.min(end, length) - 1
                is_below = tirx.all(end <= length, pairs.comes_before(last, mine, 0))
                below[0] = tirx.Select(is_below, end, below[0])
            rank[0] += below[0]
        with k.when(rank[0] < length_after):
            target.store(k, row, run // MOST_MERGED, rank[0], mine, 0)
    return k.as_stage()


def _int(value: int) -> tirx.Expr:
    return tirx.const(value, "int32")
