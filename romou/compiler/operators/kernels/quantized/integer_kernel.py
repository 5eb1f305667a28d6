"""The kernel of a product of 8-bit integers for one config, written out as loops and stores.

A work-item sums up `item_data` rows of activations times `item_columns` columns of the weight, over each
`group_parts`-th step along k. A step is four words, 16 numbers, of each row:

    for each step of the work-item:
        words of its rows of activations               16 bytes at a time
        for each of the four words:
            words of its columns                       `lanes` at a time, neighbours read neighbouring columns
            sums += products of four bytes with four bytes
    sums -> local memory, added up by the work-items that share them -> output

Products are computed in one of these ways. Both are exact.

    dot       sums = dot_of_bytes(row's word, column's word, sums), the device's instruction or four integer products.
              On CPUs a row's word meets a vector of columns
    float     sums += float(byte of the row) * float(byte of the column), in vectors of columns. Before fp32 could round
              (`IntegerProduct.exact_words`), sums are added to integers. A group may convert the rows of activations of
              such a stage at once, into local memory, which its work-items share
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from tvm import ir, tirx

from romou.base.space import Columns, Config
from romou.compiler.operators.kernels.quantized.integer_matrix import BYTES, VECTOR, IntegerProduct, byte_of
from romou.compiler.operators.kernels.quantized.outputs import Operands, checks
from romou.compiler.scheduling.blocks import has_vector_form
from romou.compiler.scheduling.kernel_builder import Index, KernelBuilder
from romou.compiler.scheduling.statements import barrier
from romou.compiler.tir.calls import is_conditional
from romou.compiler.tir.expressions import count_of, is_multiple
from romou.compiler.tir.primitives import MULTIPLY_ADD, broadcast_scalars
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.dialect import dot_of_bytes, fetch_ahead

# Choices of the knob `multiply`.
DOT, FLOAT = "dot", "float"
# Choices of the knob `convert`.
OF_STEP, OF_WORD, OF_STAGE = "step", "word", "stage"
# Words along k between a fetch and the load, and words of a cache line. Of 4 MB that no cache has, 8 rows take 1.09 ms
# without fetches and 0.76 ms with them. If a cache has them, 16 words ahead take a fifth longer than 8.
_AHEAD, _LINE = 8, 16


class IntegerTiles:
    """The tiles of a config. Knobs may be columns of many configs.

    columns: columns of the weight that a group computes.
    threads: work-items of a group.
    steps: steps of a row.
    steps_of_stage: steps until sums of floats are added to integers.
    iterations: steps of a work-item.
    outputs: sums of a work-item.
    staged: activations that a group keeps as floats in local memory.
    """

    def __init__(self, work: IntegerProduct, config: Columns) -> None:
        self.across, self.parts = config["group_columns"], config["group_parts"]
        self.item_columns, self.item_data = config["item_columns"], config["item_data"]
        self.columns, self.threads = self.across * self.item_columns, self.across * self.parts
        self.steps = work.words // VECTOR
        is_float = config["multiply"] == FLOAT
        self.steps_of_stage = np.where(is_float, min(work.exact_words // VECTOR, self.steps), self.steps)
        self.stages = -(-self.steps // self.steps_of_stage)
        self.iterations = self.stages * -(-self.steps_of_stage // self.parts)
        self.column_groups, self.row_groups = -(-work.n // self.columns), count_of(work.m, self.item_data)
        self.outputs = self.item_data * self.item_columns
        is_staged = config["convert"] == OF_STAGE
        self.staged = is_staged * self.steps_of_stage * VECTOR * BYTES * self.item_data

    @property
    def groups(self) -> Any:
        """Work groups of the launch."""
        return self.column_groups * self.row_groups

    @property
    def outputs_of_group(self) -> Any:
        """Sums of a group."""
        return self.columns * self.item_data

    @property
    def local_memory_bytes(self) -> Any:
        """Bytes of local memory of a group: the parts of its sums, or its activations."""
        return 4 * ((self.parts > 1) * self.threads * self.outputs + self.staged)


class IntegerKernel(KernelBuilder):
    """The kernel of one config.

    multiply_add: the function that adds products of floats, or None for a product and a sum.
    has_dots_of_vectors: whether the language's integer dot products take vectors of columns.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        work: IntegerProduct,
        operands: Operands,
        config: Config,
        *,
        multiply_add: str | None = None,
        has_dots_of_vectors: bool = False,
    ) -> None:
        super().__init__()
        self.func, self.work, self.operands, self.multiply_add = func, work, operands, multiply_add
        self.has_dots_of_vectors = has_dots_of_vectors
        self.tiles = tiles = IntegerTiles(work, config)
        self.rows, self.width = int(config["item_data"]), int(config["lanes"])
        self.vectors = int(config["item_columns"]) // self.width
        self.across, self.parts, self.stages = int(tiles.across), int(tiles.parts), int(tiles.stages)
        self.steps_of_stage = int(tiles.steps_of_stage)
        self.row_group = self.axis("blockIdx.y", "row_group", tiles.row_groups)
        self.group = self.axis("blockIdx.x", "group", int(tiles.column_groups))
        self.part = self.axis("threadIdx.y", "part", self.parts)
        self.x = self.axis("threadIdx.x", "x", self.across)
        # None: dot products.
        self.convert = str(config["convert"]) if config["multiply"] == FLOAT else None
        vectors = (self.vectors, self.width)
        self.data = self.array("data_words", self.rows, VECTOR, dtype="uint32")
        self.words = self.array("weight_words", *vectors, dtype="uint32")
        self.sums = self.array("sums", self.rows, *vectors, dtype="float32" if self.convert else "int32")
        if self.convert:
            self.codes = self.array("codes", *vectors)
            of_step = (self.rows, BYTES, VECTOR)
            if self.convert == OF_STAGE:
                self.floats = self.array("numbers", self.steps_of_stage, *of_step, scope="shared")
            else:
                self.floats = self.array("numbers", *(of_step if self.convert == OF_STEP else (1,)))
        self.totals = self.array("totals", self.rows, *vectors, dtype="int32") if self.stages > 1 else self.sums

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        function = ir.StringImm(self.multiply_add) if self.multiply_add is not None and self.convert else None
        with self.mark(MULTIPLY_ADD, function), self.inside(broadcast_scalars):
            self._sum_up()
        self._store_totals()
        return self.launched(self.func)

    # Sums

    def _sum_up(self) -> None:
        """Add up the work-item's steps of each stage."""
        if self.stages > 1:
            self.totals.fill(0)
        with self.loop("stage", self.stages) as stage:
            if self.convert == OF_STAGE:
                self._stage_data(stage)
            self.sums.fill(0)
            with self.loop("iteration", -(-self.steps_of_stage // self.parts)) as iteration:
                at = iteration * self.parts + self.part
                step = stage * self.steps_of_stage + at
                is_of_stage = at < self.steps_of_stage if self.steps_of_stage % self.parts else None
                with self.when(is_of_stage, self._is_there(step)):
                    self._add_step(step, iteration)
            if self.stages > 1:
                for at in self.lanes_of(self.totals):
                    self.totals[at] += self.sums[at].astype("int32")

    def _is_there(self, step: tirx.Expr) -> tirx.Expr | None:
        """Return whether a row has a step of a stage, None if it has all of them."""
        steps = int(self.tiles.steps)
        return step < steps if self.stages * self.steps_of_stage != steps else None

    def _stage_data(self, stage: tirx.Expr) -> None:
        """Make floats of a stage of the group's rows of activations, in local memory."""
        self.emit(barrier())
        with self.spread(self.steps_of_stage, self.x, self.across, "staged_step") as own:
            step = stage * self.steps_of_stage + own
            with self.when(self._is_there(step)):
                for row in range(self.rows):
                    self._load_data(step, row)
                    self._convert_data(row, own, row)
        self.emit(barrier())

    def _add_step(self, step: tirx.Expr, iteration: tirx.Expr) -> None:
        """Add the products of four words of each row with four words of each column."""
        for row in range(self.rows) if self.convert != OF_STAGE else ():
            self._load_data(step, row)
            if self.convert == OF_STEP:
                self._convert_data(row, row)
        for word in range(VECTOR):
            self._load_weight(step * VECTOR + word)
            if self.convert:
                self._add_floats(word, iteration)
            else:
                self._add_dots(word)

    def _load_data(self, step: tirx.Expr, row: int) -> None:
        with self.lanes(VECTOR) as word:
            self.data[row, word] = self.read(self.operands.data, self._row_to_read(row), step * VECTOR + word)

    def _convert_data(self, row: int, *target: int | tirx.Expr) -> None:
        for byte in range(BYTES):
            with self.lanes(VECTOR) as word:
                self.floats[(*target, byte, word)] = self._float(row, byte, word)

    def _load_weight(self, place: tirx.Expr) -> None:
        """Load a word of each column. CPUs fetch later lines: by themselves they foresee only those of a page."""
        for vector in range(self.vectors):
            first = self._column_to_read(vector)
            with self.lanes(self.width) as lane:
                self.words[vector, lane] = self.read(self.operands.weight, place, first + lane)
            if self.has_dots_of_vectors and not self.convert and vector * self.width % _LINE == 0:
                self.emit(fetch_ahead(self.read(self.operands.weight, place, first), _AHEAD * self.work.columns))

    def _add_dots(self, word: int) -> None:
        for row in range(self.rows):
            for vector in range(self.vectors):
                for lane in [slice(None)] if self.has_dots_of_vectors else range(self.width):
                    weight, total = self.words[vector, lane], self.sums[row, vector, lane]
                    dot = dot_of_bytes(self.data[row, word], weight, total, is_signed=self.work.is_signed)
                    self.sums[row, vector, lane] = dot

    def _add_floats(self, word: int, iteration: tirx.Expr) -> None:
        """Add the products of a word. iteration: the step of the stage, if its floats are in local memory."""
        for byte in range(BYTES):
            for vector, lane in self.lanes_of(self.codes):
                self.codes[vector, lane] = byte_of(self.words[vector, lane], byte, is_signed=True).astype("float32")
            for row in range(self.rows):
                if self.convert == OF_WORD:
                    self.floats[0] = self._float(row, byte, word)
                at = {OF_WORD: (0,), OF_STEP: (row, byte, word)}.get(str(self.convert), (iteration, row, byte, word))
                for vector, lane in self.lanes_of(self.codes):
                    self.sums[row, vector, lane] += self.floats[at] * self.codes[vector, lane]

    def _float(self, row: int, byte: int, word: int | tirx.Expr) -> tirx.Expr:
        """Return a byte of a word of activations as a float."""
        return byte_of(self.data[row, word], byte, is_signed=self.work.is_signed).astype("float32")

    # Results

    def _store_totals(self) -> None:
        """Store the totals. Work-items that share them add up some each."""
        if self.parts > 1:
            totals, columns, width = self.totals.flat(), self.vectors * self.width, self.width
            partial = self.array("partial", *totals.shape, self.parts, self.across, dtype="int32", scope="shared")
            for at in range(*totals.shape):
                partial[at, self.part, self.x] = totals[at].astype("int32")
            for place, total in self.sums_of_parts(partial, [self.x], self.part, self.parts):
                self._store(place // columns, place % columns // width, place % width, total)
        elif self._stores_vectors:
            for row, vector in itertools.product(range(self.rows), range(self.vectors)):
                with self.when(*self._checks(row, vector, 0)), self.lanes(self.width) as lane:
                    self._store(row, vector, lane, self.totals[row, vector, lane].astype("int32"), is_checked=True)
        else:
            for row, vector, number in itertools.product(*map(range, self.totals.shape)):
                self._store(row, vector, number, self.totals[row, vector, number].astype("int32"))

    @property
    def _stores_vectors(self) -> bool:
        """Whether all outputs of a vector of columns exist, and the epilogue computes vectors."""
        assert self.operands.epilogue is not None, "the sums are corrected"
        value = self.operands.epilogue.body.value
        is_plain = not any(map(is_conditional, nodes_in(value, ir.Call)))
        return self.work.n % self.width == 0 and is_plain and has_vector_form(self.func)

    def _store(self, row: Index, vector: Index, lane: Index, total: tirx.Expr, *, is_checked: bool = False) -> None:
        """Store an element of the output, if the output has it."""
        with self.when(*([] if is_checked else self._checks(row, vector, lane))):
            place = [self._row(row), self._first_column(vector) + lane]
            self.emit(self.operands.stored(place, total))

    def _checks(self, row: Index, vector: Index, lane: Index) -> list[tirx.Expr]:
        place = [self._row(row), self._first_column(vector) + lane]
        return checks(place, (self.work.m, self.work.n), (self.rows, int(self.tiles.columns)))

    # Places

    def _first_column(self, vector: Index) -> tirx.Expr:
        """Return the first column of a work-item's vector. Neighbouring work-items have neighbouring vectors."""
        return self.group * int(self.tiles.columns) + self.x * self.width + vector * (self.width * self.across)

    def _column_to_read(self, vector: int) -> tirx.Expr:
        """Return the same, or the last vector's if the weight's columns end before it."""
        first, last = self._first_column(vector), self.work.columns - self.width
        return tirx.min(first, self.constant(last)) if self.work.columns % self.tiles.columns else first

    def _row(self, number: Index) -> tirx.Expr:
        return self.row_group * self.rows + number

    def _row_to_read(self, number: int) -> tirx.Expr:
        row = self._row(number)
        return tirx.min(row, self.constant(self.work.m - 1)) if not is_multiple(self.work.m, self.rows) else row
