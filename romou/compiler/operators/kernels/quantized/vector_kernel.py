"""The kernel of a product with a quantized weight on CPUs, whose vectors are 16 rows of the weight.

A code of 16 rows becomes a vector of floats, which meets one activation after the other:

    words of 16 rows                   ->      four vectors of words            once for a chunk
    vector of words >> bit & mask      ->      vector of floats * scales - zeros * scales
    totals of a row of activations     +=      activation * vector of floats    for each of `item_data` rows
"""

from __future__ import annotations

import contextlib
import itertools

from tvm import tirx

from romou.compiler.operators.kernels.quantized.kernel import QuantizedKernel
from romou.compiler.operators.kernels.quantized.norm import Norm
from romou.compiler.operators.kernels.quantized.outputs import checks
from romou.compiler.scheduling.kernel_builder import Index
from romou.compiler.tir.primitives import LANES

# Rows of the weight in a vector.
ROWS = 16


class VectorKernel(QuantizedKernel):
    """The kernel of one config. A step is one chunk, and activations are not staged."""

    def _declare(self) -> None:
        self.words = self.array("words_of_rows", 1, ROWS, LANES, dtype="uint32")
        self.vectors = [self.array(f"words_{word}", ROWS, dtype="uint32") for word in range(LANES)]
        self.loaded = self.scaled = self.array("data_of_rows", self.data, LANES)
        self.codes = self.array("codes", ROWS)
        self.sums = self.data_sums = self.table = None
        self.scales, self.zeros = (self.array(f"block_{name}", ROWS) for name in ("scales", "zeros"))
        self.totals_of_rows = [self.array(f"totals_{number}", ROWS) for number in range(self.data)]

    def _declare_norm(self) -> None:
        super()._declare_norm()
        self.normalized = self.array("normalized", self.data, self.work.k, scope="shared")

    def _clear(self) -> None:
        for totals in self.totals_of_rows:
            totals.fill(0.0)

    # Normalization

    def _normalize(self, norm: Norm) -> None:
        """Keep normalized rows in local memory, because each work-item reads all of them."""
        super()._normalize(norm)
        k, lanes = self.work.k, self._lanes_of_terms
        for number in range(self.data):
            vectors = self.spread(-(-k // lanes), self.thread, self.threads)
            with vectors as vector, self.lanes(lanes, "unrolled" if k % lanes else "vectorized") as lane:
                at = vector * lanes + lane
                with self.when(at < k if k % lanes else None):
                    self.normalized[number, at] = super()._activation(self._data_row_to_read(number), at)

    @property
    def _lanes_of_terms(self) -> int:
        return ROWS if self.work.k % ROWS == 0 else LANES

    def _activation(self, index: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        if self.operands.norm is None:
            return super()._activation(index, place)
        return self.normalized[index - self.data_group * self.data, place]

    # Sums

    def _add_block(self, start: tirx.Expr, block: tirx.Expr, first: int, size: int, *, is_whole: bool) -> None:
        if first == 0:
            # Vectors of the first words of all rows, of the second ones, and so on.
            for word, row in itertools.product(range(LANES), range(ROWS)):
                self.vectors[word][row] = self.words[0, row, word]
        self._load_scales(block)
        for vector in range(size // LANES):
            self._load_data(start + vector * LANES, is_first=vector == 0, is_whole=is_whole)
            for word in range(LANES):
                with self.lanes(ROWS) as lane:
                    code = self._number(self.vectors[word][lane], first // LANES + vector)
                    self.codes[lane] = code * self.scales[lane] + self.zeros[lane]
                for number, totals in enumerate(self.totals_of_rows):
                    with self.lanes(ROWS) as lane:
                        totals[lane] += self.loaded[number, word] * self.codes[lane]

    def _load_scales(self, block: tirx.Expr) -> None:
        """Load the scales of a block, and make zero points of them that are added to scaled codes."""
        with self._lanes_of_rows() as lane:
            row = self._row_to_read(lane)
            self.scales[lane] = self.read(self.operands.scales, block, row).astype("float32")
            self.zeros[lane] = tirx.const(0.0, "float32") - self._zero_point(block, row) * self.scales[lane]

    # Places

    def _lanes_of_rows(self) -> contextlib.AbstractContextManager[tirx.Expr]:
        """Run the block for each row of the weight, as a vector if all groups have whole ones."""
        return self.lanes(ROWS, "unrolled" if self.work.n % self.tiles.rows else "vectorized")

    def _row(self, number: Index) -> tirx.Expr:
        return (self.group * self.across + self.x) * ROWS + number

    # Results

    def _store_totals(self) -> None:
        for number, totals in enumerate(self.totals_of_rows):
            data_row = self._data_row(number)
            with self.when(*checks([data_row], [self.work.m], [self.data])), self._lanes_of_rows() as lane:
                row = self._row(lane)
                with self.when(row < self.work.n if self.work.n % self.tiles.rows else None):
                    self.emit(self.operands.stored([data_row, row], totals[lane]))
