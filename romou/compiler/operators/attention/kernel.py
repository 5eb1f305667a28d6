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
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import TensorLoad

from romou.base.space import Columns, Config
from romou.compiler.operators.attention.blocks import Attention, with_score
from romou.compiler.operators.tensor_cores import COLUMNS, DEPTHS, MMA, NO_TENSOR_CORES, TENSOR_CORES, UNIT, WARP
from romou.compiler.scheduling.blocks import loads_of, replace_loads, substitute
from romou.compiler.scheduling.kernel_writer import KernelWriter
from romou.compiler.scheduling.statements import guarded, launch, loop, unravel
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.primitives import LANES, broadcast_scalars, ignore_nan
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


class Tiles:
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
        self.key_tiles = -(-self.keys_of_all // self.keys)
        # Whether values have local memory of their own, and work-items of a row combine their parts there.
        self.has_own_values = np.asarray(config["value_tile"]) == OWN
        self.has_partial = (np.asarray(config.get("sub_group", 1)) == 1) & ~is_mma
        self.groups = math.prod(attention.batch.values()) * -(-self.rows // self.queries)

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


def _together(steps: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Return statements one after the other. TVM refuses a sequence of one."""
    return steps[0] if len(steps) == 1 else tirx.SeqStmt(list(steps))


class AttentionKernel(KernelWriter):
    """The writer of one config's kernel, step by step."""

    def __init__(self, func: tirx.PrimFunc, attention: Attention, config: Config) -> None:
        super().__init__(attention.key.ty)
        self.func, self.attention, self.config = func, attention, config
        self.tiles = tiles = Tiles(attention, config)
        self.rows, self.keys = int(config["item_queries"]), int(config["item_keys"])
        self.columns = tiles.columns
        self.group, self.y, self.x, self.tile, self.step, self.lane = (
            tirx.Var(name, self.index_type) for name in ("group", "y", "x", "tile", "step", "lane")
        )
        self.sub_group = int(config.get("sub_group", 1))
        self.peaks, self.before, self.totals, self.scales = (
            self._buffer(name, self.rows) for name in ("peaks", "before", "totals", "scales")
        )
        self._allocate()

    def _allocate(self) -> None:
        """Declare local memory and the registers of the tiles."""
        tiles, queries = self.tiles, self.tiles.queries
        self.queries = self._buffer("queries", queries * tiles.key_pitch, scope="shared")
        self.staged = self._buffer("staged", int(tiles.staged_numbers), scope="shared")
        self.weights = self._buffer("weights", queries * tiles.weight_pitch, scope="shared")
        self.values = self.staged
        if tiles.has_own_values:
            self.values = self._buffer("values", tiles.keys * tiles.value_pitch, scope="shared")
        if tiles.has_partial:
            self.partial = self._buffer("partial", queries * tiles.across, scope="shared")
        else:
            self.received = self._buffer("received", 1)
        self.scores = self._buffer("scores", self.rows * self.keys)
        self.sums = self._buffer("sums", self.rows * self.columns * LANES)
        self.of_rows = self._buffer("of_rows", self.rows * LANES)
        self.of_keys = self._buffer("of_keys", self.keys * LANES)
        self.of_values = self._buffer("of_values", self.columns * LANES)

    def module(self) -> tvm.IRModule:
        """Return a module whose `main` is the kernel."""
        a, tiles = self.attention, self.tiles
        body = tirx.SeqStmt(
            [
                *self._start(),
                self._fill(self.totals, self.rows, 0.0),
                self._fill(self.peaks, self.rows, _LEAST),
                loop(self.tile, tiles.key_tiles, tirx.SeqStmt(self._tile())),
                *self._normalize(),
                self._store(),
            ]
        )
        groups_of_one = -(-tiles.rows // tiles.queries)
        position = unravel(self.group // groups_of_one, list(a.batch.values()))
        body = substitute(body, dict(zip(a.batch, position, strict=True)))
        threads = {
            "blockIdx.x": (self.group, tiles.groups),
            "threadIdx.y": (self.y, tiles.down),
            "threadIdx.x": (self.x, tiles.across),
        }
        if self.sub_group > 1:
            # Sub-groups are formed along x first, and on some drivers along no other axis.
            item, across = tirx.Var("item", self.index_type), tiles.across
            body = substitute(body, {self.x: item % across, self.y: item // across})
            threads = {"blockIdx.x": threads["blockIdx.x"], "threadIdx.x": (item, tiles.threads)}
        # Numbers of a row times vectors of columns.
        return launch(self.func, threads, broadcast_scalars(body), self.buffers)

    def _start(self) -> list[tirx.Stmt]:
        """Clear the sums, and load the queries."""
        a = self.attention
        zeros = [self._zeros(self.sums, at * LANES) for at in range(self.rows * self.columns)]
        return [*zeros, self._stage(self.queries, a.query, a.row, a.depth, self._first_row, self.tiles.queries)]

    def _tile(self) -> list[tirx.Stmt]:
        """Add what a tile of keys contributes."""
        keys, values = self._stage_keys(), self._stage_values()
        # Loads of both tiles are waited for together, if there is memory for both.
        is_early = bool(self.tiles.has_own_values)
        early, late = ([keys, values], []) if is_early else ([keys], [values])
        return [*early, self._multiply_keys(), self._score(), self._rescale(), *late, self._multiply_values()]

    def _stage_keys(self) -> tirx.Stmt:
        a, tiles = self.attention, self.tiles
        return self._stage(self.staged, a.key_value, a.key, a.depth, self.tile * tiles.keys, tiles.keys)

    def _stage_values(self) -> tirx.Stmt:
        # Their weights are zero, but zero times infinity is not.
        a, tiles, first = self.attention, self.tiles, self.tile * self.tiles.keys
        return self._stage(self.values, a.value, a.key, a.column, first, tiles.keys, is_used_beyond=True)

    # Places

    @property
    def _first_row(self) -> tirx.Expr:
        return self.group % -(-self.tiles.rows // self.tiles.queries) * self.tiles.queries

    def _row(self, number: int) -> tirx.Expr:
        """Return the row, within the group, of a work-item's `number`-th row."""
        return self.y + number * self.tiles.down

    def _row_of_input(self, number: int) -> tirx.Expr:
        """Return the row to read masks at. Rows beyond the end read those of the last one."""
        index = self._first_row + self._row(number)
        is_whole = self.tiles.rows % self.tiles.queries == 0
        return index if is_whole else tirx.min(index, tirx.const(self.tiles.rows - 1, self.index_type))

    def _key(self, number: int) -> tirx.Expr:
        """Return the key, within the tile, of a work-item's `number`-th key."""
        return self.x + number * self.tiles.across

    def _column(self, number: int) -> tirx.Expr:
        """Return the vector of columns that is a work-item's `number`-th one."""
        return self.x + number * self.tiles.across

    def _score_at(self, row: int, key: int) -> int:
        """Return the register of a work-item's score."""
        return row * self.keys + key

    # Statements

    def _fill(self, buffer: tirx.Buffer, size: int, value: float) -> tirx.Stmt:
        return loop(self.lane, size, self._put(buffer, self.lane, tirx.const(value, _KIND)), "unrolled")

    def _zeros(self, buffer: tirx.Buffer, first: int) -> tirx.Stmt:
        return self._in_lanes(lambda lane: self._put(buffer, first + lane, tirx.const(0.0, _KIND)))

    def _vector(self, target: tirx.Buffer, at: int, source: tirx.Buffer, first: tirx.Expr) -> tirx.Stmt:
        """Load a vector of local memory into registers."""
        return self._in_lanes(lambda lane: self._put(target, at + lane, self._at(source, first + lane)))

    def _each(self, count: int, stmt: Callable[[tirx.Expr], tirx.Stmt], extent: int) -> tirx.Stmt:
        """Run a statement for each of `extent` numbers, spread over the work group in `count` steps."""
        step, threads = tirx.Var("step", self.index_type), self.tiles.threads
        number = step * threads + self.y * self.tiles.across + self.x
        body = guarded(number < extent if count * threads > extent else None, stmt(number))
        return loop(step, count, body, "unrolled" if count <= _MOST_UNROLLED else "serial")

    def _stage(
        self,
        target: tirx.Buffer,
        value: tirx.Expr,
        across: tirx.Var,
        along: tirx.Var,
        first: tirx.Expr,
        count: int,
        *,
        is_used_beyond: bool = False,
        begin: int = 0,
    ) -> tirx.Stmt:
        """Copy `count` rows of an operand into local memory, with zeros beyond the ends of a row.

        across, along: the axis that counts rows, and the axis along a row.
        first: the first row.
        begin: number of local memory where the first row begins.
        is_used_beyond: whether rows beyond the last one have to be zeros. Copies of the last row take no branch.
        """
        axes, tiles, dtype = self.attention.axes, self.tiles, str(target.dtype)
        is_value = along.same_as(self.attention.column)
        pitch, vectors_of_row = (
            (tiles.value_pitch, tiles.column_vectors) if is_value else (tiles.key_pitch, tiles.depth_vectors)
        )
        loads = [load for load in loads_of(value) if load.indices]
        is_along = not loads or any(load.indices[-1].same_as(along) for load in loads)
        width = LANES if is_along and axes[along] % LANES == 0 else 1
        length = vectors_of_row * LANES // width
        vectors = Vectors({**axes}, along, width)

        def copy(number: tirx.Expr) -> tirx.Stmt:
            # Neighbouring work-items read neighbouring numbers.
            row, at = (number // length, number % length) if is_along else (number % count, number // count)
            place = row * pitch + at * width + vectors.lane + begin
            store, registers = vectors.store(target, [place], value.astype(dtype))
            self.buffers += registers
            inside, position = [], first + row
            if axes[across] % count and is_used_beyond:
                inside.append(position < axes[across])
            elif axes[across] % count:
                position = tirx.min(position, axes[across] - 1)
            if axes[along] % (length * width):
                inside.append(at < axes[along] // width)
            store = substitute(store, {across: position, along: at, vectors.vector: at})
            if not inside:
                return store
            zero = self._put(target, place, tirx.const(0.0, dtype))
            zeros = loop(vectors.lane, width, zero, "vectorized")
            return tirx.IfThenElse(functools.reduce(tirx.And, inside), store, zeros)

        numbers = count * length
        return self._each(-(-numbers // tiles.threads), copy, numbers)

    def _multiply_keys(self) -> tirx.Stmt:
        """Compute the products of a work-item's rows with its keys."""
        pitch, step = self.tiles.key_pitch, self.step
        steps: list[tirx.Stmt] = [
            self._vector(self.of_rows, row * LANES, self.queries, self._row(row) * pitch + step * LANES)
            for row in range(self.rows)
        ]
        steps += [
            self._vector(self.of_keys, key * LANES, self.staged, self._key(key) * pitch + step * LANES)
            for key in range(self.keys)
        ]
        for lane in range(LANES):
            for row in range(self.rows):
                for key in range(self.keys):
                    at = row * self.keys + key
                    product = self._at(self.of_rows, row * LANES + lane) * self._at(self.of_keys, key * LANES + lane)
                    steps.append(self._put(self.scores, at, self._at(self.scores, at) + product))
        zeros = self._fill(self.scores, self.rows * self.keys, 0.0)
        return tirx.SeqStmt([zeros, loop(step, self.tiles.depth_vectors, tirx.SeqStmt(steps))])

    def _score(self) -> tirx.Stmt:
        """Scale and mask the products, and store each row's maximum over the work-item's keys."""
        a, tiles, steps = self.attention, self.tiles, list[tirx.Stmt]()
        for row in range(self.rows):
            index = self._row_of_input(row)
            for key in range(self.keys):
                at, column = self._score_at(row, key), self.tile * tiles.keys + self._key(key)
                score = with_score(a, self._at(self.scores, at)).astype(_KIND)
                score = substitute(score, {a.row: index, a.key: column})
                if tiles.keys_of_all % tiles.keys:
                    beyond = tirx.const(-math.inf, _KIND)
                    score = tirx.if_then_else(column < tiles.keys_of_all, score, beyond)
                steps.append(self._put(self.scores, at, score))
            scores = [self._at(self.scores, self._score_at(row, key)) for key in range(self.keys)]
            peak = functools.reduce(tirx.max, scores)
            # The exponentials of NaN are NaN, whatever the maximum.
            steps.append(ignore_nan(self._put_partial(row, peak)))
        return _together(steps)

    def _put_partial(self, row: int, value: tirx.Expr) -> tirx.Stmt:
        """Store a work-item's part of a number of a row, for `_over_work_items`."""
        if not self.tiles.has_partial:
            return self._put(self.scales, row, value)
        return self._put(self.partial, self._row(row) * self.tiles.across + self.x, value)

    def _over_work_items(
        self, target: tirx.Buffer, row: int, combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
    ) -> tirx.Stmt:
        """Combine `target[row]` with the parts of the work-items of the row."""
        if not self.tiles.has_partial:
            return self._over_sub_group(target, row, combine)
        across, steps = self.tiles.across, list[tirx.Stmt]()
        for first in range(0, across, LANES):
            steps.append(self._vector(self.of_rows, 0, self.partial, self._row(row) * across + first))
            for lane in range(LANES):
                steps.append(self._put(target, row, combine(self._at(target, row), self._at(self.of_rows, lane))))
        return _together(steps)

    def _over_sub_group(
        self, target: tirx.Buffer, row: int, combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
    ) -> tirx.Stmt:
        """Do so with shuffles, each a statement: passes duplicate operands, and all work-items must reach a shuffle."""
        part, received, steps = self._at(self.scales, row), self._at(self.received, 0), list[tirx.Stmt]()
        distance = self.tiles.sharing // 2
        while distance:
            steps.append(self._put(self.received, 0, self._shuffled(part, distance)))
            steps.append(self._put(self.scales, row, combine(part, received)))
            distance //= 2
        return _together([*steps, self._put(target, row, combine(self._at(target, row), part))])

    def _shuffled(self, value: tirx.Expr, distance: int) -> tirx.Expr:
        """Return the value of the work-item at (own number xor `distance`)."""
        return sub_group_shuffle_xor(value, distance, self.sub_group)

    def _rescale(self) -> tirx.Stmt:
        """Move each row to its new maximum: rescale its sums, and store the exponentials of the tile."""
        steps: list[tirx.Stmt] = []
        for row in range(self.rows):
            peak, total = self._at(self.peaks, row), self._at(self.totals, row)
            steps.append(self._put(self.before, row, peak))
            steps.append(ignore_nan(self._over_work_items(self.peaks, row, tirx.max)))
            steps.append(self._put(self.scales, row, self._exp(self._at(self.before, row) - peak)))
            scale = self._at(self.scales, row)
            steps.append(self._put(self.totals, row, total * scale))
            for key in range(self.keys):
                at = self._score_at(row, key)
                weight = self._at(self.scores, at)
                steps.append(self._put(self.scores, at, self._exp(weight - peak)))
                steps += self._keep_weight(row, key, weight)
                steps.append(self._put(self.totals, row, total + weight))
            steps += [self._scaled(row, column, scale) for column in range(self.columns)]
        return _together(steps)

    def _exp(self, power: tirx.Expr) -> tirx.Expr:
        return tirx.exp(power)

    def _keep_weight(self, row: int, key: int, weight: tirx.Expr) -> list[tirx.Stmt]:
        """Store a weight where the product with the values reads it."""
        return [self._put(self.weights, self._row(row) * self.tiles.weight_pitch + self._key(key), weight)]

    def _scaled(self, row: int, column: int, factor: tirx.Expr) -> tirx.Stmt:
        first = (row * self.columns + column) * LANES
        return self._in_lanes(
            lambda lane: self._put(self.sums, first + lane, self._at(self.sums, first + lane) * factor)
        )

    def _multiply_values(self) -> tirx.Stmt:
        """Add the products of the tile's weights and values to the sums."""
        tiles, step = self.tiles, self.step
        width = LANES if tiles.keys % LANES == 0 else 1
        steps: list[tirx.Stmt] = []
        for row in range(self.rows):
            first = self._row(row) * tiles.weight_pitch + step * width
            if width == LANES:
                steps.append(self._vector(self.of_rows, row * LANES, self.weights, first))
            else:
                steps.append(self._put(self.of_rows, row * LANES, self._at(self.weights, first)))
        for lane in range(width):
            steps += [
                self._vector(
                    self.of_values,
                    column * LANES,
                    self.values,
                    (step * width + lane) * tiles.value_pitch + self._staged_column(column) * LANES,
                )
                for column in range(self.columns)
            ]
            steps += [
                self._added(row, column, self._at(self.of_rows, row * LANES + lane))
                for row in range(self.rows)
                for column in range(self.columns)
            ]
        return loop(step, tiles.keys // width, tirx.SeqStmt(steps))

    def _staged_column(self, number: int) -> tirx.Expr:
        """Return the vector of columns to read. Work-items beyond the end read the last one."""
        last = self.tiles.column_vectors - 1
        is_beyond = (number + 1) * self.tiles.across > last + 1
        return tirx.min(self._column(number), tirx.const(last, self.index_type)) if is_beyond else self._column(number)

    def _added(self, row: int, column: int, weight: tirx.Expr) -> tirx.Stmt:
        first = (row * self.columns + column) * LANES

        def add(lane: tirx.Var) -> tirx.Stmt:
            product = weight * self._at(self.of_values, column * LANES + lane)
            return self._put(self.sums, first + lane, self._at(self.sums, first + lane) + product)

        return self._in_lanes(add)

    def _normalize(self) -> list[tirx.Stmt]:
        """Divide the sums by the total of their row."""
        steps = [self._put_partial(row, self._at(self.totals, row)) for row in range(self.rows)]
        zero, one = (tirx.const(value, _KIND) for value in (0.0, 1.0))
        for row in range(self.rows):
            steps.append(self._put(self.totals, row, zero))
            steps.append(self._over_work_items(self.totals, row, tirx.Add))
            steps.append(self._put(self.scales, row, one / self._at(self.totals, row)))
            divide = [self._scaled(row, column, self._at(self.scales, row)) for column in range(self.columns)]
            if self.attention.fill is None:
                steps += divide
            else:
                steps.append(tirx.IfThenElse(self._is_filled(row), self._filled(row), _together(divide)))
        return steps

    def _is_filled(self, row: int) -> tirx.Expr:
        """Return whether a row's weights are replaced."""
        a = self.attention
        if a.is_filled is not None:
            return substitute(a.is_filled, {a.row: self._row_of_input(row)})
        # The total of a row with NaN is NaN, and that of a row without a valid key is 0.
        return tirx.Not(self._at(self.totals, row) > tirx.const(0.0, _KIND))

    def _filled(self, row: int) -> tirx.Stmt:
        """Give every key of a row the weight `fill`."""
        a, key = self.attention, tirx.Var("key", self.index_type)
        assert a.fill is not None, "only then rows are filled"
        fill, steps = a.fill.astype(_KIND), list[tirx.Stmt]()
        scalars, last = self._buffer("filled", LANES), tirx.const(a.axes[a.column] - 1, self.index_type)
        for column in range(self.columns):
            added = []
            for lane in range(LANES):
                index = tirx.min(self._column(column) * LANES + lane, last)
                value = substitute(a.value, {a.key: key, a.column: index}).astype(_KIND)
                added.append(self._put(scalars, lane, self._at(scalars, lane) + fill * value))
            first = (row * self.columns + column) * LANES
            steps += [
                self._fill(scalars, LANES, 0.0),
                loop(key, self.tiles.keys_of_all, _together(added)),
                self._vector(self.sums, first, scalars, tirx.const(0, self.index_type)),
            ]
        return _together(steps)

    def _store(self) -> tirx.Stmt:
        """Store the results of rows and columns that the output has."""
        a, tiles = self.attention, self.tiles
        width = LANES if a.axes[a.column] % LANES == 0 else 1
        parts = LANES // width
        vectors, steps = Vectors(a.axes, a.column, width), list[tirx.Stmt]()
        for row in range(self.rows):
            index = self._first_row + self._row(row)
            is_row = index < tiles.rows if tiles.rows % tiles.queries else None
            for column in range(self.columns):
                is_beyond = (column + 1) * tiles.across > tiles.column_vectors or width == 1
                for part in range(parts):
                    vector = self._column(column) * parts + part
                    store = self._result(vectors, (row * self.columns + column) * LANES + part)
                    store = substitute(store, {vectors.vector: vector, a.column: vector, a.row: index})
                    is_column = vector < a.axes[a.column] // width if is_beyond else None
                    steps.append(guarded(is_row, guarded(is_column, store)))
        return _together(steps)

    def _result(self, vectors: Vectors, at: int) -> tirx.Stmt:
        """Store a vector of the output, computed from the sums at `at`."""
        a = self.attention
        total = self._at(self.sums, at + vectors.lane).astype(str(a.result.dtype))

        def load(_: TensorLoad) -> tirx.Expr:
            return total

        value = replace_loads(a.output.value, a.result, load)
        indices = [vectors.value_of(index) for index in a.output.indices]
        store, registers = vectors.store(a.output.buffer, indices, value)
        self.buffers += registers
        return store
