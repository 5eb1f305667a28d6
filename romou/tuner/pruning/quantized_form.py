"""The form of products with quantized weights: an iteration is one step along k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm

from romou.base.limits import Limits
from romou.base.space import Columns
from romou.compiler.operators.base import ADDRESSES
from romou.compiler.operators.families.quantized_product import QuantizedTemplate
from romou.compiler.operators.quantized.kernel import MASK, OF_BLOCK
from romou.compiler.tir.primitives import LANES
from romou.tuner.analysis.usage import KernelUsage
from romou.tuner.pruning.form import Form, form_of

# Bytes of a chunk of a row.
_CHUNK_BYTES = 16
# Instructions that make a float of a code: shift, mask and conversion, or mask and conversion.
_SHIFTED, _MASKED = 3, 2
# Multiply-adds of a work-item in an instruction of tensor cores, and work-items that share codes there.
_PRODUCTS, _SHARED = 64, 4


class QuantizedForm(Form):
    """The formulas of one product, over arrays of knobs."""

    def __init__(self, template: QuantizedTemplate) -> None:
        self._template, self._work = template, template.workload
        self._data_bytes = int(tvm.DataType(self._work.dtype).itemsize)

    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        return {}

    def _bytes_of_item(self, columns: Columns) -> tuple[Any, Any]:
        """Return the bytes of activations and of the weight that a work-item reads in a step."""
        tiles, work = self._template.tiles(columns), self._work
        zero = {"none": 0, "uint8": 1}.get(work.zero, self._data_bytes)
        blocks = -(-tiles.codes // work.block)
        of_row = _CHUNK_BYTES * tiles.codes / work.chunk + blocks * (self._data_bytes + zero)
        # On tensor cores, work-items share rows of the weight, and copy different activations.
        shared = np.where(tiles.is_mma, _SHARED, 1)
        return tiles.item_data * shared * tiles.codes * self._data_bytes, tiles.item_rows / shared * of_row

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        template, work = self._template, self._work
        tiles, registers = template.tiles(columns), template.registers(columns) + ADDRESSES
        data, weight = self._bytes_of_item(columns)
        is_masked, is_of_block = (
            np.asarray(columns[knob]) == choice for knob, choice in (("unpack", MASK), ("zero_point", OF_BLOCK))
        )
        of_code = np.where(is_masked, _MASKED, _SHIFTED) + ~is_of_block
        of_number = 1 * is_of_block + is_masked
        of_product = np.where(tiles.is_mma, 1 / _PRODUCTS, 1)
        operations = tiles.codes * (
            tiles.outputs * of_product
            + tiles.item_rows * np.where(tiles.is_mma, of_code / _SHARED, of_code)
            + tiles.item_data * of_number
        )
        shape = work.m * work.n
        return KernelUsage(
            registers=registers,
            needed_registers=registers,
            # Work-items of a part read the same activations.
            buffer_bytes=tiles.parts * data + tiles.threads * weight,
            image_bytes=np.asarray(0),
            unshared_buffer_bytes=tiles.threads * (data + weight),
            unshared_image_bytes=np.asarray(0),
            access_width=LANES if work.k % LANES == 0 else 1,
            output_bytes=shape * template.element_bytes,
            iterations=np.maximum(tiles.iterations, 1),
            multiply_adds=operations,
            local_loads=np.asarray(0),
            work_group_size=tiles.threads,
            work_groups=tiles.groups,
            local_memory_bytes=tiles.local_memory_bytes,
            is_staged=np.asarray(False),
            images=dict.fromkeys(template.names, False),
            has_copies=np.asarray(False),
            padding=tiles.row_groups * tiles.rows * tiles.data_groups * tiles.columns / shape - 1,
            element_bytes=self._data_bytes,
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        """Return the loads as `Form.loads` does."""
        tiles = self._template.tiles(columns)
        data, weight = self._bytes_of_item(columns)
        lines = -(-np.minimum(tiles.across, warp_size) * _CHUNK_BYTES // line_bytes)
        width_bytes = 4 * usage.access_width
        return tiles.outputs, data / width_bytes, weight / _CHUNK_BYTES, np.ones_like(lines), lines


@form_of.register
def _(template: QuantizedTemplate, _limits: Limits) -> Form:
    return QuantizedForm(template)
