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
        self._rows: list[np.ndarray] = []
        self._scores: list[np.ndarray] = []

    def add(self, rows: np.ndarray, times_s: Sequence[float | None]) -> None:
        """One task on one device; too few measurements are passed over, since their best says nothing."""
        if len(times_s) >= _FEWEST and sum(t is not None for t in times_s) >= 2:
            self._rows.append(rows)
            self._scores.append(scores(times_s))

    def joined(self) -> tuple[np.ndarray, np.ndarray] | None:
        """All rows and scores; None where there are none."""
        return (np.concatenate(self._rows), np.concatenate(self._scores)) if self._rows else None


class CostModel:
    """Gradient-boosted trees (XGBoost) from features to log(best time / time): 0 for the best config known, less for slower ones.

    The model learns to stay away from what does not run. With lessons of other tasks it knows something before anything of its task is measured;
    a column tells their rows from those of the task.

    Parameters
    ----------
    features
        A row of numbers for each config.
    """

    def __init__(self, features: Features, seed: int = 0) -> None:
        self._features = features
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
        if others is not None:
            other_rows, other_scores = others
            other_rows = _marked(other_rows, 0.0)
            rows = other_rows if rows is None else np.concatenate([other_rows, rows])
            labels, weights = np.concatenate([other_scores, labels]), np.concatenate([np.ones(len(other_scores)), weights])
        # One thread throughout: the matrices are so small that waking threads up takes longer than the work.
        data = xgboost.DMatrix(rows, label=labels, weight=weights if others is not None else None, nthread=1)
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
        """A score per config, higher is faster. UsageError-free: call it only where `is_trained`."""
        import xgboost

        assert self._booster is not None, "fit has not learnt anything yet"
        return np.asarray(self._booster.predict(xgboost.DMatrix(_marked(self._features(configs), 1.0), nthread=1)))  # type: ignore[attr-defined]


def _marked(rows: np.ndarray, is_own: float) -> np.ndarray:
    return np.column_stack([rows, np.full(len(rows), is_own, dtype=np.float32)])
