"""Forms: the formulas of one operator over its knobs, and the knobs of many configs as columns."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from romou.base.config_block import ConfigBlock
from romou.base.limits import Limits
from romou.base.space import Columns, Space
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.criteria import Choices
from romou.compiler.operators.costs.estimate import estimate_seconds
from romou.compiler.operators.schedule_template import Template
from romou.devices.hardware import HardwareSpec

# Bytes of a number in counts of loads, whatever its type.
_NUMBER_BYTES = 4


@functools.singledispatch
def form_of(template: Template, limits: Limits) -> Form:
    """Return the formulas of a template on a device with these limits.

    A form is registered for the class of its template in the file that defines it: `@form_of.register`.
    """
    raise TypeError(f"{template.name}: no formulas are registered for {type(template).__name__}")


class Form(ABC):
    """The formulas of one operator: from columns of knobs to a `KernelUsage` of arrays."""

    def usage(self, columns: Columns) -> KernelUsage:
        """Return the usage of the configs in the columns of knobs."""
        return self.usage_with(columns, self.counts(columns))

    @abstractmethod
    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        """Return counts that depend on a few knobs, computed once for each combination of these knobs."""

    @abstractmethod
    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        """Return the usage by formulas over the columns and the counts."""

    @abstractmethod
    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        """Return the results of a work-item, its loads in one iteration, and the cache lines they touch.

        Results are the numbers that it sums up or stores. Loads are counted for data and for weight. Cache lines are
        touched by work-items in step, by one load of each.
        """

    def usage_of_valid(self, block: ConfigBlock) -> KernelUsage:
        """Return the usage of a block's valid configs: arrays that broadcast to (valid configs, *free axes)."""
        return self.usage_with(*block.pick(block.columns, self.counts(block.columns)))

    def choices(
        self,
        space: Space,
        spec: HardwareSpec,
        usages: Iterable[KernelUsage] | None = None,
        default: Mapping[str, Any] | None = None,
    ) -> Choices:
        """Return the best that any config of the space can do on the device.

        usages: of all valid configs, if they were computed before
        default: the default config, whose estimate shows the estimate's error
        """
        images = frozenset(name for name in ("data", "weight", "output") if "image" in space.knobs.get(name, ()))
        width, fastest = 1, dict[int, float]()
        for usage in map(self.usage_of_valid, space.blocks()) if usages is None else usages:
            width = max(width, int(np.max(usage.access_width)))
            seconds, moved = estimate_seconds(usage, spec), usage.transform_bytes
            if seconds is not None:
                for algorithm in map(int, np.unique(moved)):
                    least = float(np.min(seconds, where=moved == algorithm, initial=np.inf))
                    fastest[algorithm] = min(fastest.get(algorithm, math.inf), least)
        own = {} if default is None else self._seconds_of(default, spec)
        return Choices(images=images, access_width=width, fastest_s=fastest, default_s=own)

    def _seconds_of(self, config: Mapping[str, Any], spec: HardwareSpec) -> dict[int, float]:
        """Return bytes of a config's transforms -> its estimated seconds. Empty if nothing can be estimated."""
        usage = self.usage(columns_of([config]))
        seconds = estimate_seconds(usage, spec)
        return {} if seconds is None else {int(np.max(usage.transform_bytes)): float(np.max(seconds))}


def loads_of_one(usage: KernelUsage) -> Any:
    """Return the number of loads of a work-item in one iteration, counted in the narrowest access width."""
    width_bytes = usage.work_group_size * _NUMBER_BYTES * usage.access_width
    return (usage.unshared_buffer_bytes + usage.unshared_image_bytes) / width_bytes


def columns_of(configs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return configs as columns of knobs, one row a config."""
    return {name: np.asarray([config[name] for config in configs]) for name in (configs[0] if configs else ())}


def tabulate(function: Callable[..., int], *columns: Any) -> np.ndarray:
    """Return `function` of the columns element by element, called once for each distinct combination of values."""
    distinct, indices = combinations(*columns)
    results: np.ndarray = np.asarray([function(*values) for values in distinct], dtype=np.int64)[indices]
    return results


def combinations(*columns: Any) -> tuple[list[tuple[Any, ...]], np.ndarray]:
    """Return the distinct combinations of the columns' values, and the index of the combination at each element."""
    values, key, count = [], np.asarray(0), 1
    for column in columns:
        distinct, codes = np.unique(np.asarray(column), return_inverse=True)
        values.append(distinct)
        key, count = key * len(distinct) + codes.reshape(np.shape(column)), count * len(distinct)
    if count <= 4 * np.size(key):
        # If combinations are few, a table of them is much faster than a sort.
        is_found = np.zeros(count, dtype=bool)
        is_found[key] = True
        keys, indices = np.flatnonzero(is_found), (np.cumsum(is_found) - 1)[key]
    else:
        keys, indices = np.unique(key, return_inverse=True)
    rows = np.unravel_index(keys, [len(v) for v in values])
    return list(zip(*(v[row].tolist() for v, row in zip(values, rows, strict=True)), strict=True)), indices.reshape(
        np.shape(key)
    )
