"""The kernel of a product with a quantized weight for one config, written out as loops and stores.

A work-item sums up `item_data` rows of activations times `item_rows` rows of the weight, over each `group_parts`-th
step along k. A step is `item_chunks` chunks of 128 bits of each row:

    for each step of the work-item:
        words <- chunks of its rows                             16 bytes at a time, neighbours read neighbouring rows
        for each block of the step:
            for each vector of four activations:
                sums += activations * codes;  data sum += activations
            totals += scale * (sums - zero point * data sum)
    totals -> sub-groups -> local memory, added up by the work-items that share them -> output

Work-items of a row in the same sub-group exchange totals by shuffles, if the knob `sub_group` says so.

Codes become floats in one of these ways, for code p of a word:

    shift     float(word >> 4 * p & 15)
    mask      float(word & 15 << 4 * p), times activations divided by 16^p, which is exact
    bytes     float(byte of (word & 0x0f0f0f0f), or of (word >> 4 & 0x0f0f0f0f)), for compilers that convert bytes
    exponent  as_float(word & 15 << 4 * p | exponent of x) - x with x = 2^(23 - 4 * p), whose mantissa counts codes in
              ones: nothing is converted, and a zero point that all weights have is subtracted with x
    pairs     the same in fp16, two codes at a time (`pairs_kernel.py`)
    vectors   shifted, one code of 16 rows at a time (`vector_kernel.py`)

Codes that stand for the numbers of a table are looked up in one of these ways:

    table     in the buffer that holds the table
    local     in a copy of it in local memory
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from romou.base.space import Columns, Config
from romou.compiler.operators.kernels.quantized.norm import Norm
from romou.compiler.operators.kernels.quantized.outputs import Operands, checks
from romou.compiler.operators.kernels.streaming.row_kernel import second_partials
from romou.compiler.operators.kernels.tensor_cores import NO_TENSOR_CORES, WGMMA
from romou.compiler.scheduling.kernel_builder import Array, Index, KernelBuilder, sum_of
from romou.compiler.scheduling.statements import barrier
from romou.compiler.tir.expressions import count_of, is_multiple
from romou.compiler.tir.primitives import FP16_ARITHMETIC, LANES, broadcast_scalars
from romou.devices.backends.dialect import sub_group_shuffle_xor
from tvm_patches.quantized_matrix import QuantizedProduct

_WIDE, _BYTES = "float32", 4
# Bits of the mantissa of fp32, the exponent of one, and shifts of words whose codes would not be in the mantissa.
_MANTISSA, _EXPONENT_OF_ONE, _INTO_MANTISSA = 23, 127, {2: 12, 4: 12, 8: 16}
# Choices of the knob `unpack`.
SHIFT, MASK, BYTES, EXPONENT, PAIRS = "shift", "mask", "bytes", "exponent", "pairs"
VECTORS = "vectors"
TABLE, LOCAL = "table", "local"
TABLES = (TABLE, LOCAL)
# Choices of the knob `zero_point`.
OF_BLOCK, OF_WEIGHT = "block", "weight"
# Work-items of a group up to which one of them adds up the sums of all.
_MOST_IN_ONE_STEP = 16
# On tensor cores: stages in local memory, those in use included, and work-items that share rows of the weight. A warp
# group uses two stages at a time.
_MMA_STAGES, _WGMMA_STAGES, _SHARING = 3, 4, 4


class QuantizedTiles:
    """The tiles of a config. Knobs may be columns of many configs.

    is_mma, is_wgmma: whether warps use tensor cores, and whether four warps do so together. Four work-items then share
        their rows of the weight.
    rows, columns: rows of the weight and of the activations that a group computes.
    threads: work-items of a group.
    inner_parts, parts_left: parts of a sum that a sub-group adds up, and those that then meet in local memory. One is
        left if a sub-group has them all.
    codes: codes of a row in a step.
    segment: codes of a step in the same block.
    staged: activations of a row that a group holds in local memory at a time. 0: they are read from memory.
    steps: steps of a row. A last one that is not whole counts if activations are staged, with zeros beyond the end.
    iterations: steps of a work-item.
    is_paired: whether activations are staged as pairs of fp16 numbers.
    is_vector: whether vectors are rows of the weight.
    is_table_local: whether local memory holds a table of the numbers that codes stand for.
    outputs: sums of a work-item.
    """

    def __init__(self, work: QuantizedProduct, config: Columns, *, is_normalized: bool = False) -> None:
        self.work, self._is_normalized = work, is_normalized
        choice = np.asarray(config.get("tensor_cores", NO_TENSOR_CORES))
        self.is_mma, self.is_wgmma = choice != NO_TENSOR_CORES, choice == WGMMA
        sharing = np.where(self.is_mma, _SHARING, 1)
        self.across, self.parts = config["group_rows"], config["group_parts"]
        self.item_rows, self.item_data = config["item_rows"], config["item_data"]
        self.rows, self.columns = self.across * self.item_rows, self.item_data * sharing
        self.threads, self.staged = self.across * self.parts * sharing, config["staged_data"]
        self.inner_parts = np.maximum(config.get("sub_group", 1) // self.across, 1)
        self.parts_left = np.maximum(self.parts // self.inner_parts, 1)
        unpack = np.asarray(config.get("unpack", SHIFT))
        self.is_paired, self.is_table_local, self.is_vector = unpack == PAIRS, unpack == LOCAL, unpack == VECTORS
        self.codes = np.where(self.is_mma, self.staged // self.parts, work.chunk * config["item_chunks"])
        # In a space with tensor cores, formulas see configs that no constraint has excluded yet.
        self.codes = np.maximum(self.codes, 1)
        self.segment = np.minimum(work.block, self.codes)
        is_staged = self.staged > 0
        steps = np.where(self.is_mma, -(-work.k // self.codes), -(-work.chunks // config["item_chunks"]))
        self.steps = np.where(is_staged, steps, work.k // self.codes)
        self.steps_of_stage = np.where(is_staged, self.staged // self.codes, np.maximum(self.steps, 1))
        self.steps_of_stage = np.maximum(self.steps_of_stage, 1)
        self.stages = -(-self.steps // self.steps_of_stage)
        self.iterations = self.stages * -(-self.steps_of_stage // self.parts)
        self.row_groups, self.data_groups = -(-work.n // self.rows), count_of(work.m, self.columns)
        self.outputs = self.item_rows * self.item_data

    @property
    def groups(self) -> Any:
        """Work groups of the launch."""
        return self.row_groups * self.data_groups

    @property
    def outputs_of_group(self) -> Any:
        """Sums of a group."""
        return self.rows * self.columns

    @property
    def units_of_stage(self) -> tuple[Any, Any, Any, Any]:
        """Units of 16 bytes of a stage on tensor cores: activations, words, scales and zero points.

        Rows of activations are an odd number of units apart, which avoids bank conflicts, or swizzled.
        """
        blocks = np.maximum(self.staged // self.work.block, 1)
        data, words = self.columns * (self.staged // 8 + ~self.is_wgmma), self.staged // self.work.chunk * self.rows
        return data, words, blocks * self.rows // 8, blocks * self.rows // 16 * (self.work.zero != "none")

    @property
    def stage_units(self) -> Any:
        """Units of 16 bytes from one stage to the next. Swizzled activations begin at multiples of 1024 bytes."""
        units = sum(self.units_of_stage)
        return np.where(self.is_wgmma, -(-units // 64) * 64, units)

    @property
    def buffers(self) -> Any:
        """Return the stages that local memory holds on tensor cores."""
        return np.where(self.is_wgmma, _WGMMA_STAGES, _MMA_STAGES)

    @property
    def local_memory_bytes(self) -> Any:
        """Bytes of local memory of a group: what it stages, and the parts of the group's sums.

        On tensor cores, the sums follow when nothing is staged any more.
        """
        fp16 = 2 * self.item_data * self.staged
        staged = np.where(self.is_paired, fp16, 2 * fp16 + _BYTES * self.item_data * (self.staged // self.segment))
        sums = _BYTES * (self.parts_left > 1) * self.threads // self.inner_parts * self.outputs
        table = (_BYTES << self.work.bits) * self.is_table_local
        rows = np.where(self.is_vector, self.work.k, 0)
        norm = _BYTES * self.item_data * (self.threads + self.sums_of_row + 1 + rows) * self._is_normalized
        return np.where(
            self.is_mma, np.maximum(16 * self.buffers * self.stage_units, sums), staged + sums + table + norm
        )

    @property
    def sums_of_row(self) -> Any:
        """Return the sums of a row's terms that are left after the first step, in which work-items add up some each."""
        return np.where(self.threads > _MOST_IN_ONE_STEP, second_partials(self.threads), 0)


@dataclass(frozen=True, kw_only=True)
class QuantizedOperands(Operands):
    """The buffers of a product with a quantized matrix, whose words are the weight.

    norm: the normalization of the activations. `data` is the buffer before it.
    """

    scales: tirx.Buffer
    zeros: tirx.Buffer | None
    table: tirx.Buffer | None
    norm: Norm | None


class QuantizedKernel(KernelBuilder):
    """The kernel of one config.

    has_fp16: whether the device's language has fp16, so that a conversion is a cast.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        work: QuantizedProduct,
        operands: QuantizedOperands,
        config: Config,
        *,
        has_fp16: bool = False,
    ) -> None:
        super().__init__()
        self._has_fp16 = has_fp16
        self.func, self.work, self.operands, self.config = func, work, operands, config
        self.tiles = tiles = QuantizedTiles(work, config, is_normalized=operands.norm is not None)
        self.rows, self.data, self.chunks = (int(config[f"item_{name}"]) for name in ("rows", "data", "chunks"))
        self.across, self.parts, self.threads = int(tiles.across), int(tiles.parts), int(tiles.threads)
        self.sub_group = int(config.get("sub_group", 1))
        self.steps, self.codes_of_step, self.segment = int(tiles.steps), int(tiles.codes), int(tiles.segment)
        self.steps_of_stage, self.staged_size = int(tiles.steps_of_stage), int(config["staged_data"])
        self.data_group = self.axis("blockIdx.y", "data_group", tiles.data_groups)
        self.group = self.axis("blockIdx.x", "group", int(tiles.row_groups))
        self.x, self.part = self.work_items("part", self.across, self.parts, has_sub_groups=self.sub_group > 1)
        # The work-item's number in its group, and the stage whose steps are written.
        self.thread, self.stage = self.part * self.across + self.x, self.constant(0)
        # A table has no zero point.
        self.is_centred = work.has_table or (config["unpack"] == EXPONENT and operands.zeros is None)
        self._declare()
        if operands.norm is not None:
            self._declare_norm()

    def _declare(self) -> None:
        """Declare registers and local memory."""
        is_masked, is_of_block = self.config["unpack"] == MASK, self.config["zero_point"] == OF_BLOCK
        is_corrected = is_of_block and not self.is_centred
        self.words = self.array("words_of_rows", self.chunks, self.rows, LANES, dtype="uint32")
        self.loaded = self.array("data_of_rows", self.data, LANES)
        # Staged activations are scaled when they are staged.
        is_scaled_late = is_masked and not self.staged_size
        self.scaled = self.array("scaled", self.data, LANES) if is_scaled_late else self.loaded
        self.codes = self.array("codes", LANES)
        self.sums = self.array("sums", self.data, self.rows) if is_of_block else None
        self.data_sums = self.array("data_sums", self.data, LANES) if is_corrected else None
        self.corrections = self.array("corrections", self.data) if is_corrected else None
        self.block_scales = self.array("block_scales", self.rows)
        self.block_zeros = self.array("block_zeros", self.rows) if self._has_row_zeros else None
        self.totals = self.array("totals", self.data, self.rows)
        # Where numbers are looked up. None: codes are integers.
        table, codes = self.operands.table, 1 << self.work.bits
        self.table = Array(self, table, [codes]) if table is not None else None
        if self.config["unpack"] == LOCAL:
            self.table = self.array("table_of_codes", codes, scope="shared")
        if self.staged_size:
            self.staged = self.array("staged", self.data, self.staged_size, scope="shared")
            if is_corrected:
                segments = self.staged_size // self.segment
                self.staged_sums = self.array("staged_sums", self.data, segments, scope="shared")

    def _declare_norm(self) -> None:
        """Declare the work-items' sums of terms, and local memory for the sums of all and the factors of rows."""
        left = int(self.tiles.sums_of_row)
        self.terms = self.array("terms", self._lanes_of_terms)
        self.partial_terms = self.array("partial_terms", self.data, self.threads, scope="shared")
        self.left_terms = self.array("left_terms", self.data, left, scope="shared") if left else None
        self.factors = self.array("factors", self.data, scope="shared")
        self.factor = self.array("factor", 1) if self.data == 1 else None

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        fp16 = tirx.const(1, "int32") if self._has_fp16 else None
        # Scales and zero points times vectors of codes.
        with self.mark(FP16_ARITHMETIC, fp16), self.inside(broadcast_scalars):
            if self.operands.norm is not None:
                self._normalize(self.operands.norm)
            self._clear()
            if self.table is not None and self.config["unpack"] == LOCAL:
                with self.spread(1 << self.work.bits, self.thread, self.threads) as code:
                    self.table[code] = self.read(self.operands.table, code)
                self.emit(barrier())
            self._sum_up()
            self._store_totals()
            if self.operands.norm is not None:
                # Both stay live up to here, or StorageRewrite gives their memory to vectors, which it indexes wrongly.
                for sums in (self.partial_terms, self.left_terms):
                    if sums is not None:
                        self.emit(tirx.Evaluate(sums[0, 0]))
        return self.launched(self.func)

    def _clear(self) -> None:
        for number, row in itertools.product(range(self.data), range(self.rows)):
            self.totals[number, row] = 0.0

    # Normalization

    def _normalize(self, norm: Norm) -> None:
        """Compute the factor of each row of activations in local memory, from sums of all work-items."""
        for number in range(self.data):
            self._add_terms(norm, number)
        sums = self.partial_terms
        if self.left_terms is not None:
            left = self.left_terms.flat()
            (count,) = left.shape
            with self.spread(count, self.thread, self.threads) as at:
                left[at] = self._sum_of_row(sums.viewed(count, self.data * self.threads // count), at)
            sums = self.left_terms
        with self.spread(self.data, self.thread, self.threads) as number:
            self.factors[number] = norm.factor_of(self._data_row_to_read(number), self._sum_of_row(sums, number))
        if self.factor is not None:
            self.factor[0] = self.factors[0]

    def _add_terms(self, norm: Norm, number: int) -> None:
        """Add up the terms of the work-item's vectors of a row."""
        k, lanes, index = self.work.k, self._lanes_of_terms, self._data_row_to_read(number)
        is_whole = k % lanes == 0
        self.terms.fill(0.0)
        vectors, kind = self.spread(-(-k // lanes), self.thread, self.threads), "vectorized" if is_whole else "unrolled"
        with vectors as vector, self.lanes(lanes, kind) as lane:
            at = vector * lanes + lane
            term = norm.term_of(index, at)
            self.terms[lane] += term if is_whole else tirx.if_then_else(at < k, term, tirx.const(0.0, _WIDE))
        self.partial_terms[number, self.thread] = sum_of([self.terms[lane] for lane in range(lanes)])

    @property
    def _lanes_of_terms(self) -> int:
        """Numbers of a row that a work-item adds up or normalizes at a time."""
        return LANES

    def _sum_of_row(self, sums: Array, row: tirx.Expr) -> tirx.Expr:
        """Add up vectors of a row of `sums`, and return the sum of their lanes."""
        for first in range(0, sums.shape[1], LANES):
            with self.lanes() as lane:
                value = sums[row, first + lane]
                self.terms[lane] = self.terms[lane] + value if first else value
        return sum_of([self.terms[lane] for lane in range(LANES)])

    def _activation(self, index: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        """Return an activation of row `index`."""
        norm = self.operands.norm
        if norm is None:
            return self.read(self.operands.data, index, place)
        row = index - self.data_group * self.data
        return norm.number_of(index, place, self.factors[row] if self.factor is None else self.factor[0])

    # Sums

    def _sum_up(self) -> None:
        """Add up the work-item's steps: those of each stage, or all of them and what is left of the rows."""
        count, stages = -(-self.steps_of_stage // self.parts), int(self.tiles.stages)
        is_cut = stages * count * self.parts != self.steps
        if self.steps:
            with self.loop("stage", stages) as self.stage:
                if self.staged_size:
                    self._stage_data()
                with self.loop("iteration", count) as iteration:
                    step = self.stage * self.steps_of_stage + iteration * self.parts + self.part
                    with self.when(step < self.steps if is_cut else None):
                        self._add_step(step, is_whole=True)
        if not self.staged_size and self.work.k % self.codes_of_step:
            with self.when(self.part < 1 if self.parts > 1 else None):
                self._add_step(self.constant(self.steps), is_whole=False)

    def _stage_data(self) -> None:
        """Copy activations into local memory, with zeros beyond their ends, and the sum of each segment.

        A work-item copies all activations of a chunk or a segment, whichever is larger.
        """
        unit = max(self.segment, self.work.chunk)
        units = self.staged_size // unit
        with self.spread(self.data * units, self.thread, self.threads) as number:
            row, first = number // units, number % units * unit
            for vector in range(unit // LANES):
                place, factor = first + vector * LANES, self._factor_of(vector % self.work.per_word)
                start = self.stage * self.staged_size + place
                self._load_vector(self._data_row_to_read(row), start, self.loaded, 0)
                if self.data_sums is not None:
                    self._add_vector(self.data_sums, 0, is_first=vector * LANES % self.segment == 0)
                with self.lanes() as lane:
                    self.staged[row, place + lane] = _times(self.loaded[0, lane], factor)
                if self.data_sums is not None and (vector + 1) * LANES % self.segment == 0:
                    self.staged_sums[row, place // self.segment] = self._sum_of_lanes(self.data_sums, 0)

    def _add_step(self, step: tirx.Expr, *, is_whole: bool) -> None:
        """Add one step of the work-item's rows to its totals.

        is_whole: whether the loads of all its activations are inside of the row, or staged.
        """
        work = self.work
        chunks = self.chunks if is_whole else work.chunks - self.steps * self.chunks
        is_cut = is_whole and self.steps * self.chunks > work.chunks
        for chunk in range(chunks):
            place = step * self.chunks + chunk
            place = tirx.min(place, self.constant(work.chunks - 1)) if is_cut and chunk else place
            for row in range(self.rows):
                with self.lanes() as lane:
                    self.words[chunk, row, lane] = self.read(self.operands.weight, place, self._row_to_read(row), lane)
        left = self.codes_of_step if is_whole else work.k - self.steps * self.codes_of_step
        codes = chunks * work.chunk
        for first in range(0, min(codes, left), self.segment):
            start = step * self.codes_of_step + first
            block = start // work.block if work.block < work.k else self.constant(0)
            if is_whole and self.steps * self.codes_of_step > work.blocks * work.block:
                block = tirx.min(block, self.constant(work.blocks - 1))
            self._add_block(start, block, first, min(self.segment, codes - first), is_whole=is_whole)

    def _add_block(self, start: tirx.Expr, block: tirx.Expr, first: int, size: int, *, is_whole: bool) -> None:
        """Add `size` codes of a block, which are the step's codes from `first` on.

        start: place of the first of them along k.
        """
        self._load_scales(block)
        for vector in range(size // LANES):
            chunk, position = divmod(first // LANES + vector, self.work.per_word)
            place = start + vector * LANES
            if self.staged_size:
                self._load_staged(place - self.stage * self.staged_size)
            else:
                self._load_data(place, is_first=vector == 0, is_whole=is_whole)
                self._scale_data(position)
            for row in range(self.rows):
                self._unpack(chunk, row, position)
                self._multiply(row, is_first=vector == 0)
        if self.sums is not None:
            self._scale_sums(self.sums, start)

    def _load_scales(self, block: tirx.Expr) -> None:
        for row in range(self.rows):
            index = self._row_to_read(row)
            self.block_scales[row] = self.read(self.operands.scales, block, index).astype(_WIDE)
            if self.block_zeros is not None:
                self.block_zeros[row] = self._zero_point(block, index)
                if self.sums is None:
                    self.block_zeros[row] = tirx.const(0.0, _WIDE) - self.block_zeros[row] * self.block_scales[row]

    def _zero_point(self, block: tirx.Expr, index: tirx.Expr) -> tirx.Expr:
        """Return the zero point of a block of a row of the weight."""
        zeros = self.operands.zeros
        common = tirx.const(float(self.work.common_zero), _WIDE)
        return common if zeros is None else self.read(zeros, block, index).astype(_WIDE)

    def _load_data(self, place: tirx.Expr, *, is_first: bool, is_whole: bool) -> None:
        """Load a vector of each row of activations, and add it to the sum of the block's activations."""
        for number in range(self.data):
            self._load_vector(self._data_row_to_read(number), place, self.loaded, number, is_whole=is_whole)
            if self.data_sums is not None:
                self._add_vector(self.data_sums, number, is_first=is_first)

    def _load_vector(
        self, index: tirx.Expr, place: tirx.Expr, target: Array, number: int, *, is_whole: bool = False
    ) -> None:
        """Load four activations of row `index`, zeros beyond its end, into row `number` of `target`.

        is_whole: whether the vector is known to be inside of the row.
        """
        k, dtype = self.work.k, str(target.buffer.dtype)
        is_whole = is_whole or (self.staged_size > 0 and k % self.staged_size == 0)
        # CUDA loads vectors only from whole ones.
        has_whole_vectors = k % LANES == 0
        is_inside = None if is_whole or not has_whole_vectors else place < k
        with self.when(is_inside), self.lanes(kind="vectorized" if has_whole_vectors else "unrolled") as lane:
            value = self._activation(index, place + lane).astype(dtype)
            if not is_whole and not has_whole_vectors:
                value = tirx.if_then_else(place + lane < k, value, tirx.const(0.0, dtype))
            target[number, lane] = value
        if is_inside is not None:
            with self.otherwise(), self.lanes() as lane:
                target[number, lane] = 0.0

    def _add_vector(self, sums: Array, number: int, *, is_first: bool) -> None:
        """Add loaded activations to their sums."""
        with self.lanes() as lane:
            value = self.loaded[number, lane]
            sums[number, lane] = value if is_first else sums[number, lane] + value

    def _sum_of_lanes(self, sums: Array, number: int) -> tirx.Expr:
        """Return the sum of a vector of sums of activations, times the zero point if all weights have the same."""
        total = sum_of([sums[number, lane] for lane in range(LANES)])
        return total if self._has_row_zeros else total * tirx.const(float(self.work.common_zero), _WIDE)

    def _load_staged(self, place: tirx.Expr) -> None:
        for number in range(self.data):
            with self.lanes() as lane:
                self.loaded[number, lane] = self.staged[number, place + lane]

    def _scale_data(self, position: int) -> None:
        """Scale loaded activations for masked codes of a position."""
        if self.scaled is not self.loaded:
            for number, lane in self.lanes_of(self.scaled):
                self.scaled[number, lane] = _times(self.loaded[number, lane], self._factor_of(position))

    def _factor_of(self, position: int) -> float:
        """Return the factor of activations for codes of a position: its reciprocal place value if they are masked.

        The last code of a word is shifted instead.
        """
        is_last = position == self.work.per_word - 1
        return 1.0 if self.config["unpack"] != MASK or is_last else 2.0 ** -(position * self.work.bits)

    def _unpack(self, chunk: int, row: int, position: int) -> None:
        """Make floats of code `position` of the four words of a row's chunk."""
        # Each lane looks up another place.
        with self.lanes(kind="unrolled" if self.work.has_table else "vectorized") as lane:
            value = self._number(self.words[chunk, row, lane], position)
            if self.sums is None:
                value = value * self.block_scales[row]
                value = value if self.block_zeros is None else value + self.block_zeros[row]
            self.codes[lane] = value

    def _number(self, word: tirx.Expr, position: int) -> tirx.Expr:
        """Return code `position` of a word as a float: times its place value if it is masked, centred if it can be."""
        bits, choice, bit = self.work.bits, self.config["unpack"], position * self.work.bits
        is_last, mask = position == self.work.per_word - 1, (1 << bits) - 1

        def constant(value: int) -> tirx.Expr:
            return tirx.const(value, "uint32")

        if choice == EXPONENT:
            shift = _INTO_MANTISSA[bits] if bit + bits > _MANTISSA else 0
            word, exponent = word >> constant(shift) if shift else word, _MANTISSA - bit + shift
            code = word & constant(mask << bit - shift) | constant(_EXPONENT_OF_ONE + exponent << _MANTISSA)
            zero = self.work.common_zero if self.is_centred else 0
            return tirx.reinterpret(_WIDE, code) - tirx.const(float((1 << exponent) + zero), _WIDE)
        if choice == MASK and not is_last:
            code = word & constant(mask << bit)
        elif choice == BYTES and bits < 8:
            per_byte = 8 // bits
            group, byte = position % per_byte, position // per_byte
            spread = sum(mask << 8 * at for at in range(4))
            word = word >> constant(group * bits) if group else word
            code = _byte(word & constant(spread), byte)
        elif choice == BYTES:
            code = _byte(word, position)
        else:
            code = word >> constant(bit) if position else word
            code = code if is_last else code & constant(mask)
        number = code.astype("int32")
        return number.astype(_WIDE) if self.table is None else self.table[number]

    def _multiply(self, row: int, *, is_first: bool) -> None:
        """Add the products of the activations with four codes of a row."""
        target = self.totals if self.sums is None else self.sums
        for number, lane in itertools.product(range(self.data), range(LANES)):
            product = self.scaled[number, lane] * self.codes[lane]
            starts = is_first and lane == 0 and self.sums is not None
            target[number, row] = product if starts else target[number, row] + product

    def _scale_sums(self, sums: Array, start: tirx.Expr) -> None:
        """Add the sums of a block to the totals: scale * (sums - zero point * sum of the activations)."""
        for number in range(self.data):
            if self.corrections is not None:
                self.corrections[number] = self._data_sum_of_block(start, number)
            for row in range(self.rows):
                total = sums[number, row]
                if self.corrections is not None:
                    correction = self.corrections[number]
                    total = total - (correction if self.block_zeros is None else correction * self.block_zeros[row])
                self.totals[number, row] += self.block_scales[row] * total

    def _data_sum_of_block(self, start: tirx.Expr, number: int) -> tirx.Expr:
        """Return the sum of a block of row `number` of the activations."""
        if self.staged_size:
            return self.staged_sums[number, (start - self.stage * self.staged_size) // self.segment]
        assert self.data_sums is not None, "only then they are summed up"
        return self._sum_of_lanes(self.data_sums, number)

    # Places

    def _row(self, number: Index) -> tirx.Expr:
        """Return a work-item's `number`-th row of the weight. Neighbouring work-items have neighbouring rows."""
        return (self.group * self.rows + number) * self.across + self.x

    def _row_to_read(self, number: Index) -> tirx.Expr:
        row = self._row(number)
        return row if self.work.n % self.tiles.rows == 0 else tirx.min(row, self.constant(self.work.n - 1))

    def _data_row(self, number: Index) -> tirx.Expr:
        return self.data_group * self.data + number

    def _data_row_to_read(self, number: Index) -> tirx.Expr:
        row = self._data_row(number)
        return row if is_multiple(self.work.m, self.data) else tirx.min(row, self.constant(self.work.m - 1))

    @property
    def _has_row_zeros(self) -> bool:
        is_of_weight = self.config["zero_point"] == OF_WEIGHT and not self.is_centred
        return self.operands.zeros is not None or is_of_weight

    # Results

    def _store_totals(self) -> None:
        """Store the totals. Work-items that share them add up some each."""
        totals, parts = self.totals.flat(), self.parts
        if parts == 1:
            for number, row in itertools.product(range(self.data), range(self.rows)):
                self._store(number, row, self.totals[number, row])
            return
        (count,), inner, left = totals.shape, int(self.tiles.inner_parts), int(self.tiles.parts_left)
        if self.sub_group > 1:
            distances = [
                self.across << doubling for doubling in range((self.sub_group // self.across).bit_length() - 1)
            ]
            shuffle = functools.partial(sub_group_shuffle_xor, size=self.sub_group)
            self.exchange(totals, range(count), distances, tirx.Add, shuffle)
        if left > 1:
            partial = self.array("partial", count, left, self.across, scope="shared")
            for first, at in self.share(count, self.part % inner, inner):
                partial[at, self.part // inner, self.x] = _chosen(totals, first, self.part % inner, inner)
            sums = self.sums_of_parts(partial, [self.x], self.part, parts)
        else:
            sums = self.totals_of(
                count, self.part, parts, lambda first, _: _chosen(totals, first, self.part, parts), _WIDE
            )
        for at, total in sums:
            self._store(at // self.rows, at % self.rows, total)

    def _store(self, number: Index, row: Index, total: tirx.Expr) -> None:
        """Store an element of the output, if the output has it."""
        place = [self._data_row(number), self._row(row)]
        with self.when(*checks(place, (self.work.m, self.work.n), (self.data, int(self.tiles.rows)))):
            self.emit(self.operands.stored(place, total))


def _chosen(totals: Array, first: int, which: tirx.Expr, count: int) -> tirx.Expr:
    """Return total `first + which` of the next `count`. Registers have no index that is known at run time only."""
    total = totals[first]
    for other in range(1, min(count, totals.shape[0] - first)):
        total = tirx.Select(tirx.EQ(which, tirx.const(other, "int32")), totals[first + other], total)
    return total


def _times(value: tirx.Expr, factor: float) -> tirx.Expr:
    return value if factor == 1.0 else value * tirx.const(factor, _WIDE)


def _byte(word: tirx.Expr, number: int) -> tirx.Expr:
    shifted = word >> tirx.const(8 * number, "uint32") if number else word
    return shifted if number == 3 else shifted & tirx.const(255, "uint32")
