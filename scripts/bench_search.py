#!/usr/bin/env python3
"""How many trials and seconds searches need on recorded spaces until they are within 2% of the best known config. Needs no device.

    python scripts/bench_search.py                                       all operators of scripts/data/spaces_h200, 50 seeds, every method
    python scripts/bench_search.py --operators dense --seeds 5 --methods random,xgboost --out FOLDER

The methods:

    random, xgboost     Romou's session on the recorded configs, without and with its cost model; it knows nothing of the device
    expected            xgboost that starts from what is expected of each config by the facts of the device
    pruned              the same on those that the criteria leave on the device: what `romou tune` does on a device that is known by its facts
    warm, pruned_warm   xgboost and pruned that have seen 100 random configs of each of the other operators, as if tuned before on the device
    taught, pruned_taught
                        expected and pruned that know besides what all recordings of the other operators teach of the device, those of a folder
                        beside it, whose name ends in _more, included (scripts/pretrain_cost_model.py):
                        pruned_taught is what `romou tune` does on the device of the recordings, for an operator that is none of theirs
    kt_*                strategies of Kernel Tuner in its simulation mode, on all recorded configs (pip install kernel-tuner, or .[bench])

Seconds are those of the recording: builds and the device's work, by eight build processes that go ahead of the device for Romou, one after another
for Kernel Tuner, which builds and runs in turns. What the search itself takes is told apart as overhead. Every run ends when it is within 2% of the best
or has tried everything; Kernel Tuner's ends when as many configs as were recorded have been tried, repeated ones included where its strategy
counts so. --out keeps every run in search.jsonl as soon as it is there, goes on from those of a folder, and draws search.png; another version of
Romou takes another folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import io
import itertools
import json
import math
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from romou.core.outcome import Outcome
from romou.hardware import load_device
from romou.pruning import judge, prune
from romou.pruning.columns import columns_of
from romou.pruning.forms import form_of
from romou.records import MemoryRecords, Origin, Record, RecordedSpace
from romou.search import TuningOptions, TuningSession
from romou.search.pretrained import PretrainedModel
from romou.search.progress import NoProgress, Status
from romou.search.simulation import SimulatedDevice, SimulatedTask
from romou.target import Target

SPACES = Path(__file__).parent / "data/spaces_h200"
DEVICE = "nvidia_h200"
UNKNOWN, KNOWN = Target("opencl"), Target(f"opencl -device={DEVICE}")
WITHIN = 1.02
SEEDS_AT_A_TIME = 5
ROMOU = ("random", "xgboost", "warm", "taught", "expected", "pruned", "pruned_warm", "pruned_taught")
# Configs of each other operator that a warm search has seen.
SEEN_BEFORE = 100
KERNEL_TUNER = ("kt_random_sample", "kt_simulated_annealing", "kt_genetic_algorithm")
# Its strategies stop after so many generations; large enough that the budget of trials ends them.
STRATEGY_OPTIONS: dict[str, dict[str, Any]] = {"genetic_algorithm": {"maxiter": 1000}}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One search.

    trials, seconds   until it was within 2% of the best; None where it never was
    curve             best known time / best time so far, after each trial
    overhead          the search's own seconds of a processor, in relation to the recorded ones
    """

    operator: str
    method: str
    seed: int
    trials: int | None
    seconds: float | None
    curve: tuple[float, ...]
    overhead: float


class Reached(Exception):  # noqa: N818  no error
    """The goal of a run."""


class Watch(NoProgress):
    """Ends a session within 2% of the best, or at the best of those that it may try."""

    def __init__(self, best_s: float, reachable_s: float) -> None:
        self.best_s = best_s
        self.last = min(1 / WITHIN, best_s / reachable_s)
        self.curve: list[float] = []

    def update(self, status: Status) -> None:
        share = 0.0 if status.best_ms is None else self.best_s * 1e3 / status.best_ms
        self.curve.append(share)
        if share >= self.last * (1 - 1e-9):
            raise Reached


@functools.cache
def recording(path: Path) -> RecordedSpace:
    return RecordedSpace.load(path)


def best_of(recorded: RecordedSpace, allowed: Collection[int] | None = None) -> float:
    """The best known time in seconds, of the allowed configs and the default; None: of all."""
    inside = recorded.configs if allowed is None else {*allowed, recorded.context["default"]}
    return min(t for i in inside if (t := recorded.configs[i].time_s) is not None)


@functools.cache
def task_of(path: Path, is_pruned: bool) -> SimulatedTask:
    task = SimulatedTask.of_recording(recording(path))
    return SimulatedTask.of_recording(recording(path), survivors(task)) if is_pruned else task


def survivors(task: SimulatedTask) -> set[int]:
    """The recorded configs that the criteria leave on the device."""
    limits, recorded = task.limits(KNOWN), task.recorded
    kept = prune(task.template, task.template.space(limits), load_device(DEVICE), limits)
    return {index for index in recorded.configs if kept.is_valid(recorded.space().at(index))}


@functools.cache
def pretrained_without(path: Path) -> PretrainedModel:
    """What the recordings beside this one teach of the device, and those that do nothing but teach."""
    more = path.parent.with_name(f"{path.parent.name}_more")
    return PretrainedModel.of_recordings([task_of(other, False) for other in [*others_of(path), *sorted(more.glob("*.json.gz"))]], KNOWN)


def others_of(path: Path) -> list[Path]:
    return [other for other in sorted(path.parent.glob("*.json.gz")) if other != path]


@functools.lru_cache(maxsize=16)
def records_of(path: Path, seed: int, count: int) -> tuple[Record, ...]:
    """So many random configs of a recording as records, of the knobs that this version has."""
    recorded = task_of(path, False).recorded
    origin, space = dataclasses.asdict(Origin.here(recorded.device)), recorded.space()
    records = []
    for index in np.random.default_rng([seed, len(recorded.configs)]).permutation(sorted(recorded.configs))[:count]:
        found = recorded.configs[int(index)]
        times = (found.again_s or found.times_s) if found.outcome == Outcome.OK else ()
        config, key, name = dict(space.at(int(index))), recorded.task["key"], recorded.task["name"]
        records.append(Record(task_key=key, task_name=name, config=config, outcome=found.outcome, times_s=times, **origin))
    return tuple(records)


def romou_run(path: Path, method: str, seed: int, options: dict[str, Any]) -> Run:
    """A session on the recording."""
    task = task_of(path, method.startswith("pruned"))
    device, watch = SimulatedDevice([task]), Watch(best_of(task.recorded), best_of(task.recorded, task.allowed))
    given: dict[str, Any] = {"trials": len(task.recorded.configs) + 1, "patience": 10**6, "confirm": 0, **options, "seed": seed}
    if method == "random":
        given["random_trials"] = 10**6
    lessons = pretrained_without(path) if method.endswith("taught") else None
    started = time.process_time()
    store, others = MemoryRecords(), []
    if method.endswith("warm"):
        for other in others_of(path):
            others.append(task_of(other, False))
            for record in records_of(other, seed, SEEN_BEFORE):
                store.append(record)
    session = TuningSession(
        [task],
        UNKNOWN if method in ("random", "xgboost", "warm") else KNOWN,
        store=store,
        builder=device,
        runner=device,
        options=TuningOptions.from_dict(given),
        clock=device.clock,
        learn_from=others,
        pretrained=lessons,
    )
    with contextlib.suppress(Reached):
        session.run(lambda: watch)
    has_reached = bool(watch.curve) and watch.curve[-1] * WITHIN >= 1
    overhead = (time.process_time() - started) / device.clock()
    trials, seconds = (len(watch.curve), device.clock()) if has_reached else (None, None)
    return Run(operator=task.recorded.name, method=method, seed=seed, trials=trials, seconds=seconds, curve=tuple(watch.curve), overhead=overhead)


def kernel_tuner_run(path: Path, method: str, seed: int) -> Run:
    """A strategy of Kernel Tuner on the same configs. Failed ones are what it calls runtime failures."""
    import kernel_tuner
    from kernel_tuner import interface
    from kernel_tuner.searchspace import Searchspace

    recorded = recording(path)
    space = recorded.space()
    knobs = {name: list(choices) for name, choices in recorded.knobs.items()}
    cache, seconds_of = {}, {}
    for index, found in recorded.configs.items():
        config = dict(space.at(index))
        time_ms: Any = "RuntimeFailedConfig" if found.time_s is None else found.time_s * 1e3
        failed = {} if found.time_s is not None else {"__error__": "RuntimeFailedConfig"}
        times = {"compile_time": found.build_s * 1e3, "benchmark_time": found.run_s * 1e3, "verification_time": 0, "strategy_time": 0, "framework_time": 0}
        key = ",".join(map(str, config.values()))
        cache[key] = {**config, "time": time_ms, "times": [] if failed else [time_ms], **times, **failed, "timestamp": "2026-01-01"}
        seconds_of[key] = found.build_s + found.run_s

    class Recorded(Searchspace):
        """The space out of a cache: its way to restrict a space tries the whole product of knobs, some ten million configs."""

        def __init__(self, tune_params: Any, restrictions: Any, max_threads: Any, **options: Any) -> None:
            super().__init__(None, None, None, from_cache={"tune_params": tune_params, "cache": cache}, **options)

    interface.Searchspace = Recorded
    strategy = method.removeprefix("kt_")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        file = Path(folder, "cache.json")
        head: dict[str, object] = {"device_name": "Simulation", "kernel_name": "k", "problem_size": [1], "objective": "time"}
        head.update(tune_params_keys=list(knobs), tune_params=knobs)
        file.write_text(json.dumps({**head, "cache": cache}))
        started = time.process_time()
        results, _ = kernel_tuner.tune_kernel(
            "k",
            "__kernel void k() {}",
            [1],
            [],
            knobs,
            lang="OpenCL",
            strategy=strategy,
            strategy_options={"max_fevals": len(cache), **STRATEGY_OPTIONS.get(strategy, {})},
            cache=str(file),
            simulation_mode=True,
            objective="time",
            iterations=1,
            seed=seed,
            quiet=True,
        )
        own_s = time.process_time() - started
    best_s, best_ms, seconds = best_of(recorded), math.inf, 0.0
    curve: list[float] = []
    seen: set[str] = set()
    for result in results:
        key = ",".join(str(result[name]) for name in knobs)
        if key in seen or key not in seconds_of:
            continue
        seen.add(key)
        seconds += seconds_of[key]
        if isinstance(result["time"], float):
            best_ms = min(best_ms, result["time"])
        curve.append(best_s * 1e3 / best_ms)
        if curve[-1] * WITHIN >= 1:
            break
    is_near = bool(curve) and curve[-1] * WITHIN >= 1
    return Run(
        operator=recorded.name,
        method=method,
        seed=seed,
        trials=len(curve) if is_near else None,
        seconds=seconds if is_near else None,
        curve=tuple(curve),
        overhead=own_s / max(sum(seconds_of[key] for key in seen), 1e-9),
    )


def some_runs(path: Path, method: str, seeds: Sequence[int], options: dict[str, Any]) -> list[Run]:
    """The runs of some seeds, in a process of the pool."""
    return [kernel_tuner_run(path, method, seed) if method.startswith("kt_") else romou_run(path, method, seed, options) for seed in seeds]


def kept_runs(file: Path) -> list[Run]:
    """Runs of an earlier call; a last line that was cut off is left out."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [Run(**{**row, "curve": tuple(row["curve"])}) for row in found]


def quantile(values: Sequence[float | None], share: float) -> float:
    """The value that this share of the runs does not exceed; infinite where fewer came so far."""
    ranked = sorted(math.inf if v is None else v for v in values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def _cell(trials: float, seconds: float) -> str:
    return "never" if math.isinf(trials) else f"{trials:.0f} ({seconds:.0f} s)"


def result_table(runs: Sequence[Run], methods: Sequence[str]) -> Table:
    """Median and 90th percentile of trials and seconds."""
    table = Table(title=f"Until within {(WITHIN - 1) * 100:.0f}% of the best: trials (seconds), median / 90th percentile; 'never' where fewer runs came so far")
    table.add_column("operator", no_wrap=True)
    for method in methods:
        table.add_column(method, justify="right")
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
    """What pruning leaves of each recording, and of its best."""
    table = Table(title=f"Recorded configs that survive pruning by the facts of {DEVICE}")
    for column in ("operator", "recorded", "kept", "best, us", "best kept", "best / best kept", "the best is excluded by"):
        table.add_column(column, justify="left" if column == "operator" else "right", no_wrap=column == "operator")
    for path in paths:
        recorded, task = recording(path), task_of(path, True)
        allowed = task.allowed or frozenset()
        best_s = best_of(recorded)
        first = next(index for index, config in recorded.configs.items() if config.time_s == best_s)
        left = [recorded.configs[i].time_s for i in allowed if recorded.configs[i].time_s is not None]
        kept_s = min((t for t in left if t is not None), default=math.inf)
        form = form_of(task.template, task.limits(KNOWN))
        space = task.template.space(task.limits(KNOWN))
        best = columns_of([task.recorded.space().at(first)])
        verdicts = judge(form.usage(best), load_device(DEVICE), choices=form.choices(space, load_device(DEVICE)))
        excluded = ", ".join(name for name, verdict in verdicts.items() if not np.all(verdict.keep))
        verdict = "yes" if first in allowed else "within 2%" if kept_s <= best_s * WITHIN else "LOST"
        table.add_row(recorded.name, str(len(recorded.configs)), str(len(allowed)), f"{best_s * 1e6:.2f}", verdict, f"{best_s / kept_s:.3f}", excluded)
    return table


def summary(runs: Sequence[Run], methods: Sequence[str]) -> str:
    """How many times fewer trials a method needs than the one before it, over the operators."""
    operators = list(dict.fromkeys(r.operator for r in runs))
    lines = []
    for slow, fast in itertools.combinations([m for m in methods if m in ROMOU], 2):
        ratios = []
        for operator in operators:
            medians = [quantile([r.trials for r in runs if (r.operator, r.method) == (operator, m)], 0.5) for m in (slow, fast)]
            if all(map(math.isfinite, medians)):
                ratios.append(medians[0] / medians[1])
        if ratios:
            mean = math.exp(float(np.mean(np.log(ratios))))
            text = f"{slow} / {fast}: {mean:.1f} times the trials, geometric mean over {len(ratios)} of {len(operators)} operators"
            lines.append(f"{text}; {min(ratios):.1f} to {max(ratios):.1f}")
    return "\n".join(lines)


def draw(runs: Sequence[Run], methods: Sequence[str], path: Path) -> None:
    """Convergence over trials: the share of the best speed, and of the runs that are within 2%."""
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
        style: dict[str, Any] = {"linewidth": 2, "linestyle": "-"} if method in ROMOU else {"linewidth": 1, "linestyle": "--"}
        left.plot(steps, curves.mean(axis=0), label=method, **style)
        ends = np.sort([math.inf if r.trials is None else r.trials for r in mine])
        right.plot(steps, np.searchsorted(ends, steps, side="right") / len(mine), **style)
    for axes, label in ((left, "best known time / best time so far, mean"), (right, "runs within 2% of the best known")):
        axes.set(xscale="log", xlabel="trials", ylabel=label, ylim=(0, 1.02))
        axes.grid(alpha=0.3)
    left.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def methods_of(text: str, out: Console) -> list[str]:
    """The methods that can run here; says which cannot."""
    known = (*ROMOU, *KERNEL_TUNER)
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name not in known and not name.startswith("kt_"):
            raise click.UsageError(f"unknown method {name!r}; known: {', '.join(known)}")
    if any(m.startswith("kt_") for m in wanted) and importlib.util.find_spec("kernel_tuner") is None:
        out.print("Kernel Tuner is not installed, its columns are left out: pip install kernel-tuner")
        wanted = [m for m in wanted if not m.startswith("kt_")]
    return wanted


@click.command()
@click.option("--spaces", type=click.Path(exists=True, file_okay=False, path_type=Path), default=SPACES, help="Folder of recordings.")
@click.option("--operators", default="", help="Which ones, with commas; default: all in the folder.")
@click.option("--methods", default=",".join((*ROMOU, *KERNEL_TUNER)), show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option("--options", default="{}", help='Of the search, as JSON: {"batch_size": 4}.')
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path), default=None, help="Where search.jsonl and search.png go.")
def main(spaces: Path, operators: str, methods: str, seeds: int, jobs: int, options: str, folder: Path | None) -> None:
    """See the file's docstring."""
    out = Console(width=240)
    chosen = methods_of(methods, out)
    wanted = [name.strip() for name in operators.split(",") if name.strip()]
    paths = sorted(path for path in spaces.glob("*.json.gz") if not wanted or path.name.partition(".")[0] in wanted)
    if not paths:
        raise click.UsageError(f"no recording of {operators or 'anything'} in {spaces}")
    if any(m.startswith("pruned") for m in chosen):
        out.print(survival_table(paths))
    given = json.loads(options)
    TuningOptions.from_dict(given)
    file = None if folder is None else folder / "search.jsonl"
    runs = [] if file is None else kept_runs(file)
    done = {(run.operator, run.method, run.seed) for run in runs}
    # Not forked: TVM has started threads.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs_of = {}
        for start, path, method in itertools.product(range(0, seeds, SEEDS_AT_A_TIME), paths, chosen):
            chunk = [seed for seed in range(start, min(start + SEEDS_AT_A_TIME, seeds)) if (path.name.partition(".")[0], method, seed) not in done]
            if chunk:
                jobs_of[pool.submit(some_runs, path, method, chunk, given)] = path, method
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
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a", encoding="utf-8") as lines:
                    lines.writelines(json.dumps(dataclasses.asdict(run)) + "\n" for run in fresh)
    names = {path.name.partition(".")[0] for path in paths}
    runs = sorted((r for r in runs if r.operator in names and r.method in chosen and r.seed < seeds), key=lambda r: (r.operator, r.seed))
    out.print(result_table(runs, chosen))
    out.print(summary(runs, chosen), markup=False)
    if folder is not None:
        draw(runs, chosen, folder / "search.png")


if __name__ == "__main__":
    main()
