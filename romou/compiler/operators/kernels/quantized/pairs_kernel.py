"""The kernel of a product with a quantized weight whose codes become pairs of fp16 numbers.

An instruction computes with both numbers of a pair where the device has fp16 vectors. Bits p of a word's halves are
a pair of codes, of elements that are half a chunk apart. So activations are paired in the same way:

    word & 0x000f000f | 0x58005800      two fp16 numbers, 128 + code / 8
    - (128 + zero point / 8)            exact, also if blocks have zero points
    * (a[k], a[k + 16])                 added up in fp16 for a run of codes
    totals += 8 * scale * (float(sum.x) + float(sum.y))

A code counts 2^(1 - bits), so that no product is larger than twice its activation.
"""

from __future__ import annotations

import itertools

from tvm import tirx

from romou.compiler.operators.kernels.quantized.kernel import QuantizedKernel
from romou.compiler.scheduling.kernel_builder import Array
from romou.compiler.tir.primitives import LANES

_PAIR = "float16x2"
# Activations of a unit of four pairs.
UNIT = 2 * LANES
# Codes whose products are added up in fp16, half of them in each number of a pair.
RUN = 16
# Bits of a number of a pair, of its mantissa, and the exponent of one.
_HALF, _MANTISSA, _EXPONENT_OF_ONE = 16, 10, 15


class PairsKernel(QuantizedKernel):
    """The kernel of one config. A block has whole chunks, and zero points are integers or absent."""

    def _declare(self) -> None:
        self.words = self.array("words_of_rows", self.chunks, self.rows, LANES, dtype="uint32")
        self.loaded = self.array("data_of_rows", 2, LANES, dtype="float16")
        # As words, which are what local memory holds.
        self.pairs = self.array("pairs_of_rows", self.data, LANES, dtype="uint32")
        self.codes = self.array("codes", LANES, dtype=_PAIR)
        self.run_sums = self.array("run_sums", self.data, self.rows, dtype=_PAIR)
        self.block_scales = self.array("block_scales", self.rows)
        has_zeros = self.operands.zeros is not None
        self.block_zeros = self.array("block_zeros", self.rows, dtype="uint32") if has_zeros else None
        self.totals, self.table = self.array("totals", self.data, self.rows), None
        if self.staged_size:
            self.packed = self.array("packed", 1, LANES, dtype="uint32")
            units = self.staged_size // UNIT
            self.staged = self.array("staged", self.data, units, dtype=f"uint32x{LANES}", scope="shared")

    def _stage_data(self) -> None:
        """Copy pairs of activations into local memory, zeros beyond the end. A work-item copies units of four."""
        units, per_chunk = self.staged_size // UNIT, self.work.chunk // UNIT
        with self.spread(self.data * units, self.thread, self.threads) as number:
            row, unit = number // units, number % units
            chunk = self.stage * self.staged_size + unit // per_chunk * self.work.chunk
            place = chunk + unit % per_chunk * LANES
            self._load_pairs(self._data_row_to_read(row), place, self.packed, 0, is_whole=False)
            self.staged[row, unit] = self.packed[0, :]

    def _load_pairs(self, index: tirx.Expr, place: tirx.Expr, target: Array, number: int, *, is_whole: bool) -> None:
        """Load four pairs of row `index` of the activations, the first one at `place`, as words."""
        for half in range(2):
            start = place + half * (self.work.chunk // 2) if half else place
            self._load_vector(index, start, self.loaded, half, is_whole=is_whole)
        for lane in range(LANES):
            pair = tirx.Shuffle([self.loaded[0, lane], self.loaded[1, lane]], [0, 1])
            target[number, lane] = tirx.reinterpret("uint32", pair)

    def _load_scales(self, block: tirx.Expr) -> None:
        for row in range(self.rows):
            index = self._row_to_read(row)
            scale = self.read(self.operands.scales, block, index).astype("float32")
            self.block_scales[row] = scale * tirx.const(float(1 << self.work.bits - 1), "float32")
            if self.block_zeros is not None:
                self.block_zeros[row] = self.read(self.operands.zeros, block, index).astype("uint32") * _both(1)

    def _add_block(self, start: tirx.Expr, block: tirx.Expr, first: int, size: int, *, is_whole: bool) -> None:
        self._load_scales(block)
        positions = self.work.chunk // UNIT
        for unit in range(size // UNIT):
            chunk, position = divmod(first // UNIT + unit, positions)
            place = start + unit // positions * self.work.chunk
            for number in range(self.data):
                if self.staged_size:
                    staged_unit = (place - self.stage * self.staged_size) // UNIT + position
                    self.pairs[number, :] = self.staged[number, staged_unit]
                else:
                    row = self._data_row_to_read(number)
                    self._load_pairs(row, place + position * LANES, self.pairs, number, is_whole=is_whole)
            done = unit * UNIT % RUN
            for row in range(self.rows):
                self._make_codes(chunk, row, position)
                self._multiply(row, is_first=done == 0)
            if done + UNIT == RUN or (unit + 1) * UNIT == size:
                self._add_run()

    def _make_codes(self, chunk: int, row: int, position: int) -> None:
        """Make pairs of the codes of the four words of a row's chunk, less the zero point."""
        bits, bit = self.work.bits, position * self.work.bits
        shift, at = bit // 8 * 8, bit % 8
        power = _MANTISSA + 1 - bits - at
        exponent = _both(power + _EXPONENT_OF_ONE << _MANTISSA)
        if self.block_zeros is None:
            common = float(2**power) + self.work.common_zero / (1 << bits - 1)
            zero = tirx.Broadcast(tirx.const(common, "float16"), 2)
        else:
            zeros = self.block_zeros[row]
            zero = tirx.reinterpret(_PAIR, (zeros << tirx.const(at, "uint32") if at else zeros) | exponent)
        for lane in range(LANES):
            word = self.words[chunk, row, lane]
            word = word >> tirx.const(shift, "uint32") if shift else word
            self.codes[lane] = tirx.reinterpret(_PAIR, word & _both((1 << bits) - 1 << at) | exponent) - zero

    def _multiply(self, row: int, *, is_first: bool) -> None:
        """Add the products of the activations with four pairs of codes of a row to the sums of the run."""
        for number, lane in itertools.product(range(self.data), range(LANES)):
            product = tirx.reinterpret(_PAIR, self.pairs[number, lane]) * self.codes[lane]
            self.run_sums[number, row] = product if is_first and lane == 0 else self.run_sums[number, row] + product

    def _add_run(self) -> None:
        """Add the sums of a run to the totals."""
        for number, row in itertools.product(range(self.data), range(self.rows)):
            low, high = (tirx.Shuffle([self.run_sums[number, row]], [half]).astype("float32") for half in range(2))
            self.totals[number, row] += self.block_scales[row] * (low + high)


def _both(half: int) -> tirx.Expr:
    """Return 16 bits in both halves of a word."""
    return tirx.const(half << _HALF | half, "uint32")
