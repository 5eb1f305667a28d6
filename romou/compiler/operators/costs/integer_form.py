"""The form of products of 8-bit integers: an iteration is one step along k."""

from __future__ import annotations

from typing import Any

import numpy as np

from romou.base.limits import Limits
from romou.base.space import Columns
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.form import Form, form_of
from romou.compiler.operators.costs.packed_form import PackedForm
from romou.compiler.operators.families.integer_product import IntegerTemplate
from romou.compiler.operators.kernels.quantized.integer_kernel import DOT
from romou.compiler.operators.kernels.quantized.integer_matrix import BYTES, VECTOR
from romou.compiler.tir.primitives import LANES

# Instructions that make a float of a byte: two shifts, or a shift and a mask, and a conversion.
_UNPACKED = 3


class IntegerForm(PackedForm):
    """The formulas of one product, over arrays of knobs.

    dot_instructions: instructions of a dot product of four bytes.
    """

    def __init__(self, template: IntegerTemplate, dot_instructions: int) -> None:
        super().__init__(template, access_width=LANES, element_bytes=1)
        self._dot_instructions = dot_instructions

    def _bytes_of_item(self, columns: Columns) -> tuple[Any, Any]:
        """Return the bytes of activations and of the weight that a work-item reads in a step."""
        tiles = self._template.tiles(columns)
        return tiles.item_data * BYTES * VECTOR, tiles.item_columns * BYTES * VECTOR

    def _operations(self, columns: Columns) -> Any:
        tiles = self._template.tiles(columns)
        unpacked = (tiles.item_columns + tiles.item_data) * _UNPACKED
        of_word = np.where(
            np.asarray(columns["multiply"]) == DOT,
            tiles.outputs * self._dot_instructions,
            BYTES * (tiles.outputs + unpacked),
        )
        return VECTOR * of_word

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        """Return the loads as `Form.loads` does."""
        tiles = self._template.tiles(columns)
        data, weight = self._bytes_of_item(columns)
        width_bytes = BYTES * np.asarray(columns["lanes"])
        lines = -(-np.minimum(tiles.across, warp_size) * width_bytes // line_bytes)
        return tiles.outputs, data / (BYTES * VECTOR), weight / width_bytes, np.ones_like(lines), lines


@form_of.register
def _(template: IntegerTemplate, limits: Limits) -> Form:
    # Without an instruction, each of four products takes two bytes, shifted twice.
    return IntegerForm(template, 1 if limits.dot_products is not None else BYTES * 5)
