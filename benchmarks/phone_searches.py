#!/usr/bin/env python3
"""Counts the trials that searches need on the phones' recordings until they are within 2% and within 10% of the best.

    python benchmarks/phone_searches.py adreno_autotvm.jsonl.gz

The recorded configs of a layer are its whole space, and a config that failed counts as a trial. The trained model of a
layer has seen the layers of other networks only. Strategies of Kernel Tuner need `pip install kernel-tuner`.
docs/evidence/validation.md describes the data and has what was seen.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from foreign_searches import STRATEGIES, explored
from phone_judged import NEAR, Judged
from phone_tasks import load_tasks
from pretrain_on_phones import Layer, by_name, train
from romou.base.errors import UsageError
from romou.compiler.operators.costs.features import TaskFeatures
from romou.tools.report.table import table_of_numbers
from romou.tuner.records.autotvm import AutotvmTask
from romou.tuner.records.autotvm_spaces import recorded_space
from romou.tuner.records.recorded_space import RecordedSpace
from romou.tuner.search import TuningOptions
from romou.tuner.search.explorer import Explorer
from simulated_searches import kernel_tuner_trials
from simulation import SimulatedSpace

_WITHIN = (NEAR, 1.1)
_QUARTILES = (0.25, 0.5, 0.75)
# Random orders of a task. They take no time.
_RANDOM_SEEDS = 100
_RANDOM = "random"
# In sparse spaces, hill climbers move between the same few configs. A strategy ends after this multiple of a layer's.
_ASKED_AT_MOST = 2
# Configs that Romou's search proposes at a time: the default, and one.
_BATCHES = (TuningOptions().batch_size, 1)


@dataclass(frozen=True)
class SearchedLayer:
    """A layer of the recordings as a space to search.

    corrected: the estimate's scores of the kernels, corrected by a model of other networks. None if there are no others
    """

    layer: Layer
    corrected: np.ndarray | None

    @cached_property
    def recorded(self) -> RecordedSpace:
        """The recorded configs by AutoTVM's knobs, in the order of the layer's kernels."""
        recorded = self.layer.task.recorded
        assert isinstance(recorded, AutotvmTask), "recordings of Romou's own kernels are not read here"
        return recorded_space(recorded)

    @cached_property
    def kept(self) -> np.ndarray:
        """The kernels that the criteria keep by the facts of the GPU's file."""
        return np.flatnonzero(~Judged(self.layer.task).is_rejected(is_guessed=False))

    def trials(self, order: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the trials until an order of kernels is within each of `_WITHIN` of the best time.

        If it never is, they are as many as the layer has kernels.
        """
        times = self.layer.task.time_s
        tried = times[np.asarray(order, dtype=int)]
        reached = [np.flatnonzero(tried <= within * np.nanmin(times)) for within in _WITHIN]
        return np.array([first[0] + 1 if len(first) else len(times) for first in reached])

    def random(self, seed: int) -> np.ndarray:
        """Return the kernels in a random order."""
        return np.random.default_rng(seed).permutation(len(self.layer.task.time_s))

    def ranked(self, scores: np.ndarray) -> np.ndarray:
        """Return the kernels that the criteria keep, those with the highest scores first."""
        order: np.ndarray = self.kept[np.argsort(-scores[self.kept], kind="stable")]
        return order

    def searched(self, scores: np.ndarray, batch_size: int) -> list[int]:
        """Return the kernels in the order of Romou's search, which learns from the times of its trials.

        It draws nothing at random.

        scores: the search's prediction before the first trial
        """
        indices = list(self.recorded.configs)
        space = SimulatedSpace(self.recorded, allowed=[indices[kernel] for kernel in self.kept])
        options = TuningOptions(explorer="ranking", batch_size=batch_size)
        features = KernelFeatures(self.layer, self.recorded, scores)
        explorer = Explorer(space, None, options, np.random.default_rng(0), features=features)
        order = []
        for index in explored(explorer, self.recorded, batch_size=batch_size):
            order.append(index)
            if (self.recorded.configs[index].time_s or np.inf) <= self._goal_s:
                break
        return self._kernels(order)

    def by_kernel_tuner(self, strategy: str, seed: int) -> list[int]:
        """Return the kernels in the order of a strategy of Kernel Tuner."""
        most = len(self.recorded.configs)
        trials = kernel_tuner_trials(
            self.recorded, strategy, seed, most, goal_s=self._goal_s, asked_at_most=_ASKED_AT_MOST
        )
        return self._kernels([index for index, _ in trials])

    @property
    def _goal_s(self) -> float:
        return float(min(_WITHIN) * np.nanmin(self.layer.task.time_s))

    def _kernels(self, indices: Sequence[int]) -> list[int]:
        position_of = {index: position for position, index in enumerate(self.recorded.configs)}
        return [position_of[index] for index in indices]


class KernelFeatures(TaskFeatures):
    """Features of a layer's recorded kernels, which are no configs of Romou's space.

    scores: the estimate's scores of the kernels, corrected or not
    """

    def __init__(self, layer: Layer, recorded: RecordedSpace, scores: np.ndarray) -> None:
        super().__init__(layer.task.template, layer.task.target.limits, layer.task.target.spec)
        space = recorded.space()
        keys = [space.at(index).key for index in recorded.configs]
        rows = np.column_stack([layer.rows[:, : len(self.columns)], scores])
        self._rows.update(zip(keys, rows, strict=True))


def searched_layers(layers: Sequence[Layer]) -> Iterator[SearchedLayer]:
    """Yield the layers with at least a few timed kernels."""
    for held, others in by_name(layers, lambda layer: layer.network):
        trees = train(others) if others else None
        for layer in (each for each in held if each.has_ranks):
            corrected = None if trees is None else trees(layer.rows, layer.columns, layer.expected)
            yield SearchedLayer(layer, corrected)


def searches(layer: SearchedLayer, seeds: int, strategies: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each searcher's name with its trials, (seeds, goals). A strategy that gives up yields no rows."""
    yield _RANDOM, np.array([layer.trials(layer.random(seed)) for seed in range(_RANDOM_SEEDS)])
    for strategy in strategies:
        orders = []
        # A strategy that gives up on a space is a result, not the end of the comparison.
        with contextlib.suppress(Exception):
            orders += [layer.by_kernel_tuner(strategy, seed) for seed in range(seeds)]
        yield f"Kernel Tuner, {strategy}", np.array([layer.trials(order) for order in orders])
    for name, scores in (("estimate", layer.layer.expected), ("trained model", layer.corrected)):
        if scores is None:
            continue
        yield f"{name}, all configs", layer.trials(np.argsort(-scores, kind="stable"))[None]
        yield f"{name}, configs that the criteria keep", layer.trials(layer.ranked(scores))[None]
        for batch_size in _BATCHES:
            order = layer.searched(scores, batch_size)
            yield f"Romou's search from the {name}, {batch_size} at a time", layer.trials(order)[None]


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpu", default="", help="GPU of a log that does not name one, e.g. adreno660.")
@click.option("--least", default=100, show_default=True, help="Fewest configs of a layer.")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Of strategies of Kernel Tuner."
)
@click.option("--strategies", default=",".join(STRATEGIES), help="Of Kernel Tuner. Default: all that need only it.")
def main(file: Path, gpu: str, least: int, seeds: int, strategies: str) -> None:
    """Print the table that the file's docstring describes."""
    out = Console(width=120)
    chosen = [name for name in strategies.split(",") if name]
    if unknown := {*chosen} - {*STRATEGIES}:
        raise UsageError(f"unknown strategies: {', '.join(sorted(unknown))}; known: {', '.join(STRATEGIES)}")
    if chosen and importlib.util.find_spec("kernel_tuner") is None:
        out.print("Kernel Tuner is not installed, its strategies are left out: pip install kernel-tuner")
        chosen = []
    layers = [Layer.of(task) for task in load_tasks(file, least=least, default_gpu=gpu)]
    trials: dict[str, list[np.ndarray]] = defaultdict(list)
    given_up: Counter[str] = Counter()
    for layer in searched_layers(layers):
        for name, of_seeds in searches(layer, seeds, chosen):
            # Rows are in the order of the searches, also if the first layer was given up.
            trials[name] += [np.median(of_seeds, axis=0)] if len(of_seeds) else []
            given_up[name] += not len(of_seeds)
    if not trials:
        raise UsageError(f"{file}: no layer has {least} configs and enough timed ones")
    title = "Trials until within 2% and within 10% of the best time (medians of layers)"
    columns = ("layers", "within 2%", "quartiles", "within 10%", "quartiles")
    table = table_of_numbers("search", columns, title=title)
    for name, rows in ((name, rows) for name, rows in trials.items() if rows):
        low, middle, high = np.quantile(rows, _QUARTILES, axis=0)
        cells = [cell for goal in (0, 1) for cell in (f"{middle[goal]:.0f}", f"{low[goal]:.0f} to {high[goal]:.0f}")]
        table.add_row(name, str(len(rows)), *cells)
    out.print(table)
    for name, count in (+given_up).items():
        out.print(f"{name}: gave up on {count} layers", markup=False)


if __name__ == "__main__":
    main()
