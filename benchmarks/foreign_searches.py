"""Searches on spaces that others recorded (T4 or Kernel Tuner's cache), and their score as the field has it: see
docs/benchmarks.md.
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

from romou.base.space import Config
from romou.tools.report.table import table_of_numbers
from romou.tuner.records import RecordedSpace
from romou.tuner.records.foreign import load_foreign
from romou.tuner.search import TuningOptions
from romou.tuner.search.explorer import Explorer
from romou.tuner.search.ordinal import KnobFeatures
from romou.tuner.search.simulation import SimulatedSpace
from romou.tuner.search.transfer import TransferData
from simulated_searches import WITHIN, kernel_tuner_order

FILES = re.compile(r".*(_T4|[cC]ache.*)\.json(\.gz)?")
ROMOU = ("romou", "romou_transfer")
# All of Kernel Tuner 1.5 but brute force, which asks nothing of what it measured, and those of scikit-optimize and
# pyATF.
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
# Of a hard space at most so many configs are within 2% of the best.
HARD = 11
# Trials of a search at most, and what one counts that was not within 2% by then.
MOST = 1000
# Romou's explorer ends earlier, which can only be to its disadvantage: its model takes longer than Kernel Tuner's
# strategies.
OF_ROMOU = 400
# Configs before its model has a say.
RANDOM = 4
# Measurements of another GPU that a transferred search knows.
KNOWN = 2000
# The budget ends where random search is expected to have come so far from the median to the best.
CUTOFF = 0.95
POINTS = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """One search. score: see `score`.
    trials: until within 2% of the best; None where it never was.
    own_s: the search's seconds of a processor.
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
    """Recordings beside this one of the same kernel and knobs on other GPUs."""
    kernel = path.name.rpartition("-")[0]
    near = [
        other
        for other in sorted(path.parent.iterdir())
        if FILES.fullmatch(other.name) and other != path and other.name.rpartition("-")[0] == kernel
    ]
    return [other for other in near if kernel and list(recording(other).knobs) == list(recording(path).knobs)]


def romou_order(recorded: RecordedSpace, seed: int, most: int, others: Sequence[RecordedSpace] = ()) -> list[int]:
    """Configs in the order in which Romou's explorer tries them, one at a time, until it has the best or tried so many."""  # noqa: E501
    space, numbered = SimulatedSpace(recorded), recorded.space()
    features, data = KnobFeatures(numbered), TransferData()
    for other in others:
        found = sorted(other.configs.values(), key=lambda one: one.index)
        chosen = [found[int(i)] for i in np.random.default_rng(seed).permutation(len(found))[:KNOWN]]
        configs = [other.space().at(one.index) for one in chosen]
        known = [(config, one.time_s) for config, one in zip(configs, chosen, strict=True) if numbered.knows(config)]
        data.add(features, [config for config, _ in known], [time_s for _, time_s in known])
    rng = np.random.default_rng(seed)
    options = TuningOptions(explorer="ranking", batch_size=1, random_trials=RANDOM, seed=seed)
    explorer = Explorer(space, None, options, rng, features=features, transfer_data=lambda: data)
    best_s = best_of(recorded)
    measured: dict[str, tuple[Config, float | None]] = {}
    order: list[int] = []
    while len(order) < most and (proposed := explorer.propose(1, measured)):
        index = numbered.index_of(proposed[0])
        order.append(index)
        time_s = recorded.configs[index].time_s
        measured[proposed[0].key] = (proposed[0], time_s)
        if time_s == best_s:
            break
    return order


def best_of(recorded: RecordedSpace) -> float:
    return min(one.time_s for one in recorded.configs.values() if one.time_s is not None)


def random_search(times_s: np.ndarray, goal_s: float) -> np.ndarray:
    """Return the best time that random search without repetition is expected to have after 1, 2, ... trials, up to the
    first one at the goal.
    """
    ranked = np.sort(times_s)
    slower = np.arange(len(ranked) - 1, -1, -1)
    # Of each config, the chance that none of the trials so far was as fast.
    missed = np.ones(len(ranked))
    found: list[float] = []
    while not found or found[-1] > goal_s:
        missed = missed * np.maximum(slower - len(found), 0) / (len(ranked) - len(found))
        found.append(float(-np.diff(missed, prepend=1.0) @ ranked))
    return np.array(found)


@functools.lru_cache(maxsize=8)
def baseline(path: Path) -> tuple[np.ndarray, float]:
    """Random search's expected best time after each trial of the budget, and the mean seconds of a trial. Failed
    configs count as the slowest.
    """
    configs = recording(path).configs.values()
    times = np.array([one.time_s if one.time_s is not None else np.inf for one in configs])
    times[np.isinf(times)] = times[np.isfinite(times)].max()
    expected = random_search(times, float(np.median(times) + CUTOFF * (times.min() - np.median(times))))
    return expected, float(np.mean([one.build_s + one.run_s for one in configs]))


def score(path: Path, order: Sequence[int]) -> float:
    """Return how far a search is between random search and the best, on average over the seconds of the budget: 1 has
    the best at once, 0 is random search.

    As in Willemsen et al., A Methodology for Comparing Auto-Tuning Optimization Algorithms (2024): at evenly spaced
    times up to the one at which random search is expected to have come 95% of the way from the median to the best,
    (random - search) / (random - best). Unlike there, a search is never counted as worse than the first random config,
    so random search itself is a little above 0.
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
        # Nothing that works yet is as good as the first random config.
        shares.append((random - min(reached, expected[0])) / (random - least) if random > least else 1.0)
    return float(np.mean(shares))


def run(path: Path, method: str, seed: int) -> ForeignRun:
    """One search with its score."""
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
    """A line for each method, the best first: its score, and the median trials to within 2%, of each space and in all."""  # noqa: E501
    spaces = sorted({one.space for one in runs})
    columns = ("seeds", "score", "trials", *spaces)
    found = table_of_numbers(
        "method", columns, title="score: 1 has the best at once, 0 is random search; median trials to within 2%"
    )
    rows = []
    for method in dict.fromkeys(one.method for one in runs):
        of_space = {space: [one for one in runs if (one.method, one.space) == (method, space)] for space in spaces}
        scores = [float(np.mean([one.score for one in mine])) for mine in of_space.values() if mine]
        trials = [median_trials(mine) for mine in of_space.values() if mine]
        cells = [
            f"{np.mean([r.score for r in mine]):.3f}, {median_trials(mine):.0f}" if mine else "-"
            for mine in of_space.values()
        ]
        # Only of those who searched everywhere a mean compares.
        whole = all(of_space.values())
        seeds = min(len(mine) for mine in of_space.values() if mine)
        sums = [f"{np.mean(scores):.3f}", f"{np.exp(np.mean(np.log(trials))):.0f}"] if whole else ["-", "-"]
        rows.append((np.mean(scores), [method, str(seeds), *sums, *cells]))
    for _, cells in sorted(rows, key=lambda row: -row[0]):
        found.add_row(*cells)
    return found


def median_trials(runs: Sequence[ForeignRun]) -> float:
    """The median trials to within 2%; `MOST` for a run that never was."""
    return float(np.median([one.trials or MOST for one in runs]))


def hard_spaces(paths: Sequence[Path]) -> list[str]:
    """Names of the spaces of which few configs are within 2% of the best."""
    found = []
    for recorded in map(recording, paths):
        goal_s = best_of(recorded) * WITHIN
        if sum((one.time_s or np.inf) <= goal_s for one in recorded.configs.values()) <= HARD:
            found.append(recorded.name)
    return found


def summary(runs: Sequence[ForeignRun], hard: Sequence[str]) -> str:
    """How many times the trials of Romou each other method needs until within 2%, on the hard spaces: the geometric
    mean of the medians.
    """
    lines = []
    for method in dict.fromkeys(one.method for one in runs if one.method not in ROMOU):
        medians = []
        for space in hard:
            both = [[one for one in runs if (one.method, one.space) == (name, space)] for name in (method, ROMOU[0])]
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
