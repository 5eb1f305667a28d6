"""Formulas of one operator over its knobs; what holds for every family."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from romou.hardware import HardwareSpec
from romou.pruning.criteria import Choices
from romou.pruning.estimate import estimate_seconds
from romou.pruning.usage import KernelUsage
from romou.space import Columns, Space


class Form(ABC):
    """Arrays of knobs in, arrays of what kernels use out."""

    @abstractmethod
    def usage(self, columns: Columns) -> KernelUsage:
        """The usage of the configs that the columns of knobs stand for."""

    def choices(self, space: Space, spec: HardwareSpec, usage: KernelUsage | None = None) -> Choices:
        """What no config of the space could do better on the device. `usage`: of `space.mesh()`, where it is at hand."""
        images = frozenset(name for name in ("data", "weight", "output") if "image" in space.knobs.get(name, ()))
        usage = usage or self.usage(space.mesh())
        seconds = estimate_seconds(usage, spec)
        fastest = None if seconds is None else float(np.min(np.where(space.valid_mask(), seconds, np.inf)))
        return Choices(images=images, access_width=int(np.max(usage.access_width)), fastest_s=fastest)
