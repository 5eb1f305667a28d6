"""The base of the forms of products with packed weights. An iteration is one step along k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from romou.base.space import Columns
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.form import Form
from romou.compiler.operators.kernels.quantized.template import PackedTemplate
from romou.compiler.operators.schedule_template import ADDRESSES


class PackedForm(Form):
    """The formulas of one product, over arrays of knobs.

    access_width: numbers that a load reads.
    element_bytes: bytes of an activation.
    """

    def __init__(self, template: PackedTemplate, *, access_width: int, element_bytes: int) -> None:
        self._template, self._work = template, template.workload
        self._access_width, self._element_bytes = access_width, element_bytes

    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        return {}

    def _bytes_of_item(self, columns: Columns) -> tuple[Any, Any]:
        """Return the bytes of activations and of the weight that a work-item reads in a step."""
        raise NotImplementedError

    def _image_bytes_of_item(self, columns: Columns) -> Any:
        """Return the bytes of the weight that a work-item reads from an image in a step."""
        return np.asarray(0)

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
            local_loads=np.asarray(0),
            work_group_size=tiles.threads,
            work_groups=tiles.groups,
            local_memory_bytes=tiles.local_memory_bytes,
            is_staged=np.asarray(False),
            images={**dict.fromkeys(template.names, False), "weight": of_image > 0},
            has_copies=np.asarray(False),
            padding=tiles.groups * tiles.outputs_of_group / shape - 1,
            element_bytes=self._element_bytes,
        )
