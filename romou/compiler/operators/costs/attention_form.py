"""The form of attention: an iteration is one tile of keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm

from romou.base.limits import Limits
from romou.base.space import Columns
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.form import Form, form_of, loads_of_one
from romou.compiler.operators.families.attention import AttentionTemplate
from romou.compiler.operators.schedule_template import ADDRESSES
from romou.compiler.scheduling.blocks import loads_of
from romou.compiler.tir.primitives import LANES


class AttentionForm(Form):
    """The formulas of one attention, over arrays of knobs."""

    def __init__(self, template: AttentionTemplate, limits: Limits) -> None:
        self._template, self._exponential = template, limits.preset.attention.exponential
        attention = template.attention
        _, _, depth, columns = attention.extents
        self._row_bytes = depth * _bytes_of(attention.key_value) + columns * _bytes_of(attention.value)
        self._outputs = attention.extents[0] * columns * math.prod(attention.batch.values())
        self._width = LANES if depth % LANES == columns % LANES == 0 else 1

    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        return {}

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        template = self._template
        tiles, registers = template.tiles(columns), template.registers(columns) + ADDRESSES
        staged = tiles.keys * self._row_bytes
        rows, keys, _, _ = template.attention.extents
        of_rows = -(-rows // tiles.queries) * tiles.queries / rows
        return KernelUsage(
            registers=registers,
            needed_registers=registers,
            buffer_bytes=staged,
            image_bytes=np.asarray(0),
            unshared_buffer_bytes=staged,
            unshared_image_bytes=np.asarray(0),
            access_width=self._width,
            output_bytes=self._outputs * template.element_bytes,
            iterations=tiles.key_tiles,
            multiply_adds=template.multiply_adds(columns) + self._exponential * template.exponentials(columns),
            local_loads=template.local_vectors(columns) * LANES * 4,
            work_group_size=tiles.threads,
            work_groups=tiles.groups,
            local_memory_bytes=tiles.local_memory_bytes,
            is_staged=np.asarray(True),
            images=dict.fromkeys(template.names, False),
            has_copies=np.asarray(False),
            padding=of_rows * tiles.key_tiles * tiles.keys / keys - 1,
            element_bytes=template.element_bytes,
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        """Return the loads as `Form.loads` does. Half of the staged numbers are keys, half are values."""
        results = columns["item_queries"] * self._template.tiles(columns).columns * LANES
        loads = loads_of_one(usage) / 2
        lines = -(
            -np.minimum(usage.work_group_size, warp_size) * self._width * self._template.element_bytes // line_bytes
        )
        return results, loads, loads, lines, lines


def _bytes_of(operand: Any) -> int:
    """Return the bytes of the numbers in memory that one element of an operand is computed from."""
    return sum(int(tvm.DataType(str(load.source.dtype)).itemsize) for load in loads_of(operand))


@form_of.register
def _(template: AttentionTemplate, limits: Limits) -> Form:
    return AttentionForm(template, limits)
