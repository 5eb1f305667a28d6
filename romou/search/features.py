"""What the cost model sees of a config: its knobs, and what the kernel will use of the device. The same for every task, so tasks teach each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from romou.analysis.usage import KernelUsage
from romou.core.limits import Limits
from romou.core.space import Columns, Config
from romou.hardware import HardwareSpec
from romou.pruning.columns import columns_of
from romou.pruning.estimate import estimate_parts, estimate_seconds, occupancy
from romou.pruning.forms import form_of
from romou.schedules.base import Template

# Knobs of the templates; one that a task lacks counts as 0. Words are numbered as they are listed here.
_KNOBS = (
    "data",
    "weight",
    "output",
    "pixels",
    "accumulate",
    "tile_o",
    "tile_h",
    "tile_w",
    "wg_o",
    "wg_w",
    "split_k",
    "arrangement",
    "local",
    "unroll",
    "vector_width",
    "autobroadcast",
    "multiply_add",
    "steps",
    "algorithm",
    "work_group",
    "items",
    "local_buffers",
)
_WORDS = {
    word: number
    for words in (
        ("buffer", "image"),
        ("flat", "rows"),
        ("float32", "float16"),
        ("blocked", "striped"),
        ("lanes", "window", "taps", "turn"),
        ("mad", "fma", "plain", "mma", "tf32"),
        ("direct", "winograd2", "winograd4", "winograd6"),
        ("memory", "registers", "local"),
    )
    for number, word in enumerate(words)
}
# Those whose product is what a work group gives, but for a factor that is the same for all configs of a task.
_OUTPUTS = ("tile_o", "tile_h", "tile_w", "wg_o", "wg_w", "work_group", "items", "tile", "rows")
_USAGE = (
    "registers",
    "buffer_bytes",
    "image_bytes",
    "literal_buffer_bytes",
    "literal_image_bytes",
    "access_width",
    "work_group_size",
    "work_groups",
    "local_memory_bytes",
    "padding",
    "transform_bytes",
    "turns",
    "multiply_adds",
    "local_loads",
)
# What the device makes of it: cycles by the estimate, in all and for some parts of it; how full cores are, and the last round of work groups; what is
# loaded in all, out of which cache, also if cores that idle in the last round did the same; and ratios.
_PARTS = ("issuing", "waiting", "l2")
_ON_DEVICE = (
    "cycles",
    *_PARTS,
    "last_round",
    "groups_of_core",
    "full_warps",
    "items_in_flight",
    "rounds",
    "items_of_core",
    "work_per_load",
    "shared",
    "item_loads",
    "item_work",
    "l2_bytes",
    "l1_loads",
    "l1_loads_of_rounds",
    "bytes_in_flight",
)
# Columns, in order: knobs, usage, and what `TaskFeatures` adds.
FEATURES = (*_KNOBS, *_USAGE, "work_items", "sums", "data_loads", "weight_loads", "data_lines", "weight_lines", "outputs_per_byte", *_ON_DEVICE)
# Of a device of which they are not known.
_WARP, _LINE_BYTES = 32, 128


class TaskFeatures:
    """Features of one task's configs on a device: knobs, usage (`KernelUsage`), a work-item's loads and two ratios, all as log2(1 + value).

    The loads are those of data and weight in one turn, and the cache lines that a warp touches by one of each. The ratios are those of a roofline:
    outputs of a work group for each byte that it loads, and work-items in all. Of a device of which enough is known, also what bounds the kernel
    by the estimate, and how it fills the device; 0 elsewhere. Computed once for each config.

    Parameters
    ----------
    spec
        Of the device that measures; None where nothing is to be expected of it.
    correct
        What is known of how wrong the estimate is there: features and estimated scores -> scores.
    """

    def __init__(
        self,
        template: Template,
        limits: Limits,
        spec: HardwareSpec | None = None,
        correct: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._form = form_of(template, limits)
        self._correct = correct
        self._spec = spec
        self._rows: dict[str, np.ndarray] = {}

    def __call__(self, configs: Sequence[Config]) -> np.ndarray:
        """One row a config; the columns are the same for every task."""
        return self._all(configs)[:, :-1]

    def expected(self, configs: Sequence[Config]) -> np.ndarray:
        """What the cost model learns to predict, before anything is measured: -log(seconds) by the estimate, corrected; all 0 where there is none."""
        return self._all(configs)[:, -1]

    def _all(self, configs: Sequence[Config]) -> np.ndarray:
        fresh = list({c.key: c for c in configs if c.key not in self._rows}.values())
        if fresh:
            self._rows.update(zip((c.key for c in fresh), self._compute(fresh), strict=True))
        return np.array([self._rows[c.key] for c in configs], dtype=np.float32)

    def _compute(self, configs: Sequence[Config]) -> np.ndarray:
        columns = columns_of(configs)
        usage = self._form.usage(columns)
        count = len(configs)
        numbers = [np.broadcast_to(np.asarray(getattr(usage, name), dtype=float), count) for name in _USAGE]
        outputs = math.prod((columns[name].astype(float) for name in _OUTPUTS if name in columns), start=np.ones(count))
        loaded = np.broadcast_to(np.asarray(usage.buffer_bytes + usage.image_bytes, dtype=float), count)
        items = np.broadcast_to(np.asarray(usage.work_groups * usage.work_group_size, dtype=float), count)
        loads = [np.broadcast_to(np.asarray(number, dtype=float), count) for number in self._loads(columns, usage)]
        logs = [np.log2(1 + number) for number in (*numbers, items, *loads)] + [np.log2(outputs / (1 + loaded))]
        seconds = None if self._spec is None else estimate_seconds(usage, self._spec)
        expected = np.zeros(count) if seconds is None else -np.log(np.broadcast_to(seconds, count))
        on_device = [np.broadcast_to(np.asarray(number, dtype=float), count) for number in self._on_device(usage, seconds)]
        rows = np.column_stack([np.array([_knobs(config) for config in configs]), *logs, *(np.log2(1 + number) for number in on_device)])
        if seconds is not None and self._correct is not None:
            expected = self._correct(rows, expected)
        return np.column_stack([rows, expected])

    def _on_device(self, usage: KernelUsage, seconds: Any | None) -> list[Any]:
        """What _ON_DEVICE names, not yet as logarithms; zeros where nothing is estimated."""
        spec = self._spec
        parts, occupied = (None, None) if spec is None else (estimate_parts(usage, spec), occupancy(usage, spec))
        if spec is None or parts is None or occupied is None or seconds is None:
            return [0.0] * len(_ON_DEVICE)
        cores, (in_flight, of_core, items) = spec.shader_cores or 1, occupied
        at_once, groups, size = np.minimum(in_flight, of_core), usage.work_groups, np.maximum(usage.work_group_size, 1)
        loaded, literal = usage.buffer_bytes + usage.image_bytes, usage.literal_buffer_bytes + usage.literal_image_bytes
        loads = literal / (size * usage.access_width)
        return [
            seconds * (spec.clock_mhz or 1) * 1e6,
            *(parts[name] for name in _PARTS),
            groups / (cores * of_core),
            groups / cores,
            size / items,
            at_once * items,
            np.ceil(of_core / in_flight),
            groups * items / cores,
            usage.multiply_adds / np.maximum(loads, 1),
            literal / np.maximum(loaded, 1),
            loads * usage.turns,
            usage.multiply_adds * usage.turns,
            loaded * usage.turns * groups,
            loads * usage.turns * groups * items,
            loads * usage.turns * of_core * cores * items,
            at_once * loaded,
        ]

    def _loads(self, columns: Columns, usage: KernelUsage) -> tuple[Any, ...]:
        spec = self._spec
        warp = min(spec.warp_sizes) if spec is not None and spec.warp_sizes else _WARP
        line_bytes = (spec.l2_line_bytes if spec is not None else None) or _LINE_BYTES
        return self._form.loads(columns, usage, warp, line_bytes)


def _knobs(config: Mapping[str, Any]) -> list[float]:
    values = (config.get(name, 0) for name in _KNOBS)
    return [float(_WORDS[value]) if isinstance(value, str) else math.log2(1 + value) for value in values]
