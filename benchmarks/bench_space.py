"""Measures how much of the knob spaces of the Romou paper's operators the criteria remove, for each device: one table.
Nothing is lowered or measured.

    python benchmarks/bench_space.py                          the operators of benchmarks/data/paper_ops.csv on adreno630, adreno640 and mali_g76
    python benchmarks/bench_space.py --device adreno640 --only conv3x3 --json result.json

docs/evidence/benchmarks.md describes the method and the output.
"""  # noqa: E501

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from operator_lists import paper_operators
from processes import mapping
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.costs.criteria import judge
from romou.compiler.operators.workload import Conv2d
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tools.report.spaces import criteria_table, percent
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning import PrunedSpace, PruningReport, Rules, prune_each

DEVICES = ("adreno630", "adreno640", "mali_g76")
# The least share of configs to remove on average.
LEAST_PRUNED = 0.95


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The pruned space of an operator on a device.

    ours, literal: the reports of Romou's rule and of the paper's
    excluded_by: the criteria that exclude the default config, empty if it is kept
    seconds: the time of both rules together
    """

    ours: PruningReport
    literal: PruningReport
    excluded_by: list[str]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"ours": self.ours.to_dict(), "literal": self.literal.to_dict(), "default_excluded_by": self.excluded_by}


def excluded_by(task: TunableTask, space: PrunedSpace, target: Target) -> list[str]:
    """Return the criteria that exclude the default config, or none if it is kept."""
    default = task.default_config(target)
    if space.is_valid(default):
        return []
    verdicts = judge(task.template.form(target.limits).usage(columns_of([default])), target.spec, choices=space.choices)
    return [name for name, verdict in verdicts.items() if not np.all(verdict.keep)]


def judged(work: Conv2d, device: str) -> Judged:
    """Prune the space of an operator on a device by both rules."""
    task, target, started = task_of(work).with_free_images(), Target(f"opencl -device={device}"), time.perf_counter()
    limits = target.limits
    ours, literal = prune_each(
        task.template, task.template.space(limits), target.spec, limits, (Rules(), Rules(count_per_work_item=True))
    )
    seconds = time.perf_counter() - started
    return Judged(
        ours=ours.report, literal=literal.report, excluded_by=excluded_by(task, ours, target), seconds=seconds
    )


@click.command()
@click.option("--device", "devices", type=click.Choice(DEVICES), multiple=True, default=DEVICES, show_default=True)
@click.option("--only", default="", help="Only operators whose name holds this text.")
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(devices: tuple[str, ...], only: str, jobs: int, output: Path | None) -> None:
    """Print the table.

    The exit code is 1 if a space is empty or less than 95% is removed on average over all operators and devices.
    """
    works = {name: work for work in paper_operators() if only in (name := task_of(work).name)}
    if not works:
        raise click.BadParameter(f"no operator's name holds {only!r}", param_hint="--only")
    pairs = [(work, device) for work in works.values() for device in devices]
    with mapping(jobs) as mapped:
        answers = iter(list(mapped(judged, *zip(*pairs, strict=True))))
    spaces = {name: {device: next(answers) for device in devices} for name in works}
    columns = [column for device in devices for column in (f"{device} before", "kept", "pruned", "literal", "default")]
    table = table_of_numbers("operator", columns, title="Configs before and after pruning")
    for name, row in spaces.items():
        cells = []
        for space in row.values():
            mark, literal_mark = ("*" if r.relaxed else "" for r in (space.ours, space.literal))
            cells += [
                str(space.ours.before),
                f"{space.ours.kept}{mark}",
                percent(space.ours.pruned_share),
                f"{percent(space.literal.pruned_share)}{literal_mark}",
            ]
            cells.append(", ".join(space.excluded_by) or "kept")
        table.add_row(name, *cells)
    out = Console(width=220)
    out.print(table)
    every = [space for row in spaces.values() for space in row.values()]
    for device in devices:
        own = [row[device] for row in spaces.values()]
        out.print(f"\n{device}:")
        out.print(criteria_table([space.ours for space in own]))
        out.print(
            f"{device}: {percent(statistics.mean(space.ours.pruned_share for space in own))} pruned on average,"
            f" {percent(statistics.mean(space.literal.pruned_share for space in own))} by the literal rule; smallest"
            f" space {min(space.ours.kept for space in own)}; {sum(not space.excluded_by for space in own)} of"
            f" {len(own)} default configs kept"
        )
    mean, configs, seconds = (
        statistics.mean(space.ours.pruned_share for space in every),
        sum(space.ours.declared for space in every),
        sum(space.seconds for space in every),
    )
    out.print(
        f"All: {percent(mean)} pruned on average, {configs} declared configs judged by two rules in {seconds:.1f} s of"
        " processes"
    )
    if output is not None:
        output.write_text(
            json.dumps(
                {name: {device: space.to_dict() for device, space in row.items()} for name, row in spaces.items()},
                indent=1,
            ),
            encoding="utf-8",
        )
    raise SystemExit(0 if mean >= LEAST_PRUNED and all(space.ours.kept for space in every) else 1)


if __name__ == "__main__":
    main()
