"""Product with a constant matrix of 2, 4 or 8 bits, which stays packed in memory.

data (m, k)      words uint32 (chunks, n, 4)      scales (blocks, n)      zeros (blocks, n), a table (2^bits,) or none
output (m, n)

`tvm_patches/quantized_matrix.py` shows the packing. In an image, a chunk of 128 bits is a texel: a row of the image has
a chunk of each row of the weight. A single row of activations is bound by the bytes of the weight, so
each weight is unpacked once. Of more rows, a work-item multiplies several with each unpacked weight.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax, tirx

from romou.base.knob import Knob
from romou.base.limits import Limits
from romou.base.space import Choices, Columns, Config, Space
from romou.compiler.operators.contraction.knobs import WEIGHT
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.kernels.quantized.form import QuantizedForm
from romou.compiler.operators.kernels.quantized.kernel import (
    BYTES,
    EXPONENT,
    MASK,
    OF_BLOCK,
    OF_WEIGHT,
    PAIRS,
    SHIFT,
    TABLES,
    VECTORS,
    QuantizedKernel,
    QuantizedOperands,
    QuantizedTiles,
)
from romou.compiler.operators.kernels.quantized.norm import Norm
from romou.compiler.operators.kernels.quantized.pairs_defaults import pairs_config
from romou.compiler.operators.kernels.quantized.pairs_kernel import PairsKernel
from romou.compiler.operators.kernels.quantized.row_classes import MOST_FEW
from romou.compiler.operators.kernels.quantized.template import (
    GROUP_PARTS,
    ITEM_DATA,
    MMA_ITEM_DATA,
    PLAIN_ITEM_DATA,
    PackedTemplate,
)
from romou.compiler.operators.kernels.quantized.tensor_core_defaults import data_choices, tensor_core_config
from romou.compiler.operators.kernels.quantized.tensor_core_kernel import TensorCoreKernel
from romou.compiler.operators.kernels.quantized.vector_kernel import ROWS, VectorKernel
from romou.compiler.operators.kernels.tensor_cores import DEPTHS, MMA, NO_TENSOR_CORES, TENSOR_CORES
from romou.compiler.operators.schedule_template import ADDRESSES
from romou.compiler.scheduling.blocks import has_load
from romou.compiler.scheduling.loops import SUB_GROUP
from romou.compiler.scheduling.placement import excess_of_image
from romou.compiler.tir.primitives import LANES, MemoryKind, advance_pointers, set_image
from romou.devices.backends.dialect import WARP_GROUP_COLUMNS
from romou.devices.backends.launch import PLAIN_IMAGE
from tvm_patches.quantized_matrix import PRODUCT, QuantizedMatrix, QuantizedProduct

if TYPE_CHECKING:
    from typing_extensions import Self

BUFFER, IMAGE = (kind.value for kind in MemoryKind)
# Without tensor cores, and on tensor cores.
_STAGES, _MMA_STAGED = (0, 256, 512, 1024, 2048, 4096), (32, 64, 128, 256, 512, 1024, 2048)
KNOBS = (
    Knob(
        name="group_rows",
        choices=(4, 8, 16, 32, 64, 128),
        default=64,
        help="work-items of a group along the weight's rows",
        scales_outputs=True,
    ),
    GROUP_PARTS,
    Knob(
        name="item_rows",
        choices=(1, 2, 4, 8, ROWS),
        default=4,
        help="rows of the weight of a work-item",
        scales_outputs=True,
    ),
    ITEM_DATA,
    Knob(
        name="item_chunks",
        choices=(1, 2, 4),
        default=1,
        help="chunks of 128 bits of each row that a work-item loads at a time",
    ),
    Knob(
        name="staged_data",
        choices=tuple(sorted({*_STAGES, *_MMA_STAGED})),
        default=0,
        help="activations of each row that a group stages in local memory, with the sum of each block; 0: none",
    ),
    Knob(
        name="unpack",
        choices=(SHIFT, MASK, BYTES, EXPONENT, PAIRS, VECTORS, *TABLES),
        default=SHIFT,
        help="how a code becomes a number: shifted, masked with the activations scaled, as part of a byte, in the "
        "mantissa of a number with an exponent, in pairs of fp16 numbers, whose products are added up in fp16 for "
        "a part of a block, or in vectors of 16 rows on CPUs; of NF4 and FP4: looked up in the table of numbers, or in "
        "a copy of it in local memory",
    ),
    Knob(
        name="zero_point",
        choices=(OF_BLOCK, OF_WEIGHT),
        default=OF_BLOCK,
        help="whether scale and zero point are applied to the sums of a block or to each weight",
    ),
    WEIGHT,
    SUB_GROUP,
    TENSOR_CORES,
)
# Rows of activations of a work-item whose vectors are rows of the weight, besides those of all.
_VECTOR_DATA = (12, 16)
# Work-items of a group, whose vectors are rows of the weight: a core runs whole groups.
_VECTOR_GROUP = 4
# Activations of a row that the default config stages, for one row and for several.
_STAGED, _STAGED_TILE = 2048, 256
# Work-items along the weight's rows that read a cache line together.
_LEAST_ACROSS = 8
# Registers of a work-item for its tiles, which leave some for addresses.
_MOST_REGISTERS, _MOST_MMA_REGISTERS = 160, 224
# Most multiply-adds that a step writes out, because compilers take long for longer code.
_MOST_WRITTEN = 2048
# The same on tensor cores, whose instructions make 64 multiply-adds of a work-item.
_MOST_BY_MMA = 64 * 512


class QuantizedTemplate(PackedTemplate):
    """The template of a function with one product with a quantized matrix, and element-wise operators behind it."""

    family = "quantized_product"
    knobs = KNOBS
    product, annotation, block_counts, has_norms = QuantizedProduct, PRODUCT, (1, 2), True
    workload: QuantizedProduct

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> Self | None:
        template = super().of(func)
        if template is None or template._blocks[0] is None:
            return template
        # Few rows, because each group normalizes those that it reads.
        norm, (_, _, epilogue) = template.norm, template._blocks
        if norm is None or template.workload.m > MOST_FEW:
            return None
        is_read_again = epilogue is not None and has_load(epilogue, norm.total)
        return None if is_read_again else template

    @functools.cached_property
    def operands(self) -> QuantizedOperands:
        sources, total, epilogue = self._buffers()
        # In the order of the definition: data * (codes - zeros) * scales. A normalization reads other tensors as well.
        norm = self.norm
        data = sources[0] if norm is None else norm.data
        weight, *other, scales = sources[1:] if norm is None else [s for s in sources if not norm.reads(s)]
        table, zeros = (other, []) if self.workload.has_table else ([], other)
        return QuantizedOperands(
            data=data,
            norm=norm,
            weight=weight,
            scales=scales,
            zeros=zeros[0] if zeros else None,
            table=table[0] if table else None,
            product=total,
            epilogue=epilogue,
        )

    @functools.cached_property
    def norm(self) -> Norm | None:
        """The normalization of the activations."""
        sums, product, _ = self._blocks
        return None if sums is None else Norm.of(sums, product, product.body.value.b.a)

    @property
    def name(self) -> str:
        work = self.workload
        zero, codes = "" if work.zero == "none" else f"_{work.zero}", "table" if work.has_table else "int"
        norm = "_normalized" if self.norm is not None else ""
        return f"{self.family}_{work.m}x{work.k}_{work.n}_{codes}{work.bits}_b{work.block}{zero}{norm}"

    def tiles(self, columns: Columns) -> QuantizedTiles:
        return QuantizedTiles(self.workload, columns, is_normalized=self.norm is not None)

    def form(self, limits: Limits) -> QuantizedForm:
        return QuantizedForm(self)

    def registers(self, columns: Columns) -> Any:
        tiles = self.tiles(columns)
        is_of_block = columns["zero_point"] == OF_BLOCK
        words, data = LANES * tiles.item_rows * columns["item_chunks"], LANES * tiles.item_data
        plain = words + data * (1 + is_of_block) + tiles.outputs * (1 + is_of_block) + 2 * tiles.item_rows + LANES
        of_stage = np.where(tiles.is_wgmma, tiles.staged // tiles.parts // DEPTHS, 0.5) * 4 * tiles.item_rows
        of_mma = tiles.outputs + 4 * tiles.item_rows + of_stage + tiles.item_data * ~tiles.is_wgmma
        # The rows of a vector are lanes of a register.
        of_vectors = tiles.outputs // ROWS + 5 * LANES
        return np.where(tiles.is_mma, of_mma, np.where(tiles.is_vector, of_vectors, plain))

    def space(self, limits: Limits) -> Space:
        work = self.workload
        can_use_mma = limits.has_tensor_cores and self._fits_tensor_cores
        has_vectors = VECTORS in self._spellings(limits)
        asked = limits.asked_local_memory_bytes or limits.local_memory_bytes
        data, staged = (
            [d for d in PLAIN_ITEM_DATA if d == 1 or d < 2 * work.m],
            [s for s in _STAGES if s <= 256 or s < 2 * work.k],
        )
        of_mma = data_choices(work, limits.cores) if can_use_mma else []
        choices: dict[str, Choices] = {
            "tensor_cores": lambda choice: (
                choice == NO_TENSOR_CORES or (can_use_mma and (choice == MMA or limits.has_warp_groups))
            ),
            "item_data": sorted({*data, *of_mma, *(d for d in _VECTOR_DATA if has_vectors and d < 2 * work.m)}),
            "item_rows": lambda rows: rows < ROWS or has_vectors,
            "staged_data": sorted({*staged, *(_MMA_STAGED if can_use_mma else ())}),
            "item_chunks": lambda chunks: chunks == 1 or chunks * work.chunk <= work.k,
            "unpack": self._spellings(limits),
            "weight": lambda _: (
                limits.max_image is not None and limits.has_word_images and not self.kept_in_buffers(limits)
            ),
            "sub_group": lambda size: size in (1, limits.shuffled),
        }
        space = Space.of(self.knobs, limits, choices)

        def conditions(config: Columns) -> dict[str, Any]:
            tiles = self.tiles(config)
            is_mma, is_vector = tiles.is_mma, tiles.is_vector
            written = tiles.codes * tiles.outputs // np.where(is_vector, ROWS, 1)
            is_plain = (np.isin(config["item_data"], data) | is_vector) & np.isin(config["staged_data"], staged)
            return {
                "tiles of tensor cores": np.where(is_mma, self._fills_fragments(config), is_plain),
                "work-items of a group, device's limit": tiles.threads <= limits.max_work_group_size,
                "local memory, device's limit": tiles.local_memory_bytes
                <= np.where(is_mma, asked, limits.local_memory_bytes),
                "registers for the tiles": self.registers(config)
                <= np.where(is_mma, _MOST_MMA_REGISTERS, _MOST_REGISTERS),
                "a group less than twice as large as the rows": (tiles.rows < 2 * work.n)
                | (tiles.rows <= np.where(is_vector, _VECTOR_GROUP * ROWS, 8 + 8 * is_mma)),
                "whole sub-groups with several parts": self._fits_sub_groups(config),
                "a step for each part": is_mma | (tiles.parts == 1) | (tiles.parts <= tiles.steps),
                "whole steps of all parts in a stage": is_mma
                | (config["staged_data"] == 0)
                | (config["staged_data"] % (tiles.codes * tiles.parts) == 0),
                "masked codes have a place value, which only sums leave out": (config["unpack"] != MASK)
                | (config["zero_point"] == OF_BLOCK),
                "pairs are centred": ~tiles.is_paired | (config["zero_point"] == OF_BLOCK),
                "rows are the lanes of a vector": np.where(
                    is_vector, self._fills_vectors(config), tiles.item_rows < ROWS
                ),
                "tensor cores copy out of buffers": ~is_mma | (config.get("weight", BUFFER) == BUFFER),
                "code of a step": written <= np.where(is_mma, _MOST_BY_MMA, _MOST_WRITTEN),
            }

        space.add_constraint(conditions)
        return space

    def _spellings(self, limits: Limits) -> list[str]:
        """Return the ways in which codes can become numbers."""
        if self.workload.has_table:
            return list(TABLES)
        # SPIR-V has no vectors of 16.
        has_vectors = limits.is_cpu and limits.vector_lanes >= ROWS
        others = [*([PAIRS] if self._has_pairs(limits) else []), *([VECTORS] if has_vectors else [])]
        return [SHIFT, MASK, BYTES, EXPONENT, *others]

    def _fits_sub_groups(self, config: Columns) -> Any:
        """Return whether sub-groups, if a config uses them, are full and have several parts of the same sums."""
        tiles, size = self.tiles(config), config.get("sub_group", 1)
        is_whole = (tiles.across < size) & (tiles.threads % size == 0) & ~tiles.is_mma & ~tiles.is_vector
        return (size == 1) | is_whole

    def kept_in_buffers(self, limits: Limits) -> dict[str, str]:
        if limits.max_image is None or not limits.has_word_images:
            return {}
        shape = [int(extent) for extent in self.operands.weight.shape]
        reason = excess_of_image(shape, PLAIN_IMAGE, limits.max_image)
        return {} if reason is None else {"weight": reason}

    def image_scopes(self, config: Config, limits: Limits) -> dict[str, str]:
        return {self.names["weight"]: PLAIN_IMAGE} if config.get("weight", BUFFER) == IMAGE else {}

    def _fills_vectors(self, config: Columns) -> Any:
        """Return whether a config, or which of many, has vectors of rows, whose steps are one chunk."""
        is_plain = (config["item_chunks"] == 1) & (config["staged_data"] == 0)
        is_whole = (config["group_parts"] == 1) & (config["zero_point"] == OF_WEIGHT)
        return is_plain & is_whole & (config["item_rows"] == ROWS)

    def _has_pairs(self, limits: Limits) -> bool:
        """Return whether codes can become pairs of fp16 numbers, which are in one block, less their zero point."""
        work = self.workload
        fits = work.dtype == "float16" and work.zero in ("none", "uint8") and work.block >= work.chunk
        return fits and limits.has_fp16_arithmetic and limits.has_vector_arithmetic

    @property
    def _fits_tensor_cores(self) -> bool:
        """Return whether activations are fp16, all operands can be copied by 16 bytes, and codes are integers."""
        work = self.workload
        multiple = {"none": 8, "uint8": 16}.get(work.zero)
        is_copied = work.k % 8 == 0 and multiple is not None and work.n % multiple == 0
        return work.dtype == "float16" and is_copied and not work.has_table and self.norm is None

    def _fills_fragments(self, config: Columns) -> Any:
        """Return whether a config, or which of many, has whole fragments of tensor cores and one spelling of codes."""
        work, tiles, staged = self.workload, self.tiles(config), config["staged_data"]
        part = np.maximum(staged // config["group_parts"], 1)
        return (
            (config["group_rows"] % 8 == 0)
            & (config["item_rows"] % 2 == 0)
            & np.isin(config["item_data"], MMA_ITEM_DATA)
            & np.isin(staged, _MMA_STAGED)
            & (staged < 2 * work.k)
            & (part % max(work.chunk, DEPTHS) == 0)
            & ((staged % work.block == 0) | (work.block % np.maximum(staged, 1) == 0))
            # Parts begin with a block, or are in the same one.
            & ((part % work.block == 0) | (work.block % part == 0))
            & (config["unpack"] == SHIFT)
            & (config["zero_point"] == OF_WEIGHT)
            & (config["item_chunks"] == 1)
            & (~tiles.is_wgmma | self._fills_warp_groups(tiles))
        )

    def _fills_warp_groups(self, tiles: QuantizedTiles) -> Any:
        """Return whether four warps are along the weight's rows, and a warp holds few enough weights in registers."""
        weights = tiles.staged // tiles.parts // DEPTHS * tiles.item_rows * 2
        return (
            (tiles.across % 32 == 0)
            & np.isin(tiles.columns, WARP_GROUP_COLUMNS)
            & (tiles.staged % 64 == 0)
            & (weights <= 32)
        )

    def default_config(self, limits: Limits) -> Config:
        """Return tiles for the rows of activations, with sums split until the device is busy."""
        space, numbers, m = self.space(limits), limits.preset.quantized, self.workload.m
        if VECTORS in space.knobs["unpack"]:
            return self._vector_config(space, limits)
        on_tensor_cores = tensor_core_config(self.workload, space, limits)
        if on_tensor_cores is not None:
            return on_tensor_cores
        if numbers.has_pair_tiles and m > 1 and (pairs := pairs_config(self.workload, space, limits)) is not None:
            return pairs
        is_one, is_tile = m == 1, m > MOST_FEW
        rows, pair_rows, most, unpack = (
            (numbers.rows, numbers.pair_rows, 1, numbers.unpack)
            if is_one
            else (numbers.tile_rows, numbers.tile_pair_rows, numbers.tile_data, numbers.tile_unpack)
            if is_tile
            else (numbers.few_rows, numbers.few_pair_rows, numbers.few_data, numbers.few_unpack)
        )
        has_pairs = pair_rows is not None and PAIRS in space.knobs["unpack"]
        is_staged = numbers.staged == "all" or (numbers.staged == "tiles" and is_tile)
        config = space.default(
            item_data=next(d for d in PLAIN_ITEM_DATA if d >= min(m, most)),
            item_rows=(has_pairs and pair_rows) or rows,
            item_chunks=numbers.chunks if is_one else 1,
            staged_data=(_STAGED if is_one else _STAGED_TILE) if is_staged else 0,
            unpack=numbers.table if self.workload.has_table else PAIRS if has_pairs else unpack,
            weight=numbers.weight,
        )
        # Sums of activations pay if a group shares them, or if there is one row of them, or if there are none.
        is_full = limits.registers is not None and self.registers(config) + ADDRESSES > limits.registers
        is_centred = config["unpack"] == EXPONENT and self.workload.zero == "none"
        has_sums = not (is_centred or self.workload.has_table)
        if config["unpack"] not in (MASK, PAIRS) and (is_full or (has_sums and not (is_one or is_staged))):
            config = config.replace(zero_point=OF_WEIGHT)
        splits = [self._split(config, int(parts), numbers.group) for parts in space.knobs["group_parts"]]
        return self._busy(splits, config, space, limits)

    def _vector_config(self, space: Space, limits: Limits) -> Config:
        """Return a config with vectors of rows and the most rows of activations that leave each core a group."""
        tile = space.default(
            unpack=VECTORS,
            zero_point=OF_WEIGHT,
            item_rows=ROWS,
            group_rows=_VECTOR_GROUP,
            group_parts=1,
            item_chunks=1,
            staged_data=0,
        )
        choices = sorted(map(int, space.knobs["item_data"]))
        most = next((data for data in choices if data >= self.workload.m), choices[-1])
        configs = [tile.replace(item_data=data) for data in reversed(choices) if data <= most]
        usable = [config for config in configs if space.is_valid(config)]
        busy = (config for config in usable if int(self.tiles(config).groups) >= limits.cores)
        return next(busy, usable[-1] if usable else space.nearest_valid(tile))

    @staticmethod
    def _split(config: Config, parts: int, group: int) -> Config:
        """Return a config whose sums have `parts` parts, in a group of about `group` work-items."""
        return config.replace(group_parts=parts, group_rows=max(group // parts, _LEAST_ACROSS))

    def is_faster(self, limits: Limits, readers: int = 1) -> bool:
        """Return whether a launch takes longer than what all groups add to normalize one row.

        Several rows take more registers. No times of other devices are known.
        """
        config = self.default_config(limits)
        if self.norm is None or self.workload.m > 1 or not (limits.is_mobile or config["unpack"] == VECTORS):
            return False
        tiles = self.tiles(config)
        number = limits.preset.quantized
        added = tiles.groups * (number.norm_of_item * tiles.threads + number.norm_of_number * self.workload.k)
        return bool(readers * added < limits.preset.algorithms.launches / 2)

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        if config.get("tensor_cores", NO_TENSOR_CORES) != NO_TENSOR_CORES:
            is_asked = self.tiles(config).local_memory_bytes > limits.local_memory_bytes
            kernel = TensorCoreKernel(self._simplified, self.workload, self.operands, config, asks_for_memory=is_asked)
            return tvm.IRModule({"main": kernel.function()})
        # Without this mark, fp16 is converted by functions that take an offset, not a pointer.
        has_fp16 = self.workload.dtype == "float16" and limits.has_fp16_arithmetic and limits.has_vector_arithmetic
        kind = {PAIRS: PairsKernel, VECTORS: VectorKernel}.get(str(config["unpack"]), QuantizedKernel)
        plain = kind(self._simplified, self.workload, self.operands, config, has_fp16=has_fp16)
        func = plain.function()
        for name, scope in self.image_scopes(config, limits).items():
            func = set_image(func, name, scope)
        has_pointers = limits.is_mobile and (self.workload.dtype == "float32" or has_fp16)
        return tvm.IRModule({"main": advance_pointers(func) if has_pointers else func})


class QuantizedFamily(Family):
    """Products with quantized constant matrices."""

    name = "quantized_product"

    def template_of(self, func: tirx.PrimFunc) -> QuantizedTemplate | None:
        return QuantizedTemplate.of(func)

    @property
    def cases(self) -> Sequence[Case]:
        return [_case(m=1, k=100, n=37), _case(m=3, k=96, n=40)]


def _case(m: int, k: int, n: int) -> Case:
    rng = np.random.default_rng(0)
    codes, blocks = rng.integers(0, 16, (n, k)).astype(np.uint8), -(-k // 32)
    scales = rng.uniform(-0.1, 0.1, (n, blocks)).astype(np.float32)
    weight = (codes - 8.0) * np.repeat(scales, 32, axis=1)[:, :k]

    def build(data: relax.Expr) -> relax.Expr:
        dtype = str(data.ty.dtype)
        matrix = QuantizedMatrix.pack(codes, scales.astype(dtype), None, bits=4, block=32)
        work = matrix.product(m, dtype)
        builder = relax.BlockBuilder.current()
        return builder.emit_te(
            work.define, data, *map(relax.const, matrix.arrays), primfunc_name_hint="quantized_product"
        )

    return Case(name=f"{m}x{k}_{n}_int4", inputs=[(m, k)], build=build, compute=lambda data: data @ weight.T)


FAMILY = QuantizedFamily()
