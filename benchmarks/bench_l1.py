"""Compares two ways to count bytes against the first-level cache by the configs that they exclude.

The results are tables over budgets of the cache. Nothing is lowered or measured.

    python benchmarks/bench_l1.py                                     four operators on adreno640, and eight recorded on an NVIDIA H200
    python benchmarks/bench_l1.py --phones adreno_autotvm.jsonl.gz    measurements of real phones, as benchmarks/phone_records.py reads them

docs/evidence/benchmarks.md describes the method and the output, docs/evidence/criteria.md the result.
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from phone_tasks import PhoneTask, load_tasks
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.criteria import L1_RULES, Choices, Rules, l1_cache
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d, Workload
from romou.compiler.single_operator import conv, task_of
from romou.devices.targets import Target
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning import prune_each
from romou.tuner.records.recorded_space import RecordedSpace
from simulation import SimulatedTask

RECORDED = Path(__file__).parent / "data/spaces_h200"
BUDGETS = (256, 1024, 4096, 16384, 65536)
OPERATORS: Mapping[str, Workload] = {
    "1x1, 256x14x14 -> 256": conv(256, (14, 14), 256, (1, 1)),
    "dense, 1024 -> 1000": Dense(m=1, k=1024, n=1000, dtype="float32"),
    "3x3, 64x28x28 -> 64": conv(64, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1)),
    "depthwise 3x3, 64x28x28": conv(64, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1), groups=64),
}


def kept_counts(work: Workload, target: Target, budget: int) -> list[str]:
    """Return the numbers of kept configs by each rule, if the L1 texture cache of the device had `budget` bytes.

    A mark follows the number if criteria gave way.
    """
    task, limits = task_of(work).with_free_images(), target.limits
    spec = dataclasses.replace(target.spec, l1_texture_cache_bytes=budget)
    spaces = prune_each(task.template, task.template.space(limits), spec, limits, tuple(L1_RULES.values()))
    return [f"{space.report.kept}{'*' * bool(space.report.relaxed)}" for space in spaces]


def fastest_within(usage: KernelUsage, times_s: np.ndarray, target: Target, budget: int, rules: Rules) -> float:
    """Return the time of the fastest config that fits the cache, relative to the fastest. Infinite if none fits."""
    # Buffers pass by the first level of an Adreno.
    buffer = budget if target.spec.l1_buffer_cache_bytes else 0
    spec = dataclasses.replace(target.spec, l1_texture_cache_bytes=budget, l1_buffer_cache_bytes=buffer)
    verdict = l1_cache(usage, spec, rules, Choices())
    assert verdict is not None
    fitting = times_s[np.broadcast_to(verdict.keep, times_s.shape)]
    return float(fitting.min(initial=np.inf) / times_s.min())


def shown(ratio: float) -> str:
    """Format a ratio of times."""
    return f"{ratio:.2f}" if math.isfinite(ratio) else "none"


def phone_table(path: Path, least: int) -> Table:
    """Return a table of real phones: geometric means of the fastest fitting config over the fastest, by operator.

    The number in brackets counts tasks without a config that fits. These are left out of the mean.
    """
    title = "Fastest config that fits, over the fastest of all, measured on phones"
    table = table_of_numbers("operator", ("tasks", "l1", *(f"{budget} B" for budget in BUDGETS)), title=title)
    groups: dict[str, list[PhoneTask]] = {}
    for task in load_tasks(path, least=least):
        work = getattr(task.template, "workload", None)
        kernel = "x".join(map(str, work.kernel)) if isinstance(work, Conv2d) else task.recorded.template
        kind = "depthwise" if task.recorded.is_depthwise else kernel
        if task.is_timed.any():
            groups.setdefault(f"{task.target.device_name}, {kind}", []).append(task)
    for name, tasks in sorted(groups.items()):
        for rule, rules in L1_RULES.items():
            cells = []
            for budget in BUDGETS:
                times = [np.where(task.is_timed, task.time_s, np.inf) for task in tasks]
                ratios = [
                    fastest_within(task.usage, times_s, task.target, budget, rules)
                    for task, times_s in zip(tasks, times, strict=True)
                ]
                fitting = [ratio for ratio in ratios if math.isfinite(ratio)]
                mean = statistics.geometric_mean(fitting) if fitting else math.inf
                missing = f" ({len(ratios) - len(fitting)})" if len(fitting) < len(ratios) else ""
                cells.append(f"{shown(mean)}{missing}")
            table.add_row(name, str(len(tasks)), rule, *cells)
    return table


def recorded_usage(recorded: RecordedSpace, target: Target) -> tuple[KernelUsage, np.ndarray]:
    """Return the usage of the recorded configs, and their seconds, infinite for configs that failed."""
    task = SimulatedTask.of_recording(recorded)
    indices = sorted(recorded.configs)
    usage = task.template.form(target.limits).usage(columns_of([task.recorded.space().at(i) for i in indices]))
    times = [recorded.configs[index].time_s for index in indices]
    return usage, np.asarray([np.inf if time_s is None else time_s for time_s in times])


@click.command()
@click.option("--only", default="", help="Only operators whose name holds this text.")
@click.option(
    "--phones",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="AutoTVM's measurements of phones; only their table.",
)
@click.option("--least", type=click.IntRange(min=1), default=100, show_default=True, help="Configs of a phone's task.")
def main(only: str, phones: Path | None, least: int) -> None:
    """Print the tables."""
    if phones is not None:
        Console(width=120).print(phone_table(phones, least))
        return
    out, columns = Console(width=120), ["l1", *(f"{budget} B" for budget in BUDGETS)]
    phone, h200 = Target("opencl -device=adreno640"), Target("opencl -device=nvidia_h200")
    table = table_of_numbers("operator", columns, title="Kept configs on adreno640, by the size of its L1 cache")
    for name, work in OPERATORS.items():
        if only in name:
            counts = [kept_counts(work, phone, budget) for budget in BUDGETS]
            for rule, *row in zip(L1_RULES, *counts, strict=True):
                table.add_row(name, rule, *row)
    out.print(table)
    table = table_of_numbers("operator", columns, title="Fastest recorded config that fits, over the fastest of all")
    for path in sorted(RECORDED.glob("*.json.gz")):
        name = path.name.partition(".")[0]
        if only in name:
            usage, times = recorded_usage(RecordedSpace.load(path), h200)
            for rule, rules in L1_RULES.items():
                ratios = (fastest_within(usage, times, h200, size, rules) for size in BUDGETS)
                table.add_row(name, rule, *map(shown, ratios))
    out.print(table)


if __name__ == "__main__":
    main()
