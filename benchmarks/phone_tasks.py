"""Measurements of real phones as arrays: knobs, usage and time of each config of a task.

for task in load_tasks(Path("adreno_autotvm.jsonl.gz"), least=100):
    seconds, is_timed = estimate_seconds(task.usage, task.target.spec), task.is_timed
    print(task.name, scipy.stats.spearmanr(seconds[is_timed], task.time_s[is_timed]).statistic)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from romou.base.space import Columns, Config, Space
from romou.compiler.operators.algorithms.algorithm import DIRECT
from romou.compiler.operators.analysis.form import Form, columns_of
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.estimate import estimable
from romou.compiler.operators.costs.features import Loops
from romou.compiler.operators.schedule_template import Template
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import LANES
from romou.devices.targets import Target
from romou.tuner.records.autotvm import AutotvmTask, read_autotvm
from romou.tuner.records.autotvm_kernels import ForeignKernel, equivalent, kernel_of
from romou.tuner.records.recording import Recording

# Measurements before and after one that show whether all were slow at the time.
_NEIGHBOURS = 15
# Fields of a usage that count for one iteration.
_OF_ITERATION = (
    "multiply_adds",
    "buffer_bytes",
    "image_bytes",
    "unshared_buffer_bytes",
    "unshared_image_bytes",
    "local_loads",
)


@dataclass(frozen=True, kw_only=True)
class RecordedOperator:
    """An operator of a recording of `romou phone record`.

    gpu: name of a device file, as "adreno640"
    template: the operator family
    """

    gpu: str
    template: str
    dtype: str
    task: TunableTask

    @property
    def name(self) -> str:
        """Name of the operator and its type."""
        return f"{self.task.name}, {self.dtype}"

    @property
    def is_depthwise(self) -> bool:
        """Return whether each channel is a group."""
        return self.template == "depthwise"


@dataclass(frozen=True, kw_only=True)
class PhoneTask:
    """The measured configs of one operator on one phone's GPU. Each array has an element for each config.

    recorded: the task as it was read
    target: target of the GPU. Unknown facts are the nearest known GPU's
    kernels: the configs in the words of Romou's knobs
    outcomes: how each trial ended
    time_s: seconds. NaN if the trial failed
    """

    recorded: AutotvmTask | RecordedOperator
    target: Target
    kernels: Sequence[ForeignKernel]
    outcomes: np.ndarray
    time_s: np.ndarray

    @property
    def name(self) -> str:
        """Name of the operator, its type and the template."""
        return self.recorded.name

    @property
    def is_timed(self) -> np.ndarray:
        """Which configs have a time."""
        is_timed: np.ndarray = np.isfinite(self.time_s)
        return is_timed

    @cached_property
    def form(self) -> Form:
        """The formulas of Romou's template for the operator."""
        return self.template.form(self.target.limits)

    @property
    def template(self) -> Template:
        """Romou's template for the operator."""
        assert self.recorded.task is not None, "tasks without a template are left out"
        return self.recorded.task.template

    @cached_property
    def space(self) -> Space:
        """Romou's space of the operator on the GPU."""
        return self.template.space(self.target.limits)

    @cached_property
    def columns(self) -> Columns:
        """Romou's knobs. Values may be no choices of the space."""
        first = {name: choices[0] for name, choices in self.space.knobs.items()}
        return columns_of([{name: kernel.knobs.get(name, first[name]) for name in first} for kernel in self.kernels])

    @cached_property
    def unrolled(self) -> np.ndarray:
        """Steps of the reduction that TVM unrolled. `columns` only say whether it is the window."""
        return np.array([kernel.unrolled for kernel in self.kernels])

    @cached_property
    def loops(self) -> Loops | None:
        """The loops of the kernels' text. None if they are Romou's kernels."""
        loops = [kernel.loops for kernel in self.kernels if kernel.loops is not None]
        return Loops(*map(np.array, zip(*loops, strict=True))) if loops else None

    @cached_property
    def usage(self) -> KernelUsage:
        """The usage of each kernel by Romou's formulas, with the iterations that TVM unrolled."""
        usage = self.form.usage(self.columns)
        if isinstance(self.recorded, AutotvmTask) and self.recorded.algorithm != DIRECT:
            return self._with_images(usage)
        if (self.unrolled == 1).all():
            return usage
        # What the formulas unroll already: the window, or a row of a depthwise one.
        height, width = self.template.workload.kernel  # type: ignore[attr-defined]
        unrolled = np.where(self.columns["unroll"] == "window", height * width, 1)
        steps = np.maximum(self.unrolled / (width if self.recorded.is_depthwise else unrolled), 1)
        grown = {name: getattr(usage, name) * steps for name in _OF_ITERATION}
        return replace(usage, iterations=usage.iterations / steps, **grown)

    def _with_images(self, usage: KernelUsage) -> KernelUsage:
        """Return the usage of products of AutoTVM's Winograd, whose workspaces are images.

        A tile is a row of the data's image. Its columns are the channels, and the positions of each. So neighbours
        along the tiles load from different rows, and a warp's load moves a cache line for each of them. Romou's
        workspaces are buffers in which tiles are neighbours.
        """
        spec = self.target.spec
        assert spec.warp_sizes is not None, "a GPU with an estimate has a known warp size"
        assert spec.l2_line_bytes is not None, "all Adreno GPUs have the line of their family"
        warp, size = min(spec.warp_sizes), usage.work_group_size
        loads = usage.unshared_buffer_bytes / (size * LANES * usage.element_bytes)
        lines = np.minimum(self.columns["wg_w"], warp) * -(-size // warp)
        return replace(
            usage,
            buffer_bytes=np.zeros_like(usage.buffer_bytes),
            image_bytes=usage.image_bytes + loads * lines * spec.l2_line_bytes,
            unshared_buffer_bytes=np.zeros_like(usage.unshared_buffer_bytes),
            unshared_image_bytes=usage.unshared_image_bytes + usage.unshared_buffer_bytes,
        )

    @cached_property
    def equivalents(self) -> list[Config | str]:
        """The config of Romou's space with the same kernel, or the reason why there is none."""
        return [equivalent(kernel, self.space) for kernel in self.kernels]


def drift_of(times: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the factor by which each measurement and its neighbours in time are slower than expected.

    A phone's clock, or a log of several sessions, changes all times for a while. A wrong expectation of some configs
    does not, because neighbours are other configs.

    times, expected: of the configs that ran, in the order of measurement
    """
    slower = np.log(times / expected)
    padded = np.pad(slower, _NEIGHBOURS, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEIGHBOURS + 1)
    factors: np.ndarray = np.exp(np.nanmedian(windows, axis=1) - np.median(slower))
    return factors


def load_tasks(
    path: Path, gpu: str | None = None, template: str | None = None, *, least: int = 1, default_gpu: str = ""
) -> list[PhoneTask]:
    """Return the tasks of a file of AutoTVM's measurements that Romou's formulas describe.

    gpu, template: only those. A template is meant without its suffix, as in "conv2d_nchwc_acc32"
    least: fewest measured configs of a task
    default_gpu: GPU of a log that does not name one
    """
    tasks = []
    for recorded in read_autotvm(path, default_gpu):
        is_wanted = gpu in (None, recorded.gpu) and template in (None, recorded.template.partition(".")[0])
        if is_wanted and len(recorded.measurements) >= least and (task := task_of(recorded)) is not None:
            tasks.append(task)
    return tasks


def recorded_tasks(path: Path, template: str | None = None, *, least: int = 1) -> list[PhoneTask]:
    """Return the operators of a recording of `romou phone record`. Configs with a slow clock are left out.

    template: only this operator family
    least: fewest measured configs of an operator
    """
    recording, tasks = Recording.load(path), []
    target = Target(recording.header["target"])
    for key, task in recording.tasks().items():
        trials = [t for t in recording.trials if t.record.task_key == key]
        trials = [t for t in trials if t.record.time_s is None or recording.is_steady(t)]
        if template not in (None, task.family) or len(trials) < least:
            continue
        # Romou's kernels are in the words of its knobs already.
        kernels = [ForeignKernel(knobs=t.record.config, unrolled=1, differs="") for t in trials]
        operator = RecordedOperator(
            gpu=str(target.device_name),
            template=task.family,
            dtype=str(trials[0].workload["dtype"]),
            task=task,
        )
        times = [math.nan if t.record.time_s is None else t.record.time_s for t in trials]
        tasks.append(
            PhoneTask(
                recorded=operator,
                target=target,
                kernels=kernels,
                outcomes=np.array([t.record.outcome for t in trials], dtype=object),
                time_s=np.array(times),
            )
        )
    return tasks


def task_of(recorded: AutotvmTask) -> PhoneTask | None:
    """Return the arrays of a task. None if Romou's formulas describe none of its kernels."""
    if recorded.algorithm not in recorded.algorithms:
        return None
    kernels = [kernel_of(recorded, measurement.knobs) for measurement in recorded.measurements]
    known = [kernel for kernel in kernels if kernel is not None]
    if len(known) < len(kernels):
        return None
    times = [measurement.time_s for measurement in recorded.measurements]
    return PhoneTask(
        recorded=recorded,
        target=target_of(recorded.gpu),
        kernels=known,
        outcomes=np.array([m.outcome for m in recorded.measurements], dtype=object),
        time_s=np.array([np.nan if time is None else time for time in times]),
    )


def target_of(gpu: str) -> Target:
    """Return the target of a GPU. Facts without which nothing is estimated are taken from the nearest known GPU."""
    return estimable(Target(f"opencl -device={gpu}"))
