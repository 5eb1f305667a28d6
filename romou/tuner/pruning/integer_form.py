"""The form of products of 8-bit integers: an iteration is one step along k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from romou.base.limits import Limits
from romou.base.space import Columns
from romou.compiler.operators.base import ADDRESSES
from romou.compiler.operators.families.integer_product import IntegerTemplate
from romou.compiler.operators.quantized.integer_kernel import DOT
from romou.compiler.operators.quantized.integer_matrix import BYTES, VECTOR
from romou.compiler.tir.primitives import LANES
from romou.tuner.analysis.usage import KernelUsage
from romou.tuner.pruning.form import Form, form_of

# Instructions that make a float of a byte: two shifts, or a shift and a mask, and a conversion.
_UNPACKED = 3


class IntegerForm(Form):
    """The formulas of one product, over arrays of knobs.

    dot_instructions: instructions of a dot product of four bytes.
    """

    def __init__(self, template: IntegerTemplate, dot_instructions: int) -> None:
        self._template, self._work, self._dot_instructions = template, template.workload, dot_instructions

    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        return {}

    def _bytes_of_item(self, columns: Columns) -> tuple[Any, Any]:
        """Return the bytes of activations and of the weight that a work-item reads in a step."""
        tiles = self._template.tiles(columns)
        return tiles.item_data * BYTES * VECTOR, tiles.item_columns * BYTES * VECTOR

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        template, work = self._template, self._work
        tiles, registers = template.tiles(columns), template.registers(columns) + ADDRESSES
        data, weight = self._bytes_of_item(columns)
        unpacked = (tiles.item_columns + tiles.item_data) * _UNPACKED
        of_word = np.where(
            np.asarray(columns["multiply"]) == DOT,
            tiles.outputs * self._dot_instructions,
            BYTES * (tiles.outputs + unpacked),
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
            access_width=LANES,
            output_bytes=shape * template.element_bytes,
            iterations=np.maximum(tiles.iterations, 1),
            multiply_adds=VECTOR * of_word,
            local_loads=np.asarray(0),
            work_group_size=tiles.threads,
            work_groups=tiles.groups,
            local_memory_bytes=tiles.local_memory_bytes,
            is_staged=np.asarray(False),
            images=dict.fromkeys(template.names, False),
            has_copies=np.asarray(False),
            padding=tiles.column_groups * tiles.columns * tiles.row_groups * tiles.item_data / shape - 1,
            element_bytes=1,
        )

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
