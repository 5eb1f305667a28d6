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

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, s_tir, tirx

from romou.base.space import Columns, Config
from romou.compiler.operators.quantized.integer_matrix import BYTES, VECTOR, IntegerProduct, byte_of
from romou.compiler.operators.quantized.outputs import if_inside, stored
from romou.compiler.scheduling.blocks import has_vector_form, substitute
from romou.compiler.scheduling.kernel_writer import KernelWriter
from romou.compiler.scheduling.statements import barrier, guarded, launch, loop
from romou.compiler.tir.calls import is_conditional
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


class Tiles:
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
        is_float = np.asarray(config["multiply"]) == FLOAT
        self.steps_of_stage = np.where(is_float, min(work.exact_words // VECTOR, self.steps), self.steps)
        self.stages = -(-self.steps // self.steps_of_stage)
        self.iterations = self.stages * -(-self.steps_of_stage // self.parts)
        self.column_groups, self.row_groups = -(-work.n // self.columns), -(-work.m // self.item_data)
        self.outputs = self.item_data * self.item_columns
        is_staged = np.asarray(config["convert"]) == OF_STAGE
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
        return 4 * ((np.asarray(self.parts) > 1) * self.threads * self.outputs + self.staged)


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The buffers of a product, and the block that makes the output of its result.

    product: the buffer of the sums, which the epilogue loads at its own place.
    """

    data: tirx.Buffer
    weight: tirx.Buffer
    product: tirx.Buffer
    epilogue: s_tir.SBlock


class IntegerKernel(KernelWriter):
    """The writer of one config's kernel.

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
        self.func, self.work, self.operands = func, work, operands
        self.tiles = tiles = Tiles(work, config)
        self._multiply_add = multiply_add
        self.has_dots_of_vectors = has_dots_of_vectors
        self.rows, self.columns, self.lanes = (int(config[name]) for name in ("item_data", "item_columns", "lanes"))
        self.group, self.row_group, self.x, self.part, self.stage, self.iteration = (
            tirx.Var(name, "int32") for name in ("group", "row_group", "x", "part", "stage", "iteration")
        )
        self.is_float, outputs = config["multiply"] == FLOAT, self.rows * self.columns
        self.has_stages = int(tiles.stages) > 1
        super().__init__()
        self.data = self._buffer("data_words", self.rows * VECTOR, "uint32")
        self.words = self._buffer("weight_words", self.columns, "uint32")
        self.sums = self._buffer("sums", outputs, "float32" if self.is_float else "int32")
        if self.is_float:
            self.codes = self._buffer("codes", self.columns, "float32")
            self.convert = str(config["convert"])
            if self.convert == OF_STAGE:
                self.numbers = self._buffer("numbers", int(tiles.staged), "float32", scope="shared")
            else:
                numbers = self.rows * VECTOR * BYTES if self.convert == OF_STEP else 1
                self.numbers = self._buffer("numbers", numbers, "float32")
        self.totals = self._buffer("totals", outputs, "int32") if self.has_stages else self.sums

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        tiles, parts = self.tiles, int(self.tiles.parts)
        threads = {
            "blockIdx.y": (self.row_group, int(tiles.row_groups)),
            "blockIdx.x": (self.group, int(tiles.column_groups)),
            "threadIdx.y": (self.part, parts),
            "threadIdx.x": (self.x, int(tiles.across)),
        }
        body: tirx.Stmt = tirx.SeqStmt([self._sum_up(), *self._outputs()])
        for name in ("blockIdx.y", "threadIdx.y"):
            var, extent = threads[name]
            if extent == 1:
                body = substitute(body, {var: tirx.const(0, "int32")})
                del threads[name]
        return launch(self.func, threads, body, self.buffers)["main"]

    # Sums

    def _sum_up(self) -> tirx.Stmt:
        """Add up the work-item's steps of each stage."""
        parts, steps_of_stage = int(self.tiles.parts), int(self.tiles.steps_of_stage)
        count, stages = -(-steps_of_stage // parts), int(self.tiles.stages)
        at = self.iteration * parts + self.part
        step, inside = self.stage * steps_of_stage + at, []
        if steps_of_stage % parts:
            inside.append(at < steps_of_stage)
        if stages * steps_of_stage != self.tiles.steps:
            inside.append(step < int(self.tiles.steps))
        body = guarded(functools.reduce(tirx.And, inside) if inside else None, self._step(step))
        is_staged = self.is_float and self.convert == OF_STAGE
        before = [self._stage_data()] if is_staged else []
        each: tirx.Stmt = tirx.SeqStmt([*before, self._zeros(self.sums), loop(self.iteration, count, body)])
        if self.has_stages:
            each = tirx.SeqStmt([each, self._in_vectors(self._add_stage, len_of(self.totals))])
            each = tirx.SeqStmt([self._zeros(self.totals), loop(self.stage, stages, each)])
        else:
            each = loop(self.stage, 1, each)
        each = broadcast_scalars(each)
        if self._multiply_add is not None and self.is_float:
            name = ir.StringImm(self._multiply_add)
            each = tirx.AttrStmt(tirx.const(0, "int32"), MULTIPLY_ADD, name, each)
        return each

    def _zeros(self, buffer: tirx.Buffer) -> tirx.Stmt:
        zero = tirx.const(0, str(buffer.dtype))
        return self._in_vectors(lambda place: self._put(buffer, place, zero), len_of(buffer))

    def _add_stage(self, place: tirx.Expr) -> tirx.Stmt:
        value = self._at(self.sums, place).astype("int32")
        return self._put(self.totals, place, self._at(self.totals, place) + value)

    def _stage_data(self) -> tirx.Stmt:
        """Make floats of a stage of the group's rows of activations, in local memory."""
        steps, across, at = int(self.tiles.steps_of_stage), int(self.tiles.across), tirx.Var("staged_step", "int32")
        own = at * across + self.x
        step, stored = self.stage * steps + own, []
        for row in range(self.rows):
            stored.append(self._load_data(step, row))
            for number in range(BYTES):
                first = self._staged(own, row, number)

                def put(lane: tirx.Expr, row: int = row, number: int = number, first: tirx.Expr = first) -> tirx.Stmt:
                    return self._put(self.numbers, first + lane, self._number(row * VECTOR + lane, number))

                stored.append(self._in_lanes(put, VECTOR))
        inside = [own < steps] if steps % across else []
        if int(self.tiles.stages) * steps != self.tiles.steps:
            inside.append(step < int(self.tiles.steps))
        body = guarded(functools.reduce(tirx.And, inside) if inside else None, tirx.SeqStmt(stored))
        return tirx.SeqStmt([barrier(), loop(at, -(-steps // across), body), barrier()])

    def _staged(self, step: tirx.Expr, row: int, number: int) -> tirx.Expr:
        """Return the place of byte `number` of the first word of a step of the stage."""
        return (step * self.rows + row) * VECTOR * BYTES + number * VECTOR

    def _step(self, step: tirx.Expr) -> tirx.Stmt:
        """Add the products of four words of each row with four words of each column."""
        statements = []
        for row in range(self.rows):
            if self.is_float and self.convert == OF_STAGE:
                continue
            statements.append(self._load_data(step, row))
            if self.is_float and self.convert == OF_STEP:
                statements += [self._convert_data(row, number) for number in range(BYTES)]
        for word in range(VECTOR):
            for vector in range(0, self.columns, self.lanes):
                statements.append(self._load_weight(step * VECTOR + word, vector))
                if self.has_dots_of_vectors and not self.is_float and vector % _LINE == 0:
                    statements.append(self._fetch_weight(step * VECTOR + word, vector))
            statements += self._add_floats(word) if self.is_float else self._add_dots(word)
        return tirx.SeqStmt(statements)

    def _load_data(self, step: tirx.Expr, row: int) -> tirx.Stmt:
        index = self._row_to_read(row)

        def load(lane: tirx.Expr) -> tirx.Stmt:
            return self._put(self.data, row * VECTOR + lane, self._at(self.operands.data, index, step * VECTOR + lane))

        return self._in_lanes(load, VECTOR)

    def _load_weight(self, place: tirx.Expr, vector: int) -> tirx.Stmt:
        first = self._column_to_read(vector)
        return self._in_lanes(
            lambda lane: self._put(self.words, vector + lane, self._at(self.operands.weight, place, first + lane)),
            self.lanes,
        )

    def _fetch_weight(self, place: tirx.Expr, vector: int) -> tirx.Stmt:
        """Fetch the line that is loaded `_AHEAD` words along k later. Processors foresee only lines of a page."""
        load = self._at(self.operands.weight, place, self._column_to_read(vector))
        return fetch_ahead(load, _AHEAD * self.work.columns)

    def _add_dots(self, word: int) -> list[tirx.Stmt]:
        lanes, statements = self.lanes if self.has_dots_of_vectors else 1, []

        def lanes_from(first: int) -> tirx.Expr:
            index = self._index(first)
            return tirx.Ramp(index, self._index(1), lanes) if lanes > 1 else index

        for row in range(self.rows):
            data = self._at(self.data, row * VECTOR + word)
            for column in range(0, self.columns, lanes):
                at = lanes_from(row * self.columns + column)
                weight, total = self._at(self.words, lanes_from(column)), self._at(self.sums, at)
                statements.append(
                    self._put(self.sums, at, dot_of_bytes(data, weight, total, is_signed=self.work.is_signed))
                )
        return statements

    def _add_floats(self, word: int) -> list[tirx.Stmt]:
        statements = []
        for number in range(BYTES):
            for vector in range(0, self.columns, self.lanes):
                statements.append(self._convert_weight(vector, number))
            for row in range(self.rows):
                place: int | tirx.Expr = (row * BYTES + number) * VECTOR + word if self.convert == OF_STEP else 0
                if self.convert == OF_STAGE:
                    # Steps of a stage are not split there.
                    place = self._staged(self.iteration, row, number) + word
                elif self.convert == OF_WORD:
                    statements.append(self._put(self.numbers, 0, self._number(row * VECTOR + word, number)))
                statements += [self._add_products(row, place, at) for at in range(0, self.columns, self.lanes)]
        return statements

    def _number(self, place: int | tirx.Expr, number: int) -> tirx.Expr:
        """Return byte `number` of a word of activations as a float."""
        return byte_of(self._at(self.data, place), number, is_signed=self.work.is_signed).astype("float32")

    def _convert_data(self, row: int, number: int) -> tirx.Stmt:
        """Make floats of byte `number` of the four words of a row."""
        first = (row * BYTES + number) * VECTOR

        def convert(lane: tirx.Expr) -> tirx.Stmt:
            return self._put(self.numbers, first + lane, self._number(row * VECTOR + lane, number))

        return self._in_lanes(convert, VECTOR)

    def _convert_weight(self, vector: int, number: int) -> tirx.Stmt:
        """Make floats of byte `number` of a vector of columns."""

        def convert(lane: tirx.Expr) -> tirx.Stmt:
            code = byte_of(self._at(self.words, vector + lane), number, is_signed=True)
            return self._put(self.codes, vector + lane, code.astype("float32"))

        return self._in_lanes(convert, self.lanes)

    def _add_products(self, row: int, place: int | tirx.Expr, vector: int) -> tirx.Stmt:
        first = row * self.columns + vector

        def add(lane: tirx.Var) -> tirx.Stmt:
            product = self._at(self.numbers, place) * self._at(self.codes, vector + lane)
            return self._put(self.sums, first + lane, self._at(self.sums, first + lane) + product)

        return self._in_lanes(add, self.lanes)

    # Results

    def _outputs(self) -> list[tirx.Stmt]:
        """Store the totals. Work-items that share them add up some each."""
        tiles, parts, outputs = self.tiles, int(self.tiles.parts), self.rows * self.columns
        if parts == 1 and self._stores_vectors:
            return [
                self._store_vector(row, vector)
                for row in range(self.rows)
                for vector in range(0, self.columns, self.lanes)
            ]
        if parts == 1:
            return [
                self._store(row, column, self._at(self.totals, row * self.columns + column).astype("int32"))
                for row in range(self.rows)
                for column in range(self.columns)
            ]
        partial = self._buffer("partial", int(tiles.threads) * outputs, "int32", scope="shared")
        shared = self._buffer("shared_total", 1, "int32")
        statements = [
            self._put(
                partial,
                (at * parts + self.part) * int(tiles.across) + self.x,
                self._at(self.totals, at).astype("int32"),
            )
            for at in range(outputs)
        ]
        for first in range(0, outputs, parts):
            at = self.part + first
            sums = [self._at(partial, (at * parts + part) * int(tiles.across) + self.x) for part in range(parts)]
            store = self._store(at // self.columns, at % self.columns, self._at(shared, 0))
            body = tirx.SeqStmt([self._put(shared, 0, functools.reduce(lambda a, b: a + b, sums)), store])
            statements.append(guarded(at < outputs if first + parts > outputs else None, body))
        return statements

    @property
    def _stores_vectors(self) -> bool:
        """Whether all outputs of a vector of columns exist, and the epilogue computes vectors."""
        value = self.operands.epilogue.body.value
        is_plain = not any(map(is_conditional, nodes_in(value, ir.Call)))
        return self.work.n % self.lanes == 0 and is_plain and has_vector_form(self.func)

    def _store_vector(self, row: int, vector: int) -> tirx.Stmt:
        """Store a vector of columns."""
        first = row * self.columns + vector
        place = [self._row(row), self._first_column(vector)]
        vectors = self._in_lanes(
            lambda lane: self._stored([place[0], place[1] + lane], self._at(self.totals, first + lane).astype("int32")),
            self.lanes,
        )
        return self._if_inside(place, vectors)

    def _stored(self, place: list[tirx.Expr], total: tirx.Expr) -> tirx.Stmt:
        """Return the statement that stores an element of the output."""
        return stored(self.operands.product, self.operands.epilogue, place, total)

    def _if_inside(self, place: list[tirx.Expr], body: tirx.Stmt) -> tirx.Stmt:
        return if_inside(place, (self.work.m, self.work.n), (self.rows, int(self.tiles.columns)), body)

    def _store(self, row: int | tirx.Expr, column: int | tirx.Expr, total: tirx.Expr) -> tirx.Stmt:
        """Store an element of the output, if the output has it."""
        place = [self._row(row), self._column(column)]
        return self._if_inside(place, self._stored(place, total))

    # Places

    @property
    def _has_outside(self) -> bool:
        """Whether groups read columns beyond the packed ones."""
        return bool(self.work.columns % self.tiles.columns)

    def _first_column(self, vector: int | tirx.Expr) -> tirx.Expr:
        """Return the first column of a work-item's vector. Neighbouring work-items have neighbouring vectors."""
        first = self.group * int(self.tiles.columns) + self.x * self.lanes
        return first + vector * int(self.tiles.across)

    def _column_to_read(self, vector: int) -> tirx.Expr:
        first = self._first_column(vector)
        return tirx.min(first, tirx.const(self.work.columns - self.lanes, "int32")) if self._has_outside else first

    def _column(self, number: int | tirx.Expr) -> tirx.Expr:
        return self._first_column(number // self.lanes * self.lanes) + number % self.lanes

    def _row(self, number: int | tirx.Expr) -> tirx.Expr:
        return self.row_group * self.rows + number

    def _row_to_read(self, number: int) -> tirx.Expr:
        row = self._row(number)
        return row if self.work.m % self.rows == 0 else tirx.min(row, tirx.const(self.work.m - 1, "int32"))

    # Statements

    def _in_vectors(self, stmt: Callable[[tirx.Expr], tirx.Stmt], count: int) -> tirx.Stmt:
        def of(first: int) -> tirx.Stmt:
            return self._in_lanes(lambda lane: stmt(first + lane), self.lanes)

        vectors = [of(first) for first in range(0, count, self.lanes)]
        return tirx.SeqStmt(vectors) if len(vectors) > 1 else vectors[0]


def len_of(buffer: tirx.Buffer) -> int:
    """Return the number of elements of a flat buffer."""
    return int(buffer.shape[0])
