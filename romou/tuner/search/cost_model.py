"""The cost model: predicts which configs of a task are fast, from measurements of this task and of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from romou.base.space import Config
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.costs.pretrained import Trees
from romou.tuner.search.transfer import FEWEST, TransferData, is_enough, levelled, scores

# Standard deviations in log seconds: of the error of one prediction, of the part of this error that all configs of a
# kind share, and of a measurement.
_OFF, _KIND_OFF, _NOISE = 0.4, 0.4, 0.07
# Mean distance of features (log2) at which the covariance of two configs falls to 1 / e.
_REACH = 2.0


class GaussianProcess:
    """A Gaussian process that learns the error of a prediction.

    It learns from at most a few hundred measurements, because training time grows with their cube.

    The covariance falls exponentially with the mean distance of the features (Rasmussen and Williams, Gaussian
    Processes for Machine Learning, sections 2.2 and 4.2.1: Matern, nu = 1/2). Configs of a kind share a part of it.
    Distant configs keep their prediction up to a constant.

    rows: features of the measured configs, (measurements, features)
    kinds: algorithm of each config. Configs of one algorithm share an error
    errors: measured minus predicted score
    """

    def __init__(self, rows: np.ndarray, kinds: np.ndarray, errors: np.ndarray) -> None:
        self._rows, self._kinds = rows, kinds
        self._offset = float(np.mean(errors))
        self._factor = np.linalg.cholesky(self._covariance(rows, kinds) + _NOISE**2 * np.eye(len(rows)))
        self._whitened = np.linalg.solve(self._factor, errors - self._offset)

    def __call__(self, rows: np.ndarray, kinds: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return the upper confidence bound.

        It is the corrected prediction plus one standard deviation, so the search explores.
        """
        shared = self._shared(rows, kinds)
        variance = np.maximum(_OFF**2 + _KIND_OFF**2 - (shared**2).sum(axis=0), 0)
        return np.asarray(self._corrected(shared, expected) + np.sqrt(variance))

    def mean(self, rows: np.ndarray, kinds: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return the corrected prediction."""
        return self._corrected(self._shared(rows, kinds), expected)

    def _shared(self, rows: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self._factor, self._covariance(rows, kinds))

    def _corrected(self, shared: np.ndarray, expected: np.ndarray) -> np.ndarray:
        return np.asarray(expected + self._offset + self._whitened @ shared)

    def _covariance(self, rows: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Return the covariance of the measured configs with others, (measurements, others)."""
        distances = np.stack([np.abs(rows - row).mean(axis=1) for row in self._rows])
        return np.asarray(
            _OFF**2 * np.exp(-distances.astype(float) / _REACH) + _KIND_OFF**2 * (self._kinds[:, None] == kinds)
        )


# Most measurements for a Gaussian process. Above it trees are better.
FEW = 512
# Parameters and number of rounds. For several tasks each round averages trees over samples of rows and features: a
# single tree overfits a few tasks.
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


class CostModel:
    """Predicts log(best time / time) from features: 0 for the best known config, less for slower ones.

    With an estimate, three predictions are added:

    - The estimate, which needs no measurement.
    - Trees that learn the estimate's error from transfer data. Fast configs weigh more.
    - A Gaussian process that learns the remaining error from the task's own measurements.

    So a few measurements of the task correct a prediction from thousands of others. Without an estimate, trees learn
    the scores of the task's measurements. Failed configs are training data too.

    features: features of each config, with its estimated score
    divided_by: the knob that selects the algorithm, whose configs share an error of the estimate
    fewest: fewest measurements of the task to learn from
    """

    fewest = FEWEST

    def __init__(self, features: TaskFeatures, seed: int = 0, *, divided_by: str | None = None) -> None:
        self._features = features
        self._divided_by = divided_by
        self._seed = seed
        self._data: TransferData | None = None
        self._transferred: Trees | None = None
        self._own: Trees | GaussianProcess | None = None

    @property
    def knows_doubt(self) -> bool:
        """True if uncertain configs score higher, so that exploration needs no random configs."""
        return isinstance(self._own, GaussianProcess) or (self._features.has_estimate and self._own is None)

    @property
    def is_trained(self) -> bool:
        """True if `predict` uses more than the estimate."""
        return self._transferred is not None or self._own is not None

    def fit(self, configs: Sequence[Config], times_s: Sequence[float | None], data: TransferData | None = None) -> None:
        """Train on all of a task's measurements, and on transfer data if it is new. None stands for a failed config."""
        if data is not None and data is not self._data:
            self._data = data
            self._transferred = train_on(data, self._seed) or self._transferred
        if is_enough(times_s, self.fewest):
            self._own = self._learnt(configs, self._features(configs), scores(times_s))

    def _learnt(self, configs: Sequence[Config], rows: np.ndarray, labels: np.ndarray) -> Trees | GaussianProcess:
        before = self._before(configs, rows)
        if self._features.has_estimate and len(configs) <= FEW:
            return GaussianProcess(rows, self._kinds(configs), labels - before)
        trees = boosted(rows, labels, levelled(before, labels), _OF_ITSELF, seed=self._seed)
        return Trees(trees, self._features.columns)

    def predict(self, configs: Sequence[Config]) -> np.ndarray:
        """Return a score for each config, higher is faster: the estimate before any training, or 0 without one."""
        rows = self._features(configs) if self.is_trained else np.empty(0)
        before = self._before(configs, rows)
        if isinstance(self._own, GaussianProcess):
            return self._own(rows, self._kinds(configs), before)
        return before if self._own is None else self._own(rows, self._features.columns, before)

    def expected_s(self, configs: Sequence[Config], best_s: float | None) -> np.ndarray | None:
        """Return the predicted seconds of each config, without the uncertainty that `predict` adds.

        None before any training on the task.

        best_s: the task's best measured time
        """
        own = self._own
        if own is None or best_s is None:
            return None
        rows = self._features(configs)
        before = self._before(configs, rows)
        predicted = (
            own.mean(rows, self._kinds(configs), before)
            if isinstance(own, GaussianProcess)
            else own(rows, self._features.columns, before)
        )
        return np.asarray(best_s * np.exp(-predicted))

    def _kinds(self, configs: Sequence[Config]) -> np.ndarray:
        return np.asarray([str(config.get(self._divided_by or "")) for config in configs])

    def _before(self, configs: Sequence[Config], rows: np.ndarray) -> np.ndarray:
        """Return the estimate, corrected by transfer data."""
        expected = self._features.expected(configs)
        if self._transferred is None:
            return expected
        return self._transferred(rows, self._features.columns, expected)


def train_on(data: TransferData, seed: int = 0) -> Trees | None:
    """Return trees that correct the estimate, trained on transfer data. None if there is none."""
    joined = data.joined()
    if joined is None:
        return None
    rows, labels, expected, weight = joined
    return Trees(boosted(rows, labels, expected, _OF_OTHERS, seed=seed, weight=weight), data.columns)


def boosted(
    rows: np.ndarray,
    labels: np.ndarray,
    expected: np.ndarray,
    how: tuple[Mapping[str, Any], int],
    *,
    seed: int = 0,
    weight: np.ndarray | None = None,
) -> Any:
    """Return XGBoost's trees that add to the expected scores.

    how: XGBoost's parameters, and the number of rounds
    """
    import xgboost  # imported here: it takes a second

    choices, rounds = how
    # One thread: the matrices are so small that starting threads takes longer.
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
