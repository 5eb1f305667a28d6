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

from tvm import tirx

from romou.compiler.operators.quantized.kernel import QuantizedKernel
from romou.compiler.tir.primitives import LANES

_PAIR = "float16x2"
# Activations of a unit of four pairs.
UNIT = 2 * LANES
# Codes whose products are added up in fp16, half of them in each number of a pair.
RUN = 16
# Bits of a number of a pair, of its mantissa, and the exponent of one.
_HALF, _MANTISSA, _EXPONENT_OF_ONE = 16, 10, 15


class PairsKernel(QuantizedKernel):
    """The writer of one config's kernel. A block has whole chunks, and zero points are integers or absent."""

    def _declare(self) -> None:
        outputs = self.rows * self.data
        self.words = self._buffer("words_of_rows", self.chunks * self.rows * LANES, "uint32")
        self.loaded = self._buffer("data_of_rows", UNIT, "float16")
        # As words, which are what local memory holds.
        self.pairs = self._buffer("pairs_of_rows", self.data * LANES, "uint32")
        self.codes = self._buffer("codes", LANES, _PAIR)
        self.run_sums = self._buffer("run_sums", outputs, _PAIR)
        self.block_scales = self._buffer("block_scales", self.rows)
        self.block_zeros = None if self.operands.zeros is None else self._buffer("block_zeros", self.rows, "uint32")
        self.totals = self._buffer("totals", outputs)
        if self.staged_size:
            self.packed = self._buffer("packed", LANES, "uint32")
            size = self.data * self.staged_size // UNIT
            self.staged = self._buffer("staged", size, f"uint32x{LANES}", scope="shared")

    def _stage_data(self) -> tirx.Stmt:
        """Copy pairs of activations into local memory, zeros beyond the end. A work-item copies units of four."""
        units, chunk = self.staged_size // UNIT, self.work.chunk

        def copy(number: tirx.Expr) -> tirx.Stmt:
            row, unit = number // units, number % units
            place = self.stage * self.staged_size + unit // (chunk // UNIT) * chunk + unit % (chunk // UNIT) * LANES
            pairs = self._load_pairs(self._data_row_to_read(row), place, self.packed, 0, is_whole=False)
            packed = tirx.BufferLoad(self.packed, [_lanes(0)])
            return tirx.SeqStmt([*pairs, self._put(self.staged, number, packed)])

        return self._for_each(self.data * units, copy)

    def _load_pairs(
        self, index: tirx.Expr, place: tirx.Expr, target: tirx.Buffer, at: int, *, is_whole: bool
    ) -> list[tirx.Stmt]:
        """Load four pairs of row `index` of the activations, the first one at `place`, as words."""
        apart = self.work.chunk // 2
        return [
            self._load_vector(index, place, self.loaded, 0, is_whole=is_whole),
            self._load_vector(index, place + apart, self.loaded, LANES, is_whole=is_whole),
            *(self._put(target, at + lane, self._packed(lane)) for lane in range(LANES)),
        ]

    def _packed(self, lane: int) -> tirx.Expr:
        pair = tirx.Shuffle([self._at(self.loaded, lane), self._at(self.loaded, LANES + lane)], [0, 1])
        return tirx.reinterpret("uint32", pair)

    def _load_scales(self, block: tirx.Expr) -> list[tirx.Stmt]:
        statements = []
        for row in range(self.rows):
            index = self._row_to_read(row)
            scale = self._at(self.operands.scales, block, index).astype("float32")
            unit = tirx.const(float(1 << self.work.bits - 1), "float32")
            statements.append(self._put(self.block_scales, row, scale * unit))
            if self.block_zeros is not None:
                zero = self._at(self.operands.zeros, block, index).astype("uint32")
                statements.append(self._put(self.block_zeros, row, zero * tirx.const(1 << _HALF | 1, "uint32")))
        return statements

    def _block(self, start: tirx.Expr, block: tirx.Expr, first: int, size: int, *, is_whole: bool) -> list[tirx.Stmt]:
        statements = self._load_scales(block)
        positions = self.work.chunk // UNIT
        for unit in range(size // UNIT):
            chunk, position = divmod(first // UNIT + unit, positions)
            place = start + unit // positions * self.work.chunk
            if self.staged_size:
                statements += self._load_staged_pairs(place, position)
            else:
                statements += self._load_data_pairs(place + position * LANES, is_whole=is_whole)
            done = unit * UNIT % RUN
            for row in range(self.rows):
                statements += self._make_codes(chunk, row, position)
                statements += self._multiply(row, is_first=done == 0)
            if done + UNIT == RUN or (unit + 1) * UNIT == size:
                statements += self._add_run()
        return statements

    def _load_staged_pairs(self, chunk: tirx.Expr, position: int) -> list[tirx.Stmt]:
        """Load a unit of each row. chunk: place of its chunk along k."""
        unit = (chunk - self.stage * self.staged_size) // UNIT + position
        units = self.staged_size // UNIT
        return [
            tirx.BufferStore(self.pairs, self._at(self.staged, number * units + unit), [_lanes(number * LANES)])
            for number in range(self.data)
        ]

    def _load_data_pairs(self, place: tirx.Expr, *, is_whole: bool) -> list[tirx.Stmt]:
        rows = map(self._data_row_to_read, range(self.data))
        loads = (
            self._load_pairs(row, place, self.pairs, number * LANES, is_whole=is_whole)
            for number, row in enumerate(rows)
        )
        return [stmt for statements in loads for stmt in statements]

    def _make_codes(self, chunk: int, row: int, position: int) -> list[tirx.Stmt]:
        """Make pairs of the codes of the four words of a row's chunk, less the zero point."""
        bits, bit = self.work.bits, position * self.work.bits
        shift, at = bit // 8 * 8, bit % 8
        power = _MANTISSA + 1 - bits - at
        exponent = _both(power + _EXPONENT_OF_ONE << _MANTISSA)
        if self.block_zeros is None:
            common = float(2**power) + self.work.common_zero / (1 << bits - 1)
            zero = tirx.Broadcast(tirx.const(common, "float16"), 2)
        else:
            zeros = self._at(self.block_zeros, row)
            shifted = zeros << tirx.const(at, "uint32") if at else zeros
            zero = tirx.reinterpret(_PAIR, shifted | exponent)
        statements = []
        for lane in range(LANES):
            word = self._at(self.words, (chunk * self.rows + row) * LANES + lane)
            word = word >> tirx.const(shift, "uint32") if shift else word
            code = tirx.reinterpret(_PAIR, word & _both((1 << bits) - 1 << at) | exponent)
            statements.append(self._put(self.codes, lane, code - zero))
        return statements

    def _multiply(self, row: int, *, is_first: bool) -> list[tirx.Stmt]:
        """Add the products of the activations with four pairs of codes of a row to the sums of the run."""
        statements = []
        for number in range(self.data):
            at = number * self.rows + row
            for lane in range(LANES):
                pair = tirx.reinterpret(_PAIR, self._at(self.pairs, number * LANES + lane))
                product = pair * self._at(self.codes, lane)
                starts = is_first and lane == 0
                statements.append(
                    self._put(self.run_sums, at, product if starts else self._at(self.run_sums, at) + product)
                )
        return statements

    def _add_run(self) -> list[tirx.Stmt]:
        """Add the sums of a run to the totals."""
        statements = []
        for at in range(self.rows * self.data):
            both = [tirx.Shuffle([self._at(self.run_sums, at)], [half]).astype("float32") for half in range(2)]
            added = self._at(self.block_scales, at % self.rows) * (both[0] + both[1])
            statements.append(self._put(self.totals, at, self._at(self.totals, at) + added))
        return statements


def _lanes(first: int) -> tirx.Expr:
    return tirx.Ramp(tirx.const(first, "int32"), tirx.const(1, "int32"), LANES)


def _both(half: int) -> tirx.Expr:
    """Return 16 bits in both halves of a word."""
    return tirx.const(half << _HALF | half, "uint32")
