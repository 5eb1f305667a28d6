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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from romou.base.space import Columns, Config
from romou.compiler.operators.quantized.norm import Norm
from romou.compiler.operators.quantized.outputs import if_inside, stored
from romou.compiler.operators.streaming.row_kernel import second_partials
from romou.compiler.operators.tensor_cores import NO_TENSOR_CORES, WGMMA
from romou.compiler.scheduling.blocks import substitute
from romou.compiler.scheduling.kernel_writer import KernelWriter
from romou.compiler.scheduling.statements import barrier, guarded, launch, loop
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


class Tiles:
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
        self.inner_parts = np.maximum(np.asarray(config.get("sub_group", 1)) // self.across, 1)
        self.parts_left = np.maximum(self.parts // self.inner_parts, 1)
        unpack = np.asarray(config.get("unpack", SHIFT))
        self.is_paired, self.is_table_local, self.is_vector = unpack == PAIRS, unpack == LOCAL, unpack == VECTORS
        self.codes = np.where(self.is_mma, self.staged // self.parts, work.chunk * config["item_chunks"])
        # In a space with tensor cores, formulas see configs that no constraint has excluded yet.
        self.codes = np.maximum(self.codes, 1)
        self.segment = np.minimum(work.block, self.codes)
        is_staged = np.asarray(self.staged) > 0
        steps = np.where(self.is_mma, -(-work.k // self.codes), -(-work.chunks // config["item_chunks"]))
        self.steps = np.where(is_staged, steps, work.k // self.codes)
        self.steps_of_stage = np.where(is_staged, self.staged // self.codes, np.maximum(self.steps, 1))
        self.steps_of_stage = np.maximum(self.steps_of_stage, 1)
        self.stages = -(-self.steps // self.steps_of_stage)
        self.iterations = self.stages * -(-self.steps_of_stage // self.parts)
        self.row_groups, self.data_groups = -(-work.n // self.rows), -(-work.m // self.columns)
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
        return np.where(np.asarray(self.threads) > _MOST_IN_ONE_STEP, second_partials(self.threads), 0)


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The buffers of a product, and the block that makes the output of its result.

    product: the buffer of the sums, which the epilogue loads at its own place.
    epilogue: None if the sums are the output.
    norm: the normalization of the activations. `data` is the buffer before it.
    """

    data: tirx.Buffer
    words: tirx.Buffer
    scales: tirx.Buffer
    zeros: tirx.Buffer | None
    product: tirx.Buffer
    epilogue: s_tir.SBlock | None
    table: tirx.Buffer | None = None
    norm: Norm | None = None


class QuantizedKernel(KernelWriter):
    """The writer of one config's kernel, step by step.

    has_fp16: whether the device's language has fp16, so that a conversion is a cast.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        work: QuantizedProduct,
        operands: Operands,
        config: Config,
        *,
        has_fp16: bool = False,
    ) -> None:
        self._has_fp16 = has_fp16
        self.func, self.work, self.operands, self.config = func, work, operands, config
        self.tiles = tiles = Tiles(work, config, is_normalized=operands.norm is not None)
        self.rows, self.data, self.chunks = (int(config[f"item_{name}"]) for name in ("rows", "data", "chunks"))
        self.group, self.data_group, self.x, self.part, self.stage, self.iteration = (
            tirx.Var(name, "int32") for name in ("group", "data_group", "x", "part", "stage", "iteration")
        )
        self.sub_group = int(config.get("sub_group", 1))
        self.steps, self.codes_of_step, self.segment = int(tiles.steps), int(tiles.codes), int(tiles.segment)
        self.steps_of_stage, self.staged_size = int(tiles.steps_of_stage), int(config["staged_data"])
        # A table has no zero point.
        self.is_centred = work.has_table or (config["unpack"] == EXPONENT and operands.zeros is None)
        # Where numbers are looked up. None: codes are integers.
        self.table = operands.table
        super().__init__()
        self._declare()
        if operands.norm is not None:
            self._declare_norm()

    def _declare(self) -> None:
        """Declare registers and local memory."""
        is_masked, is_of_block = self.config["unpack"] == MASK, self.config["zero_point"] == OF_BLOCK
        is_corrected = is_of_block and not self.is_centred
        outputs = self.rows * self.data
        self.words = self._buffer("words_of_rows", self.chunks * self.rows * LANES, "uint32")
        self.loaded = self._buffer("data_of_rows", self.data * LANES)
        # Staged activations are scaled when they are staged.
        is_scaled_late = is_masked and not self.staged_size
        self.scaled = self._buffer("scaled", self.data * LANES) if is_scaled_late else self.loaded
        self.codes = self._buffer("codes", LANES)
        self.sums = self._buffer("sums", outputs) if is_of_block else None
        self.data_sums = self._buffer("data_sums", self.data * LANES) if is_corrected else None
        self.corrections = self._buffer("corrections", self.data) if is_corrected else None
        self.block_scales = self._buffer("block_scales", self.rows)
        self.block_zeros = self._buffer("block_zeros", self.rows) if self._has_row_zeros else None
        self.totals = self._buffer("totals", outputs)
        if self.config["unpack"] == LOCAL:
            self.table = self._buffer("table_of_codes", 1 << self.work.bits, scope="shared")
        if self.staged_size:
            self.segments = self.staged_size // self.segment
            self.staged = self._buffer("staged", self.data * self.staged_size, scope="shared")
            if is_corrected:
                self.staged_sums = self._buffer("staged_sums", self.data * self.segments, scope="shared")

    def _declare_norm(self) -> None:
        """Declare the work-items' sums of terms, and local memory for the sums of all and the factors of rows."""
        threads, left = int(self.tiles.threads), int(self.tiles.sums_of_row)
        self.terms = self._buffer("terms", self._lanes_of_terms)
        self.partial_terms, self.left_terms, self.factors = (
            self._buffer(name, self.data * size, scope="shared") if size else None
            for name, size in (("partial_terms", threads), ("left_terms", left), ("factors", 1))
        )
        self.factor = self._buffer("factor", 1) if self.data == 1 else None

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        tiles, parts = self.tiles, int(self.tiles.parts)
        statements = [*self._normalize(), *self._clear(), *self._load_table()]
        statements += self._sum_up()
        statements += self._outputs()
        if self.operands.norm is not None:
            # Both stay live up to here. Else StorageRewrite gives their memory to vectors, which it indexes wrongly.
            statements += [
                tirx.Evaluate(self._at(sums, 0)) for sums in (self.partial_terms, self.left_terms) if sums is not None
            ]
        threads = {
            "blockIdx.y": (self.data_group, int(tiles.data_groups)),
            "blockIdx.x": (self.group, int(tiles.row_groups)),
            "threadIdx.y": (self.part, parts),
            "threadIdx.x": (self.x, int(tiles.across)),
        }
        body: tirx.Stmt = tirx.SeqStmt(statements)
        if self.sub_group > 1:
            # Sub-groups are formed along x first, and on some drivers along no other axis.
            item, across = tirx.Var("item", "int32"), int(tiles.across)
            body = substitute(body, {self.x: item % across, self.part: item // across})
            threads |= {"threadIdx.y": (self.part, 1), "threadIdx.x": (item, int(tiles.threads))}
        for name in ("blockIdx.y", "threadIdx.y"):
            var, extent = threads[name]
            if extent == 1:
                body = substitute(body, {var: tirx.const(0, "int32")})
                del threads[name]
        # Scales and zero points times vectors of codes.
        body = broadcast_scalars(body)
        if self._has_fp16:
            body = tirx.AttrStmt(tirx.const(0, "int32"), FP16_ARITHMETIC, tirx.const(1, "int32"), body)
        return launch(self.func, threads, body, self.buffers)["main"]

    def _clear(self) -> list[tirx.Stmt]:
        return [self._put(self.totals, at, tirx.const(0.0, _WIDE)) for at in range(self.rows * self.data)]

    def _load_table(self) -> list[tirx.Stmt]:
        """Copy the table to local memory, if it is looked up there."""
        if self.config["unpack"] != LOCAL:
            return []

        def copy(number: tirx.Expr) -> tirx.Stmt:
            return self._put(self.table, number, self._at(self.operands.table, number))

        return [self._for_each(1 << self.work.bits, copy), barrier()]

    # Normalization

    def _normalize(self) -> list[tirx.Stmt]:
        """Compute the factor of each row of activations in local memory, from sums of all work-items."""
        norm = self.operands.norm
        if norm is None:
            return []
        threads, left = int(self.tiles.threads), int(self.tiles.sums_of_row)

        def put_left(at: tirx.Expr) -> tirx.Stmt:
            count = threads // left
            statements, total = self._sum_of_neighbours(self.partial_terms, at * count, count)
            return tirx.SeqStmt([*statements, self._put(self.left_terms, at, total)])

        def put_factor(number: tirx.Expr) -> tirx.Stmt:
            sums, count = (self.left_terms, left) if left else (self.partial_terms, threads)
            statements, total = self._sum_of_neighbours(sums, number * count, count)
            factor = norm.factor_of(self._data_row_to_read(number), total)
            return tirx.SeqStmt([*statements, self._put(self.factors, number, factor)])

        steps = [stmt for number in range(self.data) for stmt in self._add_terms(norm, number)]
        steps += [self._for_each(self.data * left, put_left)] if left else []
        steps.append(self._for_each(self.data, put_factor))
        if self.factor is not None:
            steps.append(self._put(self.factor, 0, self._at(self.factors, 0)))
        return steps

    def _add_terms(self, norm: Norm, number: int) -> list[tirx.Stmt]:
        """Add up the terms of the work-item's vectors of a row."""
        k, lanes, index = self.work.k, self._lanes_of_terms, self._data_row_to_read(number)
        is_whole = k % lanes == 0

        def clear(lane: tirx.Expr) -> tirx.Stmt:
            return self._put(self.terms, lane, tirx.const(0.0, _WIDE))

        def add(lane: tirx.Var, first: tirx.Expr) -> tirx.Stmt:
            term = norm.term_of(index, first + lane)
            term = term if is_whole else tirx.if_then_else(first + lane < k, term, tirx.const(0.0, _WIDE))
            return self._put(self.terms, lane, self._at(self.terms, lane) + term)

        def add_vector(vector: tirx.Expr) -> tirx.Stmt:
            kind = "vectorized" if is_whole else "unrolled"
            return self._in_lanes(functools.partial(add, first=vector * lanes), lanes, kind)

        place = self._thread + number * int(self.tiles.threads)
        return [
            self._in_lanes(clear, lanes),
            self._for_each(-(-k // lanes), add_vector),
            self._put(self.partial_terms, place, self._sum_of_terms(lanes)),
        ]

    @property
    def _lanes_of_terms(self) -> int:
        """Numbers of a row that a work-item adds up or normalizes at a time."""
        return LANES

    def _sum_of_terms(self, lanes: int) -> tirx.Expr:
        return _sum_of([self._at(self.terms, lane) for lane in range(lanes)])

    def _sum_of_neighbours(
        self, buffer: tirx.Buffer, first: tirx.Expr, count: int
    ) -> tuple[list[tirx.Stmt], tirx.Expr]:
        """Return statements that add up vectors of `count` neighbours, and the sum of their lanes."""

        def add(lane: tirx.Var, at: int) -> tirx.Stmt:
            value = self._at(buffer, first + at + lane)
            return self._put(self.terms, lane, self._at(self.terms, lane) + value if at else value)

        vectors = [self._in_lanes(functools.partial(add, at=at)) for at in range(0, count, LANES)]
        return vectors, self._sum_of_terms(LANES)

    def _for_each(self, count: int, stmt: Callable[[tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Return a loop in which the work-items of the group share `count` places."""
        turn, threads = tirx.Var("turn", "int32"), int(self.tiles.threads)
        at = turn * threads + self._thread
        return loop(turn, -(-count // threads), guarded(at < count if count % threads else None, stmt(at)))

    def _activation(self, index: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        """Return an activation of row `index`."""
        norm = self.operands.norm
        if norm is None:
            return self._at(self.operands.data, index, place)
        row = index - self.data_group * self.data
        factor = self._at(self.factors, row) if self.factor is None else self._at(self.factor, 0)
        return norm.number_of(index, place, factor)

    def _sum_up(self) -> list[tirx.Stmt]:
        """Add up the work-item's steps: those of each stage, or all of them and what is left of the rows."""
        parts, statements = int(self.tiles.parts), list[tirx.Stmt]()
        count = -(-self.steps_of_stage // parts)
        step = self.stage * self.steps_of_stage + self.iteration * parts + self.part
        stages = int(self.tiles.stages)
        is_cut = stages * count * parts != self.steps
        if self.steps:
            one = guarded(step < self.steps if is_cut else None, self._step(step, is_whole=True))
            each = loop(self.iteration, count, one)
            each = tirx.SeqStmt([self._stage_data(), each]) if self.staged_size else each
            statements.append(loop(self.stage, stages, each))
        if not self.staged_size and self.work.k % self.codes_of_step:
            last = self._step(tirx.const(self.steps, "int32"), is_whole=False)
            statements.append(guarded(self.part < 1 if parts > 1 else None, last))
        return statements

    def _stage_data(self) -> tirx.Stmt:
        """Copy activations into local memory, with zeros beyond their ends, and the sum of each segment.

        A work-item copies all activations of a chunk or a segment, whichever is larger.
        """
        unit = max(self.segment, self.work.chunk)
        units = self.staged_size // unit

        def copy(number: tirx.Expr) -> tirx.Stmt:
            row, at = number // units, number % units * unit
            steps: list[tirx.Stmt] = []
            index = self._data_row_to_read(row)
            for vector in range(unit // LANES):
                start = self.stage * self.staged_size + at + vector * LANES
                steps.append(self._load_vector(index, start, self.loaded, 0))
                if self.data_sums is not None:
                    steps.append(self._add_vector(0, is_first=vector * LANES % self.segment == 0))
                target = row * self.staged_size + at + vector * LANES
                steps.append(self._put_staged(target, self._factor_of(vector % self.work.per_word)))
                if self.data_sums is not None and (vector + 1) * LANES % self.segment == 0:
                    segment = row * self.segments + (at + vector * LANES) // self.segment
                    steps.append(self._put(self.staged_sums, segment, self._sum_of_lanes(0)))
            return tirx.SeqStmt(steps)

        return self._for_each(self.data * units, copy)

    def _put_staged(self, target: tirx.Expr, factor: float) -> tirx.Stmt:
        return self._in_lanes(
            lambda lane: self._put(self.staged, target + lane, _times(self._at(self.loaded, lane), factor))
        )

    # Places

    @property
    def _thread(self) -> tirx.Expr:
        """The work-item's number in its group."""
        return self.part * int(self.tiles.across) + self.x

    def _row(self, number: int | tirx.Expr) -> tirx.Expr:
        """Return a work-item's `number`-th row of the weight. Neighbouring work-items have neighbouring rows."""
        return (self.group * self.rows + number) * int(self.tiles.across) + self.x

    def _row_to_read(self, number: int) -> tirx.Expr:
        row = self._row(number)
        is_whole = self.work.n % self.tiles.rows == 0
        return row if is_whole else tirx.min(row, tirx.const(self.work.n - 1, "int32"))

    def _data_row(self, number: int | tirx.Expr) -> tirx.Expr:
        return self.data_group * self.data + number

    def _data_row_to_read(self, number: int | tirx.Expr) -> tirx.Expr:
        row = self._data_row(number)
        return row if self.work.m % self.data == 0 else tirx.min(row, tirx.const(self.work.m - 1, "int32"))

    # Statements

    @property
    def _has_row_zeros(self) -> bool:
        is_of_weight = self.config["zero_point"] == OF_WEIGHT and not self.is_centred
        return self.operands.zeros is not None or is_of_weight

    def _step(self, step: tirx.Expr, *, is_whole: bool) -> tirx.Stmt:
        """Add one step of the work-item's rows to its totals.

        is_whole: whether the loads of all its activations are inside of the row, or staged.
        """
        work, statements = self.work, list[tirx.Stmt]()
        chunks = self.chunks if is_whole else work.chunks - self.steps * self.chunks
        is_cut = is_whole and self.steps * self.chunks > work.chunks
        for chunk in range(chunks):
            place = step * self.chunks + chunk
            place = tirx.min(place, tirx.const(work.chunks - 1, "int32")) if is_cut and chunk else place
            for row in range(self.rows):
                statements.append(self._load_words(place, row, (chunk * self.rows + row) * LANES))
        left = self.codes_of_step if is_whole else work.k - self.steps * self.codes_of_step
        codes = chunks * work.chunk
        for first in range(0, min(codes, left), self.segment):
            start = step * self.codes_of_step + first
            block = start // work.block if work.block < work.k else tirx.const(0, "int32")
            if is_whole and self.steps * self.codes_of_step > work.blocks * work.block:
                block = tirx.min(block, tirx.const(work.blocks - 1, "int32"))
            size = min(self.segment, codes - first)
            statements += self._block(start, block, first, size, is_whole=is_whole)
        return tirx.SeqStmt(statements)

    def _load_words(self, chunk: tirx.Expr, row: int, at: int) -> tirx.Stmt:
        index = self._row_to_read(row)
        return self._in_lanes(
            lambda lane: self._put(self.words, at + lane, self._at(self.operands.words, chunk, index, lane))
        )

    def _block(self, start: tirx.Expr, block: tirx.Expr, first: int, size: int, *, is_whole: bool) -> list[tirx.Stmt]:
        """Add `size` codes of a block, which are the step's codes from `first` on.

        start: place of the first of them along k.
        """
        statements = self._load_scales(block)
        for vector in range(size // LANES):
            chunk, position = divmod(first // LANES + vector, self.work.per_word)
            place = start + vector * LANES
            if self.staged_size:
                statements += self._load_staged(place - self.stage * self.staged_size)
            else:
                statements += self._load_data(place, is_first=vector == 0, is_whole=is_whole)
                statements += self._scale_data(position)
            for row in range(self.rows):
                statements.append(self._unpack(chunk, row, position))
                statements += self._multiply(row, is_first=vector == 0)
        return statements if self.sums is None else [*statements, *self._add_block(start)]

    def _load_scales(self, block: tirx.Expr) -> list[tirx.Stmt]:
        statements = []
        for row in range(self.rows):
            index = self._row_to_read(row)
            scale = self._at(self.operands.scales, block, index).astype(_WIDE)
            statements.append(self._put(self.block_scales, row, scale))
            if self.block_zeros is not None:
                zeros = self.operands.zeros
                common = tirx.const(float(self.work.common_zero), _WIDE)
                zero = common if zeros is None else self._at(zeros, block, index).astype(_WIDE)
                statements.append(self._put(self.block_zeros, row, zero))
                if self.sums is None:
                    product = self._at(self.block_zeros, row) * self._at(self.block_scales, row)
                    statements.append(self._put(self.block_zeros, row, tirx.const(0.0, _WIDE) - product))
        return statements

    def _load_data(self, place: tirx.Expr, *, is_first: bool, is_whole: bool) -> list[tirx.Stmt]:
        """Load a vector of each row of activations, and add it to the sum of the block's activations."""
        statements = []
        for number in range(self.data):
            index = self._data_row_to_read(number)
            statements.append(self._load_vector(index, place, self.loaded, number * LANES, is_whole=is_whole))
            if self.data_sums is not None:
                statements.append(self._add_vector(number * LANES, is_first=is_first))
        return statements

    def _load_vector(
        self, index: tirx.Expr, place: tirx.Expr, target: tirx.Buffer, at: int, *, is_whole: bool = False
    ) -> tirx.Stmt:
        """Load four activations of row `index`, zeros beyond its end.

        is_whole: whether the vector is known to be inside of the row.
        """
        k, dtype = self.work.k, str(target.dtype)
        is_whole = is_whole or (self.staged_size > 0 and k % self.staged_size == 0)
        # CUDA loads vectors only from whole ones.
        kind = "vectorized" if k % LANES == 0 else "unrolled"

        def load(lane: tirx.Var) -> tirx.Stmt:
            position = place + lane
            value = self._activation(index, position).astype(dtype)
            if not is_whole and kind == "unrolled":
                value = tirx.if_then_else(position < k, value, tirx.const(0.0, dtype))
            return self._put(target, at + lane, value)

        vector = self._in_lanes(load, kind=kind)
        if is_whole or kind == "unrolled":
            return vector
        zeros = self._in_lanes(lambda lane: self._put(target, at + lane, tirx.const(0.0, dtype)))
        return tirx.IfThenElse(place < k, vector, zeros)

    def _add_vector(self, at: int, *, is_first: bool) -> tirx.Stmt:
        """Add loaded activations to their sums."""
        sums = self.data_sums
        assert sums is not None, "only then they are summed up"

        def add(lane: tirx.Var) -> tirx.Stmt:
            value = self._at(self.loaded, at + lane)
            return self._put(sums, at + lane, value if is_first else self._at(sums, at + lane) + value)

        return self._in_lanes(add)

    def _sum_of_lanes(self, at: int) -> tirx.Expr:
        """Return the sum of a vector of sums of activations, times the zero point if all weights have the same."""
        assert self.data_sums is not None, "only then they are summed up"
        total = _sum_of([self._at(self.data_sums, at + lane) for lane in range(LANES)])
        return total if self._has_row_zeros else total * tirx.const(float(self.work.common_zero), _WIDE)

    def _load_staged(self, place: tirx.Expr) -> list[tirx.Stmt]:
        def load(lane: tirx.Var, number: int) -> tirx.Stmt:
            value = self._at(self.staged, number * self.staged_size + place + lane)
            return self._put(self.loaded, number * LANES + lane, value)

        return [self._in_lanes(functools.partial(load, number=number)) for number in range(self.data)]

    def _scale_data(self, position: int) -> list[tirx.Stmt]:
        """Scale loaded activations for masked codes of a position."""
        if self.scaled is self.loaded:
            return []
        factor = self._factor_of(position)

        def scale(lane: tirx.Var, first: int) -> tirx.Stmt:
            return self._put(self.scaled, first + lane, _times(self._at(self.loaded, first + lane), factor))

        return [self._in_lanes(functools.partial(scale, first=number * LANES)) for number in range(self.data)]

    def _factor_of(self, position: int) -> float:
        """Return the factor of activations for codes of a position: its reciprocal place value if they are masked.

        The last code of a word is shifted instead.
        """
        is_last = position == self.work.per_word - 1
        return 1.0 if self.config["unpack"] != MASK or is_last else 2.0 ** -(position * self.work.bits)

    def _unpack(self, chunk: int, row: int, position: int) -> tirx.Stmt:
        """Make floats of code `position` of the four words of a row's chunk."""
        at = (chunk * self.rows + row) * LANES

        def unpack(lane: tirx.Var) -> tirx.Stmt:
            value = self._number(self._at(self.words, at + lane), position)
            if self.sums is None:
                value = value * self._at(self.block_scales, row)
                value = value if self.block_zeros is None else value + self._at(self.block_zeros, row)
            return self._put(self.codes, lane, value)

        # Each lane looks up another place.
        return self._in_lanes(unpack, kind="unrolled" if self.work.has_table else "vectorized")

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
        return number.astype(_WIDE) if self.table is None else self._at(self.table, number)

    def _multiply(self, row: int, *, is_first: bool) -> list[tirx.Stmt]:
        """Add the products of the activations with four codes of a row."""
        target = self.totals if self.sums is None else self.sums
        statements = []
        for number in range(self.data):
            for lane in range(LANES):
                at = number * self.rows + row
                product = self._at(self.scaled, number * LANES + lane) * self._at(self.codes, lane)
                starts = is_first and lane == 0 and self.sums is not None
                statements.append(self._put(target, at, product if starts else self._at(target, at) + product))
        return statements

    def _add_block(self, start: tirx.Expr) -> list[tirx.Stmt]:
        """Add the sums of a block to the totals: scale * (sums - zero point * sum of the activations)."""
        assert self.sums is not None, "only then scales are applied to a block"
        statements: list[tirx.Stmt] = []
        for number in range(self.data):
            if self.corrections is not None:
                statements.append(self._put(self.corrections, number, self._data_sum_of_block(start, number)))
            for row in range(self.rows):
                at = number * self.rows + row
                total = self._at(self.sums, at)
                if self.corrections is not None:
                    correction = self._at(self.corrections, number)
                    total = total - (
                        correction if self.block_zeros is None else correction * self._at(self.block_zeros, row)
                    )
                added = self._at(self.block_scales, row) * total
                statements.append(self._put(self.totals, at, self._at(self.totals, at) + added))
        return statements

    def _data_sum_of_block(self, start: tirx.Expr, number: int) -> tirx.Expr:
        """Return the sum of a block of row `number` of the activations."""
        if not self.staged_size:
            return self._sum_of_lanes(number * LANES)
        segment = (start - self.stage * self.staged_size) // self.segment
        return self._at(self.staged_sums, number * self.segments + segment)

    # Results

    def _outputs(self) -> list[tirx.Stmt]:
        """Store the totals. Work-items that share them add up some each."""
        tiles, parts, outputs = self.tiles, int(self.tiles.parts), self.rows * self.data
        if parts == 1:
            return [
                self._store(number, row, self._at(self.totals, number * self.rows + row))
                for number in range(self.data)
                for row in range(self.rows)
            ]
        inner, left, across = int(tiles.inner_parts), int(tiles.parts_left), int(tiles.across)
        statements, partial = self._add_in_sub_group(), None
        if left > 1:
            partial = self._buffer("partial", left * across * outputs, scope="shared")
            for first in range(0, outputs, inner):
                which, at = self.part % inner, self.part % inner + first
                place = (at * left + self.part // inner) * across + self.x
                put = self._put(partial, place, self._chosen_total(first, which, inner))
                statements.append(guarded(at < outputs if first + inner > outputs else None, put))
        shared = self._buffer("shared_total", 1)
        for first in range(0, outputs, parts):
            at = self.part + first
            if partial is None:
                total = self._chosen_total(first, self.part, parts)
            else:
                total = _sum_of([self._at(partial, (at * left + part) * across + self.x) for part in range(left)])
            store = self._store(at // self.rows, at % self.rows, self._at(shared, 0))
            body = tirx.SeqStmt([self._put(shared, 0, total), store])
            statements.append(guarded(at < outputs if first + parts > outputs else None, body))
        return statements

    def _add_in_sub_group(self) -> list[tirx.Stmt]:
        """Add up the totals of a row's work-items in the same sub-group. Each of them gets the sums.

        Every shuffle is its own statement: passes duplicate operands, and all work-items must reach it.
        """
        if self.sub_group == 1:
            return []
        received, statements = self._buffer("received", 1), list[tirx.Stmt]()
        distance = int(self.tiles.across)
        while distance < self.sub_group:
            for at in range(self.rows * self.data):
                total = self._at(self.totals, at)
                statements.append(self._put(received, 0, sub_group_shuffle_xor(total, distance, self.sub_group)))
                statements.append(self._put(self.totals, at, total + self._at(received, 0)))
            distance *= 2
        return statements

    def _chosen_total(self, first: int, which: tirx.Expr, count: int) -> tirx.Expr:
        """Return total `first + which` of the next `count`. Registers have no index that is known at run time only."""
        total = self._at(self.totals, first)
        for other in range(1, min(count, self.rows * self.data - first)):
            total = tirx.Select(tirx.EQ(which, tirx.const(other, "int32")), self._at(self.totals, first + other), total)
        return total

    def _store(self, number: int | tirx.Expr, row: int | tirx.Expr, total: tirx.Expr) -> tirx.Stmt:
        """Store an element of the output, if the output has it."""
        place = [self._data_row(number), self._row(row)]
        body = stored(self.operands.product, self.operands.epilogue, place, total)
        return if_inside(place, (self.work.m, self.work.n), (self.data, int(self.tiles.rows)), body)


def _times(value: tirx.Expr, factor: float) -> tirx.Expr:
    return value if factor == 1.0 else value * tirx.const(factor, _WIDE)


def _byte(word: tirx.Expr, number: int) -> tirx.Expr:
    shifted = word >> tirx.const(8 * number, "uint32") if number else word
    return shifted if number == 3 else shifted & tirx.const(255, "uint32")


def _sum_of(values: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return the sum in a balanced tree."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    return _sum_of(values[:middle]) + _sum_of(values[middle:])
