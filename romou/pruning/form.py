"""Formulas of one operator over its knobs; what holds for every family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any

import numpy as np

from romou.hardware import HardwareSpec
from romou.pruning.criteria import Choices
from romou.pruning.estimate import estimate_seconds
from romou.pruning.usage import KernelUsage
from romou.space import Columns, Space

# Of a number as it counts in loads, whatever its type.
_NUMBER_BYTES = 4


class Form(ABC):
    """Arrays of knobs in, arrays of what kernels use out."""

    @abstractmethod
    def usage(self, columns: Columns) -> KernelUsage:
        """The usage of the configs that the columns of knobs stand for."""

    @abstractmethod
    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        """Numbers that a work-item sums up or stores, its loads of data and of weight in one turn, and the cache lines that work-items in step touch
        by one load of each."""

    def usage_of_valid(self, space: Space) -> tuple[np.ndarray, KernelUsage]:
        """Which configs the space admits, over `Space.mesh` with an axis of its own length for each knob that anything depends on; and what they use,
        one number for each of them."""
        usage, valid = self.usage(space.mesh()), space.valid_mask()
        numbers = {field.name: np.asarray(getattr(usage, field.name)) for field in fields(KernelUsage) if field.name != "images"}
        every = {**numbers, **{name: np.asarray(value) for name, value in usage.images.items()}}
        valid = np.broadcast_to(valid, np.broadcast_shapes(valid.shape, *(number.shape for number in every.values())))
        places = np.nonzero(valid)
        count = len(places[0])

        def pick(number: np.ndarray) -> np.ndarray:
            # Of axes along which a number is the same, the place does not matter.
            return np.broadcast_to(number[tuple(p if extent > 1 else 0 for p, extent in zip(places, number.shape, strict=False))], count)

        picked = {name: pick(number) for name, number in every.items()}
        return valid, KernelUsage(images={name: picked[name] for name in usage.images}, **{name: picked[name] for name in numbers})

    def choices(self, space: Space, spec: HardwareSpec, usage: KernelUsage | None = None) -> Choices:
        """What no config of the space could do better on the device. `usage`: of the valid ones, where it is at hand."""
        images = frozenset(name for name in ("data", "weight", "output") if "image" in space.knobs.get(name, ()))
        usage = usage or self.usage_of_valid(space)[1]
        seconds = estimate_seconds(usage, spec)
        moved = usage.transform_bytes
        fastest = {} if seconds is None else {int(one): float(np.min(seconds, where=moved == one, initial=np.inf)) for one in np.unique(moved)}
        return Choices(images=images, access_width=int(np.max(usage.access_width)), fastest_s=fastest)


def loads_of_one(usage: KernelUsage) -> Any:
    """Loads of a work-item in one turn, all as wide as the narrowest."""
    width_bytes = usage.work_group_size * _NUMBER_BYTES * usage.access_width
    return (usage.literal_buffer_bytes + usage.literal_image_bytes) / width_bytes
