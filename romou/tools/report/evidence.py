"""The data of all figures: a model, its device and its search. `romou.api.report` collects it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from romou.devices.hardware.archprobe_report import Curve
from romou.runtime.module.profile import nodes_text

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask
    from romou.devices.hardware import HardwareSpec
    from romou.devices.targets import Target
    from romou.runtime.module import MemoryPlan, Summary
    from romou.tools.regression import Bench
    from romou.tuner.pruning import PrunedSpace
    from romou.tuner.records import Record

Row = dict[str, Any]
NEEDS_RECORDS = "No records: give the folder that `romou tune --work-dir` wrote."
NEEDS_MODEL = "The records do not hold the kernels: name the network with --model, and the target with --target."


class UnknownError(Exception):
    """Raised if a figure has nothing to show. The text names the missing data."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The data of a report. Fields are empty or None if nothing is known.

    title       title of the report
    summary     summary of a tuned model
    bench       result of `romou bench`
    records     candidates, in the order of their measurement
    spaces      tasks of the model with their pruned spaces, on `target`
    spec        facts of the device
    operations  task key -> technique -> integer operations in loops of one work-item
    memory      plan of the model's memory
    curves      aspect and curve, as in ArchProbe's report
    compared    name and summary of each tuned model, if there are several. `summary` is None then
    limits      task key -> what bounds the chosen kernel, in words
    cpu_ms      time of the model by onnxruntime on this machine's CPU
    """

    title: str
    summary: Summary | None = None
    bench: Bench | None = None
    records: Sequence[Record] = ()
    spaces: Sequence[tuple[TunableTask, PrunedSpace]] = ()
    target: Target | None = None
    spec: HardwareSpec | None = None
    operations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    memory: MemoryPlan | None = None
    curves: Sequence[tuple[str, Curve]] = ()
    compared: Sequence[tuple[str, Summary]] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    cpu_ms: float | None = None

    @property
    def models(self) -> Sequence[tuple[str, Summary]]:
        """Name and summary of each tuned model."""
        return self.compared or ([(self.title, self.summary)] if self.summary else [])

    @property
    def stand_in(self) -> str:
        """Name of the device that was timed if it is not the one whose facts `spec` has, else ""."""
        if self.summary is not None and self.summary.stands_in_for:
            return self.summary.device
        device = self.records[-1].device if self.records else {}
        is_other = self.spec is not None and not self.spec.is_cpu and bool(device.get("is_host_cpu"))
        return str(device.get("name", "this machine's CPU")) if is_other else ""

    @cached_property
    def nodes(self) -> dict[str, str]:
        """Label of a layer -> its ONNX nodes in short, as far as they are known."""
        rows = [row for _, summary in self.models for row in summary.rows]
        return {self.labels.get(row.key, row.name): nodes_text(row.nodes) for row in rows if row.nodes}

    @cached_property
    def labels(self) -> dict[str, str]:
        """Task key -> its name. If two kernels share a name, the key's first digits are appended."""
        names = {task.key: task.name for task, _ in self.spaces} | {
            record.task_key: record.task_name for record in self.records
        }
        names |= {row.key: row.name for _, summary in self.models for row in summary.rows if row.key}
        names |= {operator.key: operator.name for operator in (self.bench.operators if self.bench else ())}
        times = Counter(names.values())
        return {key: name if times[name] == 1 else f"{name} ({key[:4]})" for key, name in names.items()}

    @property
    def l1(self) -> str:
        """The rule by which the last search counted bytes against the L1 cache (`Record.l1`). Empty if unknown."""
        return next((record.l1 for record in reversed(self.records) if record.l1), "")

    @cached_property
    def by_task(self) -> dict[str, list[Record]]:
        """Task key -> its records, without the second measurements at the search's end."""
        by_key: dict[str, list[Record]] = {}
        for record in self.records:
            if not record.is_again:
                by_key.setdefault(record.task_key, []).append(record)
        return by_key

    @cached_property
    def best_s(self) -> dict[str, float]:
        """Task key -> best time in seconds, for tasks with a working kernel."""
        times = {key: [r.time_s for r in records if r.time_s is not None] for key, records in self.by_task.items()}
        return {key: min(task_times) for key, task_times in times.items() if task_times}

    @cached_property
    def calls(self) -> dict[str, int]:
        """Task key -> how often the model calls it, as far as that is known."""
        return {task.key: task.calls for task, _ in self.spaces} | {
            row.key: row.calls for row in (self.summary.rows if self.summary else ()) if row.key
        }
