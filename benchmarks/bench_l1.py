"""Compares two ways to count bytes against the first-level cache by the configs that they exclude.

The results are two tables over budgets of the cache. Nothing is lowered or measured.

    python benchmarks/bench_l1.py                    four operators on adreno640, and eight recorded on an NVIDIA H200

docs/benchmarks.md describes the method and the output, docs/criteria.md the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Workload
from romou.compiler.single_operator import conv, task_of
from romou.devices.targets import Target
from romou.tools.report.table import table_of_numbers
from romou.tuner.analysis.usage import KernelUsage
from romou.tuner.pruning import prune_each
from romou.tuner.pruning.criteria import L1_RULES, Choices, Rules, l1_cache
from romou.tuner.pruning.form import columns_of
from romou.tuner.pruning.forms import form_of
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


def fastest_within(usage: KernelUsage, times_s: np.ndarray, target: Target, budget: int, rules: Rules) -> str:
    """Return the time of the fastest config that fits the cache, relative to the fastest. "none" if none fits."""
    spec = dataclasses.replace(target.spec, l1_texture_cache_bytes=budget, l1_buffer_cache_bytes=budget)
    verdict = l1_cache(usage, spec, rules, Choices())
    assert verdict is not None
    fitting = times_s[np.broadcast_to(verdict.keep, times_s.shape)]
    return f"{fitting.min() / times_s.min():.2f}" if np.isfinite(fitting).any() else "none"


def recorded_usage(recorded: RecordedSpace, target: Target) -> tuple[KernelUsage, np.ndarray]:
    """Return the usage of the recorded configs, and their seconds, infinite for configs that failed."""
    task = SimulatedTask.of_recording(recorded)
    indices = sorted(recorded.configs)
    usage = form_of(task.template, target.limits).usage(columns_of([task.recorded.space().at(i) for i in indices]))
    times = [recorded.configs[index].time_s for index in indices]
    return usage, np.asarray([np.inf if time_s is None else time_s for time_s in times])


@click.command()
@click.option("--only", default="", help="Only operators whose name holds this text.")
def main(only: str) -> None:
    """Print both tables."""
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
                table.add_row(name, rule, *(fastest_within(usage, times, h200, size, rules) for size in BUDGETS))
    out.print(table)


if __name__ == "__main__":
    main()
