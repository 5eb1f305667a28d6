"""Product with a constant matrix of 2, 4 or 8 bits, which stays packed in memory.

data (m, k)      words uint32 (chunks, n, 4)      scales (blocks, n)      zeros (blocks, n) or none      output (m, n)

`tvm_patches/quantized_matrix.py` shows the packing. A single row of activations is bound by the bytes of the weight, so
each weight is unpacked once. Of more rows, a work-item multiplies several with each unpacked weight.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from romou.base.knob import Choice, Knob
from romou.base.limits import Limits
from romou.base.space import Columns, Config, Space
from romou.compiler.operators.base import ADDRESSES, Template
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.quantized.kernel import (
    BYTES,
    MASK,
    OF_BLOCK,
    OF_WEIGHT,
    SHIFT,
    Operands,
    QuantizedKernel,
    Tiles,
)
from romou.compiler.operators.quantized.knobs import GROUP_PARTS, ITEM_DATA
from romou.compiler.scheduling.blocks import find_blocks, is_elementwise_of, is_regular, loads_of, reduced_axes
from romou.compiler.scheduling.rewrites import inlined
from romou.compiler.tir.primitives import LANES, advance_pointers, is_image
from tvm_patches.quantized_matrix import PRODUCT, QuantizedMatrix, QuantizedProduct

_STAGES = (0, 256, 512, 1024, 2048, 4096)
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
        choices=(1, 2, 4, 8),
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
        choices=_STAGES,
        default=0,
        help="activations of each row that a group stages in local memory, with the sum of each block; 0: none",
    ),
    Knob(
        name="unpack",
        choices=(SHIFT, MASK, BYTES),
        default=SHIFT,
        help="how a code becomes a number: shifted, masked with the activations scaled, or as part of a byte",
    ),
    Knob(
        name="zero_point",
        choices=(OF_BLOCK, OF_WEIGHT),
        default=OF_BLOCK,
        help="whether scale and zero point are applied to the sums of a block or to each weight",
    ),
)
# Most rows of activations that count as few.
_MOST_FEW = 8
# Activations of a row that the default config stages, for one row and for several.
_STAGED, _STAGED_TILE = 2048, 256
# Work-items along the weight's rows that read a cache line together.
_LEAST_ACROSS = 8
# Registers of a work-item for its tiles, which leave some for addresses.
_MOST_REGISTERS = 160
# Most multiply-adds that a step writes out, because compilers take long for longer code.
_MOST_WRITTEN = 2048


class QuantizedTemplate(Template):
    """The template of a function with one product with a quantized matrix, and element-wise operators behind it."""

    family = "quantized_product"
    knobs = KNOBS

    def __init__(self, func: tirx.PrimFunc, simplified: tirx.PrimFunc, work: QuantizedProduct) -> None:
        self.func, self._simplified, self.workload = func, simplified, work

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> QuantizedTemplate | None:
        """Return the template of `func`, or None if it has no such product, or an epilogue of another shape."""
        marked = [block for block in find_blocks(func) if PRODUCT in block.annotations]
        if len(marked) != 1 or any(map(is_image, func.params)) or not is_regular(func):
            return None
        simplified = inlined(func)
        blocks = find_blocks(simplified)
        if len(blocks) > 2 or PRODUCT not in blocks[0].annotations:
            return None
        if len(blocks) == 2 and not is_elementwise_of(blocks[1], blocks[0].writes[0].source):
            return None
        work = QuantizedProduct.from_json(str(marked[0].annotations[PRODUCT]))
        return cls(func, simplified, work)

    @functools.cached_property
    def operands(self) -> Operands:
        """The buffers of the product, of the simplified function."""
        product, *epilogue = find_blocks(self._simplified)
        assert reduced_axes(product), "the product is a sum"
        sources: list[tirx.Buffer] = []
        for load in loads_of(product.body.value):
            is_new = not any(load.source.same_as(other) for other in (*sources, product.writes[0].source))
            sources += [load.source] if is_new else []
        # In the order of the definition: data * (codes - zeros) * scales.
        data, words, *zeros, scales = sources
        return Operands(
            data=data,
            words=words,
            scales=scales,
            zeros=zeros[0] if zeros else None,
            product=product.writes[0].source,
            epilogue=epilogue[0] if epilogue else None,
        )

    @property
    def name(self) -> str:
        work = self.workload
        zero = "" if work.zero == "none" else f"_{work.zero}"
        return f"{self.family}_{work.m}x{work.k}_{work.n}_int{work.bits}_b{work.block}{zero}"

    @property
    def flops(self) -> int:
        return 2 * self.workload.m * self.workload.k * self.workload.n

    @property
    def names(self) -> Mapping[str, str]:
        operands, output = self.operands, self.func.params[-1]
        return {"data": str(operands.data.name), "weight": str(operands.words.name), "output": str(output.name)}

    @property
    def activations(self) -> set[str]:
        return set()

    def tiles(self, columns: Columns) -> Tiles:
        """Return the tiles of a config, or of many."""
        return Tiles(self.workload, columns)

    def registers(self, columns: Columns) -> Any:
        """Return the registers of a work-item's tiles."""
        tiles = self.tiles(columns)
        is_of_block = np.asarray(columns["zero_point"]) == OF_BLOCK
        words, data = LANES * tiles.item_rows * columns["item_chunks"], LANES * tiles.item_data
        return words + data * (1 + is_of_block) + tiles.outputs * (1 + is_of_block) + 2 * tiles.item_rows + LANES

    def space(self, limits: Limits) -> Space:
        work = self.workload
        choices: dict[str, Sequence[Choice]] = {
            "item_data": [d for d in map(int, ITEM_DATA.choices) if d == 1 or d < 2 * work.m],
            "staged_data": [s for s in _STAGES if s <= 256 or s < 2 * work.k],
            "item_chunks": [c for c in (1, 2, 4) if c == 1 or c * work.chunk <= work.k],
        }
        space = Space.of(self.knobs, limits, choices)

        def conditions(config: Columns) -> dict[str, Any]:
            tiles = self.tiles(config)
            return {
                "work-items of a group, device's limit": tiles.threads <= limits.max_work_group_size,
                "local memory, device's limit": tiles.local_memory_bytes <= limits.local_memory_bytes,
                "registers for the tiles": self.registers(config) <= _MOST_REGISTERS,
                "a group less than twice as large as the rows": (tiles.rows < 2 * work.n) | (tiles.rows <= 8),
                "a step for each part": (tiles.parts == 1) | (tiles.parts <= tiles.steps),
                "whole steps of all parts in a stage": (np.asarray(config["staged_data"]) == 0)
                | (np.asarray(config["staged_data"]) % (tiles.codes * tiles.parts) == 0),
                "masked codes have a place value, which only sums leave out": (np.asarray(config["unpack"]) != MASK)
                | (np.asarray(config["zero_point"]) == OF_BLOCK),
                "code of a step": tiles.codes * tiles.outputs <= _MOST_WRITTEN,
            }

        space.add_constraint(conditions)
        return space

    def default_config(self, limits: Limits) -> Config:
        """Return tiles for the rows of activations, with sums split until the device is busy."""
        space, numbers, m = self.space(limits), limits.preset.quantized, self.workload.m
        is_one, is_tile = m == 1, m > _MOST_FEW
        rows, most = (
            (numbers.rows, 1)
            if is_one
            else (numbers.tile_rows, numbers.tile_data)
            if is_tile
            else (numbers.few_rows, numbers.few_data)
        )
        is_staged = numbers.staged == "all" or (numbers.staged == "tiles" and is_tile)
        config = space.default(
            item_data=next(d for d in map(int, ITEM_DATA.choices) if d >= min(m, most)),
            item_rows=rows,
            item_chunks=numbers.chunks if is_one else 1,
            staged_data=(_STAGED if is_one else _STAGED_TILE) if is_staged else 0,
            unpack=numbers.unpack,
        )
        # Sums of activations pay if a group shares them, or if there is one row of them.
        is_full = limits.registers is not None and self.registers(config) + ADDRESSES > limits.registers
        if is_full or not (is_one or is_staged):
            config = config.replace(zero_point=OF_WEIGHT)
        splits = [self._split(config, int(parts), numbers.group) for parts in space.knobs["group_parts"]]
        usable = [split for split in splits if space.is_valid(split)]
        busy = (split for split in usable if self._work_items(split) >= limits.busy_work_items)
        return next(busy, usable[-1] if usable else space.nearest_valid(config))

    @staticmethod
    def _split(config: Config, parts: int, group: int) -> Config:
        """Return a config whose sums have `parts` parts, in a group of about `group` work-items."""
        return config.replace(group_parts=parts, group_rows=max(group // parts, _LEAST_ACROSS))

    def _work_items(self, config: Config) -> int:
        tiles = self.tiles(config)
        return int(tiles.groups * tiles.threads)

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        # Without this mark, fp16 is converted by functions that take an offset, not a pointer.
        has_fp16 = self.workload.dtype == "float16" and limits.has_fp16_arithmetic and limits.has_vector_arithmetic
        kernel = QuantizedKernel(self._simplified, self.workload, self.operands, config, has_fp16=has_fp16)
        func = kernel.function()
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
