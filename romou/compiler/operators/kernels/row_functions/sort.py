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

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from romou.compiler.scheduling.kernel_blocks import array, launched, loop, share, wait, when
from romou.compiler.tir.expressions import count_of, is_multiple
from romou.compiler.tir.primitives import OWN_MEMORY
from tvm_patches.onnx_converters.sorted_rows import Rows, key_type, largest_key, sort_key

_Index: TypeAlias = "tirx.Expr | int"
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

    def write(self, x: Any, y: Any, threads: int, group_rows: int) -> None:
        """Write the kernels of a function. `y` gets positions.

        threads: work-items of a row.
        group_rows: rows of a work group. 1, if a row has several runs that are sorted.
        """
        if self.inserts and threads == 1:
            self._insert(x, self._result(y), group_rows)
            return
        pairs = [
            _Pairs.allocated(f"level{at}", (self.rows.count, *level), self.key_type, "global")
            for at, level in enumerate(self.levels[:-1])
        ]
        groups = count_of(self.rows.count, group_rows) * self.runs
        with launched("sorted", groups, threads * group_rows) as (group, item):
            sort = _LocalSort(self, threads * group_rows, group_rows, group, item)
            sort.write(x, pairs[0].store if pairs else self._result(y))
        for at, (runs, length) in enumerate(self.levels[1:]):
            store = self._result(y) if runs == 1 else pairs[at + 1].store
            _merge(self, pairs[at], self.levels[at], length, store)

    def _insert(self, x: Any, store: _Store, group_rows: int) -> None:
        """Write the kernel of work-items that have a row each."""
        rows, last = self.rows, self.k - 1
        with launched("sorted", count_of(rows.count, group_rows), group_rows) as (group, item):
            row = group * group_rows + item
            with when(None if is_multiple(rows.count, group_rows) else row < rows.count):
                first, new = (
                    _Pairs.allocated(name, (n,), self.key_type) for name, n in (("first", self.k), ("new", 1))
                )
                value = array("value", (1,), self.dtype)
                with loop("place", self.k) as place:
                    first.keys[place] = largest_key(self.key_type)
                    first.positions[place] = rows.n
                with loop("position", rows.n) as position:
                    value[0] = x[rows.index(row, position)]
                    new.keys[0] = sort_key(value[0], is_largest=self.is_largest)
                    new.positions[0] = position.astype(self.key_type)
                    with when(new.comes_before(0, first, last)):
                        with loop("step", last) as step:
                            place = last - step
                            with T.If(new.comes_before(0, first, place - 1)):
                                with T.Then():
                                    first.move(place, first, place - 1)
                                with T.Else(), when(new.comes_before(0, first, place)):
                                    first.move(place, new, 0)
                        with when(new.comes_before(0, first, 0)):
                            first.move(0, new, 0)
                with loop("place", self.k) as place:
                    store(row, 0, place, first.keys[place], first.positions[place])

    @property
    def key_type(self) -> str:
        return key_type(self.dtype)

    def _result(self, y: Any) -> _Store:
        """Return a function that stores the positions of whole rows."""

        def store(row: tirx.Expr, _run: _Index, place: tirx.Expr, _key: tirx.Expr, position: tirx.Expr) -> None:
            y[self.rows.index(row, place)] = position.astype(str(y.dtype))

        return store


# Stores the pair (key, position) at a place in a run of a row.
_Store: TypeAlias = "Callable[[tirx.Expr, _Index, tirx.Expr, tirx.Expr, tirx.Expr], None]"


class _Pairs:
    """Keys with their positions, in memory. Both have one type, because an array of GLSL has one."""

    def __init__(self, keys: Any, positions: Any) -> None:
        self.keys, self.positions = keys, positions

    @classmethod
    def allocated(cls, name: str, shape: Sequence[int], kind: str, scope: str = "local") -> _Pairs:
        """Return new pairs of the open block, or workspaces of the function."""
        return cls(array(f"{name}_keys", shape, kind, scope), array(f"{name}_positions", shape, kind, scope))

    def store(self, row: tirx.Expr, run: _Index, place: tirx.Expr, key: tirx.Expr, position: tirx.Expr) -> None:
        self.keys[row, run, place] = key
        self.positions[row, run, place] = position

    def move(self, at: Any, other: _Pairs, place: Any) -> None:
        """Store a pair of `other` here."""
        self.keys[at] = other.keys[place]
        self.positions[at] = other.positions[place]

    def comes_before(self, at: Any, other: _Pairs, place: Any) -> tirx.Expr:
        """Return whether the pair at one place comes before a pair of `other`."""
        key, key_of_other = self.keys[at], other.keys[place]
        is_first = tirx.all(tirx.EQ(key, key_of_other), self.positions[at] < other.positions[place])
        return tirx.any(key < key_of_other, is_first)


class _LocalSort:
    """The kernel of a work group that sorts runs in local memory.

    items: work-items of the group.
    rows: rows of the group.
    """

    def __init__(self, work: RowSort, items: int, rows: int, group: tirx.Expr, item: tirx.Expr) -> None:
        self.work, self.items, self.rows, self.group, self.item = work, items, rows, group, item
        self.half = rows * work.run // 2
        self.pairs = _Pairs.allocated("local", (rows * work.run,), work.key_type, OWN_MEMORY)
        self.mine = _Pairs.allocated("mine", (1,), work.key_type)
        self.other = _Pairs.allocated("other", (1,), work.key_type)

    def write(self, x: Any, store: _Store) -> None:
        self._load(x)
        wait()
        self._sort()
        self._prune()
        self._store(store)

    def _each(self, count: _Index) -> AbstractContextManager[tirx.Expr]:
        """Return a loop over the work-item's share of `count` steps."""
        return share(count, self.items, self.item, most=self.half)

    def _row_and_run(self, place: tirx.Expr, length: int) -> tuple[tirx.Expr, _Index]:
        """Return the row and the run of a place in the group's runs, of which each has `length` places."""
        if self.work.runs > 1:
            return self.group // self.work.runs, self.group % self.work.runs
        return self.group * self.rows + place // length, 0

    def _load(self, x: Any) -> None:
        work, rows, run = self.work, self.work.rows, self.work.run
        value, last = array("value", (1,), work.dtype), largest_key(work.key_type)
        with self._each(self.rows * run) as place:
            row, number = self._row_and_run(place, run)
            position = number * run + place % run
            read = rows.index(row if is_multiple(rows.count, self.rows) else tirx.min(row, rows.count - 1), position)
            self.pairs.positions[place] = position.astype(work.key_type)
            if rows.n % run:
                self.pairs.keys[place] = last
            with when(position < rows.n if rows.n % run else None):
                value[0] = x[read]
                self.pairs.keys[place] = sort_key(value[0], is_largest=work.is_largest)

    def _exchange(self, first: tirx.Expr, second: tirx.Expr) -> None:
        """Put two pairs in order."""
        self.mine.move(0, self.pairs, first)
        self.other.move(0, self.pairs, second)
        with T.If(self.other.comes_before(0, self.mine, 0)), T.Then():
            self.pairs.move(first, self.other, 0)
            self.pairs.move(second, self.mine, 0)

    def _sort(self) -> None:
        """Sort runs of `kept` pairs."""
        with loop("level", bits_of(self.work.kept)) as level:
            with self._each(self.half) as at:
                width = _int(1) << level
                begin, inside = (at >> level) << (level + 1), at & (width - 1)
                self._exchange(begin + inside, begin + width * 2 - 1 - inside)
            wait()
            with loop("step", level) as step:
                with self._each(self.half) as at:
                    stride = _int(1) << (level - 1 - step)
                    first = at * 2 - (at & (stride - 1))
                    self._exchange(first, first + stride)
                wait()

    def _prune(self) -> None:
        """Halve the number of runs until one is left."""
        kept = self.work.kept
        bits = bits_of(kept)
        with loop("round", bits_of(self.work.run // kept)) as halving:
            with self._each(_int(self.half) >> halving) as at:
                begin, inside = (at >> bits) << (halving + 1 + bits), at & (kept - 1)
                second = begin + (_int(kept) << halving) + kept - 1 - inside
                with T.If(self.pairs.comes_before(second, self.pairs, begin + inside)), T.Then():
                    self.pairs.move(begin + inside, self.pairs, second)
            wait()
            with loop("step", bits) as step:
                with self._each(_int(self.half) >> (halving + 1)) as at:
                    stride = _int(kept // 2) >> step
                    begin, inside = (at >> (bits - 1)) << (halving + 1 + bits), at & (kept // 2 - 1)
                    first = begin + inside * 2 - (inside & (stride - 1))
                    self._exchange(first, first + stride)
                wait()

    def _store(self, store: _Store) -> None:
        wanted, rows = min(self.work.k, self.work.run), self.work.rows.count
        with self._each(self.rows * wanted) as at:
            row, number = self._row_and_run(at, wanted)
            place = at // wanted * self.work.run + at % wanted
            with when(None if is_multiple(rows, self.rows) else row < rows):
                store(row, number, at % wanted, self.pairs.keys[place], self.pairs.positions[place])


def _merge(work: RowSort, pairs: _Pairs, level: tuple[int, int], length_after: int, store: _Store) -> None:
    """Write the kernel that merges runs, up to `MOST_MERGED` each: a work-item finds the place of one pair."""
    (runs, length), rows = level, work.rows.count
    count = rows * runs * length
    with launched("merged", count_of(count, _MERGE_GROUP), _MERGE_GROUP) as (group, item):
        at = group * _MERGE_GROUP + item
        with when(None if is_multiple(count, _MERGE_GROUP) else at < count):
            row, run, place = at // (runs * length), at // length % runs, at % length
            mine = _Pairs.allocated("mine", (1,), work.key_type)
            mine.move(0, pairs, (row, run, place))
            rank, below = (array(name, (1,), "int32") for name in ("rank", "below"))
            rank[0] = 0
            first = run // MOST_MERGED * MOST_MERGED
            has_fewer = runs > MOST_MERGED and runs % MOST_MERGED
            with loop("other", min(runs, MOST_MERGED)) as other, when(first + other < runs if has_fewer else None):
                below[0] = 0
                with loop("step", length.bit_length()) as step:
                    # All pairs up to the last one come before `mine` if this one does.
                    end = below[0] + (_int(1 << (length.bit_length() - 1)) >> step)
                    last = row, first + other, tirx.min(end, length) - 1
                    is_below = tirx.all(end <= length, pairs.comes_before(last, mine, 0))
                    below[0] = tirx.Select(is_below, end, below[0])
                rank[0] = rank[0] + below[0]
            with T.If(rank[0] < length_after), T.Then():
                store(row, run // MOST_MERGED, rank[0], mine.keys[0], mine.positions[0])


def _int(value: int) -> tirx.Expr:
    return tirx.const(value, "int32")
