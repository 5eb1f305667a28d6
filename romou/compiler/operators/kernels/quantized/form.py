"""The forms of products with packed weights. An iteration is one step along k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm

from romou.base.limits import Limits
from romou.base.space import Columns
from romou.compiler.operators.analysis.form import Form
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.kernels.quantized.integer_kernel import DOT
from romou.compiler.operators.kernels.quantized.integer_matrix import BYTES, VECTOR
from romou.compiler.operators.kernels.quantized.kernel import MASK, OF_BLOCK, PAIRS, QuantizedTiles
from romou.compiler.operators.kernels.quantized.template import PackedTemplate
from romou.compiler.operators.kernels.tensor_cores import PRODUCTS
from romou.compiler.operators.schedule_template import ADDRESSES
from romou.compiler.tir.primitives import LANES, MemoryKind

# Bytes of a chunk of a row.
_CHUNK_BYTES = 16
# Instructions that make a float of a code: shift, mask and conversion, or mask and conversion. Half of a pair's.
_SHIFTED, _MASKED, _PAIRED = 3, 2, 1.5
# Work-items that share codes on tensor cores.
_SHARED = 4
# Instructions that make a float of a byte: two shifts, or a shift and a mask, and a conversion.
_UNPACKED = 3


class PackedForm(Form):
    """The formulas of one product, over arrays of knobs.

    access_width: numbers that a load reads.
    element_bytes: bytes of an activation.
    """

    def __init__(self, template: PackedTemplate, *, access_width: int, element_bytes: int) -> None:
        self._template, self._work = template, template.workload
        self._access_width, self._element_bytes = access_width, element_bytes

    def _bytes_of_item(self, columns: Columns) -> tuple[Any, Any]:
        """Return the bytes of activations and of the weight that a work-item reads in a step."""
        raise NotImplementedError

    def _image_bytes_of_item(self, columns: Columns) -> Any:
        """Return the bytes of the weight that a work-item reads from an image in a step."""
        return 0

    def _operations(self, columns: Columns) -> Any:
        """Return the multiply-adds, and instructions that take as long, of a work-item's step."""
        raise NotImplementedError

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        template = self._template
        tiles, registers = template.tiles(columns), template.registers(columns) + ADDRESSES
        data, weight = self._bytes_of_item(columns)
        of_image = self._image_bytes_of_item(columns)
        shape = self._work.m * self._work.n
        return KernelUsage(
            registers=registers,
            needed_registers=registers,
            # Work-items of a part read the same activations.
            buffer_bytes=tiles.parts * data + tiles.threads * (weight - of_image),
            image_bytes=tiles.threads * of_image,
            unshared_buffer_bytes=tiles.threads * (data + weight - of_image),
            unshared_image_bytes=tiles.threads * of_image,
            access_width=self._access_width,
            output_bytes=shape * template.element_bytes,
            iterations=np.maximum(tiles.iterations, 1),
            multiply_adds=self._operations(columns),
            work_group_size=tiles.threads,
            work_groups=tiles.groups,
            local_memory_bytes=tiles.local_memory_bytes,
            images={**dict.fromkeys(template.names, False), "weight": of_image > 0},
            padding=tiles.groups * tiles.outputs_of_group / shape - 1,
            element_bytes=self._element_bytes,
        )


class QuantizedForm(PackedForm):
    """The formulas of one product with a quantized weight, over arrays of knobs."""

    def __init__(self, template: PackedTemplate) -> None:
        work = template.workload
        access_width = LANES if work.k % LANES == 0 else 1
        super().__init__(template, access_width=access_width, element_bytes=int(tvm.DataType(work.dtype).itemsize))

    def _bytes_of_item(self, columns: Columns) -> tuple[Any, Any]:
        tiles, work = self._template.tiles(columns), self._work
        zero = {"none": 0, "uint8": 1}.get(work.zero, self._element_bytes)
        blocks = -(-tiles.codes // work.block)
        of_row = self._bytes_of_row(tiles) + blocks * (self._element_bytes + zero)
        # On tensor cores, work-items share rows of the weight, and copy different activations.
        shared = np.where(tiles.is_mma, _SHARED, 1)
        return tiles.item_data * shared * tiles.codes * self._element_bytes, tiles.item_rows / shared * of_row

    def _bytes_of_row(self, tiles: QuantizedTiles) -> Any:
        """Return the bytes of a row's codes in a step."""
        return _CHUNK_BYTES * tiles.codes / self._work.chunk

    def _image_bytes_of_item(self, columns: Columns) -> Any:
        tiles, is_image = self._template.tiles(columns), columns.get("weight", "") == MemoryKind.IMAGE
        return is_image * tiles.item_rows * self._bytes_of_row(tiles)

    def _operations(self, columns: Columns) -> Any:
        tiles = self._template.tiles(columns)
        is_masked, is_paired, is_of_block = (
            np.asarray(columns[knob]) == choice
            for knob, choice in (("unpack", MASK), ("unpack", PAIRS), ("zero_point", OF_BLOCK))
        )
        of_code = np.where(is_paired, _PAIRED, np.where(is_masked, _MASKED, _SHIFTED) + ~is_of_block)
        of_number = 1 * is_of_block + is_masked
        of_product = np.where(tiles.is_mma, 1 / PRODUCTS, np.where(is_paired, 0.5, 1))
        return tiles.codes * (
            tiles.outputs * of_product
            + tiles.item_rows * np.where(tiles.is_mma, of_code / _SHARED, of_code)
            + tiles.item_data * of_number
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        tiles = self._template.tiles(columns)
        data, weight = self._bytes_of_item(columns)
        lines = -(-np.minimum(tiles.across, warp_size) * _CHUNK_BYTES // line_bytes)
        width_bytes = 4 * usage.access_width
        return tiles.outputs, data / width_bytes, weight / _CHUNK_BYTES, np.ones_like(lines), lines


class IntegerForm(PackedForm):
    """The formulas of one product of 8-bit integers, over arrays of knobs."""

    def __init__(self, template: PackedTemplate, limits: Limits) -> None:
        super().__init__(template, access_width=LANES, element_bytes=1)
        # Without an instruction for a dot product, each of four products takes two bytes, shifted twice.
        self._dot_instructions = 1 if limits.dot_products is not None else BYTES * 5

    def _bytes_of_item(self, columns: Columns) -> tuple[Any, Any]:
        tiles = self._template.tiles(columns)
        return tiles.item_data * BYTES * VECTOR, tiles.item_columns * BYTES * VECTOR

    def _operations(self, columns: Columns) -> Any:
        tiles = self._template.tiles(columns)
        unpacked = (tiles.item_columns + tiles.item_data) * _UNPACKED
        of_word = np.where(
            columns["multiply"] == DOT,
            tiles.outputs * self._dot_instructions,
            BYTES * (tiles.outputs + unpacked),
        )
        return VECTOR * of_word

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        tiles = self._template.tiles(columns)
        data, weight = self._bytes_of_item(columns)
        width_bytes = BYTES * columns["lanes"]
        lines = -(-np.minimum(tiles.across, warp_size) * width_bytes // line_bytes)
        return tiles.outputs, data / (BYTES * VECTOR), weight / width_bytes, np.ones_like(lines), lines
