"""Predicts which configs of a task are fast, from those that were measured, of this task and of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from romou.core.space import Config
from romou.search.gaussian_process import GaussianProcess

Features: TypeAlias = Callable[[Sequence[Config]], np.ndarray]

# Fewer points than this teach a tree nothing. Up to so many, a Gaussian process learns more of them than trees do, if something is expected.
_FEWEST, _FEW = 4, 512
_FAILED_RATIO = 32.0
# Parameters and number of rounds: for many rows of several tasks, each round the average of trees that see other rows and features, since what one
# tree makes of few tasks is as much luck as lesson; for rows of one task.
_OF_OTHERS = {"max_depth": 8, "eta": 0.2, "min_child_weight": 10, "subsample": 0.7, "colsample_bynode": 0.3, "num_parallel_tree": 10, "max_bin": 64}, 30
_OF_ITSELF = {"max_depth": 6, "eta": 0.2, "min_child_weight": 1}, 60


def scores(times_s: Sequence[float | None]) -> np.ndarray:
    """log(best time / time): 0 for the best, less for slower ones; None, a failed config, and all that is slower still count as 32 times the best."""
    best = min((t for t in times_s if t is not None), default=1.0)
    return -np.log([min(t / best, _FAILED_RATIO) if t is not None else _FAILED_RATIO for t in times_s])


class TransferData:
    """What other tasks, or this one on other devices, teach: features and scores of their configs, in relation to their own best."""

    def __init__(self) -> None:
        self._groups: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def __len__(self) -> int:
        """How many tasks teach something."""
        return len(self._groups)

    def add(self, rows: np.ndarray, times_s: Sequence[float | None], expected: np.ndarray | None = None) -> None:
        """One task on one device; too few measurements are passed over, since their best says nothing."""
        if len(times_s) >= _FEWEST and sum(t is not None for t in times_s) >= 2:
            found = scores(times_s)
            self._groups.append((rows, found, _levelled(expected, found, np.exp(found))))

    def joined(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """All rows, scores, what was expected of them, and weights: fast configs count more, and all tasks the same; None where there are none."""
        if not self._groups:
            return None
        rows, found, expected = zip(*self._groups, strict=True)
        each = np.mean([len(scores) for scores in found])
        weights = [each * np.exp(scores) / np.exp(scores).sum() for scores in found]
        return np.concatenate(rows), np.concatenate(found), np.concatenate(expected), np.concatenate(weights)


class CostModel:
    """From features to log(best time / time): 0 for the best config known, less for slower ones.

    Gradient-boosted trees (XGBoost) learn it of measurements. Where something is expected of configs before any is measured, they learn by how much
    that is wrong, from the lessons of other tasks, fast configs counting more; and a Gaussian process by how much that is wrong of the task itself,
    for which the lessons alone are too far off. So a few measurements of the task correct what thousands of others say, and these are learnt
    once. The model learns to stay away from what does not run.

    Parameters
    ----------
    features
        A row of numbers for each config.
    expected
        A score for each config that needs no measurement, up to a constant; nothing is expected where None.
    divided_by
        The knob that tells algorithms apart, of which all configs of one may be wrong together.
    """

    def __init__(self, features: Features, seed: int = 0, *, expected: Features | None = None, divided_by: str | None = None) -> None:
        self._features = features
        self._expected = expected
        self._divided_by = divided_by
        self._seed = seed
        self._lessons: TransferData | None = None
        self._taught: Any = None
        self._own: Any = None

    @property
    def knows_doubt(self) -> bool:
        """Whether what little is known of counts for a config, so that none has to be drawn at random to learn of the others."""
        return self._expected is not None and (self._own is None or isinstance(self._own, GaussianProcess))

    @property
    def is_trained(self) -> bool:
        """Whether `predict` knows more than what is expected."""
        return self._taught is not None or self._own is not None

    def fit(self, configs: Sequence[Config], times_s: Sequence[float | None], lessons: TransferData | None = None) -> None:
        """Learn from all of a task's measurements anew, and from lessons unless they are those of last time; None stands for a config that failed."""
        if lessons is not None and lessons is not self._lessons:
            self._lessons = lessons
            self._taught = learn(lessons, self._seed) or self._taught
        if len(configs) >= _FEWEST and sum(t is not None for t in times_s) >= 2:
            labels = scores(times_s)
            rows = self._features(configs)
            before = self._before(configs, rows)
            if self._expected is not None and len(configs) <= _FEW:
                self._own = GaussianProcess(rows, self._kinds(configs), labels - before)
            else:
                self._own = _train(rows, labels, _levelled(before, labels), _OF_ITSELF, seed=self._seed)

    def predict(self, configs: Sequence[Config]) -> np.ndarray:
        """A score per config, higher is faster; what is expected of them as long as nothing was learnt, 0 where nothing is."""
        rows = self._features(configs) if self.is_trained else np.empty(0)
        before = self._before(configs, rows)
        if isinstance(self._own, GaussianProcess):
            return self._own(rows, self._kinds(configs), before)
        return before if self._own is None else added(self._own, rows, before)

    def _kinds(self, configs: Sequence[Config]) -> np.ndarray:
        return np.asarray([str(config.get(self._divided_by or "")) for config in configs])

    def _before(self, configs: Sequence[Config], rows: np.ndarray) -> np.ndarray:
        """What is expected, and what others taught of it."""
        expected = np.zeros(len(configs), dtype=np.float32) if self._expected is None else self._expected(configs)
        return expected if self._taught is None else added(self._taught, rows, expected)


def learn(lessons: TransferData, seed: int = 0) -> Any:
    """Trees that say by how much what was expected is wrong, out of lessons alone; None where there are none."""
    found = lessons.joined()
    return None if found is None else _train(*found[:3], _OF_OTHERS, seed=seed, weight=found[3])


def added(booster: Any, rows: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """What the trees say on top of what is expected."""
    import xgboost

    return np.asarray(booster.predict(xgboost.DMatrix(rows, base_margin=expected, nthread=1)))


def _train(
    rows: np.ndarray, labels: np.ndarray, expected: np.ndarray, how: tuple[Mapping[str, Any], int], *, seed: int = 0, weight: np.ndarray | None = None
) -> Any:
    import xgboost  # imported here: it takes a second

    choices, rounds = how
    # One thread throughout: the matrices are so small that waking threads up takes longer than the work.
    data = xgboost.DMatrix(rows, label=labels, weight=weight, base_margin=expected, nthread=1)
    parameters = {"objective": "reg:squarederror", "subsample": 0.9, "seed": seed, "nthread": 1, "verbosity": 0, **choices}
    return xgboost.train(parameters, data, num_boost_round=rounds)


def _levelled(expected: np.ndarray | None, labels: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Moved by a constant, so that it is right on average; the labels' mean where nothing is expected."""
    offset = np.zeros(len(labels)) if expected is None else expected
    return offset + (np.average(labels - offset, weights=weight) if len(labels) else 0.0)
