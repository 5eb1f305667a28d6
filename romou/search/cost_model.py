"""Predicts which configs of a task are fast, from those that were measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from romou.space import Config, Space

# Fewer points than this teach a tree nothing.
_FEWEST = 6


class CostModel:
    """Gradient-boosted trees (XGBoost) from knobs to log(best time / time): 0 for the best config known, less for slower ones.

    Failed configs count as 32 times slower than the best one: the model learns to stay away from what does not run.
    """

    FAILED_RATIO = 32.0

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._space = space
        self._seed = seed
        self._booster: object | None = None

    @property
    def is_trained(self) -> bool:
        """Whether `predict` knows anything."""
        return self._booster is not None

    def fit(self, configs: Sequence[Config], times_s: Sequence[float | None]) -> None:
        """Learn from all of a task's measurements anew; None stands for a config that failed."""
        good = [t for t in times_s if t is not None]
        if len(configs) < _FEWEST or len(good) < 2:
            return
        import xgboost  # imported here: it takes a second

        # One thread throughout: the matrices are so small that waking threads up takes longer than the work.
        best = min(good)
        ratios = [min(t / best, self.FAILED_RATIO) if t is not None else self.FAILED_RATIO for t in times_s]
        data = xgboost.DMatrix(self._space.features(configs), label=-np.log(ratios), nthread=1)
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
        return np.asarray(self._booster.predict(xgboost.DMatrix(self._space.features(configs), nthread=1)))  # type: ignore[attr-defined]
