"""The form of products with quantized weights: an iteration is one step along k."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from romou.base.limits import Limits
from romou.base.space import Columns
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.form import Form, form_of
from romou.compiler.operators.costs.packed_form import PackedForm
from romou.compiler.operators.families.quantized_product import BUFFER, IMAGE, QuantizedTemplate
from romou.compiler.operators.kernels.quantized.kernel import MASK, OF_BLOCK, PAIRS, QuantizedTiles
from romou.compiler.operators.kernels.tensor_cores import PRODUCTS
from romou.compiler.tir.primitives import LANES

# Bytes of a chunk of a row.
_CHUNK_BYTES = 16
# Instructions that make a float of a code: shift, mask and conversion, or mask and conversion. Half of a pair's.
_SHIFTED, _MASKED, _PAIRED = 3, 2, 1.5
# Work-items that share codes on tensor cores.
_SHARED = 4


class QuantizedForm(PackedForm):
    """The formulas of one product, over arrays of knobs."""

    def __init__(self, template: QuantizedTemplate) -> None:
        work = template.workload
        access_width = LANES if work.k % LANES == 0 else 1
        super().__init__(template, access_width=access_width, element_bytes=int(tvm.DataType(work.dtype).itemsize))

    def _bytes_of_item(self, columns: Columns) -> tuple[Any, Any]:
        """Return the bytes of activations and of the weight that a work-item reads in a step."""
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
        tiles, is_image = self._template.tiles(columns), np.asarray(columns.get("weight", BUFFER)) == IMAGE
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
        """Return the loads as `Form.loads` does."""
        tiles = self._template.tiles(columns)
        data, weight = self._bytes_of_item(columns)
        lines = -(-np.minimum(tiles.across, warp_size) * _CHUNK_BYTES // line_bytes)
        width_bytes = 4 * usage.access_width
        return tiles.outputs, data / width_bytes, weight / _CHUNK_BYTES, np.ones_like(lines), lines


@form_of.register
def _(template: QuantizedTemplate, _limits: Limits) -> Form:
    return QuantizedForm(template)
