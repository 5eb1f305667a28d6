"""Searches on spaces that others recorded (T4 or Kernel Tuner's cache), and their score.

The field's definition of the score is in docs/evidence/benchmarks.md.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from foreign_spaces import load_foreign
from knob_search import KnobExplorer, KnobFeatures
from romou.base.space import Config
from romou.tools.report.table import table_of_numbers
from romou.tuner.records.recorded_space import RecordedSpace
from romou.tuner.search import TuningOptions
from romou.tuner.search.explorer import Explorer
from romou.tuner.search.transfer import TransferData
from simulated_searches import WITHIN, kernel_tuner_order
from simulation import SimulatedSpace

FILES = re.compile(r".*(_T4|[cC]ache.*)\.json(\.gz)?")
ROMOU = ("romou", "romou_transfer")
# The strategies of Kernel Tuner 1.5, except brute force, which ignores its measurements, and strategies that need
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
# A hard space has at most this number of configs within 2% of the best.
HARD = 11
# The most trials of a search, and the count of a search that did not get within 2%.
MOST = 1000
# The limit for Romou's explorer, whose model takes longer than Kernel Tuner's strategies. Ending earlier can only be to
# its disadvantage.
OF_ROMOU = 400
# Random configs before the model of Romou's explorer is used.
RANDOM = 4
# Measurements of another GPU that a transferred search starts with.
KNOWN = 2000
# The budget ends when random search is expected to have covered this share of the distance from the median to the best.
CUTOFF = 0.95
POINTS = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """A search and its result.

    score: see `score`
    trials: until within 2% of the best, None if it never was
    own_s: the processor seconds of the search itself
    """

    space: str
    method: str
    seed: int
    score: float
    trials: int | None
    own_s: float


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


def romou_order(recorded: RecordedSpace, seed: int, most: int, others: Sequence[RecordedSpace] = ()) -> list[int]:
    """Return the indices of the configs that Romou's explorer tries one at a time, in order.

    It stops at the best config, or after `most` configs. `others` are recordings of other GPUs to transfer from.
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
    explorer = KnobExplorer(space, options, rng, features=features, transfer_data=lambda: data)
    return explored(explorer, recorded, most, best_of(recorded))


def explored(
    explorer: Explorer, recorded: RecordedSpace, most: int, goal_s: float, *, batch_size: int = 1
) -> list[int]:
    """Return the indices of the configs that an explorer tries, in order.

    It stops at the first config with at most `goal_s` seconds, or after `most` configs.

    batch_size: configs that it proposes before their times are known
    """
    numbered = recorded.space()
    measured: dict[str, tuple[Config, float | None]] = {}
    order: list[int] = []
    while len(order) < most and (proposed := explorer.propose(batch_size, measured)):
        for config in proposed:
            order.append(numbered.index_of(config))
            time_s = recorded.configs[order[-1]].time_s
            measured[config.key] = (config, time_s)
            if len(order) == most or (time_s is not None and time_s <= goal_s):
                return order
    return order


def best_of(recorded: RecordedSpace) -> float:
    return min(config.time_s for config in recorded.configs.values() if config.time_s is not None)


def random_search(times_s: np.ndarray, goal_s: float) -> np.ndarray:
    """Return the expected best time of random search without repetition after 1, 2, ... trials.

    It ends at the first trial that reaches the goal.
    """
    ranked = np.sort(times_s)
    slower = np.arange(len(ranked) - 1, -1, -1)
    # The probability, for each config, that no trial so far was equally fast.
    missed = np.ones(len(ranked))
    expected: list[float] = []
    while not expected or expected[-1] > goal_s:
        missed = missed * np.maximum(slower - len(expected), 0) / (len(ranked) - len(expected))
        expected.append(float(-np.diff(missed, prepend=1.0) @ ranked))
    return np.array(expected)


@functools.lru_cache(maxsize=8)
def baseline(path: Path) -> tuple[np.ndarray, float]:
    """Return random search's expected best time after each trial of the budget, and the mean seconds of a trial.

    Failed configs count as the slowest.
    """
    configs = recording(path).configs.values()
    times = np.array([config.time_s if config.time_s is not None else np.inf for config in configs])
    times[np.isinf(times)] = times[np.isfinite(times)].max()
    expected = random_search(times, float(np.median(times) + CUTOFF * (times.min() - np.median(times))))
    return expected, float(np.mean([config.build_s + config.run_s for config in configs]))


def score(path: Path, order: Sequence[int]) -> float:
    """Return how far a search is between random search (0) and the best (1), on average over the seconds of the budget.

    The definition follows Willemsen et al., A Methodology for Comparing Auto-Tuning Optimization Algorithms (2024). The
    score is the mean of (random - search) / (random - best) at evenly spaced times. The last time is the one at which
    random search is expected to have come 95% of the way from the median to the best. Unlike there, a search never
    counts as worse than the first random config, so random search itself is a little above 0.
    """
    recorded = recording(path)
    expected, seconds_each = baseline(path)
    spent = np.cumsum([recorded.configs[i].build_s + recorded.configs[i].run_s for i in order])
    best = np.minimum.accumulate([recorded.configs[i].time_s or np.inf for i in order])
    least = best_of(recorded)
    shares = []
    for at in np.linspace(0, len(expected) * seconds_each, POINTS + 1)[1:]:
        random = expected[min(max(int(at / seconds_each) - 1, 0), len(expected) - 1)]
        done = int(np.searchsorted(spent, at, side="right"))
        reached = best[done - 1] if done else np.inf
        # Before its first working config, a search counts as the first random config.
        shares.append((random - min(reached, expected[0])) / (random - least) if random > least else 1.0)
    return float(np.mean(shares))


def run(path: Path, method: str, seed: int) -> ForeignRun:
    """Run one search and return it with its score."""
    recorded, started = recording(path), time.process_time()
    if method in ROMOU:
        others = [recording(other) for other in others_of(path)] if method == "romou_transfer" else []
        order = romou_order(recorded, seed, OF_ROMOU, others)
        own_s = time.process_time() - started
    else:
        order, own_s = kernel_tuner_order(recorded, method.removeprefix("kt_"), seed, MOST)
    goal = best_of(recorded) * WITHIN
    trials = next((n for n, index in enumerate(order, 1) if (recorded.configs[index].time_s or np.inf) <= goal), None)
    return ForeignRun(
        space=recorded.name, method=method, seed=seed, score=score(path, order), trials=trials, own_s=own_s
    )


def table(runs: Sequence[ForeignRun]) -> Table:
    """Return a table with a line for each method, the best first.

    A line has its score, and the median trials to within 2%, for each space and in total.
    """
    spaces = sorted({run.space for run in runs})
    columns = ("seeds", "score", "trials", *spaces)
    method_table = table_of_numbers(
        "method", columns, title="score: 1 has the best at once, 0 is random search; median trials to within 2%"
    )
    rows = []
    for method in dict.fromkeys(run.method for run in runs):
        of_space = {space: [run for run in runs if (run.method, run.space) == (method, space)] for space in spaces}
        scores = [float(np.mean([run.score for run in mine])) for mine in of_space.values() if mine]
        trials = [median_trials(mine) for mine in of_space.values() if mine]
        cells = [
            f"{np.mean([r.score for r in mine]):.3f}, {median_trials(mine):.0f}" if mine else "-"
            for mine in of_space.values()
        ]
        # Only methods that searched every space have a comparable mean.
        whole = all(of_space.values())
        seeds = min(len(mine) for mine in of_space.values() if mine)
        sums = [f"{np.mean(scores):.3f}", f"{np.exp(np.mean(np.log(trials))):.0f}"] if whole else ["-", "-"]
        rows.append((np.mean(scores), [method, str(seeds), *sums, *cells]))
    for _, cells in sorted(rows, key=lambda row: -row[0]):
        method_table.add_row(*cells)
    return method_table


def median_trials(runs: Sequence[ForeignRun]) -> float:
    """Return the median trials to within 2%. A run that never got there counts as `MOST`."""
    return float(np.median([run.trials or MOST for run in runs]))


def hard_spaces(paths: Sequence[Path]) -> list[str]:
    """Return the names of the spaces with few configs within 2% of the best."""
    names = []
    for recorded in map(recording, paths):
        goal_s = best_of(recorded) * WITHIN
        if sum((config.time_s or np.inf) <= goal_s for config in recorded.configs.values()) <= HARD:
            names.append(recorded.name)
    return names


def summary(runs: Sequence[ForeignRun], hard: Sequence[str]) -> str:
    """Return a text with each method's trials to within 2% over Romou's, on the hard spaces.

    The ratio is the geometric mean of the medians.
    """
    lines = []
    for method in dict.fromkeys(run.method for run in runs if run.method not in ROMOU):
        medians = []
        for space in hard:
            both = [[run for run in runs if (run.method, run.space) == (name, space)] for name in (method, ROMOU[0])]
            medians += [[median_trials(mine) for mine in both]] if all(both) else []
        if len(medians) == len(hard) > 0:
            ratios = [theirs / ours for theirs, ours in medians]
            lines.append(
                (float(np.exp(np.mean(np.log(ratios)))), f"{method}; from {min(ratios):.1f} to {max(ratios):.1f}")
            )
    head = (
        f"times the trials of {ROMOU[0]} until within 2%, over the {len(hard)} spaces with at most {HARD} such configs"
        f" ({', '.join(hard)}):"
    )
    return "\n".join([head, *(f"  {ratio:.2f}  {text}" for ratio, text in sorted(lines))])
