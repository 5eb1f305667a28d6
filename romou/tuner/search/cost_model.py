"""Predicts which configs of a task are fast, from those that were measured, of this task and of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from romou.base.space import Config
from romou.tuner.search.features import TaskFeatures, aligned
from romou.tuner.search.knob_process import KnobProcess
from romou.tuner.search.ordinal import KnobFeatures
from romou.tuner.search.transfer import FEWEST, TransferData, is_enough, levelled, scores

# Of what it learns, log seconds: how far an expectation is off, that of all configs of a kind together, and a
# measurement.
_OFF, _KIND_OFF, _NOISE = 0.4, 0.4, 0.07
# Two configs whose features, log2 of numbers, differ by so much on average have little to say of each other (1 / e of
# what they would).
_REACH = 2.0


class GaussianProcess:
    """Learns by how much an expectation is wrong, for at most some hundred measurements: the time to learn grows with
    their cube.

    The covariance falls exponentially with the mean distance of the features (Rasmussen and Williams, Gaussian
    Processes for Machine Learning, sections 2.2 and 4.2.1: Matern, nu = 1/2): neighbours are alike, and what is far off
    stays as expected, but for a constant, and one of its kind.

    rows: features of what was measured, (measurements, features).
    kinds: of which of several algorithms each is; they are expected to be wrong together.
    errors: what was measured less what was expected.
    """

    def __init__(self, rows: np.ndarray, kinds: np.ndarray, errors: np.ndarray) -> None:
        self._rows, self._kinds = rows, kinds
        self._offset = float(np.mean(errors))
        self._factor = np.linalg.cholesky(self._covariance(rows, kinds) + _NOISE**2 * np.eye(len(rows)))
        self._whitened = np.linalg.solve(self._factor, errors - self._offset)

    def __call__(self, rows: np.ndarray, kinds: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """The upper confidence bound: what is expected, corrected, and one standard deviation more, so that what is not
        known is tried.
        """
        shared = self._shared(rows, kinds)
        variance = np.maximum(_OFF**2 + _KIND_OFF**2 - (shared**2).sum(axis=0), 0)
        return np.asarray(self._corrected(shared, expected) + np.sqrt(variance))

    def mean(self, rows: np.ndarray, kinds: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """What is expected, corrected."""
        return self._corrected(self._shared(rows, kinds), expected)

    def _shared(self, rows: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self._factor, self._covariance(rows, kinds))

    def _corrected(self, shared: np.ndarray, expected: np.ndarray) -> np.ndarray:
        return np.asarray(expected + self._offset + self._whitened @ shared)

    def _covariance(self, rows: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Covariance of what was measured with others, (measurements, others)."""
        distances = np.stack([np.abs(rows - row).mean(axis=1) for row in self._rows])
        return np.asarray(
            _OFF**2 * np.exp(-distances.astype(float) / _REACH) + _KIND_OFF**2 * (self._kinds[:, None] == kinds)
        )


# From so many measurements on a process over knobs alone has a say.
_FEWEST_OF_KNOBS = 3
# Up to so many measurements, a Gaussian process learns more of them than trees do, if something is expected.
_FEW = 512
# Parameters and number of rounds: for many rows of several tasks, each round the average of trees that see other rows
# and features, since what one tree makes of few tasks is as much luck as knowledge; for rows of one task.
_OF_OTHERS = (
    {
        "max_depth": 8,
        "eta": 0.2,
        "min_child_weight": 10,
        "subsample": 0.7,
        "colsample_bynode": 0.3,
        "num_parallel_tree": 10,
        "max_bin": 64,
    },
    30,
)
_OF_ITSELF = {"max_depth": 6, "eta": 0.2, "min_child_weight": 1}, 60


@dataclass(frozen=True)
class Trees:
    """Gradient-boosted trees (XGBoost) over named features, which correct an expected score."""

    booster: Any
    columns: tuple[str, ...]

    def __call__(self, rows: np.ndarray, columns: Sequence[str], expected: np.ndarray) -> np.ndarray:
        """Return corrected scores, -log(seconds) up to a constant, of configs with these features and expected scores."""  # noqa: E501
        import xgboost

        data = xgboost.DMatrix(aligned(rows, columns, self.columns), base_margin=expected, nthread=1)
        return np.asarray(self.booster.predict(data))


class CostModel:
    """From features to log(best time / time): 0 for the best config known, less for slower ones.

    Without an estimate, trees learn the scores of what was measured; of a space of knobs alone, a `KnobProcess`. With
    one, three predictions are added up:

    - the estimate, which needs no measurement;
    - trees that learn the estimate's error from transfer data, where fast configs count more;
    - a Gaussian process that learns what error is left from the task's own measurements.

    So a few measurements of the task correct what thousands of others say, and these are learnt once. The model learns
    to stay away from what does not run.

    features: a row of numbers for each config, and a score that is expected of it.
    divided_by: the knob that tells algorithms apart; the estimate may be wrong for all configs of one together.
    """

    def __init__(self, features: TaskFeatures | KnobFeatures, seed: int = 0, *, divided_by: str | None = None) -> None:
        self._features = features
        self._divided_by = divided_by
        self._seed = seed
        self._data: TransferData | None = None
        self._transferred: Trees | None = None
        self._own: Trees | GaussianProcess | KnobProcess | None = None

    @property
    def knows_doubt(self) -> bool:
        """Whether a config scores higher the less is known of it, so that none has to be drawn at random to learn of
        the others.
        """
        return isinstance(self._own, GaussianProcess | KnobProcess) or (
            self._features.has_estimate and self._own is None
        )

    @property
    def is_trained(self) -> bool:
        """Whether `predict` knows more than the estimate."""
        return self._transferred is not None or self._own is not None

    def fit(self, configs: Sequence[Config], times_s: Sequence[float | None], data: TransferData | None = None) -> None:
        """Learn from all of a task's measurements anew, and from transfer data unless it is that of last time; None
        stands for a config that failed.
        """
        if data is not None and data is not self._data:
            self._data = data
            self._transferred = train_on(data, self._seed) or self._transferred
        has_knobs_alone = isinstance(self._features, KnobFeatures)
        if is_enough(times_s, _FEWEST_OF_KNOBS if has_knobs_alone else FEWEST):
            labels = scores(times_s)
            rows = self._features(configs)
            before = self._before(configs, rows)
            if has_knobs_alone and len(configs) <= _FEW:
                self._own = KnobProcess(rows, labels, self._own if isinstance(self._own, KnobProcess) else None)
            elif self._features.has_estimate and len(configs) <= _FEW:
                self._own = GaussianProcess(rows, self._kinds(configs), labels - before)
            else:
                self._own = Trees(
                    _train(rows, labels, levelled(before, labels), _OF_ITSELF, seed=self._seed), self._features.columns
                )

    def predict(self, configs: Sequence[Config]) -> np.ndarray:
        """Return a score per config, higher is faster: the estimate as long as nothing was learnt, 0 without one."""
        rows = self._features(configs) if self.is_trained else np.empty(0)
        before = self._before(configs, rows)
        if isinstance(self._own, GaussianProcess | KnobProcess):
            return self._own(rows, self._kinds(configs), before)
        return before if self._own is None else self._own(rows, self._features.columns, before)

    def expected_s(self, configs: Sequence[Config], best_s: float | None) -> np.ndarray | None:
        """Return the time in seconds that is expected of each config, without the doubt that `predict` adds; None where
        it has only ranks.

        best_s: the best time that was measured of the task.
        """
        own = self._own
        if own is None or best_s is None:
            return None
        rows = self._features(configs)
        before = self._before(configs, rows)
        found = (
            own.mean(rows, self._kinds(configs), before)
            if isinstance(own, GaussianProcess | KnobProcess)
            else own(rows, self._features.columns, before)
        )
        return np.asarray(best_s * np.exp(-found))

    def _kinds(self, configs: Sequence[Config]) -> np.ndarray:
        return np.asarray([str(config.get(self._divided_by or "")) for config in configs])

    def _before(self, configs: Sequence[Config], rows: np.ndarray) -> np.ndarray:
        """The estimate, corrected by what transfer data says of it."""
        expected = self._features.expected(configs)
        # A process over knobs alone goes by what was measured here.
        if self._transferred is None or isinstance(self._own, KnobProcess):
            return expected
        return self._transferred(rows, self._features.columns, expected)


def train_on(data: TransferData, seed: int = 0) -> Trees | None:
    """Return trees that correct the estimate, learnt from transfer data alone; None where there is none."""
    found = data.joined()
    return None if found is None else Trees(_train(*found[:3], _OF_OTHERS, seed=seed, weight=found[3]), data.columns)


def _train(
    rows: np.ndarray,
    labels: np.ndarray,
    expected: np.ndarray,
    how: tuple[Mapping[str, Any], int],
    *,
    seed: int = 0,
    weight: np.ndarray | None = None,
) -> Any:
    import xgboost  # imported here: it takes a second

    choices, rounds = how
    # One thread throughout: the matrices are so small that waking threads up takes longer than the work.
    data = xgboost.DMatrix(rows, label=labels, weight=weight, base_margin=expected, nthread=1)
    parameters = {
        "objective": "reg:squarederror",
        "subsample": 0.9,
        "seed": seed,
        "nthread": 1,
        "verbosity": 0,
        **choices,
    }
    return xgboost.train(parameters, data, num_boost_round=rounds)
