"""The kernel of attention on tensor cores for one config: fp16 factors, fp32 sums.

It is the kernel of `kernel.py`, but a warp holds the scores of its rows, and their weights, in registers:

    queries -> local memory -> registers, as fragments
    for each tile of keys:
        key tile, value tile -> local memory
        scores += queries x keys                      mma.sync.m16n8k16
        rescale the sums by the new maximum of each row;  exponentials, as fp16, -> fragments
        sums += exponentials x values                 mma.sync.m16n8k16

Work-item 4 g + t of a warp holds rows g, g + 8, g + 16, ... of the warp's rows. Of each tile of eight keys or columns
it holds 2t and 2t + 1 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). So the scores of two tiles of keys are where a
fragment of weights has to be (FlashAttention-2, arXiv 2307.08691, section 3).
"""

from __future__ import annotations

from tvm import tirx

from romou.compiler.operators.attention.kernel import AttentionKernel
from romou.compiler.operators.tensor_cores import COLUMNS, DEPTHS, ROWS, UNIT
from romou.compiler.scheduling.blocks import substitute
from romou.compiler.scheduling.statements import barrier, guarded, loop
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.primitives import LANES
from romou.devices.backends.dialect import call_on_device

# Numbers of a work-item in a tile of a fragment, in a row of it, and tiles that a load brings.
_OF_TILE, _OF_ROW, _PAIR = 4, 2, 2


class TensorCoreAttentionKernel(AttentionKernel):
    """The writer of one config's kernel.

    rows, keys, columns: of a work-item in its fragments, in a tile of keys, and pairs of columns.
    """

    def _allocate(self) -> None:
        tiles, config = self.tiles, self.config
        self.sub_group = int(tiles.across)
        self.g, self.t = self.x // 4, self.x % 4
        self.fragments, self.key_tiles = self.rows // _OF_ROW, int(config["item_keys"])
        self.keys = self.key_tiles * _OF_ROW
        self.depths, self.depth_units = int(tiles.depth_vectors) * LANES, int(tiles.key_pitch) // UNIT
        self.value_units, self.first_value = int(tiles.value_pitch) // UNIT, int(tiles.keys * tiles.key_pitch)
        self.staged = self._buffer("staged", int(tiles.staged_numbers), "float16", "shared")
        self.received = self._buffer("received", 1)
        self.scores = self._buffer("scores", self.fragments * self.key_tiles * _OF_TILE)
        self.sums = self._buffer("sums", self.fragments * self.columns * _OF_TILE)
        of_queries = self.fragments * self.depths // DEPTHS * _OF_TILE
        self.queries = self._buffer("queries", of_queries, dtype="uint32")
        self.weights = self._buffer("weights", self.fragments * _OF_TILE, dtype="uint32")
        self.loaded = self._buffer("loaded", _OF_TILE, dtype="uint32")

    # Places

    def _row(self, number: int) -> tirx.Expr:
        return self.y * (self.rows * COLUMNS) + number * COLUMNS + self.g

    def _key(self, number: int) -> tirx.Expr:
        return number // _OF_ROW * COLUMNS + self.t * _OF_ROW + number % _OF_ROW

    def _score_at(self, row: int, key: int) -> int:
        return self._place(row, key, self.key_tiles)

    def _sum_at(self, row: int, column: int) -> int:
        """Return the register of the first of a pair of columns."""
        return self._place(row, column * _OF_ROW, self.columns)

    @staticmethod
    def _place(row: int, number: int, tiles: int) -> int:
        tile = row // _OF_ROW * tiles + number // _OF_ROW
        return tile * _OF_TILE + row % _OF_ROW * _OF_ROW + number % _OF_ROW

    # Statements

    def _start(self) -> list[tirx.Stmt]:
        a, statements = self.attention, [self._fill(self.sums, self.fragments * self.columns * _OF_TILE, 0.0)]
        statements.append(self._stage(self.staged, a.query, a.row, a.depth, self._first_row, self.tiles.queries))
        statements.append(barrier())
        # Matrices of a load: rows 0 to 7 and 8 to 15, then both eight depths on.
        row, unit = self.x % 8 + self.x // 8 % 2 * 8, self.x // 16
        for fragment in range(self.fragments):
            for step in range(self.depths // DEPTHS):
                first = self.y * (self.rows * COLUMNS) + fragment * ROWS + row
                offset = first * self.depth_units + unit + step * (DEPTHS // UNIT)
                at = (fragment * (self.depths // DEPTHS) + step) * _OF_TILE
                statements.append(self._load("load_activations", offset, at, self.queries))
        return statements

    def _tile(self) -> list[tirx.Stmt]:
        # Every warp is done with the tile before, and sees this one as a whole.
        staged = [barrier(), self._stage_keys(), self._stage_values(), barrier()]
        return [*staged, self._multiply_keys(), self._score(), self._rescale(), self._multiply_values()]

    def _stage_values(self) -> tirx.Stmt:
        a, tiles, first = self.attention, self.tiles, self.tile * self.tiles.keys
        return self._stage(
            self.staged, a.value, a.key, a.column, first, tiles.keys, is_used_beyond=True, begin=self.first_value
        )

    def _load(self, function: str, offset: tirx.Expr, at: int, into: tirx.Buffer) -> tirx.Stmt:
        """Load four matrices of local memory. offset: of the work-item's row, in units of 16 bytes."""
        return call_on_device(function, offset, self.staged.data, at, into.data)

    def _multiply_keys(self) -> tirx.Stmt:
        steps = [self._fill(self.scores, self.fragments * self.key_tiles * _OF_TILE, 0.0)]
        # Matrices of a load: depths 0 to 7 and 8 to 15 of eight keys, then of the next eight.
        row, unit = self.x % 8 + self.x // 16 * 8, self.x // 8 % 2
        for step in range(self.depths // DEPTHS):
            for pair in range(self.key_tiles // _PAIR):
                offset = (pair * _PAIR * COLUMNS + row) * self.depth_units + unit + step * (DEPTHS // UNIT)
                steps.append(self._load("load_activations", offset, 0, self.loaded))
                for fragment in range(self.fragments):
                    of_query = (fragment * (self.depths // DEPTHS) + step) * _OF_TILE
                    for tile in range(_PAIR):
                        at = (fragment * self.key_tiles + pair * _PAIR + tile) * _OF_TILE
                        steps.append(self._product(self.scores, at, self.queries, of_query, tile))
        return tirx.SeqStmt(steps)

    def _product(self, sums: tirx.Buffer, at: int, factor: tirx.Buffer, first: int, tile: int) -> tirx.Stmt:
        return call_on_device("multiply_weights", at, sums.data, first, factor.data, tile * 2, self.loaded.data)

    def _exp(self, power: tirx.Expr) -> tirx.Expr:
        # Weights become fp16, so the device's own instruction is exact enough.
        return tirx.call_pure_extern("float32", "rough_exp", power)

    def _shuffled(self, value: tirx.Expr, distance: int) -> tirx.Expr:
        return tirx.call_pure_extern("float32", "shuffle_of_warp", value, tirx.const(distance, "int32"))

    def _keep_weight(self, row: int, key: int, weight: tirx.Expr) -> list[tirx.Stmt]:
        # The weights stay where the scores are.
        return []

    def _scaled(self, row: int, column: int, factor: tirx.Expr) -> tirx.Stmt:
        at = self._sum_at(row, column)
        return tirx.SeqStmt([self._put(self.sums, at + i, self._at(self.sums, at + i) * factor) for i in range(2)])

    def _multiply_values(self) -> tirx.Stmt:
        steps = list[tirx.Stmt]()
        # Matrices of a load: keys 0 to 7 and 8 to 15 of eight columns, then of the next eight. They are transposed.
        row, unit = self.x % 8 + self.x // 8 % 2 * 8, self.x // 16
        for step in range(self.key_tiles // _PAIR):
            for fragment in range(self.fragments):
                for at in range(_OF_TILE):
                    first = self._score_at(fragment * _OF_ROW + at % 2, (step * _PAIR + at // 2) * _OF_ROW)
                    pair = [self._at(self.scores, first + number) for number in range(_OF_ROW)]
                    weights = tirx.call_pure_extern("uint32", "fp16_pair", *pair)
                    steps.append(self._put(self.weights, fragment * _OF_TILE + at, weights))
            for column in range(0, self.columns, _PAIR):
                offset = (step * DEPTHS + row) * self.value_units + unit + self.first_value // UNIT + column
                steps.append(self._load("load_transposed", offset, 0, self.loaded))
                for fragment in range(self.fragments):
                    for tile in range(min(_PAIR, self.columns - column)):
                        at = (fragment * self.columns + column + tile) * _OF_TILE
                        steps.append(self._product(self.sums, at, self.weights, fragment * _OF_TILE, tile))
        return tirx.SeqStmt(steps)

    def _filled(self, row: int) -> tirx.Stmt:
        a, key, steps = self.attention, tirx.Var("key", self.index_type), list[tirx.Stmt]()
        assert a.fill is not None, "only then rows are filled"
        last = tirx.const(a.axes[a.column] - 1, self.index_type)
        for column in range(self.columns):
            for i in range(_OF_ROW):
                at, index = self._sum_at(row, column) + i, tirx.min(self._column(column) * _OF_ROW + i, last)
                value = substitute(a.value, {a.key: key, a.column: index}).astype("float32")
                added = self._put(self.sums, at, self._at(self.sums, at) + a.fill.astype("float32") * value)
                zero = self._put(self.sums, at, tirx.const(0.0, "float32"))
                steps += [zero, loop(key, self.tiles.keys_of_all, added)]
        return tirx.SeqStmt(steps)

    def _column(self, number: int) -> tirx.Expr:
        """Return the pair of columns that is a work-item's `number`-th one."""
        return number * (COLUMNS // _OF_ROW) + self.t

    def _store(self) -> tirx.Stmt:
        a, tiles, steps = self.attention, self.tiles, list[tirx.Stmt]()
        width = _OF_ROW if a.axes[a.column] % _OF_ROW == 0 else 1
        vectors, last = Vectors(a.axes, a.column, width), a.axes[a.column] // width
        for row in range(self.rows):
            index = self._first_row + self._row(row)
            is_row = index < tiles.rows if tiles.rows % tiles.queries else None
            for column in range(self.columns):
                for part in range(_OF_ROW // width):
                    vector = self._column(column) * (_OF_ROW // width) + part
                    store = self._result(vectors, self._sum_at(row, column) + part)
                    store = substitute(store, {vectors.vector: vector, a.column: vector, a.row: index})
                    is_column = vector < last if (column + 1) * COLUMNS > a.axes[a.column] else None
                    steps.append(guarded(is_row, guarded(is_column, store)))
        return tirx.SeqStmt(steps)
