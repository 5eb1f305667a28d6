"""Searches on recorded spaces until they are within 2% of the best.

They are Romou's session and Kernel Tuner's strategies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import math
import tempfile
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from pretrain_cost_model import train
from romou.base.outcome import Outcome
from romou.compiler.operators.costs.pretrained import PretrainedModel
from romou.devices.targets import Target
from romou.tuner.pruning import prune
from romou.tuner.records import Origin, Record
from romou.tuner.records.recorded_space import RecordedSpace
from romou.tuner.search import PriorKnowledge, SessionHooks, TuningOptions, TuningSession
from romou.tuner.search.progress import NoProgress, Status
from simulation import SimulatedDevice, SimulatedTask

SPACES = Path(__file__).parent / "data/spaces_h200"
DEVICE = "nvidia_h200"
WITHIN = 1.02
ROMOU = ("random", "xgboost", "warm", "pretrained", "expected", "pruned", "pruned_warm", "pruned_pretrained")
# Configs of each other operator that a warm search has seen.
SEEN_BEFORE = 100
KERNEL_TUNER = ("kt_random_sample", "kt_simulated_annealing", "kt_genetic_algorithm")
# The limit of generations is high enough that the budget of trials ends the strategy.
STRATEGY_OPTIONS: dict[str, dict[str, Any]] = {"genetic_algorithm": {"maxiter": 1000}}
# Kernel Tuner counts a config once. These strategies' populations converge and request the same configs endlessly, so a
# search ends after this multiple of the configs that it may try.
ASKED_AT_MOST = {"nsga2": 3, "nsga3": 3}
_KERNEL_TUNER_TIMES = ("compile_time", "benchmark_time")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A search and its course.

    trials, seconds   until it was within 2% of the best. None if it never was.
    curve             best known time / best time so far, after each trial
    overhead          the processor seconds of the search itself, relative to the recorded ones
    """

    operator: str
    method: str
    seed: int
    trials: int | None
    seconds: float | None
    curve: tuple[float, ...]
    overhead: float


class Reached(Exception):  # noqa: N818  no error
    """Raised when a run reaches its goal."""


class Watch(NoProgress):
    """Ends a session within 2% of the best, or at the best of the configs that it may try."""

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
    recorded = RecordedSpace.load(path)
    # A search has no estimate for a CPU that stands in for a GPU. Here the CPU is the device itself, and the method
    # decides whether an estimate is used.
    recorded.device["is_host_cpu"] = False
    return recorded


def best_of(recorded: RecordedSpace, allowed: Collection[int] | None = None) -> float:
    """Return the best known time in seconds of the allowed configs and the default, or of all configs for None."""
    inside = recorded.configs if allowed is None else {*allowed, recorded.context["default"]}
    return min(t for i in inside if (t := recorded.configs[i].time_s) is not None)


@functools.cache
def target_of(path: Path, device: str | None = DEVICE) -> Target:
    """Return the target that a space was recorded for, with the facts of `device` or without facts."""
    kind = recording(path).device["kind"]
    return Target(kind if device is None else f"{kind} -device={device}")


@functools.cache
def task_of(path: Path, device: str | None = None) -> SimulatedTask:
    """Return the task of a recording: all its configs, or those that the facts of `device` keep."""
    task = SimulatedTask.of_recording(recording(path))
    kept = None if device is None else survivors(task, target_of(path, device))
    return task if kept is None else SimulatedTask.of_recording(recording(path), kept)


def survivors(task: SimulatedTask, target: Target) -> set[int]:
    """Return the recorded configs that the criteria keep by the facts of the target's device."""
    limits, recorded = task.limits(target), task.recorded
    kept = prune(task.template, task.template.space(limits), target.spec, limits)
    return {index for index in recorded.configs if kept.is_valid(recorded.space().at(index))}


@functools.cache
def pretrained_without(path: Path, source: Path | None) -> PretrainedModel:
    """Return a cost model pretrained on other recordings.

    These are the recordings beside `path` and in the folder with the suffix _more, or, with `source`, the recordings of
    another device.
    """
    folders = [path.parent, path.parent.with_name(f"{path.parent.name}_more")] if source is None else [source]
    seen = [other for folder in folders for other in sorted(folder.glob("*.json.gz")) if other != path]
    return train([task_of(other) for other in seen], target_of(seen[0]))


def others_of(path: Path) -> list[Path]:
    return [other for other in sorted(path.parent.glob("*.json.gz")) if other != path]


@functools.lru_cache(maxsize=16)
def records_of(path: Path, seed: int, count: int) -> tuple[Record, ...]:
    """Return `count` random configs of a recording as records, with the knobs that this version has."""
    recorded = task_of(path).recorded
    origin, space = dataclasses.asdict(Origin.here(recorded.device)), recorded.space()
    records = []
    for index in np.random.default_rng([seed, len(recorded.configs)]).permutation(sorted(recorded.configs))[:count]:
        entry = recorded.configs[int(index)]
        times = (entry.again_s or entry.times_s) if entry.outcome == Outcome.OK else ()
        config, key, name = dict(space.at(int(index))), recorded.task["key"], recorded.task["name"]
        records.append(
            Record(task_key=key, task_name=name, config=config, outcome=entry.outcome, times_s=times, **origin)
        )
    return tuple(records)


def romou_run(
    path: Path,
    method: str,
    seed: int,
    options: dict[str, Any],
    source: Path | None = None,
    *,
    facts: str = DEVICE,
    goal_s: float | None = None,
) -> Run:
    """Run a session on the recording.

    source: recordings that a pretrained search has seen, or None for those beside it.
    facts: the device whose facts prune and estimate.
    goal_s: the search ends within 2% of this time in seconds. None: the best recorded time.
    """
    task = task_of(path, facts if method.startswith("pruned") else None)
    goal_s = best_of(task.recorded) if goal_s is None else goal_s
    device, watch = SimulatedDevice([task]), Watch(goal_s, best_of(task.recorded, task.allowed))
    session_options: dict[str, Any] = {
        "trials": len(task.recorded.configs) + 1,
        "patience": 10**6,
        "confirm": 0,
        **options,
        "seed": seed,
    }
    if method == "random":
        session_options["random_trials"] = 10**6
    pretrained = pretrained_without(path, source) if method.endswith("pretrained") else None
    started = time.process_time()
    store: list[Record] = []
    others = []
    if method.endswith("warm"):
        for other in others_of(path):
            others.append(task_of(other))
            store += records_of(other, seed, SEEN_BEFORE)
    session = TuningSession(
        [task],
        target_of(path, None if method in ("random", "xgboost", "warm") else facts),
        store=store,
        builder=device,
        runner=device,
        options=TuningOptions.from_dict(session_options),
        prior=PriorKnowledge(learn_from=lambda _: others, pretrained=pretrained),
        hooks=SessionHooks(clock=device.clock),
    )
    with contextlib.suppress(Reached):
        session.run(lambda: watch)
    has_reached = bool(watch.curve) and watch.curve[-1] * WITHIN >= 1
    overhead = (time.process_time() - started) / device.clock()
    trials, seconds = (len(watch.curve), device.clock()) if has_reached else (None, None)
    return Run(
        operator=task.recorded.name,
        method=method,
        seed=seed,
        trials=trials,
        seconds=seconds,
        curve=tuple(watch.curve),
        overhead=overhead,
    )


def kernel_tuner_cache(recorded: RecordedSpace) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """Return Kernel Tuner's cache of the recorded configs, and the index of each key in the space."""
    space = recorded.space()
    cache: dict[str, dict[str, Any]] = {}
    index_of: dict[str, int] = {}
    for index, entry in recorded.configs.items():
        config = dict(space.at(index))
        time_ms: Any = "RuntimeFailedConfig" if entry.time_s is None else entry.time_s * 1e3
        failed = {} if entry.time_s is not None else {"__error__": "RuntimeFailedConfig"}
        times = {
            "compile_time": entry.build_s * 1e3,
            "benchmark_time": entry.run_s * 1e3,
            "verification_time": 0,
            "strategy_time": 0,
            "framework_time": 0,
        }
        key = ",".join(map(str, config.values()))
        cache[key] = {
            **config,
            "time": time_ms,
            "times": [] if failed else [time_ms],
            **times,
            **failed,
            "timestamp": "2026-01-01",
        }
        index_of[key] = index
    return cache, index_of


@contextlib.contextmanager
def _ending(most_asked: float, goal_s: float, seconds: float) -> Iterator[None]:
    """Let Kernel Tuner end after `most_asked` configs, one with at most `goal_s` seconds, or `seconds` of trials."""
    from kernel_tuner.strategies.common import CostFunc
    from kernel_tuner.util import StopCriterionReached

    asked, spent_ms, ask, measure = 0, 0.0, CostFunc.__call__, CostFunc._run_configs

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked > most_asked:
            raise StopCriterionReached(f"{asked} configs asked for")
        return ask(*arguments, **named)

    def measured(*arguments: Any, **named: Any) -> Any:
        nonlocal spent_ms
        results = measure(*arguments, **named)
        # A config that it has tried before costs nothing.
        spent_ms += sum(result.get(name, 0.0) for result in results for name in _KERNEL_TUNER_TIMES)
        times = [result.get("time") for result in results]
        if any(isinstance(time_ms, float) and time_ms <= goal_s * 1e3 for time_ms in times):
            raise StopCriterionReached(f"a config took at most {goal_s} s")
        if spent_ms > seconds * 1e3:
            raise StopCriterionReached(f"trials took {seconds} s")
        return results

    with mock.patch.object(CostFunc, "__call__", counted), mock.patch.object(CostFunc, "_run_configs", measured):
        yield


def kernel_tuner_trials(
    recorded: RecordedSpace,
    strategy: str,
    seed: int,
    most: int,
    *,
    goal_s: float = 0.0,
    seconds: float = math.inf,
    asked_at_most: float = math.inf,
) -> list[tuple[int, float]]:
    """Run a strategy of Kernel Tuner on the recorded configs. Failed configs are runtime failures in its terms.

    Return the distinct configs that it tried, in order, each with the seconds that the strategy took before it.

    most: the limit of distinct configs
    goal_s: the strategy ends when the configs that it tries together include one with at most this time in seconds
    seconds: the strategy ends when builds and runs of its trials have taken this long
    asked_at_most: the strategy ends when it has asked for this multiple of `most`, repeated configs included
    """
    from kernel_tuner import interface
    from kernel_tuner.searchspace import Searchspace

    knobs = {name: list(choices) for name, choices in recorded.knobs.items()}
    cache, index_of = kernel_tuner_cache(recorded)

    class Recorded(Searchspace):
        """The search space of a cache.

        Kernel Tuner restricts a space by trying the whole product of knobs, some ten million configs.
        """

        def __init__(self, tune_params: Any, restrictions: Any, max_threads: Any, **options: Any) -> None:
            super().__init__(None, None, None, from_cache={"tune_params": tune_params, "cache": cache}, **options)

    interface.Searchspace = Recorded
    most_asked = min(ASKED_AT_MOST.get(strategy, math.inf), asked_at_most) * most
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        _ending(most_asked, goal_s, seconds),
    ):
        warnings.simplefilter("ignore")
        file = Path(folder, "cache.json")
        head = {"device_name": "Simulation", "kernel_name": "k", "problem_size": [1], "objective": "time"}
        file.write_text(json.dumps({**head, "tune_params_keys": list(knobs), "tune_params": knobs, "cache": cache}))
        results, _ = interface.tune_kernel(
            "k",
            "__kernel void k() {}",
            [1],
            [],
            knobs,
            lang="OpenCL",
            strategy=strategy,
            strategy_options={"max_fevals": most, **STRATEGY_OPTIONS.get(strategy, {})},
            cache=str(file),
            simulation_mode=True,
            objective="time",
            iterations=1,
            seed=seed,
            quiet=True,
        )
    own_s, trials = 0.0, {}
    for result in results:
        own_s += result["strategy_time"] * 1e-3
        key = ",".join(str(result[name]) for name in knobs)
        if key in index_of and index_of[key] not in trials:
            trials[index_of[key]], own_s = own_s, 0.0
    return list(trials.items())


def kernel_tuner_run(path: Path, method: str, seed: int) -> Run:
    """Run a strategy of Kernel Tuner on the same configs, until it is within 2% of the best."""
    recorded = recording(path)
    trials = kernel_tuner_trials(recorded, method.removeprefix("kt_"), seed, len(recorded.configs))
    best_s, least_s, seconds = best_of(recorded), math.inf, 0.0
    seconds_of = {index: recorded.configs[index].build_s + recorded.configs[index].run_s for index, _ in trials}
    curve: list[float] = []
    for index in seconds_of:
        seconds += seconds_of[index]
        least_s = min(least_s, recorded.configs[index].time_s or math.inf)
        curve.append(best_s / least_s)
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
        overhead=sum(own_s for _, own_s in trials) / max(sum(seconds_of.values()), 1e-9),
    )


def some_runs(
    path: Path, method: str, seeds: Sequence[int], options: dict[str, Any], source: Path | None = None
) -> list[Run]:
    """Return the runs of some seeds, in a process of the pool."""
    return [
        kernel_tuner_run(path, method, seed)
        if method.startswith("kt_")
        else romou_run(path, method, seed, options, source)
        for seed in seeds
    ]
