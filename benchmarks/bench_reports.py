#!/usr/bin/env python3
"""Compares device files made of ArchProbe's reports with the file written by hand.

Needs no device. The reports are Microsoft's of a Pixel 4 (Adreno 640), and ours of the same curves.

    python benchmarks/bench_reports.py                                      images, defaults, criteria, kept configs, and searches by both
    python benchmarks/bench_reports.py --seeds 0 --kernels                  no searches; the source of default kernels
    python benchmarks/bench_reports.py --operators dense --seeds 2 --methods pruned

docs/evidence/benchmarks.md describes the method and the output, docs/evidence/archprobe.md the result.
"""  # noqa: E501

from __future__ import annotations

import difflib
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from archprobe.report.convert import converted
from processes import mapping
from romou.compiler.operators.workload import Workload
from romou.compiler.single_operator import conv, task_of
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tools.report.spaces import percent, shared_shares
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning import pruned_space
from simulated_searches import SPACES, best_of, recording, romou_run
from simulated_searches import task_of as recorded_task

CURVES = Path(__file__).parents[1] / "tests/archprobe/data/pixel4"
BY_HAND, OWN, MICROSOFT = FILES = ("adreno640", "pixel4_own", "pixel4_microsoft")
OPERATORS: Mapping[str, Workload] = {
    "1x1, 256x14x14 -> 256": conv(256, (14, 14), 256, (1, 1)),
    "3x3, 64x56x56 -> 64": conv(64, (56, 56), 64, (3, 3), padding=(1, 1, 1, 1)),
    "depthwise 3x3, 32x113x113": conv(32, (113, 113), 32, (3, 3), groups=32, padding=(1, 1, 1, 1)),
}
# A recording with fewer configs after pruning has nothing to search.
FEWEST_CONFIGS = 10


def write_reports(folder: Path) -> None:
    """Write the two reports as device files."""
    shutil.copy(CURVES / "ArchProbeReport.json", folder / f"{MICROSOFT}.json")
    converted(CURVES, OWN).save(folder / f"{OWN}.json")


def target_of(name: str) -> Target:
    return Target(f"opencl -device={name}")


def device_table(label: str, work: Workload) -> Table:
    """Return a table of one operator with a line for each device file."""
    columns = ("images", "differs in the default", "criteria gone", "kept", "of all", "of its by hand", "of hand's")
    table = table_of_numbers("device file", columns, title=label)
    task = task_of(work).with_free_images()
    spaces = {name: pruned_space(task, target_of(name)) for name in FILES}
    defaults = {name: task.default_config(target_of(name)) for name in FILES}
    judged = {name: {count.criterion for count in space.report.criteria} for name, space in spaces.items()}
    for name, space in spaces.items():
        changed = [
            f"{knob}={choice}" for knob, choice in defaults[name].items() if choice != defaults[BY_HAND].get(knob)
        ]
        shares = shared_shares(space, spaces[BY_HAND])
        table.add_row(
            name,
            "yes" if target_of(name).limits.prefers_images else "no",
            ", ".join(changed) or "-",
            ", ".join(sorted(judged[BY_HAND] - judged[name])) or "none",
            f"{space.report.kept:,}",
            f"{space.report.before:,}",
            *map(percent, shares),
        )
    return table


def default_source(work: Workload, name: str) -> str:
    """Return the source of the default kernel by a device file."""
    task, target = task_of(work).with_free_images(), target_of(name)
    kernels = inspect_function(task.schedule(task.default_config(target), target)["main"], target)
    return "\n".join(kernel.source for kernel in kernels)


def compared_sources(work: Workload) -> str:
    """Return the hand-written file's default kernel, and the lines in which each report's kernel differs."""
    by_hand = default_source(work, BY_HAND)
    parts = [by_hand]
    for name in (OWN, MICROSOFT):
        texts = (by_hand.splitlines(), default_source(work, name).splitlines())
        lines = difflib.unified_diff(*texts, BY_HAND, name, n=0, lineterm="")
        parts.append("\n".join(lines) or f"{name}: the same text as {BY_HAND}")
    return "\n\n".join(parts)


def trials_of(path: Path, method: str, name: str, seeds: int) -> list[int]:
    """Return the trials of each seed until within 2% of the best config that the hand-written file allows.

    A search that never reached it counts with all configs of the recording.
    """
    recorded = recording(path)
    allowed = recorded_task(path, BY_HAND).allowed if method == "pruned" else None
    goal_s = best_of(recorded, allowed)
    options = {"trials": len(recorded.configs) + 1, "patience": 10**6, "confirm": 0}
    runs = [romou_run(path, method, seed, options, facts=name, goal_s=goal_s) for seed in range(seeds)]
    return [len(recorded.configs) if run.trials is None else run.trials for run in runs]


def ratio_of(trials: np.ndarray, by_hand: np.ndarray) -> tuple[float, float]:
    """Return the ratio of two files' trials, geometric mean, and its standard error as a factor. Rows are operators.

    Seeds are paired: both files start with the same random draws.
    """
    logs = np.log(trials / by_hand).mean(axis=0)
    error = logs.std(ddof=1) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return math.exp(logs.mean()), math.exp(error)


def verdict(ratio: float, error: float) -> str:
    """Return "no worse" unless the ratio exceeds one by more than two standard errors."""
    return "no worse" if ratio <= error**2 * (1 + 1e-9) else "WORSE"


def compare_searches(paths: Sequence[Path], methods: Sequence[str], seeds: int, jobs: int, out: Console) -> None:
    """Print the median trials of each file's searches on each recording, and their ratio over all."""
    for method in methods:
        searched = [
            path
            for path in paths
            if method != "pruned" or len(recorded_task(path, BY_HAND).allowed or ()) >= FEWEST_CONFIGS
        ]
        cells = [(path, method, name, seeds) for path in searched for name in FILES]
        with mapping(jobs) as mapped:
            answers = list(mapped(trials_of, *zip(*cells, strict=True)))
        trials = np.array(answers, dtype=float).reshape(len(searched), len(FILES), seeds)
        title = f"{method}: trials until within 2% of the best, median of {seeds} seeds"
        table = table_of_numbers("recording", FILES, title=title)
        for path, row in zip(searched, trials, strict=True):
            table.add_row(path.name.partition(".")[0], *(f"{np.median(own):.0f}" for own in row))
        out.print(table)
        for index, name in enumerate(FILES[1:], start=1):
            ratio, error = ratio_of(trials[:, index], trials[:, 0])
            out.print(
                f"{method}: {name} takes {ratio:.2f} times the trials of {BY_HAND} (standard error"
                f" {(error - 1) * 100:.0f}%): {verdict(ratio, error)}",
                markup=False,
            )


@click.command()
@click.option("--only", default="", help="Only operators of the first tables whose name holds this text.")
@click.option("--kernels", "has_kernels", is_flag=True, help="Also print the default kernels.")
@click.option("--operators", default="", help="Recordings to search, with commas; default: all.")
@click.option("--methods", default="pruned,expected", show_default=True, help="As of bench_search.py.")
@click.option("--seeds", type=click.IntRange(min=0), default=10, show_default=True, help="0: no searches.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
def main(only: str, has_kernels: bool, operators: str, methods: str, seeds: int, jobs: int) -> None:
    """Print the tables."""
    out = Console(width=170)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, ROMOU_DEVICES=folder):
        write_reports(Path(folder))
        for label, work in OPERATORS.items():
            if only in label:
                out.print(device_table(label, work))
                if has_kernels:
                    out.print(compared_sources(work), markup=False, highlight=False, soft_wrap=True)
        if seeds:
            names = operators.split(",") if operators else [path.name.partition(".")[0] for path in SPACES.iterdir()]
            paths = [SPACES / f"{name}.json.gz" for name in sorted(names)]
            compare_searches(paths, methods.split(","), seeds, jobs, out)


if __name__ == "__main__":
    main()
