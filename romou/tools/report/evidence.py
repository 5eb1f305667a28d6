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
    from romou.compiler.graph.memory.memory import MemoryPlan
    from romou.compiler.task import TunableTask
    from romou.devices.hardware import HardwareSpec
    from romou.devices.targets import Target
    from romou.runtime.module import LayerRow, Summary
    from romou.tools.regression import Bench
    from romou.tools.regression.bench_data import OperatorBench
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
    def kernels(self) -> dict[str, str]:
        """Task key -> name of the task."""
        names = {record.task_key: record.task_name for record in self.records}
        return names | {layer.key: layer.name for layer in self._layers if layer.key}

    @cached_property
    def labels(self) -> dict[str, str]:
        """Task key -> unique name of the layer: its ONNX nodes in short, or the task's name if none are known.

        If layers share their nodes, the task's name is appended, then the first digits of the key.
        """
        nodes = {layer.key: nodes_text(layer.nodes) for layer in self._layers if layer.nodes}
        labels = {key: nodes.get(key, name) for key, name in self.kernels.items()}
        for suffixes in ({key: self.kernels[key] for key in nodes if key}, {key: key[:4] for key in labels}):
            count = Counter(labels.values())
            labels |= {key: f"{labels[key]} ({of})" for key, of in suffixes.items() if count[labels[key]] > 1}
        return labels

    def label_of(self, row: LayerRow) -> str:
        """Return the name of a model's layer. Models saved by older versions have no keys."""
        return self.labels.get(row.key) or nodes_text(row.nodes) or row.name

    @property
    def _layers(self) -> list[TunableTask | LayerRow | OperatorBench]:
        operators = self.bench.operators if self.bench else ()
        rows = (row for _, summary in self.models for row in summary.rows)
        return [*(task for task, _ in self.spaces), *rows, *operators]

    @cached_property
    def matched(self) -> list[tuple[str, list[float | None]]]:
        """Layers of the compared models, matched by ONNX node, the slowest first: name and ms of all calls in each.

        Models fuse nodes differently, so layers that share a node are one row. None: a layer was not timed.
        """
        groups: list[tuple[set[str], list[list[LayerRow]]]] = []
        for model, (_, summary) in enumerate(self.compared):
            for row in summary.rows:
                nodes = set(row.nodes or [row.name])
                rows: list[list[LayerRow]] = [[] for _ in self.compared]
                rows[model].append(row)
                shared = [group for group in groups if group[0] & nodes]
                groups = [group for group in groups if group not in shared]
                for own, of_models in shared:
                    nodes |= own
                    rows = [[*before, *here] for before, here in zip(of_models, rows, strict=True)]
                groups.append((nodes, rows))
        found = []
        for _, by_model in groups:
            named = max((row for of_model in by_model for row in of_model), key=lambda row: row.flops * row.calls)
            ms = [sum(times) if (times := _all_calls_ms(of_model)) else None for of_model in by_model]
            found.append((nodes_text(named.nodes) or named.name, ms))
        return sorted(found, key=lambda pair: -max(ms or 0.0 for ms in pair[1]))

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


def _all_calls_ms(rows: Sequence[LayerRow]) -> list[float]:
    """Return the ms of all calls of each layer. Empty if one was not timed, because a partial sum is no time."""
    times = [row.tuned_ms * row.calls for row in rows if row.tuned_ms is not None]
    return times if len(times) == len(rows) else []
