#!/usr/bin/env python3
"""Counts the trials and seconds that searches need on recorded spaces.

A search ends when it is within 2% of the best known config. Needs no device.

    python benchmarks/bench_search.py                                       all operators of benchmarks/data/spaces_h200, 50 seeds, every method
    python benchmarks/bench_search.py --operators dense --seeds 5 --methods random,xgboost --out FOLDER
    python benchmarks/bench_search.py --spaces CUDA --pretrain-on benchmarks/data/spaces_h200 --methods expected,pretrained     the benefit of another device's recordings
    python benchmarks/bench_search.py --spaces hub --seeds 5 --out FOLDER   spaces that others recorded: *_T4.json.gz, or caches of Kernel Tuner

docs/evidence/benchmarks.md describes the method and the output.
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import foreign_searches
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.costs.criteria import choices_of
from romou.devices.hardware import load_device
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning import judge
from romou.tuner.search import TuningOptions
from simulated_searches import (
    DEVICE,
    KERNEL_TUNER,
    ROMOU,
    SPACES,
    WITHIN,
    Run,
    best_of,
    recording,
    some_runs,
    target_of,
    task_of,
)

SEEDS_AT_A_TIME = 5


def kept_runs(file: Path) -> list[Run]:
    """Read the runs of an earlier call, without an incomplete last line."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [Run(**{**row, "curve": tuple(row["curve"])}) for row in rows]


def quantile(values: Sequence[float | None], share: float) -> float:
    """Return the value that this share of the runs does not exceed. It is infinite if fewer runs reached the goal."""
    ranked = sorted(math.inf if v is None else v for v in values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def _cell(trials: float, seconds: float) -> str:
    return "never" if math.isinf(trials) else f"{trials:.0f} ({seconds:.0f} s)"


def result_table(runs: Sequence[Run], methods: Sequence[str]) -> Table:
    """Return a table of the median and 90th percentile of trials and seconds."""
    title = (
        f"Until within {(WITHIN - 1) * 100:.0f}% of the best: trials (seconds), median / 90th percentile; 'never' where"
        " fewer runs came so far"
    )
    table = table_of_numbers("operator", methods, title=title)
    for operator in [*dict.fromkeys(r.operator for r in runs), "all"]:
        cells = []
        for method in methods:
            mine = [r for r in runs if r.method == method and operator in (r.operator, "all")]
            trials, seconds = [r.trials for r in mine], [r.seconds for r in mine]
            pair = [_cell(quantile(trials, q), quantile(seconds, q)) for q in (0.5, 0.9)]
            cells.append(" / ".join(pair) if mine else "-")
        table.add_row(operator, *cells, end_section=operator == "all")
    reached = [[r.trials is not None for r in runs if r.method == method] for method in methods]
    table.add_row("runs that came so far", *(f"{sum(r)} of {len(r)}" for r in reached))
    overhead = [[r.overhead for r in runs if r.method == method] for method in methods]
    table.add_row("overhead, median", *(f"{np.median(o) * 100:.1f}%" if o else "-" for o in overhead))
    return table


def survival_table(paths: Sequence[Path]) -> Table:
    """Return a table of the configs that pruning keeps of each recording, and of the best kept config."""
    columns = ("recorded", "kept", "best, us", "best kept", "best / best kept", "the best is excluded by")
    table = table_of_numbers(
        "operator", columns, title=f"Recorded configs that survive pruning by the facts of {DEVICE}"
    )
    for path in paths:
        recorded, task = recording(path), task_of(path, DEVICE)
        allowed = task.allowed or frozenset()
        best_s = best_of(recorded)
        first = next(index for index, config in recorded.configs.items() if config.time_s == best_s)
        left = [recorded.configs[i].time_s for i in allowed if recorded.configs[i].time_s is not None]
        kept_s = min((t for t in left if t is not None), default=math.inf)
        form = task.template.form(task.limits(target_of(path)))
        space = task.template.space(task.limits(target_of(path)))
        best = columns_of([task.recorded.space().at(first)])
        verdicts = judge(form.usage(best), load_device(DEVICE), choices=choices_of(form, space, load_device(DEVICE)))
        excluded = ", ".join(name for name, verdict in verdicts.items() if not np.all(verdict.keep))
        verdict = "yes" if first in allowed else "within 2%" if kept_s <= best_s * WITHIN else "LOST"
        table.add_row(
            recorded.name,
            str(len(recorded.configs)),
            str(len(allowed)),
            f"{best_s * 1e6:.2f}",
            verdict,
            f"{best_s / kept_s:.3f}",
            excluded,
        )
    return table


def summary(runs: Sequence[Run], methods: Sequence[str]) -> str:
    """Return lines that compare each method with the one before it: the ratio of their trials over the operators."""
    operators = list(dict.fromkeys(r.operator for r in runs))
    lines = []
    for slow, fast in itertools.combinations([m for m in methods if m in ROMOU], 2):
        ratios = []
        for operator in operators:
            medians = [
                quantile([r.trials for r in runs if (r.operator, r.method) == (operator, m)], 0.5) for m in (slow, fast)
            ]
            if all(map(math.isfinite, medians)):
                ratios.append(medians[0] / medians[1])
        if ratios:
            mean = math.exp(float(np.mean(np.log(ratios))))
            text = (
                f"{slow} / {fast}: {mean:.1f} times the trials, geometric mean over {len(ratios)} of {len(operators)}"
                " operators"
            )
            lines.append(f"{text}; {min(ratios):.1f} to {max(ratios):.1f}")
    return "\n".join(lines)


def draw(runs: Sequence[Run], methods: Sequence[str], path: Path) -> None:
    """Draw convergence over trials: the share of the best speed, and the share of runs within 2%."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    longest = max(len(r.curve) for r in runs)
    steps = np.arange(1, longest + 1)
    for method in methods:
        mine = [r for r in runs if r.method == method]
        if not mine:
            continue
        # A run that has ended keeps its best.
        curves = np.array([r.curve + (r.curve[-1],) * (longest - len(r.curve)) for r in mine])
        style: dict[str, Any] = (
            {"linewidth": 2, "linestyle": "-"} if method in ROMOU else {"linewidth": 1, "linestyle": "--"}
        )
        left.plot(steps, curves.mean(axis=0), label=method, **style)
        ends = np.sort([math.inf if r.trials is None else r.trials for r in mine])
        right.plot(steps, np.searchsorted(ends, steps, side="right") / len(mine), **style)
    for axes, label in (
        (left, "best known time / best time so far, mean"),
        (right, "runs within 2% of the best known"),
    ):
        axes.set(xscale="log", xlabel="trials", ylabel=label, ylim=(0, 1.02))
        axes.grid(alpha=0.3)
    left.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def methods_of(text: str, out: Console) -> list[str]:
    """Return the methods that can run here. The others are reported on the console."""
    methods = (*ROMOU, *KERNEL_TUNER)
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name not in methods and not name.startswith("kt_"):
            raise click.UsageError(f"unknown method {name!r}; known: {', '.join(methods)}")
    if any(m.startswith("kt_") for m in wanted) and importlib.util.find_spec("kernel_tuner") is None:
        out.print("Kernel Tuner is not installed, its columns are left out: pip install kernel-tuner")
        wanted = [m for m in wanted if not m.startswith("kt_")]
    return wanted


def compare_foreign(
    paths: Sequence[Path], methods: str, seeds: int, jobs: int, seconds: float, folder: Path | None, out: Console
) -> None:
    """Print the scores of searches on spaces recorded by others.

    Runs are kept and continued as for Romou's recordings. Nothing is scored if some runs were not begun.
    """
    chosen = (
        [m for m in methods.split(",") if m]
        if methods
        else [*foreign_searches.ROMOU, *(f"kt_{name}" for name in foreign_searches.STRATEGIES)]
    )
    file = None if folder is None else folder / "foreign.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    runs = [foreign_searches.ForeignRun(**json.loads(line)) for line in lines if line.endswith("}")]
    done = {(run.space, run.method, run.seed) for run in runs}
    stop_at, is_over = time.monotonic() + seconds, True
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {}
        # Seed by seed, so that at the time limit every finished seed has all methods on all spaces.
        for seed, method, path in itertools.product(range(seeds), chosen, paths):
            has_source = method != "romou_transfer" or foreign_searches.others_of(path)
            if seconds > 0 and has_source and (foreign_searches.recording(path).name, method, seed) not in done:
                waiting[pool.submit(foreign_searches.run, path, method, seed)] = f"{method} on {path.name}"
        for future in as_completed(waiting):
            if time.monotonic() > stop_at:
                left = sum(other.cancel() for other in waiting)
                stop_at = math.inf
                is_over = left == 0
                out.print(f"out of time: {left} of {len(waiting)} runs were not begun", markup=False)
            if future.cancelled():
                continue
            try:
                runs.append(future.result())
            except Exception as error:
                if not waiting[future].startswith("kt_"):
                    raise
                # A strategy that gives up on a space is a result, not the end of the comparison.
                out.print(f"{waiting[future]}: {type(error).__name__}: {error}", markup=False)
                continue
            if file is not None:
                keep(file, runs[-1:])
        if not is_over:
            return
        path_of = {foreign_searches.recording(path).name: path for path in paths}
        shown: dict[tuple[str, str], list[foreign_searches.ForeignRun]] = {}
        for run in sorted(runs, key=lambda run: (run.space, run.seed)):
            if run.method in chosen and run.seed < seeds and run.space in path_of:
                shown.setdefault((run.space, run.method), []).append(run)
        found = pool.map(foreign_searches.curve, [path_of[space] for space, _ in shown], shown.values())
        curves = dict(zip(shown, found, strict=True))
    out.print(foreign_searches.table(curves, shown))
    if folder is not None:
        foreign_searches.draw(curves, folder / "score.png")


def keep(file: Path, runs: Iterable[Run | foreign_searches.ForeignRun]) -> None:
    """Append runs to the file from which a later call continues."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.writelines(json.dumps(dataclasses.asdict(run)) + "\n" for run in runs)


@click.command()
@click.option(
    "--spaces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=SPACES,
    help="Folder of recordings.",
)
@click.option("--operators", default="", help="Which ones, with commas; default: all in the folder.")
@click.option(
    "--methods",
    default="",
    help=f"Default: {','.join((*ROMOU, *KERNEL_TUNER))}; on recordings of others romou, romou_transfer, and kt_*.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=math.inf,
    help="On recordings of others: begin no run after it; 0 prints those kept.",
)
@click.option("--options", default="{}", help='Of the search, as JSON: {"batch_size": 4}.')
@click.option(
    "--pretrain-on",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of another device's recordings.",
)
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Where search.jsonl and search.png go.",
)
def main(
    spaces: Path,
    operators: str,
    methods: str,
    seeds: int,
    jobs: int,
    seconds: float,
    options: str,
    source: Path | None,
    folder: Path | None,
) -> None:
    """Print the tables that the file's docstring describes."""
    out = Console(width=260)
    files = [path for path in sorted(spaces.iterdir()) if foreign_searches.FILES.fullmatch(path.name)]
    if foreign := [path for path in files if not operators or path.name.startswith(operators)]:
        compare_foreign(foreign, methods, seeds, jobs, seconds, folder, out)
        return
    chosen = methods_of(methods or ",".join((*ROMOU, *KERNEL_TUNER)), out)
    wanted = [name.strip() for name in operators.split(",") if name.strip()]
    paths = sorted(path for path in spaces.glob("*.json.gz") if not wanted or path.name.partition(".")[0] in wanted)
    if not paths:
        raise click.UsageError(f"no recording of {operators or 'anything'} in {spaces}")
    if any(m.startswith("pruned") for m in chosen):
        out.print(survival_table(paths))
    session_options = json.loads(options)
    TuningOptions.from_dict(session_options)
    file = None if folder is None else folder / "search.jsonl"
    runs = [] if file is None else kept_runs(file)
    done = {(run.operator, run.method, run.seed) for run in runs}
    # Spawned instead of forked, because TVM has started threads.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs_of = {}
        for start, path, method in itertools.product(range(0, seeds, SEEDS_AT_A_TIME), paths, chosen):
            chunk = [
                seed
                for seed in range(start, min(start + SEEDS_AT_A_TIME, seeds))
                if (path.name.partition(".")[0], method, seed) not in done
            ]
            if chunk:
                jobs_of[pool.submit(some_runs, path, method, chunk, session_options, source)] = path, method
        for future in as_completed(jobs_of):
            path, method = jobs_of[future]
            try:
                fresh = future.result()
            except Exception as error:
                if not method.startswith("kt_"):
                    raise
                # A strategy that gives up on a space is a result, not the end of the comparison.
                out.print(f"{method} on {path.name.partition('.')[0]}: {type(error).__name__}: {error}", markup=False)
                continue
            runs += fresh
            if file is not None:
                keep(file, fresh)
    names = {path.name.partition(".")[0] for path in paths}
    shown = (run for run in runs if run.operator in names and run.method in chosen and run.seed < seeds)
    runs = sorted(shown, key=lambda run: (run.operator, run.seed))
    out.print(result_table(runs, chosen))
    out.print(summary(runs, chosen), markup=False)
    if folder is not None:
        draw(runs, chosen, folder / "search.png")


if __name__ == "__main__":
    main()
