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

import itertools

from tvm import tirx

from romou.compiler.operators.kernels.attention.kernel import AttentionKernel
from romou.compiler.operators.kernels.tensor_cores import COLUMNS, DEPTHS, ROWS, UNIT
from romou.compiler.scheduling.kernel_builder import Array
from romou.compiler.scheduling.statements import barrier
from romou.compiler.tir.primitives import LANES

# Numbers of a work-item in a tile of a fragment, in a row of it, and tiles that a load brings.
_OF_TILE, _OF_ROW, _PAIR = 4, 2, 2


class TensorCoreAttentionKernel(AttentionKernel):
    """The kernel of one config.

    rows, keys, columns: of a work-item in its fragments, in a tile of keys, and pairs of columns.
    """

    of_column = _OF_ROW

    def _allocate(self) -> None:
        tiles = self.tiles
        self.g, self.t = self.x // 4, self.x % 4
        self.fragments, self.key_tiles = self.rows // _OF_ROW, self.keys
        self.keys = self.key_tiles * _OF_ROW
        self.depths, self.depth_units = int(tiles.depth_vectors) * LANES // DEPTHS, int(tiles.key_pitch) // UNIT
        self.value_units, self.first_value = int(tiles.value_pitch) // UNIT, int(tiles.keys * tiles.key_pitch)
        self.staged = self.array("staged", tiles.staged_numbers, dtype="float16", scope="shared")
        # Registers of a tile: two rows of two numbers.
        self.scores = self.array("scores", self.fragments, self.key_tiles, _OF_ROW, _OF_ROW)
        self.sums = self.array("sums", self.fragments, self.columns, _OF_ROW, _OF_ROW)
        self.queries = self.array("queries", self.fragments, self.depths, _OF_TILE, dtype="uint32")
        self.weights = self.array("weights", self.fragments, _OF_TILE, dtype="uint32")
        self.loaded = self.array("loaded", _PAIR, _OF_TILE // _PAIR, dtype="uint32")

    # Places

    def _row(self, number: int) -> tirx.Expr:
        return self.y * (self.rows * COLUMNS) + number * COLUMNS + self.g

    def _key(self, number: int) -> tirx.Expr:
        return number // _OF_ROW * COLUMNS + self.t * _OF_ROW + number % _OF_ROW

    def _column(self, number: int) -> tirx.Expr:
        """Return the pair of columns that is a work-item's `number`-th one."""
        return number * (COLUMNS // _OF_ROW) + self.t

    def _score_at(self, row: int, key: int) -> tuple[int, ...]:
        return row // _OF_ROW, key // _OF_ROW, row % _OF_ROW, key % _OF_ROW

    def _sum_at(self, row: int, column: int) -> tuple[int, ...]:
        return row // _OF_ROW, column, row % _OF_ROW

    # A tile

    def _start(self) -> None:
        self.sums.flat().fill(0.0, "unrolled")
        self._stage_queries(self.staged.viewed(self.tiles.queries, self.tiles.key_pitch))
        self.emit(barrier())
        # Matrices of a load: rows 0 to 7 and 8 to 15, then both eight depths on.
        row, unit = self.x % 8 + self.x // 8 % 2 * 8, self.x // 16
        for fragment, step in itertools.product(range(self.fragments), range(self.depths)):
            first = self.y * (self.rows * COLUMNS) + fragment * ROWS + row
            offset = first * self.depth_units + unit + step * (DEPTHS // UNIT)
            self._load("load_activations", offset, self.queries, fragment, step, 0)

    def _add_tile(self) -> None:
        # Every warp is done with the tile before, and sees this one as a whole.
        self.emit(barrier())
        self._stage_keys(self.staged.viewed(self.tiles.keys, self.tiles.key_pitch))
        self._stage_values(self.staged.viewed(self.tiles.keys, self.tiles.value_pitch, begin=self.first_value))
        self.emit(barrier())
        self._multiply_keys()
        self._score()
        self._rescale()
        self._multiply_values()

    def _load(self, function: str, offset: tirx.Expr, into: Array, *at: int) -> None:
        """Load four matrices of local memory. offset: of the work-item's row, in units of 16 bytes."""
        self.call(function, offset, self.staged.buffer.data, *into.place(*at))

    def _multiply_keys(self) -> None:
        self.scores.flat().fill(0.0, "unrolled")
        # Matrices of a load: depths 0 to 7 and 8 to 15 of eight keys, then of the next eight.
        row, unit = self.x % 8 + self.x // 16 * 8, self.x // 8 % 2
        for step, first in itertools.product(range(self.depths), range(0, self.key_tiles, _PAIR)):
            offset = (first * COLUMNS + row) * self.depth_units + unit + step * (DEPTHS // UNIT)
            self._load("load_activations", offset, self.loaded, 0, 0)
            for fragment, tile in itertools.product(range(self.fragments), range(_PAIR)):
                factors = *self.queries.place(fragment, step, 0), *self.loaded.place(tile, 0)
                self.call("multiply_weights", *self.scores.place(fragment, first + tile, 0, 0), *factors)

    def _exp(self, power: tirx.Expr) -> tirx.Expr:
        # Weights become fp16, so the device's own instruction is exact enough.
        return tirx.call_pure_extern("float32", "rough_exp", power)

    def _shuffled(self, value: tirx.Expr, distance: int) -> tirx.Expr:
        return tirx.call_pure_extern("float32", "shuffle_of_warp", value, tirx.const(distance, "int32"))

    def _keep_weight(self, row: int, key: int) -> None:
        """The weights stay where the scores are."""

    def _scale_sums(self, row: int) -> None:
        for column, number in itertools.product(range(self.columns), range(_OF_ROW)):
            self.sums[(*self._sum_at(row, column), number)] *= self.scales[row]

    def _multiply_values(self) -> None:
        # Matrices of a load: keys 0 to 7 and 8 to 15 of eight columns, then of the next eight. They are transposed.
        row, unit = self.x % 8 + self.x // 8 % 2 * 8, self.x // 16
        for step in range(self.key_tiles // _PAIR):
            for fragment, tile, half in itertools.product(range(self.fragments), range(_PAIR), range(_OF_ROW)):
                pair = [self.scores[fragment, step * _PAIR + tile, half, number] for number in range(_OF_ROW)]
                self.weights[fragment, tile * _OF_ROW + half] = tirx.call_pure_extern("uint32", "fp16_pair", *pair)
            for column in range(0, self.columns, _PAIR):
                offset = (step * DEPTHS + row) * self.value_units + unit + self.first_value // UNIT + column
                self._load("load_transposed", offset, self.loaded, 0, 0)
                tiles = range(min(_PAIR, self.columns - column))
                for fragment, tile in itertools.product(range(self.fragments), tiles):
                    factors = *self.weights.place(fragment, 0), *self.loaded.place(tile, 0)
                    self.call("multiply_weights", *self.sums.place(fragment, column + tile, 0, 0), *factors)

    # Results

    def _fill_row(self, row: int, fill: tirx.Expr) -> None:
        for column, number in itertools.product(range(self.columns), range(_OF_ROW)):
            at = (*self._sum_at(row, column), number)
            self.sums[at] = 0.0
            with self.loop("key", self.tiles.keys_of_all) as key:
                self.sums[at] += fill * self._value_at(key, column, number)

    def _may_be_beyond(self, column: int) -> bool:
        return (column + 1) * COLUMNS > int(self.attention.axes[self.attention.column])
