"""The kernel of attention for one config, written out as loops and stores.

A work group computes `group_queries * item_queries` rows. The scores of a tile of keys never leave the group:

    query -> local memory
    for each tile of keys:
        key tile -> local memory
        scores of the tile -> registers, their maxima -> local memory
        rescale the sums by the new maximum of each row;  exponentials -> local memory;  value tile -> local memory
        sums += exponentials * value tile
    sums / total of each row -> output

The key tile and the value tile may share their memory. Then values are loaded when all products with keys are done.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import TensorLoad

from romou.base.space import Columns, Config
from romou.compiler.operators.kernels.attention.blocks import Attention, with_score
from romou.compiler.operators.kernels.tensor_cores import (
    COLUMNS,
    DEPTHS,
    MMA,
    NO_TENSOR_CORES,
    TENSOR_CORES,
    UNIT,
    WARP,
)
from romou.compiler.scheduling.blocks import loads_of, replace_loads
from romou.compiler.scheduling.kernel_builder import Array, KernelBuilder
from romou.compiler.scheduling.statements import unravel
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.expressions import count_of, is_multiple
from romou.compiler.tir.primitives import LANES, broadcast_scalars, ignore_nan
from romou.compiler.tir.traversal import substitute
from romou.devices.backends.dialect import sub_group_shuffle_xor

_KIND, _BYTES, _FP16_BYTES = "float32", 4, 2
# Work-items of a warp that share a row on tensor cores.
_SHARING = 4
# Choices of the knob `value_tile`.
OWN, SHARED = "own", "shared"
# A row's maximum before its first tile. Finite, so that exp(-inf - maximum) is 0 for masked keys.
_LEAST = -3.4028234663852886e38
# Loops of local memory up to this many steps are unrolled.
_MOST_UNROLLED = 8


class AttentionTiles:
    """The tiles of a config. Knobs may be columns of many configs.

    queries, keys: rows of the output and keys that a work group holds at a time.
    sharing: work-items that hold keys of the same rows.
    columns: vectors of the output's columns that a work-item sums up for each of its rows.
    key_pitch, value_pitch, weight_pitch: numbers from one row of local memory to the next. For queries, keys and
        weights odd in vectors, so that neighbouring rows are in different banks. On tensor cores odd in units of
        eight numbers.
    """

    def __init__(self, attention: Attention, config: Columns) -> None:
        self.rows, self.keys_of_all, depth, columns = attention.extents
        self.is_mma = is_mma = np.asarray(config.get(TENSOR_CORES.name, NO_TENSOR_CORES)) == MMA
        self.across, self.down = config["group_keys"], config["group_queries"]
        self.sharing = _either(is_mma, _SHARING, self.across)
        self.queries = self.down * config["item_queries"] * _either(is_mma, WARP // _SHARING, 1)
        self.keys = _either(is_mma, COLUMNS, self.across) * config["item_keys"]
        self.threads = self.across * self.down
        of_depth, of_columns = -(-depth // LANES), -(-columns // LANES)
        of_fragment = DEPTHS // LANES
        self.depth_vectors = _either(is_mma, -(-of_depth // of_fragment) * of_fragment, of_depth)
        self.column_vectors = _either(is_mma, -(-of_columns // of_fragment) * of_fragment, of_columns)
        # On tensor cores, a work-item has a quarter of the columns.
        self.columns = _either(is_mma, -(-columns // COLUMNS), -(-self.column_vectors // self.across))
        self.key_pitch = _either(is_mma, self.depth_vectors * LANES + UNIT, _odd(of_depth) * LANES)
        self.value_pitch = self.column_vectors * LANES + _either(is_mma, UNIT, 0)
        self.weight_pitch = _odd(-(-self.keys // LANES)) * LANES
        self.key_tiles = count_of(self.keys_of_all, self.keys)
        # Whether values have local memory of their own, and work-items of a row combine their parts there.
        self.has_own_values = config["value_tile"] == OWN
        self.has_partial = (config.get("sub_group", 1) == 1) & ~is_mma
        self.row_tiles = count_of(self.rows, self.queries)
        self.groups = math.prod(attention.batch.values()) * self.row_tiles

    @property
    def staged_numbers(self) -> Any:
        """Numbers of local memory for a tile of keys, and for one of values if it shares that memory.

        On tensor cores for both tiles, or for the queries before them.
        """
        plain = self.keys * np.where(self.has_own_values, self.key_pitch, np.maximum(self.key_pitch, self.value_pitch))
        both = self.keys * (self.key_pitch + self.value_pitch)
        return np.where(self.is_mma, np.maximum(both, self.queries * self.key_pitch), plain)

    @property
    def local_memory_bytes(self) -> Any:
        """Bytes of local memory of a work group."""
        of_row = self.key_pitch + self.weight_pitch + self.has_partial * self.across
        own_values = self.has_own_values * self.keys * self.value_pitch
        plain = _BYTES * (self.queries * of_row + self.staged_numbers + own_values)
        return np.where(self.is_mma, _FP16_BYTES * self.staged_numbers, plain)


def _either(condition: Any, one: Any, other: Any) -> Any:
    """Return one of two numbers, or for columns of configs one of each two."""
    return np.where(condition, one, other) if np.ndim(condition) else one if condition else other


def _odd(vectors: Any) -> Any:
    return vectors + 1 - vectors % 2


class AttentionKernel(KernelBuilder):
    """The kernel of one config."""

    # Numbers of a vector of columns.
    of_column = LANES

    def __init__(self, func: tirx.PrimFunc, attention: Attention, config: Config) -> None:
        super().__init__(attention.key.ty)
        self.func, self.attention, self.config = func, attention, config
        self.tiles = tiles = AttentionTiles(attention, config)
        self.rows, self.keys = int(config["item_queries"]), int(config["item_keys"])
        self.columns, self.across, self.threads = int(tiles.columns), int(tiles.across), int(tiles.threads)
        self.sub_group = self.across if tiles.is_mma else int(config.get("sub_group", 1))
        self.group = self.axis("blockIdx.x", "group", tiles.groups)
        self.x, self.y = self.work_items("y", self.across, int(tiles.down), has_sub_groups=self.sub_group > 1)
        # The tile of keys whose statements are written.
        self.tile = self.constant(0)
        self.peaks, self.before, self.totals, self.scales = (
            self.array(name, self.rows) for name in ("peaks", "before", "totals", "scales")
        )
        self._allocate()

    def _allocate(self) -> None:
        """Declare local memory and the registers of the tiles."""
        tiles = self.tiles
        self.queries = self.array("queries", tiles.queries, tiles.key_pitch, scope="shared")
        staged = self.array("staged", tiles.staged_numbers, scope="shared")
        self.staged_keys = staged.viewed(tiles.keys, tiles.key_pitch)
        self.weights = self.array("weights", tiles.queries, tiles.weight_pitch, scope="shared")
        self.values = staged.viewed(tiles.keys, tiles.value_pitch)
        if tiles.has_own_values:
            self.values = self.array("values", *self.values.shape, scope="shared")
        if tiles.has_partial:
            self.partial = self.array("partial", tiles.queries, self.across, scope="shared")
        self.scores = self.array("scores", self.rows, self.keys)
        self.sums = self.array("sums", self.rows, self.columns, LANES)
        self.of_rows = self.array("of_rows", self.rows, LANES)
        self.of_keys = self.array("of_keys", self.keys, LANES)
        self.of_values = self.array("of_values", self.columns, LANES)

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        a, tiles = self.attention, self.tiles
        position = unravel(self.group // tiles.row_tiles, list(a.batch.values()))
        places = dict(zip(a.batch, position, strict=True))
        # Numbers of a row times vectors of columns.
        with self.inside(broadcast_scalars), self.inside(lambda body: substitute(body, places)):
            self._start()
            self.totals.fill(0.0, "unrolled")
            self.peaks.fill(_LEAST, "unrolled")
            with self.loop("tile", tiles.key_tiles) as self.tile:
                self._add_tile()
            self._normalize()
            self._store()
        return self.launched(self.func)

    def _start(self) -> None:
        """Clear the sums, and load the queries."""
        self.sums.fill(0.0)
        self._stage_queries(self.queries)

    def _add_tile(self) -> None:
        """Add what a tile of keys contributes."""
        self._stage_keys(self.staged_keys)
        # Loads of both tiles are waited for together, if there is memory for both.
        if self.tiles.has_own_values:
            self._stage_values(self.values)
        self._multiply_keys()
        self._score()
        self._rescale()
        if not self.tiles.has_own_values:
            self._stage_values(self.values)
        self._multiply_values()

    # Copies

    def _stage_queries(self, target: Array) -> None:
        a = self.attention
        self._stage(target, a.query, (a.row, a.depth), self._first_row)

    def _stage_keys(self, target: Array) -> None:
        a = self.attention
        self._stage(target, a.key_value, (a.key, a.depth), self.tile * self.tiles.keys)

    def _stage_values(self, target: Array) -> None:
        # Their weights are zero, but zero times infinity is not.
        a = self.attention
        self._stage(target, a.value, (a.key, a.column), self.tile * self.tiles.keys, is_used_beyond=True)

    def _stage(
        self,
        target: Array,
        value: tirx.Expr,
        axes: tuple[tirx.Var, tirx.Var],
        first: tirx.Expr,
        *,
        is_used_beyond: bool = False,
    ) -> None:
        """Copy the rows of an operand that `target` holds into local memory, with zeros beyond the ends of a row.

        axes: the axis that counts rows, and the axis along a row.
        first: the first row.
        is_used_beyond: whether rows beyond the last one have to be zeros. Copies of the last row take no branch.
        """
        (across, along), dtype, (count, _) = axes, str(target.buffer.dtype), target.shape
        rows, numbers = self.attention.axes[across], self.attention.axes[along]
        vectors_of_row = self.tiles.column_vectors if along.same_as(self.attention.column) else self.tiles.depth_vectors
        loads = [load for load in loads_of(value) if load.indices]
        vectors = Vectors(self.attention.axes, along, LANES)
        is_whole = numbers % LANES == 0 and all(
            vectors.width_of(value, str(load.source.name)) == LANES for load in loads
        )
        is_along = is_whole or not loads or any(load.indices[-1].same_as(along) for load in loads)
        width = LANES if is_along and numbers % LANES == 0 else 1
        length = int(vectors_of_row) * LANES // width
        vectors = vectors if width == LANES else Vectors(self.attention.axes, along, width)
        is_short = count * length <= _MOST_UNROLLED * self.threads
        kind, own = "unrolled" if is_short else "serial", self.y * self.across + self.x
        with self.spread(count * length, own, self.threads, "step", kind) as number:
            # Neighbouring work-items read neighbouring numbers.
            row, at = (number // length, number % length) if is_along else (number % count, number // count)
            place, _ = target.place(row, at * width + vectors.lane)
            store, registers = vectors.store(target.buffer, [place], value.astype(dtype))
            inside, position = [], first + row
            if not is_multiple(rows, count) and is_used_beyond:
                inside.append(position < rows)
            elif not is_multiple(rows, count):
                position = tirx.min(position, rows - 1)
            if numbers % (length * width):
                inside.append(at < numbers // width)
            with self.when(*inside):
                self.emit_with((substitute(store, {across: position, along: at, vectors.vector: at}), registers))
            if inside:
                with self.otherwise(), self.lanes(width) as lane:
                    target[row, at * width + lane] = 0.0

    # Places

    @property
    def _first_row(self) -> tirx.Expr:
        return self.group % self.tiles.row_tiles * self.tiles.queries

    def _row(self, number: int) -> tirx.Expr:
        """Return the row, within the group, of a work-item's `number`-th row."""
        return self.y + number * self.tiles.down

    def _row_of_input(self, number: int) -> tirx.Expr:
        """Return the row to read masks at. Rows beyond the end read those of the last one."""
        index = self._first_row + self._row(number)
        is_whole = is_multiple(self.tiles.rows, self.tiles.queries)
        return index if is_whole else tirx.min(index, self.constant(self.tiles.rows - 1))

    def _key(self, number: int) -> tirx.Expr:
        """Return the key, within the tile, of a work-item's `number`-th key."""
        return self.x + number * self.across

    def _column(self, number: int) -> tirx.Expr:
        """Return the vector of columns that is a work-item's `number`-th one."""
        return self.x + number * self.across

    def _score_at(self, row: int, key: int) -> tuple[int, ...]:
        """Return the register of a work-item's score."""
        return row, key

    def _sum_at(self, row: int, column: int) -> tuple[int, ...]:
        """Return the registers of a vector of columns."""
        return row, column

    # A tile

    def _multiply_keys(self) -> None:
        """Compute the products of a work-item's rows with its keys."""
        self.scores.flat().fill(0.0, "unrolled")
        with self.loop("step", self.tiles.depth_vectors) as step:
            for row, lane in self.lanes_of(self.of_rows):
                self.of_rows[row, lane] = self.queries[self._row(row), step * LANES + lane]
            for key, lane in self.lanes_of(self.of_keys):
                self.of_keys[key, lane] = self.staged_keys[self._key(key), step * LANES + lane]
            for lane, row, key in itertools.product(range(LANES), range(self.rows), range(self.keys)):
                self.scores[row, key] += self.of_rows[row, lane] * self.of_keys[key, lane]

    def _score(self) -> None:
        """Scale and mask the products, and store each row's maximum over the work-item's keys."""
        a, tiles = self.attention, self.tiles
        for row in range(self.rows):
            places = [self._score_at(row, key) for key in range(self.keys)]
            for key, at in enumerate(places):
                column = self.tile * tiles.keys + self._key(key)
                score = with_score(a, self.scores[at]).astype(_KIND)
                score = substitute(score, {a.row: self._row_of_input(row), a.key: column})
                if not is_multiple(tiles.keys_of_all, tiles.keys):
                    score = tirx.if_then_else(column < tiles.keys_of_all, score, tirx.const(-math.inf, _KIND))
                self.scores[at] = score
            # The exponentials of NaN are NaN, whatever the maximum.
            with self.inside(ignore_nan):
                self._put_partial(row, functools.reduce(tirx.max, [self.scores[at] for at in places]))

    def _put_partial(self, row: int, value: tirx.Expr) -> None:
        """Store a work-item's part of a number of a row, for `_over_work_items`."""
        if self.tiles.has_partial:
            self.partial[self._row(row), self.x] = value
        else:
            self.scales[row] = value

    def _over_work_items(self, target: Array, row: int, combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]) -> None:
        """Combine `target[row]` with the parts of the work-items of the row."""
        if not self.tiles.has_partial:
            distances = [1 << power for power in reversed(range(int(self.tiles.sharing).bit_length() - 1))]
            self.exchange(self.scales, [row], distances, combine, self._shuffled)
            target[row] = combine(target[row], self.scales[row])
            return
        for first in range(0, self.across, LANES):
            with self.lanes() as lane:
                self.of_rows[0, lane] = self.partial[self._row(row), first + lane]
            for number in range(LANES):
                target[row] = combine(target[row], self.of_rows[0, number])

    def _shuffled(self, value: tirx.Expr, distance: int) -> tirx.Expr:
        """Return the value of the work-item at (own number xor `distance`)."""
        return sub_group_shuffle_xor(value, distance, self.sub_group)

    def _rescale(self) -> None:
        """Move each row to its new maximum: rescale its sums, and store the exponentials of the tile."""
        for row in range(self.rows):
            self.before[row] = self.peaks[row]
            with self.inside(ignore_nan):
                self._over_work_items(self.peaks, row, tirx.max)
            self.scales[row] = self._exp(self.before[row] - self.peaks[row])
            self.totals[row] *= self.scales[row]
            for key in range(self.keys):
                at = self._score_at(row, key)
                self.scores[at] = self._exp(self.scores[at] - self.peaks[row])
                self._keep_weight(row, key)
                self.totals[row] += self.scores[at]
            self._scale_sums(row)

    def _exp(self, power: tirx.Expr) -> tirx.Expr:
        return tirx.exp(power)

    def _keep_weight(self, row: int, key: int) -> None:
        """Store a weight where the product with the values reads it."""
        self.weights[self._row(row), self._key(key)] = self.scores[row, key]

    def _scale_sums(self, row: int) -> None:
        for column in range(self.columns):
            with self.lanes() as lane:
                self.sums[row, column, lane] *= self.scales[row]

    def _multiply_values(self) -> None:
        """Add the products of the tile's weights and values to the sums."""
        width = LANES if self.tiles.keys % LANES == 0 else 1
        with self.loop("step", self.tiles.keys // width) as step:
            for row in range(self.rows):
                with self.lanes(width) as lane:
                    self.of_rows[row, lane] = self.weights[self._row(row), step * width + lane]
            for key in range(width):
                for column, lane in self.lanes_of(self.of_values):
                    first = self._staged_column(column) * LANES
                    self.of_values[column, lane] = self.values[step * width + key, first + lane]
                for row, column, lane in self.lanes_of(self.sums):
                    self.sums[row, column, lane] += self.of_rows[row, key] * self.of_values[column, lane]

    def _staged_column(self, number: int) -> tirx.Expr:
        """Return the vector of columns to read. Work-items beyond the end read the last one."""
        last = int(self.tiles.column_vectors) - 1
        is_beyond = (number + 1) * self.across > last + 1
        return tirx.min(self._column(number), self.constant(last)) if is_beyond else self._column(number)

    # Results

    def _normalize(self) -> None:
        """Divide the sums by the total of their row."""
        for row in range(self.rows):
            self._put_partial(row, self.totals[row])
        for row in range(self.rows):
            self.totals[row] = 0.0
            self._over_work_items(self.totals, row, tirx.Add)
            self.scales[row] = tirx.const(1.0, _KIND) / self.totals[row]
            if self.attention.fill is None:
                self._scale_sums(row)
                continue
            with self.when(self._is_filled(row)):
                self._fill_row(row, self.attention.fill.astype(_KIND))
            with self.otherwise():
                self._scale_sums(row)

    def _is_filled(self, row: int) -> tirx.Expr:
        """Return whether a row's weights are replaced."""
        a = self.attention
        if a.is_filled is not None:
            return substitute(a.is_filled, {a.row: self._row_of_input(row)})
        # The total of a row with NaN is NaN, and that of a row without a valid key is 0.
        return tirx.Not(self.totals[row] > tirx.const(0.0, _KIND))

    def _fill_row(self, row: int, fill: tirx.Expr) -> None:
        """Give every key of a row the weight `fill`."""
        filled = self.array("filled", LANES)
        for column in range(self.columns):
            filled.fill(0.0, "unrolled")
            with self.loop("key", self.tiles.keys_of_all) as key:
                for lane in range(LANES):
                    filled[lane] += fill * self._value_at(key, column, lane)
            with self.lanes() as lane:
                self.sums[row, column, lane] = filled[lane]

    def _value_at(self, key: tirx.Expr, column: int, lane: int) -> tirx.Expr:
        """Return a number of the values. Columns beyond the end read the last one."""
        a = self.attention
        index = tirx.min(self._column(column) * self.of_column + lane, self.constant(a.axes[a.column] - 1))
        return substitute(a.value, {a.key: key, a.column: index}).astype(_KIND)

    def _may_be_beyond(self, column: int) -> bool:
        """Return whether the output may end before a vector of columns does."""
        is_whole = self.attention.axes[self.attention.column] % LANES == 0
        return (column + 1) * self.across > self.tiles.column_vectors or not is_whole

    def _store(self) -> None:
        """Store the results of rows and columns that the output has."""
        a, tiles = self.attention, self.tiles
        width = self.of_column if a.axes[a.column] % self.of_column == 0 else 1
        parts, vectors, last = self.of_column // width, Vectors(a.axes, a.column, width), a.axes[a.column] // width
        for row, column, part in itertools.product(range(self.rows), range(self.columns), range(parts)):
            index, vector = self._first_row + self._row(row), self._column(column) * parts + part
            total = self.sums[(*self._sum_at(row, column), vectors.lane + part)]
            store, registers = self._result(vectors, total.astype(str(a.result.dtype)))
            store = substitute(store, {vectors.vector: vector, a.column: vector, a.row: index})
            is_row = None if is_multiple(tiles.rows, tiles.queries) else index < tiles.rows
            with self.when(is_row), self.when(vector < last if self._may_be_beyond(column) else None):
                self.emit_with((store, registers))

    def _result(self, vectors: Vectors, total: tirx.Expr) -> tuple[tirx.Stmt, list[tirx.Buffer]]:
        """Return the store of a vector of the output that is computed from sums, and its registers."""
        a = self.attention

        def load(_: TensorLoad) -> tirx.Expr:
            return total

        value = replace_loads(a.output.value, a.result, load)
        return vectors.store(a.output.buffer, [vectors.value_of(index) for index in a.output.indices], value)
