"""Predicts which configs of a task are fast, from those that were measured, of this task and of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from romou.space import Config

Features: TypeAlias = Callable[[Sequence[Config]], np.ndarray]

# Fewer points than this teach a tree nothing.
_FEWEST = 6
# A measurement of the task itself counts as much as so many of other tasks.
_OWN_WEIGHT = 12.0
_FAILED_RATIO = 32.0


def scores(times_s: Sequence[float | None]) -> np.ndarray:
    """log(best time / time): 0 for the best, less for slower ones; None, a failed config, and all that is slower still count as 32 times the best."""
    best = min((t for t in times_s if t is not None), default=1.0)
    return -np.log([min(t / best, _FAILED_RATIO) if t is not None else _FAILED_RATIO for t in times_s])


class Lessons:
    """What other tasks, or this one on other devices, teach: features and scores of their configs, in relation to their own best."""

    def __init__(self) -> None:
        self._groups: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, rows: np.ndarray, times_s: Sequence[float | None], expected: np.ndarray | None = None) -> None:
        """One task on one device; too few measurements are passed over, since their best says nothing."""
        if len(times_s) >= _FEWEST and sum(t is not None for t in times_s) >= 2:
            found = scores(times_s)
            self._groups.append((rows, found, _levelled(expected, found)))

    def joined(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """All rows, scores and what was expected of them; None where there are none."""
        if not self._groups:
            return None
        rows, found, expected = zip(*self._groups, strict=True)
        return np.concatenate(rows), np.concatenate(found), np.concatenate(expected)


class CostModel:
    """Gradient-boosted trees (XGBoost) from features to log(best time / time): 0 for the best config known, less for slower ones.

    Where something is expected of configs before any is measured, the trees learn by how much that is wrong.

    The model learns to stay away from what does not run. With lessons of other tasks it knows something before anything of its task is measured;
    a column tells their rows from those of the task.

    Parameters
    ----------
    features
        A row of numbers for each config.
    expected
        A score for each config that needs no measurement, up to a constant; nothing is expected where None.
    """

    def __init__(self, features: Features, seed: int = 0, *, expected: Features | None = None) -> None:
        self._features = features
        self._expected = expected
        self._seed = seed
        self._booster: object | None = None

    @property
    def is_trained(self) -> bool:
        """Whether `predict` knows anything."""
        return self._booster is not None

    def fit(self, configs: Sequence[Config], times_s: Sequence[float | None], lessons: Lessons | None = None) -> None:
        """Learn from all of a task's measurements anew; None stands for a config that failed."""
        others = lessons.joined() if lessons is not None else None
        is_enough = len(configs) >= _FEWEST and sum(t is not None for t in times_s) >= 2
        if others is None and not is_enough:
            return
        import xgboost  # imported here: it takes a second

        rows = _marked(self._features(configs), 1.0) if configs else None
        labels, weights = scores(times_s), np.full(len(configs), _OWN_WEIGHT)
        expected = _levelled(self._expected(configs) if self._expected and configs else None, labels)
        if others is not None:
            other_rows, other_scores, other_expected = others
            other_rows = _marked(other_rows, 0.0)
            rows = other_rows if rows is None else np.concatenate([other_rows, rows])
            labels, weights = np.concatenate([other_scores, labels]), np.concatenate([np.ones(len(other_scores)), weights])
            expected = np.concatenate([other_expected, expected])
        # One thread throughout: the matrices are so small that waking threads up takes longer than the work.
        data = xgboost.DMatrix(rows, label=labels, weight=weights if others is not None else None, base_margin=expected, nthread=1)
        parameters = {
            "objective": "reg:squarederror",
            "max_depth": 6,
            "eta": 0.2,
            "min_child_weight": 1,
            "subsample": 0.9,
            "seed": self._seed,
            "nthread": 1,
            "verbosity": 0,
        }
        self._booster = xgboost.train(parameters, data, num_boost_round=60)

    def predict(self, configs: Sequence[Config]) -> np.ndarray:
        """A score per config, higher is faster; what is expected of them as long as nothing was learnt, 0 where nothing is."""
        expected = np.zeros(len(configs), dtype=np.float32) if self._expected is None else self._expected(configs)
        if self._booster is None:
            return expected
        import xgboost

        data = xgboost.DMatrix(_marked(self._features(configs), 1.0), base_margin=expected, nthread=1)
        return np.asarray(self._booster.predict(data))  # type: ignore[attr-defined]


def _levelled(expected: np.ndarray | None, labels: np.ndarray) -> np.ndarray:
    """Moved by a constant, so that it is right on average; the labels' mean where nothing is expected."""
    offset = np.zeros(len(labels)) if expected is None else expected
    return offset + (np.mean(labels - offset) if len(labels) else 0.0)


def _marked(rows: np.ndarray, is_own: float) -> np.ndarray:
    return np.column_stack([rows, np.full(len(rows), is_own, dtype=np.float32)])
