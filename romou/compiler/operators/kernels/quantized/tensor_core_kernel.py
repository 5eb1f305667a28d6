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

import contextlib
import itertools

from tvm import tirx

from romou.base.space import Config
from romou.compiler.operators.kernels.quantized.kernel import QuantizedOperands, QuantizedTiles
from romou.compiler.operators.kernels.quantized.outputs import checks
from romou.compiler.operators.kernels.tensor_cores import COLUMNS, DEPTHS, ROWS, UNIT, WARP, WGMMA
from romou.compiler.scheduling.kernel_builder import Index, KernelBuilder
from romou.compiler.scheduling.statements import barrier
from tvm_patches.quantized_matrix import QuantizedProduct

# Bytes of an asynchronous copy, and words of it.
_UNIT_BYTES, _WORDS = 16, 4
# Registers of a work-item in a fragment of the weight, or of sums.
_OF_FRAGMENT = 4
# Units and fp16 numbers of a row that warp groups read with swizzled units.
_SWIZZLED, _SWIZZLED_NUMBERS = 8, 64


class TensorCoreKernel(KernelBuilder):
    """The kernel of one config.

    asks_for_memory: whether its local memory is more than a group has without asking.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        work: QuantizedProduct,
        operands: QuantizedOperands,
        config: Config,
        *,
        asks_for_memory: bool,
    ) -> None:
        super().__init__()
        self.func, self.work, self.operands = func, work, operands
        self.tiles = tiles = QuantizedTiles(work, config)
        self.staged, self.parts, self.threads = int(tiles.staged), int(tiles.parts), int(tiles.threads)
        self.rows, self.columns = int(tiles.rows), int(tiles.columns)
        self.fragments, self.tiles_of_data = int(config["item_rows"]) // 2, int(config["item_data"]) // 2
        self.warps = self.rows // self.fragments // ROWS
        # Stages in local memory, and stages whose copies are started before the first one is multiplied.
        self.depth, self.stages = int(tiles.buffers), int(tiles.stages)
        self.ahead = self.depth - 1
        self.data_group = self.axis("blockIdx.y", "data_group", tiles.data_groups)
        self.group = self.axis("blockIdx.x", "group", int(tiles.row_groups))
        self.part = self.axis("threadIdx.z", "part", self.parts)
        self.warp = self.axis("threadIdx.y", "warp", self.warps)
        self.lane = self.axis("threadIdx.x", "lane", WARP)
        self.g, self.t = self.lane // 4, self.lane % 4
        self.thread = (self.part * self.warps + self.warp) * WARP + self.lane
        self.is_of_warp_group = config["tensor_cores"] == WGMMA
        # Sizes of a stage's parts in local memory, which follow one another, in units of 16 bytes.
        self.data_units, self.words_units, self.scale_units, self.zero_units = map(int, tiles.units_of_stage)
        self.stage_units = int(tiles.stage_units)
        self.row_units = self.staged // UNIT + 1
        # Memory that is asked for is aligned as swizzled activations have to be.
        scope = "shared.dyn" if asks_for_memory or self.is_of_warp_group else "shared"
        self.local = self.array("staged", int(tiles.local_memory_bytes) // 4, scope=scope)
        self.sums = self.array("sums", self.fragments, self.tiles_of_data, _OF_FRAGMENT)
        self.codes = self.array("codes", self.fragments, _OF_FRAGMENT, dtype="uint32")
        # Depths of a warp's part of a stage. Warp groups read the weights of a stage while those of the next are made.
        self.size = self.staged // self.parts
        self.steps = range(0, self.size, DEPTHS)
        halves = (2, len(self.steps)) if self.is_of_warp_group else (1, 1)
        self.weights = self.array("weights", *halves, self.fragments, _OF_FRAGMENT, dtype="uint32")
        self.activations = self.array("activations", -(-self.tiles_of_data // 2), 4, dtype="uint32")
        self.scales, self.zeros = (self.array(name, self.fragments, 2, dtype="uint32") for name in ("scales", "zeros"))

    def function(self) -> tirx.PrimFunc:
        """Return the kernel."""
        for at in itertools.product(*map(range, self.sums.shape)):
            self.sums[at] = 0.0
        if self.operands.zeros is None:
            for at in itertools.product(*map(range, self.zeros.shape)):
                self.zeros[at] = tirx.const((0x6400 + self.work.common_zero) * 0x10001, "uint32")
        # The weight is a constant, so its first stages are copied before the kernel waits for the one before it.
        for stage in range(self.ahead):
            self._copy_weight(self.constant(stage))
        self.call("wait_for_kernels_before")
        # The next kernel can do the same.
        self.call("start_kernels_behind")
        for stage in range(self.ahead):
            self._copy_data(self.constant(stage))
            self.call("end_group_of_copies")
        if self.is_of_warp_group:
            self._stages_of_warp_group()
        else:
            self._stages_of_warp()
        self._store_sums()
        return self.launched(self.func)

    def _stages_of_warp(self) -> None:
        """Multiply all stages, each while the copies of a later one are under way."""
        with self.loop("stage", self.stages) as stage:
            self._begin_stage(self.ahead - 1)
            self._copy_stage(stage + self.ahead)
            base = self._start_of(stage)
            for step in self.steps:
                self._load_activations(base, step)
                self._make_weights(base, step, 0, 0)
                self._products()

    def _stages_of_warp_group(self) -> None:
        """Multiply all stages, each while the weights of the next one are made in other registers."""
        self.call("wait_for_copies", self.ahead - 1)
        self.emit(barrier())
        for number, step in enumerate(self.steps):
            self._make_weights(self.constant(0), step, 0, number)
        with self.loop("stage", -(-self.stages // 2)) as pair:
            for half in range(2):
                stage = pair * 2 + half
                self._begin_stage(self.ahead - 2)
                self.call("begin_warp_group_products")
                for number, step in enumerate(self.steps):
                    self._warp_group_products(self._start_of(stage), step, half, number)
                self.call("end_warp_group_products")
                # The copies start behind the products, which take longer.
                self._copy_stage(stage + self.ahead)
                for number, step in enumerate(self.steps):
                    self._make_weights(self._start_of(stage + 1), step, 1 - half, number)
                count = self.fragments * self.tiles_of_data * _OF_FRAGMENT
                self.call("wait_for_warp_group_products", count, self.sums.buffer.data)

    def _begin_stage(self, in_flight: int) -> None:
        """Wait for all but the last `in_flight` stages under way. The memory of the stage before is free then."""
        self.call("wait_for_copies", in_flight)
        if self.is_of_warp_group:
            self.call("show_copies_to_warp_groups")
        self.emit(barrier())

    def _copy_stage(self, stage: tirx.Expr) -> None:
        """Start all copies of a stage."""
        self._copy_weight(stage)
        self._copy_data(stage)
        self.call("end_group_of_copies")

    def _start_of(self, stage: tirx.Expr) -> tirx.Expr:
        """Return where a stage begins in local memory, in units of 16 bytes."""
        return stage % self.depth * self.stage_units

    # Copies

    def _copy_weight(self, stage: tirx.Expr) -> None:
        """Start the copies of a stage's words, scales and zero points. Behind the last stage, they write zeros."""
        work, operands = self.work, self.operands
        first, row, is_inside = stage * self.staged, self.group * self.rows, stage < self.stages
        start = self._start_of(stage) + self.data_units
        with self._units(self.words_units) as unit:
            chunk, at = first // work.chunk + unit // self.rows, row + unit % self.rows
            is_there = tirx.And(is_inside, tirx.And(chunk < work.chunks, at < work.n))
            self._copy(operands.weight, chunk * work.n + at, is_there, start + unit)
        start = start + self.words_units
        for source, units, numbers in ((operands.scales, self.scale_units, 8), (operands.zeros, self.zero_units, 16)):
            if source is not None:
                per_block = self.rows // numbers
                with self._units(units) as unit:
                    block, at = first // work.block + unit // per_block, row + unit % per_block * numbers
                    is_there = tirx.And(is_inside, tirx.And(block < work.blocks, at < work.n))
                    self._copy(source, (block * work.n + at) // numbers, is_there, start + unit)
            start = start + units

    def _copy_data(self, stage: tirx.Expr) -> None:
        """Start the copies of a stage's activations."""
        units, per_row = self.staged // UNIT, self.work.k // UNIT
        with self._units(self.columns * units) as unit:
            line, at = unit // units, unit % units
            row, place = self.data_group * self.columns + line, stage * units + at
            is_there = tirx.And(stage < self.stages, tirx.And(row < self.work.m, place < per_row))
            into = line * self.row_units + at
            if self.is_of_warp_group:
                into = (
                    at // _SWIZZLED * self.columns * _SWIZZLED + line * _SWIZZLED + (at % _SWIZZLED ^ line % _SWIZZLED)
                )
            self._copy(self.operands.data, row * per_row + place, is_there, self._start_of(stage) + into)

    def _units(self, count: int) -> contextlib.AbstractContextManager[tirx.Expr]:
        """Run the block for each of `count` units, which the group's work-items share."""
        return self.spread(count, self.thread, self.threads, kind="unrolled")

    def _copy(self, source: tirx.Buffer, at: tirx.Expr, is_there: tirx.Expr, into: tirx.Expr) -> None:
        """Start the copy of a unit, from unit `at` of the source to unit `into` of local memory.

        Nothing is read outside of the tensor, but the address has to be valid.
        """
        at = tirx.Select(is_there, at, self.constant(0))
        self.call("copy_unit_async", into, self.local.buffer.data, at, source.data, is_there)

    # Products

    def _make_weights(self, base: tirx.Expr, step: int, half: int, number: int) -> None:
        """Make the weights of 16 depths of the warp's part of a stage in registers `weights[half, number]`.

        base: where the stage begins in local memory.
        """
        work, depth = self.work, self.part * self.size + step
        if step % work.chunk == 0:
            self._load_codes(base, depth // work.chunk)
        if step % min(work.block, self.size) == 0:
            self._load_scales(base, depth // work.block if self.staged > work.block else 0)
        bit, mask = step % work.chunk // 4 * work.bits, tirx.const(((1 << work.bits) - 1) * 0x10001, "uint32")
        for fragment in range(self.fragments):
            codes = (*self.codes.place(fragment, 0), bit, 2 * work.bits, mask)
            factors = (self.zeros.place(fragment, 0)[0], self.zeros.buffer.data, self.scales.buffer.data)
            self.call("weights_of_codes", *codes, *factors, *self.weights.place(half, number, fragment, 0))

    def _load_codes(self, base: tirx.Expr, chunk: tirx.Expr) -> None:
        """Load words of a chunk of the stage, so that the work-item's first code is in the lowest bits."""
        shift = (self.t // 2 * self.work.bits).astype("int32")
        for fragment in range(self.fragments):
            row = self._row_of(fragment) + self.g
            offset = (base + self.data_units + chunk * self.rows + row) * _WORDS + self.t % 2 * 2
            self.call("load_codes", offset, self.local.buffer.data, shift, *self.codes.place(fragment, 0))

    def _load_scales(self, base: tirx.Expr, block: Index) -> None:
        """Load scales and zero points of the warp's rows. block: number of the block in the stage."""
        start = base + self.data_units + self.words_units
        for fragment, half in itertools.product(range(self.fragments), range(2)):
            at = block * self.rows + self._row_of(fragment) + self.g + half * 8
            local = self.local.buffer.data
            self.scales[fragment, half] = tirx.call_pure_extern("uint32", "load_scale", start * 8 + at, local)
            if self.operands.zeros is not None:
                zeros = (start + self.scale_units) * _UNIT_BYTES + at
                self.zeros[fragment, half] = tirx.call_pure_extern("uint32", "load_zero", zeros, local)

    def _load_activations(self, base: tirx.Expr, step: int) -> None:
        """Load 16 depths of the activations of the warp's part of a stage.

        Matrices 0 and 1 of a load are two times eight depths of eight rows, matrices 2 and 3 those of the next rows.
        """
        depth = self.part * self.size + step
        more = self.lane // 16 * COLUMNS if self.tiles_of_data > 1 else self.constant(0)
        start = base + (self.lane % 8 + more) * self.row_units + self.lane // 8 % 2 + depth // UNIT
        for pair in range(self.activations.shape[0]):
            offset = start + pair * 2 * COLUMNS * self.row_units
            self.call("load_activations", offset, self.local.buffer.data, *self.activations.place(pair, 0))

    def _products(self) -> None:
        """Multiply all fragments of weights with all tiles of activations."""
        for fragment, tile in itertools.product(range(self.fragments), range(self.tiles_of_data)):
            factors = (*self.weights.place(0, 0, fragment, 0), *self.activations.place(tile // 2, tile % 2 * 2))
            self.call("multiply_weights", *self.sums.place(fragment, tile, 0), *factors)

    def _warp_group_products(self, base: tirx.Expr, step: int, half: int, number: int) -> None:
        """Multiply `weights[half, number]` with 16 depths of the activations in local memory."""
        depth = self.part * self.size + step
        line = depth // _SWIZZLED_NUMBERS * self.columns * _SWIZZLED
        offset = base + line + depth % _SWIZZLED_NUMBERS // UNIT
        for fragment in range(self.fragments):
            weights = self.weights.place(half, number, fragment, 0)
            sums = self.sums.place(fragment, 0, 0)
            self.call(f"warp_group_product_{self.columns}", *sums, *weights, offset, self.local.buffer.data)

    def _row_of(self, fragment: Index) -> tirx.Expr:
        """Return the first row of a fragment in the group's tile."""
        return (fragment * self.warps + self.warp) * ROWS

    # Results

    def _store_sums(self) -> None:
        """Store the sums. Warps that share them add up some each."""
        if self.parts == 1:
            for fragment, tile, number in itertools.product(*map(range, self.sums.shape)):
                self._store(fragment, tile, number, self.sums[fragment, tile, number])
            return
        sums, own = self.sums.flat(), self.warp * WARP + self.lane
        partial = self.local.viewed(*sums.shape, self.parts, self.threads // self.parts)
        self.call("wait_for_copies", 0)
        self.emit(barrier())
        for at in range(*sums.shape):
            partial[at, self.part, own] = sums[at]
        self.emit(barrier())
        for place, total in self.sums_of_parts(partial, [own], self.part, self.parts):
            fragment = place // _OF_FRAGMENT // self.tiles_of_data
            self._store(fragment, place // _OF_FRAGMENT % self.tiles_of_data, place % _OF_FRAGMENT, total)

    def _store(self, fragment: Index, tile: Index, number: Index, total: tirx.Expr) -> None:
        """Store a sum of the work-item, if the output has it."""
        row = self.group * self.rows + self._row_of(fragment) + self.g + number // 2 * 8
        column = self.data_group * self.columns + tile * COLUMNS + self.t * 2 + number % 2
        with self.when(*checks([column, row], (self.work.m, self.work.n), (self.columns, self.rows))):
            self.emit(self.operands.stored([column, row], total))
