"""How much of the knob spaces of the Romou paper's operators the criteria remove, for each device: one table. Nothing is lowered or measured.

    python scripts/bench_space.py                          the operators of scripts/data/paper_ops.csv on adreno630, adreno640 and mali_g76
    python scripts/bench_space.py --device adreno640 --only conv3x3 --json result.json

How it measures, and what it prints: docs/benchmarks.md.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from operator_lists import paper_operators
from rich.console import Console

from romou.pruning import PrunedSpace, PruningReport, Rules
from romou.pruning.criteria import judge
from romou.pruning.form import columns_of
from romou.pruning.forms import form_of
from romou.report.spaces import criteria_table, percent
from romou.report.table import table_of_numbers
from romou.target import Target
from romou.tasks.operators import task_of
from romou.tasks.tunable import TunableTask

DEVICES = ("adreno630", "adreno640", "mali_g76")


def excluded_by(task: TunableTask, space: PrunedSpace, target: Target) -> list[str]:
    """The criteria that exclude the default config; none where it is kept."""
    default = task.default_config(target)
    if space.is_valid(default):
        return []
    form = form_of(task.template, target.limits)
    verdicts = judge(form.usage(columns_of([default])), target.spec, choices=form.choices(task.space(target), target.spec))
    return [name for name, verdict in verdicts.items() if not np.all(verdict.keep)]


@click.command()
@click.option("--device", "devices", type=click.Choice(DEVICES), multiple=True, default=DEVICES, show_default=True)
@click.option("--only", default="", help="Only operators whose name holds this text.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(devices: tuple[str, ...], only: str, output: Path | None) -> None:
    """Print the table; exit code 1 if a space is empty or less than 90% is removed on average over all operators and devices."""
    tasks = {task.name: task for task in (task_of(work).with_free_images() for work in paper_operators()) if only in task.name}
    columns = [column for device in devices for column in (f"{device} before", "kept", "pruned", "literal", "default")]
    table = table_of_numbers("operator", columns, title="Configs before and after pruning")
    found: dict[str, dict[str, Any]] = {}
    reports: dict[str, list[PruningReport]] = {device: [] for device in devices}
    seconds = 0.0
    for name, task in tasks.items():
        cells = []
        for device in devices:
            target = Target(f"opencl -device={device}")
            started = time.perf_counter()
            space = task.pruned_space(target)
            seconds += time.perf_counter() - started
            literal = task.pruned_space(target, Rules(count_per_work_item=True)).report
            report, lost = space.report, excluded_by(task, space, target)
            reports[device].append(report)
            mark, literal_mark = ("*" if r.relaxed else "" for r in (report, literal))
            cells += [str(report.before), f"{report.kept}{mark}", percent(report.pruned_share), f"{percent(literal.pruned_share)}{literal_mark}"]
            cells.append(", ".join(lost) or "kept")
            found.setdefault(name, {})[device] = {"ours": report.to_dict(), "literal": literal.to_dict(), "default_excluded_by": lost}
        table.add_row(name, *cells)
    out = Console(width=220)
    out.print(table)
    for device in devices:
        out.print(f"\n{device}:")
        out.print(criteria_table(reports[device]))
        ours = [row[device] for row in found.values()]
        literal_share = statistics.mean(row["literal"]["pruned_share"] for row in ours)
        kept = sum(not row["default_excluded_by"] for row in ours)
        out.print(
            f"{device}: {percent(statistics.mean(r.pruned_share for r in reports[device]))} pruned on average, {percent(literal_share)} by the literal rule; "
            f"smallest space {min(r.kept for r in reports[device])}; {kept} of {len(ours)} default configs kept"
        )
    every = [r for device in devices for r in reports[device]]
    mean = statistics.mean(r.pruned_share for r in every)
    configs = sum(r.declared for r in every)
    out.print(f"All: {percent(mean)} pruned on average, {configs} declared configs judged in {seconds:.1f} s ({seconds / configs * 1e6:.2f} s a million)")
    if output is not None:
        output.write_text(json.dumps(found, indent=1), encoding="utf-8")
    raise SystemExit(0 if mean >= 0.9 and all(r.kept for r in every) else 1)


if __name__ == "__main__":
    main()
