"""The kernel of a product with a quantized weight on CPUs, whose vectors are 16 rows of the weight.

A code of 16 rows becomes a vector of floats, which meets one activation after the other:

    words of 16 rows                   ->      four vectors of words            once for a chunk
    vector of words >> bit & mask      ->      vector of floats * scales - zeros * scales
    totals of a row of activations     +=      activation * vector of floats    for each of `item_data` rows
"""

from __future__ import annotations

import functools

from tvm import tirx

from romou.compiler.operators.quantized.kernel import QuantizedKernel
from romou.compiler.operators.quantized.outputs import if_inside, stored
from romou.compiler.scheduling.statements import guarded
from romou.compiler.tir.primitives import LANES

# Rows of the weight in a vector.
ROWS = 16


class VectorKernel(QuantizedKernel):
    """The writer of one config's kernel. A step is one chunk, and activations are not staged."""

    def _declare(self) -> None:
        self.words = self._buffer("words_of_rows", ROWS * LANES, "uint32")
        self.vectors = [self._buffer(f"words_{word}", ROWS, "uint32") for word in range(LANES)]
        self.loaded = self.scaled = self._buffer("data_of_rows", self.data * LANES)
        self.codes = self._buffer("codes", ROWS)
        self.sums = self.data_sums = None
        self.block_scales, self.block_zeros = (self._buffer(f"block_{name}", ROWS) for name in ("scales", "zeros"))
        self.totals_of_rows = [self._buffer(f"totals_{number}", ROWS) for number in range(self.data)]

    def _declare_norm(self) -> None:
        super()._declare_norm()
        self.normalized = self._buffer("normalized", self.data * self.work.k, scope="shared")

    def _normalize(self) -> list[tirx.Stmt]:
        """Keep normalized rows in local memory, because each work-item reads all of them."""
        if self.operands.norm is None:
            return []

        lanes = self._lanes_of_terms
        is_whole = self.work.k % lanes == 0

        def copy(vector: tirx.Expr, number: int) -> tirx.Stmt:
            index, first = self._data_row_to_read(number), vector * lanes

            def put(lane: tirx.Var) -> tirx.Stmt:
                value = super(VectorKernel, self)._activation(index, first + lane)
                body = self._put(self.normalized, number * self.work.k + first + lane, value)
                return guarded(None if is_whole else first + lane < self.work.k, body)

            return self._in_lanes(put, lanes, "vectorized" if is_whole else "unrolled")

        copies = [
            self._for_each(-(-self.work.k // lanes), functools.partial(copy, number=number))
            for number in range(self.data)
        ]
        return [*super()._normalize(), *copies]

    @property
    def _lanes_of_terms(self) -> int:
        return ROWS if self.work.k % ROWS == 0 else LANES

    def _activation(self, index: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        if self.operands.norm is None:
            return super()._activation(index, place)
        return self._at(self.normalized, (index - self.data_group * self.data) * self.work.k + place)

    def _clear(self) -> list[tirx.Stmt]:
        zero = tirx.const(0.0, "float32")
        return [self._in_lanes(functools.partial(self._put, total, value=zero), ROWS) for total in self.totals_of_rows]

    def _row(self, number: int | tirx.Expr) -> tirx.Expr:
        return (self.group * int(self.tiles.across) + self.x) * ROWS + number

    @property
    def _is_whole(self) -> bool:
        return bool(self.work.n % self.tiles.rows == 0)

    def _block(self, start: tirx.Expr, block: tirx.Expr, first: int, size: int, *, is_whole: bool) -> list[tirx.Stmt]:
        statements = self._transpose() if first == 0 else []
        statements += self._load_scales(block)
        for vector in range(size // LANES):
            position = first // LANES + vector
            statements += self._load_data(start + vector * LANES, is_first=vector == 0, is_whole=is_whole)
            for word in range(LANES):
                statements.append(self._in_lanes(functools.partial(self._convert, word, position), ROWS))
                statements += [
                    self._in_lanes(functools.partial(self._add_product, number, word), ROWS)
                    for number in range(self.data)
                ]
        return statements

    def _transpose(self) -> list[tirx.Stmt]:
        """Make vectors of the first words of all rows, of the second ones, and so on."""
        return [
            self._put(vector, row, self._at(self.words, row * LANES + word))
            for word, vector in enumerate(self.vectors)
            for row in range(ROWS)
        ]

    def _load_scales(self, block: tirx.Expr) -> list[tirx.Stmt]:
        """Load the scales of a block, and make zero points of them that are added to scaled codes."""

        def load(lane: tirx.Var) -> tirx.Stmt:
            row = self._row(lane)
            row = row if self._is_whole else tirx.min(row, tirx.const(self.work.n - 1, "int32"))
            zeros, scale = self.operands.zeros, self._at(self.operands.scales, block, row).astype("float32")
            common = tirx.const(float(self.work.common_zero), "float32")
            zero = common if zeros is None else self._at(zeros, block, row).astype("float32")
            product = tirx.const(0.0, "float32") - zero * self._at(self.block_scales, lane)
            return tirx.SeqStmt([self._put(self.block_scales, lane, scale), self._put(self.block_zeros, lane, product)])

        return [self._in_lanes(load, ROWS, "vectorized" if self._is_whole else "unrolled")]

    def _convert(self, word: int, position: int, lane: tirx.Var) -> tirx.Stmt:
        code = self._number(self._at(self.vectors[word], lane), position)
        return self._put(self.codes, lane, code * self._at(self.block_scales, lane) + self._at(self.block_zeros, lane))

    def _add_product(self, number: int, word: int, lane: tirx.Var) -> tirx.Stmt:
        total = self.totals_of_rows[number]
        product = self._at(self.loaded, number * LANES + word) * self._at(self.codes, lane)
        return self._put(total, lane, self._at(total, lane) + product)

    def _outputs(self) -> list[tirx.Stmt]:
        return [self._store_row(number) for number in range(self.data)]

    def _store_row(self, number: int) -> tirx.Stmt:
        """Store the results of a row of activations."""
        data_row = self._data_row(number)

        def store(lane: tirx.Var) -> tirx.Stmt:
            row = self._row(lane)
            place = [data_row, row]
            body = stored(
                self.operands.product, self.operands.epilogue, place, self._at(self.totals_of_rows[number], lane)
            )
            return guarded(None if self._is_whole else row < self.work.n, body)

        lanes = self._in_lanes(store, ROWS, "vectorized" if self._is_whole else "unrolled")
        return if_inside([data_row], [self.work.m], [self.data], lanes)
