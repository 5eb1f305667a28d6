"""Features of configs for the cost model: the knobs, and the usage of the kernel.

Columns are shared between tasks by name, so the data of one task trains the model of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from romou.base.limits import Limits
from romou.base.space import Columns, Config
from romou.compiler.operators.analysis.form import Form, columns_of
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.contraction.knobs import FP16
from romou.compiler.operators.costs.estimate import estimate_parts, estimate_seconds, occupancy
from romou.compiler.operators.families import declared_knobs
from romou.compiler.operators.schedule_template import Template
from romou.devices.hardware import HardwareSpec

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
# Column of the pretrained models -> field of `KernelUsage` that was renamed since.
_FIELDS = {
    "turns": "iterations",
    "literal_buffer_bytes": "unshared_buffer_bytes",
    "literal_image_bytes": "unshared_image_bytes",
}
# Features of the device: estimated cycles in all and of some parts, the load of cores and of the last round of work
# groups, loads in all and by cache (also as if no core idled in the last round), and ratios.
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
# Features that only pretrained models see: the loops of the kernel's text, and the shares of the estimate's parts.
_LOOPS = ("is_unrolled", "unrolled_steps", "inner_channels", "inner_rows", "inner_columns", "inner_steps")
_SHARES = tuple(f"share_of_{name}" for name in ("issuing", "waiting", "buffers", "images", "l2", "output"))
# Features by which pretrained models choose trees: fp16 in memory, fp16 sums, and groups of channels, each 1 or 0.
TYPES = ("is_fp16", "sums_fp16", "is_grouped")
# Features of all tasks, beside their knobs.
_DERIVED = (
    *_USAGE,
    "work_items",
    "sums",
    "data_loads",
    "weight_loads",
    "data_lines",
    "weight_lines",
    "outputs_per_byte",
    *_ON_DEVICE,
)
# Columns of the pretrained models come first, in the order of training, because column sampling depends on the order.
# Append only.
_FIRST = tuple((Path(__file__).parent / "pretrained_models/columns.txt").read_text(encoding="utf-8").split())
# Warp size and cache line of a device without these facts.
_WARP, _LINE_BYTES = 32, 128


# Features, their columns and expected scores -> corrected scores.
Correction: TypeAlias = Callable[[np.ndarray, Sequence[str], np.ndarray], np.ndarray]


class Loops(NamedTuple):
    """The loops of a sum of products in a kernel's text. Fields may be arrays.

    is_unrolled: whether loops are unrolled in the text. Otherwise the compiler decides, even for the lanes of a texel
    unrolled: steps of the reduction that are unrolled, without the lanes
    channels, rows, columns: iterations of the inner loops over channels and over the window. A window that is split
        over two loops has fewer than its extent
    """

    is_unrolled: Any
    unrolled: Any
    channels: Any
    rows: Any
    columns: Any


def loops_of(template: Template, columns: Columns, count: int) -> Loops:
    """Return the loops of Romou's kernels, each an array of `count`: the window is inside of the channels."""
    *outer, width = getattr(getattr(template, "workload", None), "kernel", None) or (1,)
    height = math.prod(outer)
    unrolled = np.where(np.asarray(columns.get("unroll", "")) == "window", height * width, 1)
    fields = (True, unrolled, 1, height, width)
    return Loops(*(np.broadcast_to(field, count) for field in fields))


class TaskFeatures:
    """Features of one task's configs on a device: knobs, usage (`KernelUsage`), loads and ratios as log2(1 + value).

    Loads are the loads of data and weight in one iteration, and the cache lines that a warp touches by one load of
    each. Ratios are the outputs of a work group for each loaded byte, and the number of work-items. With an estimate
    there are its parts and the occupancy, else 0. A word of a knob counts as its index among the choices, a missing
    knob as 0. Each config is computed once.

    spec: facts of the device that measures. None if there is no estimate for it
    correct: a pretrained model that corrects the estimate
    """

    def __init__(
        self, template: Template, limits: Limits, spec: HardwareSpec | None = None, correct: Correction | None = None
    ) -> None:
        self._template, self._limits = template, limits
        self._correct = correct
        self._spec = spec
        self._rows: dict[str, np.ndarray] = {}
        self._knobs = {knob.name: knob for knob in template.knobs}
        self.has_estimate = spec is not None
        self.columns = (*_FIRST, *(name for name in (*self._knobs, *_DERIVED) if name not in _FIRST))

    @cached_property
    def _form(self) -> Form:
        return self._template.form(self._limits)

    def __call__(self, configs: Sequence[Config]) -> np.ndarray:
        """Return one row for each config."""
        return self._all(configs)[:, :-1]

    def expected(self, configs: Sequence[Config]) -> np.ndarray:
        """Return the corrected estimate of the configs as -log(seconds). All are 0 without an estimate."""
        return self._all(configs)[:, -1]

    def _all(self, configs: Sequence[Config]) -> np.ndarray:
        fresh = list({c.key: c for c in configs if c.key not in self._rows}.values())
        if fresh:
            self._rows.update(zip((c.key for c in fresh), self._compute(fresh), strict=True))
        return np.array([self._rows[c.key] for c in configs], dtype=np.float32)

    def _compute(self, configs: Sequence[Config]) -> np.ndarray:
        columns = columns_of(configs)
        return self.of_kernels(columns, self._form.usage(columns), len(configs))

    @property
    def model_columns(self) -> tuple[str, ...]:
        """The names of the features that a pretrained model sees."""
        return (*self.columns, *_LOOPS, *_SHARES, *TYPES)

    def model_rows(
        self, rows: np.ndarray, columns: Columns, usage: KernelUsage, loops: Loops | None = None
    ) -> np.ndarray:
        """Return rows of `of_kernels`, without the estimate, with the features that only pretrained models see.

        Shares are logarithms of a part's cycles over the Euclidean norm of all parts, or 0 without an estimate.

        loops: of the kernels. None: those of Romou's kernels
        """
        loops = loops or loops_of(self._template, columns, len(rows))
        numbers = (*loops, loops.channels * loops.rows * loops.columns)
        parts = None if self._spec is None else estimate_parts(usage, self._spec)
        shares: list[Any] = [0.0] * len(_SHARES)
        if parts is not None:
            whole = np.sqrt(sum(part * part for part in parts.values()))
            shares = [np.log2((parts[name.removeprefix("share_of_")] + 1) / (whole + 1)) for name in _SHARES]
        work = self._template.workload  # type: ignore[attr-defined]
        is_fp16, is_grouped = getattr(work, "dtype", "") == FP16, getattr(work, "groups", 1) > 1
        sums_fp16 = np.asarray(columns.get("accumulate", "")) == FP16
        more = [
            *(np.log2(1.0 + np.asarray(number, dtype=float)) for number in numbers),
            *shares,
            *(is_fp16, sums_fp16, is_grouped),
        ]
        return np.column_stack([rows, *(np.broadcast_to(values, len(rows)) for values in more)])

    def of_kernels(self, columns: Columns, usage: KernelUsage, count: int) -> np.ndarray:
        """Return one row for each of `count` kernels, with the corrected estimate as the last column.

        They need not be configs of the space: knobs may have other values.
        """
        # Up to a constant factor of the task.
        outputs = math.prod(
            (columns[n].astype(float) for n, knob in self._knobs.items() if knob.scales_outputs and n in columns),
            start=np.ones(count),
        )
        loaded = np.broadcast_to(np.asarray(usage.buffer_bytes + usage.image_bytes, dtype=float), count)
        seconds = None if self._spec is None else estimate_seconds(usage, self._spec)
        numbers = [
            *(getattr(usage, _FIELDS.get(name, name)) for name in _USAGE),
            usage.work_groups * usage.work_group_size,
            *self._loads(columns, usage),
        ]
        logs = [
            np.log2(1 + np.broadcast_to(np.asarray(number, dtype=float), count))
            for number in (*numbers, *self._on_device(usage, seconds))
        ]
        logs.insert(len(numbers), np.log2(outputs / (1 + loaded)))
        by_name = dict(zip(_DERIVED, logs, strict=True))
        missing = np.zeros(count, dtype=int)
        for name, knob in self._knobs.items():
            by_name[name] = np.array([knob.number(value) for value in columns.get(name, missing).tolist()])
        rows = np.column_stack([by_name.get(name, np.zeros(count)) for name in self.columns])
        expected = np.zeros(count) if seconds is None else -np.log(np.broadcast_to(seconds, count))
        if seconds is not None and self._correct is not None:
            expected = self._correct(self.model_rows(rows, columns, usage), self.model_columns, expected)
        return np.column_stack([rows, expected])

    def _on_device(self, usage: KernelUsage, seconds: Any | None) -> list[Any]:
        """Return the features in _ON_DEVICE, not yet as logarithms. Zeros without an estimate."""
        spec = self._spec
        parts, occupied = (None, None) if spec is None else (estimate_parts(usage, spec), occupancy(usage, spec))
        if spec is None or parts is None or occupied is None or seconds is None:
            return [0.0] * len(_ON_DEVICE)
        cores, (in_flight, of_core, items) = spec.shader_cores or 1, occupied
        at_once, groups, size = np.minimum(in_flight, of_core), usage.work_groups, np.maximum(usage.work_group_size, 1)
        loaded, unshared = (
            usage.buffer_bytes + usage.image_bytes,
            usage.unshared_buffer_bytes + usage.unshared_image_bytes,
        )
        loads = unshared / (size * usage.access_width)
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
            unshared / np.maximum(loaded, 1),
            loads * usage.iterations,
            usage.multiply_adds * usage.iterations,
            loaded * usage.iterations * groups,
            loads * usage.iterations * groups * items,
            loads * usage.iterations * of_core * cores * items,
            at_once * loaded,
        ]

    def _loads(self, columns: Columns, usage: KernelUsage) -> tuple[Any, ...]:
        spec = self._spec
        warp = min(spec.warp_sizes) if spec is not None and spec.warp_sizes else _WARP
        line_bytes = (spec.l2_line_bytes if spec is not None else None) or _LINE_BYTES
        return self._form.loads(columns, usage, warp, line_bytes)


def known_columns() -> set[str]:
    """Return the names of the features of all tasks."""
    return {*declared_knobs(), *_DERIVED, *_LOOPS, *_SHARES, *TYPES}


def kernel_types(rows: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """Return a number for each kernel by the features in `TYPES`."""
    types: np.ndarray = (aligned(rows, columns, TYPES) @ (1 << np.arange(len(TYPES)))).astype(int)
    return types


def aligned(rows: np.ndarray, columns: Sequence[str], wanted: Sequence[str]) -> np.ndarray:
    """Return the rows with the columns `wanted`. Missing columns are 0."""
    if tuple(columns) == tuple(wanted):
        return rows
    index_of = {name: at for at, name in enumerate(columns)}
    missing = np.zeros(len(rows), dtype=rows.dtype)
    return np.column_stack([rows[:, index_of[name]] if name in index_of else missing for name in wanted])
