"""The kernel of a product with a quantized weight for one config, written out as loops and stores.

A work-item sums up `item_data` rows of activations times `item_rows` rows of the weight, over each `group_parts`-th
step along k. A step is `item_chunks` chunks of 128 bits of each row:

    for each step of the work-item:
        words <- chunks of its rows                             16 bytes at a time, neighbours read neighbouring rows
        for each block of the step:
            for each vector of four activations:
                sums += activations * codes;  data sum += activations
            totals += scale * (sums - zero point * data sum)
    totals -> local memory, added up by the work-items that share them -> output

Codes become floats in one of these ways, for code p of a word:

    shift     float(word >> 4 * p & 15)
    mask      float(word & 15 << 4 * p), times activations divided by 16^p, which is exact
    bytes     float(byte of (word & 0x0f0f0f0f), or of (word >> 4 & 0x0f0f0f0f)), for compilers that convert bytes
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from romou.base.space import Columns, Config
from romou.compiler.scheduling.blocks import axes_of, replace_loads, substitute
from romou.compiler.scheduling.statements import guarded, launch, loop
from romou.compiler.tir.primitives import FP16_ARITHMETIC, LANES, broadcast_scalars
from tvm_patches.quantized_matrix import QuantizedProduct

_WIDE, _BYTES = "float32", 4
# Choices of the knob `unpack`.
SHIFT, MASK, BYTES = "shift", "mask", "bytes"
# Choices of the knob `zero_point`.
OF_BLOCK, OF_WEIGHT = "block", "weight"


class Tiles:
    """The tiles of a config. Knobs may be columns of many configs.

    rows, data: rows of the weight and of the activations that a group computes.
    threads: work-items of a group.
    codes: codes of a row in a step.
    steps: steps of a row, without a last one that is not whole.
    iterations: steps of a work-item.
    """

    def __init__(self, work: QuantizedProduct, config: Columns) -> None:
        self.across, self.parts = config["group_rows"], config["group_parts"]
        self.item_rows, self.item_data = config["item_rows"], config.get("item_data", 1)
        self.rows = self.across * self.item_rows
        self.threads = self.across * self.parts
        self.codes = work.chunk * config["item_chunks"]
        self.steps = work.k // self.codes
        self.iterations = -(-self.steps // self.parts)
        self.row_groups, self.data_groups = -(-work.n // self.rows), -(-work.m // self.item_data)
        self.outputs = self.item_rows * self.item_data

    @property
    def groups(self) -> Any:
        """Work groups of the launch."""
        return self.row_groups * self.data_groups

    @property
    def local_memory_bytes(self) -> Any:
        """Bytes of local memory of a group: the parts of all sums, if there are several."""
        return _BYTES * (self.parts > 1) * self.threads * self.outputs


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The buffers of a product, and the block that makes the output of its result.

    product: the buffer of the sums, which the epilogue loads at its own place.
    epilogue: None if the sums are the output.
    """

    data: tirx.Buffer
    words: tirx.Buffer
    scales: tirx.Buffer
    zeros: tirx.Buffer | None
    product: tirx.Buffer
    epilogue: s_tir.SBlock | None


class QuantizedKernel:
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
        self.tiles = tiles = Tiles(work, config)
        self.rows, self.data, self.chunks = tiles.item_rows, tiles.item_data, int(config["item_chunks"])
        self.group, self.data_group, self.x, self.part, self.iteration = (
            tirx.Var(name, "int32") for name in ("group", "data_group", "x", "part", "iteration")
        )
        self.buffers: list[tirx.Buffer] = []
        self.words = self._buffer("words_of_rows", self.chunks * self.rows * LANES, "uint32")
        self.loaded = self._buffer("data_of_rows", self.data * LANES)
        self.scaled = self._buffer("scaled", self.data * LANES) if config["unpack"] == MASK else self.loaded
        self.codes = self._buffer("codes", LANES)
        self.sums = self._buffer("sums", tiles.outputs) if config["zero_point"] == OF_BLOCK else None
        self.data_sums = self._buffer("data_sums", self.data * LANES) if self.sums is not None else None
        self.corrections = self._buffer("corrections", self.data) if self.sums is not None else None
        self.block_scales = self._buffer("block_scales", self.rows)
        self.block_zeros = self._buffer("block_zeros", self.rows) if self._has_row_zeros else None
        self.totals = self._buffer("totals", tiles.outputs)

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        tiles, parts = self.tiles, self.tiles.parts
        step = self.iteration * parts + self.part
        whole = self._step(step, is_whole=True) if tiles.steps else None
        statements = [self._put(self.totals, at, tirx.const(0.0, _WIDE)) for at in range(tiles.outputs)]
        if whole is not None:
            is_step = step < tiles.steps if tiles.steps % parts else None
            statements.append(loop(self.iteration, tiles.iterations, guarded(is_step, whole)))
        if self.work.k % tiles.codes:
            last = self._step(tirx.const(tiles.steps, "int32"), is_whole=False)
            statements.append(guarded(self.part < 1 if parts > 1 else None, last))
        statements += self._outputs()
        threads = {
            "blockIdx.y": (self.data_group, tiles.data_groups),
            "blockIdx.x": (self.group, tiles.row_groups),
            "threadIdx.y": (self.part, parts),
            "threadIdx.x": (self.x, tiles.across),
        }
        body: tirx.Stmt = tirx.SeqStmt(statements)
        for name in [name for name, (_, extent) in threads.items() if extent == 1 and name != "threadIdx.x"]:
            var, _ = threads[name]
            if name != "blockIdx.x":
                body = substitute(body, {var: tirx.const(0, "int32")})
                del threads[name]
        # Scales and zero points times vectors of codes.
        body = broadcast_scalars(body)
        if self._has_fp16:
            body = tirx.AttrStmt(tirx.const(0, "int32"), FP16_ARITHMETIC, tirx.const(1, "int32"), body)
        return launch(self.func, threads, body, self.buffers)["main"]

    # Places

    def _row(self, number: int | tirx.Expr) -> tirx.Expr:
        """Return a work-item's `number`-th row of the weight. Neighbouring work-items have neighbouring rows."""
        return (self.group * self.rows + number) * self.tiles.across + self.x

    def _row_to_read(self, number: int) -> tirx.Expr:
        row = self._row(number)
        is_whole = self.work.n % self.tiles.rows == 0
        return row if is_whole else tirx.min(row, tirx.const(self.work.n - 1, "int32"))

    def _data_row(self, number: int | tirx.Expr) -> tirx.Expr:
        return self.data_group * self.data + number

    def _data_row_to_read(self, number: int) -> tirx.Expr:
        row = self._data_row(number)
        return row if self.work.m % self.data == 0 else tirx.min(row, tirx.const(self.work.m - 1, "int32"))

    # Statements

    @property
    def _has_row_zeros(self) -> bool:
        return self.operands.zeros is not None or self.config["zero_point"] == OF_WEIGHT

    def _buffer(self, name: str, size: int, dtype: str = _WIDE, scope: str = "local") -> tirx.Buffer:
        self.buffers.append(tirx.decl_buffer([size], dtype, name, scope=scope))
        return self.buffers[-1]

    def _at(self, buffer: tirx.Buffer, *index: int | tirx.Expr) -> tirx.Expr:
        return tirx.BufferLoad(buffer, [tirx.const(i, "int32") if isinstance(i, int) else i for i in index])

    def _put(self, buffer: tirx.Buffer, index: int | tirx.Expr, value: tirx.Expr) -> tirx.Stmt:
        return tirx.BufferStore(buffer, value, [tirx.const(index, "int32") if isinstance(index, int) else index])

    def _in_lanes(self, stmt: Callable[[tirx.Var], tirx.Stmt], kind: str = "vectorized") -> tirx.Stmt:
        lane = tirx.Var("lane", "int32")
        return loop(lane, LANES, stmt(lane), kind)

    def _step(self, step: tirx.Expr, *, is_whole: bool) -> tirx.Stmt:
        """Add one step of the work-item's rows to its totals.

        is_whole: whether all its codes belong to the row. If not, activations beyond the end are zeros.
        """
        work, statements = self.work, list[tirx.Stmt]()
        left = work.chunks - int(self.tiles.steps) * self.chunks
        chunks = self.chunks if is_whole else left
        for chunk in range(chunks):
            for row in range(self.rows):
                index, at = self._row_to_read(row), (chunk * self.rows + row) * LANES
                statements.append(
                    self._in_lanes(
                        lambda lane, at=at, index=index, chunk=chunk: self._put(
                            self.words,
                            at + lane,
                            self._at(self.operands.words, step * self.chunks + chunk, index, lane),
                        )
                    )
                )
        codes = chunks * work.chunk
        size = min(work.block, codes)
        for first in range(0, codes, size):
            start = step * self.tiles.codes + first
            block = start // work.block if work.block < work.k else tirx.const(0, "int32")
            if not is_whole and int(self.tiles.steps) * self.tiles.codes + first >= work.k:
                break
            statements += self._block(start, block, first, min(size, codes - first), is_whole=is_whole)
        return tirx.SeqStmt(statements)

    def _block(self, start: tirx.Expr, block: tirx.Expr, first: int, size: int, *, is_whole: bool) -> list[tirx.Stmt]:
        """Add `size` codes of a block, which are the step's codes from `first` on.

        start: place of the first of them along k.
        """
        statements = self._load_scales(block)
        for vector in range(size // LANES):
            chunk, position = divmod(first // LANES + vector, self.work.per_word)
            statements += self._load_data(start + vector * LANES, is_first=vector == 0, is_whole=is_whole)
            statements += self._scale_data(position)
            for row in range(self.rows):
                statements.append(self._unpack(chunk, row, position))
                statements += self._multiply(row, is_first=vector == 0)
        return statements if self.sums is None else [*statements, *self._add_block()]

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
        work, statements = self.work, list[tirx.Stmt]()
        # CUDA loads vectors only from whole ones.
        kind = "vectorized" if is_whole and work.k % LANES == 0 else "unrolled"
        for number in range(self.data):
            index = self._data_row_to_read(number)

            def load(lane: tirx.Var, number: int = number, index: tirx.Expr = index) -> tirx.Stmt:
                at = place + lane
                value = self._at(self.operands.data, index, at).astype(_WIDE)
                if not is_whole:
                    value = tirx.if_then_else(at < work.k, value, tirx.const(0.0, _WIDE))
                return self._put(self.loaded, number * LANES + lane, value)

            statements.append(self._in_lanes(load, kind))
            if self.data_sums is not None:
                sums, first = self.data_sums, number * LANES

                def add(lane: tirx.Var, sums: tirx.Buffer = sums, first: int = first) -> tirx.Stmt:
                    value = self._at(self.loaded, first + lane)
                    return self._put(sums, first + lane, value if is_first else self._at(sums, first + lane) + value)

                statements.append(self._in_lanes(add))
        return statements

    def _scale_data(self, position: int) -> list[tirx.Stmt]:
        """Divide the activations by the place value that masked codes of a position have."""
        if self.scaled is self.loaded:
            return []
        shift = self._shift_of(position)
        factor = tirx.const(2.0**-shift, _WIDE)

        def scale(lane: tirx.Var, first: int) -> tirx.Stmt:
            value = self._at(self.loaded, first + lane)
            return self._put(self.scaled, first + lane, value * factor if shift else value)

        return [self._in_lanes(functools.partial(scale, first=number * LANES)) for number in range(self.data)]

    def _shift_of(self, position: int) -> int:
        """Return the place, in bits, of masked codes. The last code of a word is shifted instead."""
        return 0 if position == self.work.per_word - 1 else position * self.work.bits

    def _unpack(self, chunk: int, row: int, position: int) -> tirx.Stmt:
        """Make floats of code `position` of the four words of a row's chunk."""
        bits, at = self.work.bits, (chunk * self.rows + row) * LANES
        is_last, mask = position == self.work.per_word - 1, (1 << bits) - 1

        def constant(value: int) -> tirx.Expr:
            return tirx.const(value, "uint32")

        def unpack(lane: tirx.Var) -> tirx.Stmt:
            word = self._at(self.words, at + lane)
            if self.config["unpack"] == MASK and not is_last:
                code = word & constant(mask << position * bits)
            elif self.config["unpack"] == BYTES and bits < 8:
                per_byte = 8 // bits
                group, byte = position % per_byte, position // per_byte
                spread = sum(mask << 8 * at for at in range(4))
                word = word >> constant(group * bits) if group else word
                code = _byte(word & constant(spread), byte)
            elif self.config["unpack"] == BYTES:
                code = _byte(word, position)
            else:
                code = word >> constant(position * bits) if position else word
                code = code if is_last else code & constant(mask)
            value = code.astype("int32").astype(_WIDE)
            if self.sums is None:
                assert self.block_zeros is not None, "only sums of a block have no zero point for each row"
                value = value * self._at(self.block_scales, row) + self._at(self.block_zeros, row)
            return self._put(self.codes, lane, value)

        return self._in_lanes(unpack)

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

    def _add_block(self) -> list[tirx.Stmt]:
        """Add the sums of a block to the totals: scale * (sums - zero point * sum of the activations)."""
        assert self.sums is not None, "only then zero points are applied to a block"
        assert self.data_sums is not None
        assert self.corrections is not None
        statements: list[tirx.Stmt] = []
        for number in range(self.data):
            lanes = [self._at(self.data_sums, number * LANES + lane) for lane in range(LANES)]
            total = functools.reduce(tirx.Add, lanes)
            if self.block_zeros is None:
                total = total * tirx.const(float(self.work.common_zero), _WIDE)
            statements.append(self._put(self.corrections, number, total))
            for row in range(self.rows):
                at, correction = number * self.rows + row, self._at(self.corrections, number)
                if self.block_zeros is not None:
                    correction = correction * self._at(self.block_zeros, row)
                added = self._at(self.block_scales, row) * (self._at(self.sums, at) - correction)
                statements.append(self._put(self.totals, at, self._at(self.totals, at) + added))
        return statements

    # Results

    def _outputs(self) -> list[tirx.Stmt]:
        """Store the totals. Work-items that share them add up some each."""
        tiles, parts = self.tiles, int(self.tiles.parts)
        if parts == 1:
            return [
                self._store(number, row, self._at(self.totals, number * self.rows + row))
                for number in range(self.data)
                for row in range(self.rows)
            ]
        partial = self._buffer("partial", int(tiles.threads * tiles.outputs), scope="shared")
        shared = self._buffer("shared_total", 1)
        statements = [
            self._put(partial, (at * parts + self.part) * tiles.across + self.x, self._at(self.totals, at))
            for at in range(tiles.outputs)
        ]
        for first in range(0, tiles.outputs, parts):
            at = self.part + first
            sums = [self._at(partial, (at * parts + part) * tiles.across + self.x) for part in range(parts)]
            store = self._store(at // self.rows, at % self.rows, self._at(shared, 0))
            body = tirx.SeqStmt([self._put(shared, 0, _sum_of(sums)), store])
            statements.append(guarded(at < tiles.outputs if first + parts > tiles.outputs else None, body))
        return statements

    def _store(self, number: int | tirx.Expr, row: int | tirx.Expr, total: tirx.Expr) -> tirx.Stmt:
        """Store an element of the output, if the output has it."""
        operands, place = self.operands, [self._data_row(number), self._row(row)]
        value, output = total, operands.product
        if operands.epilogue is not None:

            def load(_: TensorLoad) -> tirx.Expr:
                return total

            store = operands.epilogue.body
            value, output = replace_loads(store.value, operands.product, load), store.buffer
            value = substitute(value, dict(zip(axes_of(operands.epilogue), place, strict=True)))
        inside = []
        if self.work.m % self.data:
            inside.append(place[0] < self.work.m)
        if self.work.n % self.tiles.rows:
            inside.append(place[1] < self.work.n)
        return guarded(functools.reduce(tirx.And, inside) if inside else None, tirx.BufferStore(output, value, place))


def _byte(word: tirx.Expr, number: int) -> tirx.Expr:
    shifted = word >> tirx.const(8 * number, "uint32") if number else word
    return shifted if number == 3 else shifted & tirx.const(255, "uint32")


def _sum_of(values: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return the sum in a balanced tree."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    return _sum_of(values[:middle]) + _sum_of(values[middle:])
