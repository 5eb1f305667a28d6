"""The form of families without a contraction: it evaluates the reads of the plain function for one work group.

The template has the elements that the first work group and its first work-item compute. Addresses and conditions are
taken from the function's blocks, so nothing is lowered. Registers are not known: 0.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from romou.base.limits import Limits
from romou.base.space import Columns, Config
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.form import Form, form_of, loads_of_one, tabulate
from romou.compiler.operators.kernels.streaming.template import Points, StreamingTemplate
from romou.compiler.tir.evaluate import count_distinct, evaluate
from romou.compiler.tir.guarded_loads import guarded_loads
from romou.compiler.tir.primitives import MemoryKind


class StreamingForm(Form):
    """The formulas of one operator without a contraction."""

    def __init__(self, template: StreamingTemplate, limits: Limits) -> None:
        self._template, self._limits = template, limits
        self._loads = [
            (block, load)
            for block, value in zip(template.blocks, template.values, strict=True)
            for load in guarded_loads(value)
            if str(load.access.source.name) in template.inputs
        ]
        # Values of the relevant knobs -> tensor -> distinct numbers read.
        self._known: dict[tuple[str, Hashable], dict[str, int]] = {}
        self._counts = functools.cache(self._count)

    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        """Return counts of reads and stores, and the access width.

        The reads are bytes read by the group and by one work-item, from buffers and from images, and numbers read by
        one work-item. The stores are numbers stored by the group.
        """
        knobs = tuple(name for name in self._template.knobs_of_traffic if name in columns)
        names = ("group", "group_images", "one", "one_images", "numbers", "stored")
        counted = {
            name: tabulate(
                lambda *values, field=field: self._counts(knobs, values)[field], *(columns[knob] for knob in knobs)
            )
            for field, name in enumerate(names)
        }
        return {
            **counted,
            "width": tabulate(self._template.access_width, *(columns[name] for name in self._template.knobs_of_width)),
        }

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        template = self._template
        size, groups = template.work_group_size(columns), template.work_groups(columns)
        return KernelUsage(
            registers=np.asarray(0),
            needed_registers=np.asarray(0),
            buffer_bytes=counts["group"],
            image_bytes=counts["group_images"],
            unshared_buffer_bytes=counts["one"] * size,
            unshared_image_bytes=counts["one_images"] * size,
            access_width=counts["width"],
            output_bytes=template.elements * template.element_bytes,
            iterations=1,
            multiply_adds=counts["numbers"],
            local_loads=template.local_loads(columns),
            work_group_size=size,
            work_groups=groups,
            local_memory_bytes=template.local_memory_bytes(columns),
            is_staged=template.is_staged(columns),
            images={
                role: np.asarray(columns[role]) == MemoryKind.IMAGE if role in columns else name in template.images
                for role, name in template.names.items()
            },
            has_copies=template.has_copies(columns),
            padding=groups * counts["stored"] / template.elements - 1,
            element_bytes=template.element_bytes,
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        """Return the loads as `Form.loads` does. Loads of a warp are coalesced, and there is no weight."""
        items = usage.work_groups * usage.work_group_size
        stored = (1 + usage.padding) * self._template.elements / items
        lines = -(
            -np.minimum(usage.work_group_size, warp_size)
            * usage.access_width
            * self._template.element_bytes
            // line_bytes
        )
        return stored, loads_of_one(usage), 0, lines, 0

    def _count(self, names: tuple[str, ...], values: tuple[Any, ...]) -> tuple[int, ...]:
        knobs = dict(zip(names, values, strict=True))
        template, cached = self._template, self._known
        images = template.image_scopes(Config(knobs), self._limits)
        for_group, for_one = ("group", template.group_key(knobs)), ("one", template.work_item_key(knobs))
        if for_group not in cached:
            cached[for_group] = self._distinct(template.points_of_group(knobs))
        if for_one not in cached:
            cached[for_one] = self._distinct(template.points_of_work_item(knobs), knobs)
        of_group, of_one = cached[for_group], cached[for_one]
        bytes_of = template.inputs

        def total(distinct: dict[str, int], from_images: bool) -> int:
            return sum(bytes_of[name] * count for name, count in distinct.items() if (name in images) == from_images)

        parts = [total(distinct, from_images) for distinct in (of_group, of_one) for from_images in (False, True)]
        return (*parts, sum(of_one.values()), template.stored_by_a_group(knobs))

    def _distinct(self, points: Points, knobs: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return tensor -> count of distinct numbers read at the points.

        knobs: if given, reads in loops count once for each iteration
        """
        reads: dict[tuple[str, int], list[np.ndarray]] = {}
        for block, load in self._loads:
            values = dict(zip((axis.var for axis in block.iter_vars), points(block), strict=True))
            shape = np.broadcast_shapes(*(np.shape(value) for value in values.values()))
            address: Any = 0
            for index, extent in zip(load.access.indices, load.access.source.shape, strict=True):
                coordinate = evaluate(index, values)
                # Reads outside an image return zero and get separate addresses.
                before, behind = max(0, -int(np.min(coordinate))), max(0, int(np.max(coordinate)) + 1 - int(extent))
                address = address * (before + int(extent) + behind) + before + coordinate
            is_read = np.ones(shape, dtype=bool)
            times = 1 if knobs is None else self._template.repeats(block, knobs)
            # Repeated reads count unconditionally: in the first iteration all may be padding.
            for condition in load.conditions if times == 1 else ():
                is_read = is_read & evaluate(condition, values)
            reads.setdefault((str(load.access.source.name), times), []).append(np.broadcast_to(address, shape)[is_read])
        total: dict[str, int] = {}
        for (name, times), addresses in reads.items():
            total[name] = total.get(name, 0) + times * count_distinct(np.concatenate(addresses))
        return total


@form_of.register
def _(template: StreamingTemplate, limits: Limits) -> Form:
    return StreamingForm(template, limits)
