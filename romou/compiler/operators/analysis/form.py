"""Forms: the formulas of one operator over its knobs, and the knobs of many configs as columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from romou.base.config_block import ConfigBlock
from romou.base.space import Columns
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.tir.primitives import LANES

# Bytes of a number in counts of loads, whatever its type.
_NUMBER_BYTES = 4
# More work groups than any device has cores.
_MANY = 1 << 20


class Form(ABC):
    """The formulas of one operator: from columns of knobs to a `KernelUsage` of arrays."""

    def usage(self, columns: Columns) -> KernelUsage:
        """Return the usage of the configs in the columns of knobs."""
        return self.usage_with(columns, self.counts(columns))

    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        """Return counts that depend on a few knobs, computed once for each combination of these knobs."""
        return {}

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


class UnknownForm(Form):
    """The form of templates without formulas: nothing is known of a config before it is lowered.

    Every config is kept. Registers and the work group are judged when the kernel is built (`PrunedTask.check`).

    roles: of the parameters, as in `Template.names`.
    output_bytes, element_bytes: bytes of the output, and of one of its numbers.
    """

    def __init__(self, roles: Iterable[str], output_bytes: int, element_bytes: int) -> None:
        self._roles, self._output_bytes, self._element_bytes = list(roles), output_bytes, element_bytes

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        return KernelUsage(
            registers=0,
            needed_registers=0,
            buffer_bytes=0,
            unshared_buffer_bytes=0,
            access_width=LANES,
            output_bytes=self._output_bytes,
            iterations=1,
            multiply_adds=0,
            work_group_size=1,
            work_groups=_MANY,
            images=dict.fromkeys(self._roles, False),
            padding=0.0,
            element_bytes=self._element_bytes,
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        return 0, 0, 0, 0, 0


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
