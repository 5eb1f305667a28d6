"""Search in spaces recorded by other tools, whose configs have no template: only knobs and measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from knob_process import KnobProcess
from romou.base.space import Config, Space
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.costs.pretrained import Trees
from romou.tuner.search import TuningOptions
from romou.tuner.search.cost_model import FEW, CostModel, GaussianProcess
from romou.tuner.search.explorer import Explorer
from romou.tuner.search.strategies import rank

# Number of random configs to search for the farthest one.
_LOOKED_AT = 200
# Configs that were fast on other devices, tried before all other configs.
_STARTS = 8


class KnobFeatures(TaskFeatures):
    """Features of configs from knobs only.

    A knob of numbers counts as log2(1 + value), a knob of words as the index of the choice. Both are scaled to 0 to 1.
    """

    def __init__(self, space: Space) -> None:
        self.has_estimate = False
        self._numbers: dict[str, dict[object, float]] = {}
        for name, choices in space.knobs.items():
            if len(choices) < 2:
                continue
            are_numbers = all(isinstance(choice, int | float) and choice >= 0 for choice in choices)
            positions = [
                np.log2(1 + float(choice)) if are_numbers else float(position)
                for position, choice in enumerate(choices)
            ]
            self._numbers[name] = {
                choice: (at - min(positions)) / (max(positions) - min(positions))
                for choice, at in zip(choices, positions, strict=True)
            }
        self.columns = tuple(self._numbers)
        self._last: tuple[Sequence[Config], np.ndarray] = ((), np.empty((0, len(self.columns))))

    def __call__(self, configs: Sequence[Config]) -> np.ndarray:
        """Return one row for each config. Return the same array again for the longest list of configs so far."""
        if configs is self._last[0]:
            return self._last[1]
        table = [[numbers[config[name]] for name, numbers in self._numbers.items()] for config in configs]
        rows = np.array(table, dtype=np.float64).reshape(len(configs), len(self.columns))
        if len(configs) > len(self._last[0]):
            self._last = (configs, rows)
        return rows

    def expected(self, configs: Sequence[Config]) -> np.ndarray:
        """Return zeros: there is no estimate."""
        return np.zeros(len(configs))


class KnobCostModel(CostModel):
    """Learns the scores of the task's measurements by a `KnobProcess`, and from many measurements by trees."""

    fewest = 3

    def _learnt(self, configs: Sequence[Config], rows: np.ndarray, labels: np.ndarray) -> Trees | GaussianProcess:
        if len(configs) > FEW:
            return super()._learnt(configs, rows, labels)
        return KnobProcess(rows, labels, self._own if isinstance(self._own, KnobProcess) else None)

    def _before(self, configs: Sequence[Config], rows: np.ndarray) -> np.ndarray:
        # A process over knobs uses only the measurements of this task.
        is_alone = isinstance(self._own, KnobProcess)
        return self._features.expected(configs) if is_alone else super()._before(configs, rows)


class KnobExplorer(Explorer):
    """An explorer of configs that were fast on other devices, then distant ones, then those that the model ranks first.

    The model cannot rank regions without measurements. Distant configs train it better than random ones.
    """

    def __init__(self, space: Space, options: TuningOptions, rng: np.random.Generator, **given: Any) -> None:
        super().__init__(space, None, options, rng, **given)
        self._model = KnobCostModel(self._features, options.seed, divided_by=space.divided_by)

    def _guided(self, count: int, measured: Mapping[str, tuple[Config, float | None]], taken: set[str]) -> list[Config]:
        first = _STARTS if len(self._transfer_data()) else 0
        if first <= len(taken) < first + self._options.random_trials:
            chosen = [index for index, config in enumerate(self._every) if config.key in taken]
            most = min(count, first + self._options.random_trials - len(taken))
            return [self._every[index] for index in spread(self._features(self._every), chosen, most, self._rng)]
        if not taken:
            self._model.fit([], [], self._transfer_data())
            self.start_with(rank(self._outlook([], taken))[:_STARTS])
            return [config for _, config in self._first]
        return super()._guided(count, measured, taken)


def spread(rows: np.ndarray, chosen: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """Return the indices of `count` more rows, far apart. If none is chosen yet, the first is the middle of all rows.

    Each further row is the random candidate farthest from the chosen rows. So a first look at a space begins in its
    middle and reaches each end of each knob.
    """
    picked: list[int] = []
    while len(picked) < min(count, len(rows) - len(chosen)):
        taken = [*chosen, *picked]
        if not taken:
            away = np.abs(rows - np.median(rows, axis=0)).sum(axis=1)
            picked.append(int(rng.choice(np.flatnonzero(away == away.min()))))
            continue
        free = np.setdiff1d(np.arange(len(rows)), taken)
        candidates = rng.permutation(free)[:_LOOKED_AT]
        nearest = np.min([np.abs(rows[candidates] - rows[index]).sum(axis=1) for index in taken], axis=0)
        picked.append(int(candidates[np.argmax(nearest)]))
    return picked
