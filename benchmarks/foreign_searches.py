"""Searches on spaces that others recorded (T4 or Kernel Tuner's cache), and their score by `autotuning_methodology`.

docs/evidence/benchmarks.md describes both.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import json
import re
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from foreign_spaces import load_foreign
from knob_search import KnobExplorer, KnobFeatures
from romou.base.space import Config
from romou.tools.report.table import number, table_of_numbers
from romou.tuner.records.recorded_space import RecordedConfig, RecordedSpace
from romou.tuner.search import TuningOptions
from romou.tuner.search.explorer import Explorer
from romou.tuner.search.transfer import TransferData
from simulated_searches import kernel_tuner_trials
from simulation import SimulatedSpace

FILES = re.compile(r".*(_T4|[cC]ache.*)\.json(\.gz)?")
ROMOU = ("romou", "romou_transfer")
# The strategies of Kernel Tuner 1.5, except brute force, which takes no budget, and strategies that need
# scikit-optimize or pyATF.
STRATEGIES = (
    *(
        "random_sample",
        "genetic_algorithm",
        "simulated_annealing",
        "greedy_ils",
        "greedy_mls",
        "ordered_greedy_mls",
        "mls",
        "minimize",
        "basinhopping",
    ),
    *(
        "adaptive_tabu_greywolf",
        "pso",
        "diff_evo",
        "firefly_algorithm",
        "dual_annealing",
        "nsga2",
        "nsga3",
        "bayes_opt",
        "hybrid_vndx",
    ),
)
# The most trials of Romou's explorer, whose model takes longer the more it knows.
OF_ROMOU = 400
# Random configs before the model of Romou's explorer is used.
RANDOM = 4
# Measurements of another GPU that a transferred search starts with.
KNOWN = 2000
# The package's name for the time of a search itself, which recordings lack.
_OWN = "search_algorithm"
_TIMES = ("compilation", "runtimes", _OWN)
# Methods that the figure names.
_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """A search, up to the best config or the end of its budget.

    order: indices of the tried configs
    own_ms: milliseconds that the search itself took before each of them
    cpu_s: processor seconds of the whole simulation
    """

    space: str
    method: str
    seed: int
    order: Sequence[int]
    own_ms: Sequence[int]
    cpu_s: float


@functools.cache
def recording(path: Path) -> RecordedSpace:
    return load_foreign(path)


def others_of(path: Path) -> list[Path]:
    """Return the recordings beside this one of the same kernel and knobs on other GPUs."""
    kernel = path.name.rpartition("-")[0]
    near = [
        other
        for other in sorted(path.parent.iterdir())
        if FILES.fullmatch(other.name) and other != path and other.name.rpartition("-")[0] == kernel
    ]
    return [other for other in near if kernel and list(recording(other).knobs) == list(recording(path).knobs)]


def romou_order(recorded: RecordedSpace, seed: int, others: Sequence[RecordedSpace] = ()) -> Iterator[int]:
    """Yield the indices of the configs that Romou's explorer tries one at a time.

    `others` are recordings of other GPUs to transfer from.
    """
    space, numbered = SimulatedSpace(recorded), recorded.space()
    features, data = KnobFeatures(numbered), TransferData()
    for other in others:
        by_index = sorted(other.configs.values(), key=lambda entry: entry.index)
        chosen = [by_index[int(i)] for i in np.random.default_rng(seed).permutation(len(by_index))[:KNOWN]]
        configs = [other.space().at(entry.index) for entry in chosen]
        shared = [
            (config, entry.time_s) for config, entry in zip(configs, chosen, strict=True) if numbered.knows(config)
        ]
        data.add(features, [config for config, _ in shared], [time_s for _, time_s in shared])
    rng = np.random.default_rng(seed)
    options = TuningOptions(explorer="ranking", batch_size=1, random_trials=RANDOM, seed=seed)
    return explored(KnobExplorer(space, options, rng, features=features, transfer_data=lambda: data), recorded)


def explored(explorer: Explorer, recorded: RecordedSpace, *, batch_size: int = 1) -> Iterator[int]:
    """Yield the indices of the configs that an explorer tries.

    batch_size: configs that it proposes before their times are known
    """
    numbered = recorded.space()
    measured: dict[str, tuple[Config, float | None]] = {}
    while proposed := explorer.propose(batch_size, measured):
        for config in proposed:
            index = numbered.index_of(config)
            measured[config.key] = (config, recorded.configs[index].time_s)
            yield index


def best_of(recorded: RecordedSpace) -> float:
    return min(config.time_s for config in recorded.configs.values() if config.time_s is not None)


def _own_times(order: Iterator[int]) -> Iterator[tuple[int, float]]:
    """Yield each index with the seconds until it came."""
    started = time.perf_counter()
    for index in order:
        yield index, time.perf_counter() - started
        started = time.perf_counter()


def run(path: Path, method: str, seed: int) -> ForeignRun:
    """Run one search until it has the best config or its budget is over."""
    recorded, cpu_s = recording(path), time.process_time()
    best_s, left_s = best_of(recorded), budget_s(path)
    trials: Iterable[tuple[int, float]]
    if method.startswith("kt_"):
        size, strategy = len(recorded.configs), method.removeprefix("kt_")
        trials = kernel_tuner_trials(recorded, strategy, seed, size, goal_s=best_s, seconds=left_s, asked_at_most=1)
    else:
        others = [recording(other) for other in others_of(path)] if method == "romou_transfer" else []
        trials = itertools.islice(_own_times(romou_order(recorded, seed, others)), OF_ROMOU)
    order, own_ms = [], []
    for index, own_s in trials:
        entry = recorded.configs[index]
        order.append(index)
        own_ms.append(round(own_s * 1e3))
        left_s -= own_s + entry.build_s + entry.run_s
        if left_s < 0 or entry.time_s == best_s:
            break
    cpu_s = time.process_time() - cpu_s
    return ForeignRun(space=recorded.name, method=method, seed=seed, order=order, own_ms=own_ms, cpu_s=cpu_s)


def _result(entry: RecordedConfig, own_s: float = 0.0) -> dict[str, Any]:
    """Return a tried config as one of T4's results, in seconds."""
    return {
        "times": dict(zip(_TIMES, (entry.build_s, entry.run_s, own_s), strict=True)),
        "invalidity": "runtime" if entry.time_s is None else "correct",
        "measurements": [{"name": "time", "value": "RuntimeFailedConfig" if entry.time_s is None else entry.time_s}],
    }


@functools.cache
def settings() -> Mapping[str, Any]:
    """Return the settings of the package's default experiment."""
    defaults = importlib.resources.files("autotuning_methodology").joinpath("experiments_defaults.json")
    experiment = json.loads(defaults.read_text(encoding="utf-8"))
    return {**experiment["statistics_settings"], **experiment["visualization_settings"]}


@functools.cache
def statistics(path: Path) -> Any:
    """Return the package's statistics of a space."""
    from autotuning_methodology.searchspace_statistics import SearchspaceStatistics

    results = [_result(entry) for entry in recording(path).configs.values()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "space.json")
        head = {"schema_version": "1.0.0", "metadata": {"timeunit": "seconds"}}
        file.write_text(json.dumps({**head, "results": results}))
        return SearchspaceStatistics(recording(path).name, "", True, [*_TIMES], ["time"], file, False)


def cutoff_s(path: Path) -> tuple[float, float]:
    """Return the seconds between which the package compares searches on a space."""
    shares = (settings()["cutoff_percentile_start"], settings()["cutoff_percentile"])
    first_s, last_s = statistics(path).cutoff_point_fevals_time_start_end(*shares)[2:]
    return float(first_s), float(last_s)


def budget_s(path: Path) -> float:
    """Return the seconds that a search may take: a tenth more than it is compared in, as in the package."""
    return cutoff_s(path)[1] * 1.1


def _repeat(path: Path, run: ForeignRun) -> list[dict[str, Any]]:
    """Return a search's results. If it ended before its budget did, random configs that it has not tried follow."""
    recorded, left_s = recording(path), budget_s(path)
    rest = np.random.default_rng(run.seed).permutation(sorted(recorded.configs.keys() - set(run.order)))
    own_ms = itertools.chain(run.own_ms, itertools.repeat(0))
    results = []
    for index, own in zip([*run.order, *map(int, rest)], own_ms, strict=False):
        results.append(_result(recorded.configs[index], own * 1e-3))
        left_s -= sum(results[-1]["times"].values())
        if left_s < 0:
            break
    return results


def _is_accepted(path: Path, repeat: Sequence[Mapping[str, Any]]) -> bool:
    """Check a search as the package does, which runs it again otherwise: two configs worked in the compared seconds."""
    ends_s = np.cumsum([sum(result["times"].values()) for result in repeat])
    works = np.array([result["invalidity"] == "correct" for result in repeat])
    return bool(np.count_nonzero(works & (ends_s >= cutoff_s(path)[0]) & (ends_s <= budget_s(path))) >= 2)


def curve(path: Path, runs: Sequence[ForeignRun]) -> np.ndarray:
    """Return the package's standardised curve of one method on a space: a score at each of its points in time."""
    from autotuning_methodology.caching import ResultsDescription
    from autotuning_methodology.report_experiments import get_aggregation_data, get_strategies_aggregated_performance
    from autotuning_methodology.runner import write_results

    space, method, level = recording(path).name, runs[0].method, settings()["confidence_level"]
    repeats = [repeat for repeat in (_repeat(path, run) for run in runs) if _is_accepted(path, repeat)]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = ResultsDescription(Path(folder), space, "", method, method, True, [*_TIMES], ["time"], True)
        write_results(repeats, results)
        data = get_aggregation_data(
            Path(folder),
            {"experimental_groups_defaults": {"gpus": [""], "applications_names": [space]}},
            {"": {space: statistics(path)}},
            [{"name": method, "display_name": method}],
            {"": {space: {method: results}}},
            settings()["cutoff_percentile"],
            settings()["cutoff_percentile_start"],
            level,
            settings()["resolution"],
        )
        # The curve is a mean over samples that it draws by numpy's global generator.
        np.random.seed(0)
        scores: np.ndarray = get_strategies_aggregated_performance([*data.values()], level)[0][0]
    return scores


def table(curves: Mapping[tuple[str, str], np.ndarray], runs: Mapping[tuple[str, str], Sequence[ForeignRun]]) -> Table:
    """Return a table of the score of each method: the mean over the spaces, and on each space.

    Only methods that searched every space have the mean. Both arguments go by space and method.
    """
    spaces = list(dict.fromkeys(space for space, _ in curves))
    columns = ("repeats", "processor, s", "P", *spaces)
    method_table = table_of_numbers("method", columns, title="P: 1 has the best at once, 0 is random search")
    rows = []
    for method in dict.fromkeys(method for _, method in curves):
        mine = [runs[space, method] for space in spaces if (space, method) in runs]
        scores = [float(curves[space, method].mean()) if (space, method) in curves else None for space in spaces]
        mean = float(np.mean([score for score in scores if score is not None]))
        repeats = str(min(map(len, mine)))
        cpu_s = number(float(np.mean([run.cpu_s for of_space in mine for run in of_space])), 2)
        rows.append((mean, [method, repeats, cpu_s, *map(number, (mean if None not in scores else None, *scores))]))
    for _, cells in sorted(rows, key=lambda row: -row[0]):
        method_table.add_row(*cells)
    return method_table


def draw(curves: Mapping[tuple[str, str], np.ndarray], path: Path) -> None:
    """Draw the mean curve over the spaces of each method that searched all of them, the best ones named."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    of_method: dict[str, list[np.ndarray]] = {}
    for (_, method), scores in curves.items():
        of_method.setdefault(method, []).append(scores)
    most = max(map(len, of_method.values()))
    means = {method: np.mean(scores, axis=0) for method, scores in of_method.items() if len(scores) == most}
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for rank, (method, mean) in enumerate(sorted(means.items(), key=lambda item: -item[1].mean())):
        style: dict[str, Any] = {"label": f"{method} {mean.mean():.3f}"} if rank < _NAMED else {"color": "lightgray"}
        axes.plot(np.linspace(0, 1, len(mean)), mean, linewidth=2 if method in ROMOU else 1, zorder=-rank, **style)
    axes.set(xlabel="time, as a share of the compared seconds", ylabel="1: the best, 0: random search", ylim=(-1, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
