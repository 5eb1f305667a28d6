"""The kernel of a product with a quantized weight on tensor cores, for one config, written out as loops and calls.

A work group copies a tile of activations, codes, scales and zero points into local memory, some stages ahead of their
use. A warp makes fp16 weights of codes in registers and multiplies them with the tile's activations:

    for each stage along k:
        wait for its copies; barrier; start the copies of a later stage        warp groups: behind their products
        for each 16 depths of the warp's part of the stage:
            weights <- (codes - zero points) * scales             a fragment of 16 rows, fp16
            sums += weights x activations                         mma.sync.m16n8k16, fp32
    sums -> local memory, added up by the warps that share them -> output

Work-item 4 g + t of a warp holds these operands (PTX ISA, "Matrix Fragments for mma.m16n8k16"):

    weights        rows g and g + 8, depths 2t, 2t + 1, 2t + 8, 2t + 9
    activations    row g, the same depths
    sums           rows g and g + 8 of the weight, rows 2t and 2t + 1 of the activations

A chunk stores element 4 p + j as code p of word j. So the four depths of a work-item are codes t / 2 and t / 2 + 2 of
two neighbouring words, and the codes of the next 16 depths follow four codes later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tvm import tirx

from romou.base.space import Config
from romou.compiler.operators.quantized.kernel import Operands, Tiles
from romou.compiler.operators.quantized.outputs import if_inside, stored
from romou.compiler.operators.tensor_cores import COLUMNS, DEPTHS, ROWS, UNIT, WARP, WGMMA
from romou.compiler.scheduling.kernel_writer import KernelWriter
from romou.compiler.scheduling.statements import barrier, guarded, launch, loop
from romou.devices.backends.dialect import call_on_device
from tvm_patches.quantized_matrix import QuantizedProduct

# Bytes of an asynchronous copy, and words of it.
_UNIT_BYTES, _WORDS = 16, 4
# Units and fp16 numbers of a row that warp groups read with swizzled units.
_SWIZZLED, _SWIZZLED_NUMBERS = 8, 64


class TensorCoreKernel(KernelWriter):
    """The writer of one config's kernel.

    asks_for_memory: whether its local memory is more than a group has without asking.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        work: QuantizedProduct,
        operands: Operands,
        config: Config,
        *,
        asks_for_memory: bool,
    ) -> None:
        self.func, self.work, self.operands = func, work, operands
        self.tiles = tiles = Tiles(work, config)
        self.staged, self.parts = int(tiles.staged), int(tiles.parts)
        self.rows, self.columns = int(tiles.rows), int(tiles.columns)
        self.fragments, self.tiles_of_data = int(config["item_rows"]) // 2, int(config["item_data"]) // 2
        self.warps = self.rows // self.fragments // ROWS
        # Stages in local memory, and stages whose copies are started before the first one is multiplied.
        self.depth, self.stages = int(tiles.buffers), int(tiles.stages)
        self.ahead = self.depth - 1
        names = ("group", "data_group", "lane", "warp", "part", "stage")
        self.group, self.data_group, self.lane, self.warp, self.part, self.stage = (
            tirx.Var(name, "int32") for name in names
        )
        self.g, self.t = self.lane // 4, self.lane % 4
        self.thread = (self.part * self.warps + self.warp) * WARP + self.lane
        self.is_of_warp_group = config["tensor_cores"] == WGMMA
        # Sizes of a stage's parts in local memory, which follow one another, in units of 16 bytes.
        self.data_units, self.words_units, self.scale_units, self.zero_units = map(int, tiles.units_of_stage)
        self.stage_units = int(tiles.stage_units)
        self.row_units = self.staged // UNIT + 1
        super().__init__()
        # Memory that is asked for is aligned as swizzled activations have to be.
        scope = "shared.dyn" if asks_for_memory or self.is_of_warp_group else "shared"
        self.local = self._buffer("staged", int(tiles.local_memory_bytes) // 4, scope=scope)
        self.sums = self._buffer("sums", self.fragments * self.tiles_of_data * 4)
        self.codes = self._buffer("codes", self.fragments * 4, "uint32")
        # Warp groups read the weights of a stage while those of the next are made.
        steps = 2 * self.staged // self.parts // DEPTHS if self.is_of_warp_group else 1
        self.weights = self._buffer("weights", steps * self.fragments * 4, "uint32")
        self.activations = self._buffer("activations", -(-self.tiles_of_data // 2) * 4, "uint32")
        self.scales, self.zeros = (self._buffer(name, self.fragments * 2, "uint32") for name in ("scales", "zeros"))

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        tiles = self.tiles
        count = self.fragments * self.tiles_of_data * 4
        statements = [self._put(self.sums, at, tirx.const(0.0, "float32")) for at in range(count)]
        if self.operands.zeros is None:
            zero = tirx.const((0x6400 + self.work.common_zero) * 0x10001, "uint32")
            statements += [self._put(self.zeros, at, zero) for at in range(self.fragments * 2)]
        # The weight is a constant, so its first stages are copied before the kernel waits for the one before it.
        first_stages = [tirx.const(stage, "int32") for stage in range(self.ahead)]
        for stage in first_stages:
            statements += self._copy_weight(stage)
        # The next kernel can do the same.
        statements += [call_on_device("wait_for_kernels_before"), call_on_device("start_kernels_behind")]
        for stage in first_stages:
            statements += [self._copy_data(stage), call_on_device("end_group_of_copies")]
        statements += self._stages_of_warp_group() if self.is_of_warp_group else self._stages_of_warp()
        statements += self._outputs()
        threads = {
            "blockIdx.y": (self.data_group, int(tiles.data_groups)),
            "blockIdx.x": (self.group, int(tiles.row_groups)),
            "threadIdx.z": (self.part, self.parts),
            "threadIdx.y": (self.warp, self.warps),
            "threadIdx.x": (self.lane, WARP),
        }
        return launch(self.func, threads, tirx.SeqStmt(statements), self.buffers)["main"]

    def _stages_of_warp(self) -> list[tirx.Stmt]:
        """Multiply all stages, each while the copies of a later one are under way."""
        body = [*self._begin_stage(self.ahead - 1), *self._copy_stage(self.stage + self.ahead)]
        base = self._start_of(self.stage)
        for step in range(0, self.staged // self.parts, DEPTHS):
            body += [*self._load_activations(base, step), *self._make_weights(base, step, 0), *self._products()]
        return [loop(self.stage, self.stages, tirx.SeqStmt(body))]

    def _stages_of_warp_group(self) -> list[tirx.Stmt]:
        """Multiply all stages, each while the weights of the next one are made in other registers."""
        steps, size = range(0, self.staged // self.parts, DEPTHS), self.fragments * 4
        sums_of = (self.fragments * self.tiles_of_data * 4, self.sums.data)
        first = tirx.const(0, "int32")
        statements = [call_on_device("wait_for_copies", self.ahead - 1), barrier()]
        statements += [stmt for step in steps for stmt in self._make_weights(first, step, step // DEPTHS * size)]
        body = list[tirx.Stmt]()
        for half in range(2):
            stage, at = self.stage * 2 + half, half * len(steps) * size
            base, base_of_next, at_of_next = self._start_of(stage), self._start_of(stage + 1), len(steps) * size - at
            # The copies start behind the products, which take longer.
            begin, copies = self._begin_stage(self.ahead - 2), self._copy_stage(stage + self.ahead)
            body += [*begin, call_on_device("begin_warp_group_products")]
            for step in steps:
                body += self._warp_group_products(base, step, at + step // DEPTHS * size)
            body += [call_on_device("end_warp_group_products"), *copies]
            for step in steps:
                body += self._make_weights(base_of_next, step, at_of_next + step // DEPTHS * size)
            body.append(call_on_device("wait_for_warp_group_products", *sums_of))
        return [*statements, loop(self.stage, -(-self.stages // 2), tirx.SeqStmt(body))]

    def _begin_stage(self, in_flight: int) -> list[tirx.Stmt]:
        """Wait for all but the last `in_flight` stages under way. The memory of the stage before is free then."""
        show = [call_on_device("show_copies_to_warp_groups")] if self.is_of_warp_group else []
        return [call_on_device("wait_for_copies", in_flight), *show, barrier()]

    def _copy_stage(self, stage: tirx.Expr) -> list[tirx.Stmt]:
        """Start all copies of a stage."""
        return [*self._copy_weight(stage), self._copy_data(stage), call_on_device("end_group_of_copies")]

    def _start_of(self, stage: tirx.Expr) -> tirx.Expr:
        """Return where a stage begins in local memory, in units of 16 bytes."""
        return stage % self.depth * self.stage_units

    # Copies

    def _copy_weight(self, stage: tirx.Expr) -> list[tirx.Stmt]:
        """Start the copies of a stage's words, scales and zero points. Behind the last stage, they write zeros."""
        work, operands = self.work, self.operands
        first, row, is_inside = stage * self.staged, self.group * self.rows, stage < self.stages

        def words(unit: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
            chunk = first // work.chunk + unit // self.rows
            is_there = tirx.And(chunk < work.chunks, row + unit % self.rows < work.n)
            return chunk * work.n + row + unit % self.rows, tirx.And(is_inside, is_there)

        def of_blocks(unit: tirx.Expr, numbers: int) -> tuple[tirx.Expr, tirx.Expr]:
            units = self.rows // numbers
            block, at = first // work.block + unit // units, row + unit % units * numbers
            is_there = tirx.And(block < work.blocks, at < work.n)
            return (block * work.n + at) // numbers, tirx.And(is_inside, is_there)

        start = self._start_of(stage) + self.data_units
        copies = [self._copy(operands.words, self.words_units, words, start)]
        for source, units, numbers in ((operands.scales, self.scale_units, 8), (operands.zeros, self.zero_units, 16)):
            if source is not None:
                place = functools.partial(of_blocks, numbers=numbers)
                behind = start + self.words_units + (self.scale_units if numbers == 16 else 0)
                copies.append(self._copy(source, units, place, behind))
        return copies

    def _copy_data(self, stage: tirx.Expr) -> tirx.Stmt:
        """Start the copies of a stage's activations."""
        units, per_row = self.staged // UNIT, self.work.k // UNIT
        start = self._start_of(stage)

        def data(unit: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
            row, place = self.data_group * self.columns + unit // units, stage * units + unit % units
            is_there = tirx.And(row < self.work.m, place < per_row)
            return row * per_row + place, tirx.And(stage < self.stages, is_there)

        def into(unit: tirx.Expr) -> tirx.Expr:
            row, place = unit // units, unit % units
            if not self.is_of_warp_group:
                return row * self.row_units + place
            line = place // _SWIZZLED * self.columns * _SWIZZLED + row * _SWIZZLED
            return line + (place % _SWIZZLED ^ row % _SWIZZLED)

        return self._copy(self.operands.data, self.columns * units, data, start, into)

    def _copy(
        self,
        source: tirx.Buffer,
        units: int,
        place: Callable[[tirx.Expr], tuple[tirx.Expr, tirx.Expr]],
        start: tirx.Expr,
        into: Callable[[tirx.Expr], tirx.Expr] = lambda unit: unit,
    ) -> tirx.Stmt:
        """Start the copies of `units` units, which the group's work-items share.

        place: a unit's number -> its offset in the source, and whether it is inside.
        start, into: offset of the first unit in local memory, and a unit's number -> its offset behind the first.
        """
        turn, threads = tirx.Var("turn", "int32"), int(self.tiles.threads)
        unit = turn * threads + self.thread
        at, is_inside = place(unit)
        # Nothing is read outside of the tensor, but the address has to be valid.
        at = tirx.Select(is_inside, at, tirx.const(0, "int32"))
        copy = call_on_device("copy_unit_async", start + into(unit), self.local.data, at, source.data, is_inside)
        copy = guarded(unit < units if units % threads else None, copy)
        return loop(turn, -(-units // threads), copy, "unrolled")

    # Products

    def _make_weights(self, base: tirx.Expr, step: int, at: int) -> list[tirx.Stmt]:
        """Make the weights of 16 depths of the warp's part of a stage, from register `at` on.

        base: where the stage begins in local memory.
        """
        work, statements = self.work, list[tirx.Stmt]()
        size = self.staged // self.parts
        depth = self.part * size + step
        if step % work.chunk == 0:
            statements += self._load_codes(base, depth // work.chunk)
        if step % min(work.block, size) == 0:
            statements += self._load_scales(base, depth // work.block if self.staged > work.block else 0)
        bit = step % work.chunk // 4 * work.bits
        return statements + [self._unpack(fragment, bit, at + fragment * 4) for fragment in range(self.fragments)]

    def _load_codes(self, base: tirx.Expr, chunk: tirx.Expr) -> list[tirx.Stmt]:
        """Load words of a chunk of the stage, so that the work-item's first code is in the lowest bits."""
        statements = list[tirx.Stmt]()
        shift = (self.t // 2 * self.work.bits).astype("int32")
        for fragment in range(self.fragments):
            row = self._row_of(fragment) + self.g
            offset = (base + self.data_units + chunk * self.rows + row) * _WORDS + self.t % 2 * 2
            statements.append(
                call_on_device("load_codes", offset, self.local.data, shift, fragment * 4, self.codes.data)
            )
        return statements

    def _unpack(self, fragment: int, bit: int, at: int) -> tirx.Stmt:
        """Make the weights of a fragment of codes from `bit` of their words on."""
        bits = self.work.bits
        mask = tirx.const(((1 << bits) - 1) * 0x10001, "uint32")
        codes = (fragment * 4, self.codes.data, bit, 2 * bits, mask)
        return call_on_device(
            "weights_of_codes", *codes, fragment * 2, self.zeros.data, self.scales.data, at, self.weights.data
        )

    def _load_activations(self, base: tirx.Expr, step: int) -> list[tirx.Stmt]:
        """Load 16 depths of the activations of the warp's part of a stage.

        Matrices 0 and 1 of a load are two times eight depths of eight rows, matrices 2 and 3 those of the next rows.
        """
        depth = self.part * (self.staged // self.parts) + step
        more = self.lane // 16 * COLUMNS if self.tiles_of_data > 1 else tirx.const(0, "int32")
        start = base + (self.lane % 8 + more) * self.row_units + self.lane // 8 % 2 + depth // UNIT
        return [
            call_on_device(
                "load_activations",
                start + pair * 2 * COLUMNS * self.row_units,
                self.local.data,
                pair * 4,
                self.activations.data,
            )
            for pair in range(-(-self.tiles_of_data // 2))
        ]

    def _products(self) -> list[tirx.Stmt]:
        """Multiply all fragments of weights with all tiles of activations."""
        return [
            call_on_device(
                "multiply_weights",
                (fragment * self.tiles_of_data + tile) * 4,
                self.sums.data,
                fragment * 4,
                self.weights.data,
                tile * 2,
                self.activations.data,
            )
            for fragment in range(self.fragments)
            for tile in range(self.tiles_of_data)
        ]

    def _warp_group_products(self, base: tirx.Expr, step: int, at: int) -> list[tirx.Stmt]:
        """Multiply the weights from register `at` on with 16 depths of the activations in local memory."""
        depth = self.part * (self.staged // self.parts) + step
        line = depth // _SWIZZLED_NUMBERS * self.columns * _SWIZZLED
        offset = base + line + depth % _SWIZZLED_NUMBERS // UNIT
        return [
            call_on_device(
                f"warp_group_product_{self.columns}",
                fragment * self.tiles_of_data * 4,
                self.sums.data,
                at + fragment * 4,
                self.weights.data,
                offset,
                self.local.data,
            )
            for fragment in range(self.fragments)
        ]

    def _load_scales(self, base: tirx.Expr, block: tirx.Expr | int) -> list[tirx.Stmt]:
        """Load scales and zero points of the warp's rows. block: number of the block in the stage."""
        statements = list[tirx.Stmt]()
        start = base + self.data_units + self.words_units
        for fragment in range(self.fragments):
            for half in range(2):
                at = block * self.rows + self._row_of(fragment) + self.g + half * 8
                scale = tirx.call_pure_extern("uint32", "load_scale", start * 8 + at, self.local.data)
                statements.append(self._put(self.scales, fragment * 2 + half, scale))
                if self.operands.zeros is not None:
                    zeros = (start + self.scale_units) * _UNIT_BYTES + at
                    zero = tirx.call_pure_extern("uint32", "load_zero", zeros, self.local.data)
                    statements.append(self._put(self.zeros, fragment * 2 + half, zero))
        return statements

    def _row_of(self, fragment: int | tirx.Expr) -> tirx.Expr:
        """Return the first row of a fragment in the group's tile."""
        return (fragment * self.warps + self.warp) * ROWS

    # Results

    def _outputs(self) -> list[tirx.Stmt]:
        """Store the sums. Warps that share them add up some each."""
        count, parts = self.fragments * self.tiles_of_data * 4, self.parts
        if parts == 1:
            return [self._store(at, tirx.BufferLoad(self.sums, [at])) for at in range(count)]
        threads_of_part = int(self.tiles.threads) // parts
        own = self.warp * WARP + self.lane
        statements = [call_on_device("wait_for_copies", 0), barrier()]
        statements += [
            self._put(self.local, (self.part * count + at) * threads_of_part + own, tirx.BufferLoad(self.sums, [at]))
            for at in range(count)
        ]
        statements.append(barrier())
        for first in range(0, count, parts):
            at = self.part + first
            total = functools.reduce(
                tirx.Add,
                (tirx.BufferLoad(self.local, [(part * count + at) * threads_of_part + own]) for part in range(parts)),
            )
            sum_of_parts = self._put(self.sums, 0, total)
            body = tirx.SeqStmt([sum_of_parts, self._store(at, tirx.BufferLoad(self.sums, [0]))])
            statements.append(guarded(at < count if first + parts > count else None, body))
        return statements

    def _store(self, at: int | tirx.Expr, total: tirx.Expr) -> tirx.Stmt:
        """Store the sum that a work-item has at a place of its sums, if the output has it."""
        number, tile = at % 4, at // 4 % self.tiles_of_data
        row = self.group * self.rows + self._row_of(at // 4 // self.tiles_of_data) + self.g + number // 2 * 8
        column = self.data_group * self.columns + tile * COLUMNS + self.t * 2 + number % 2
        place = [column, row]
        body = stored(self.operands.product, self.operands.epilogue, place, total)
        return if_inside(place, (self.work.m, self.work.n), (self.columns, self.rows), body)
