"""A search that knows only knobs and what was measured: of kernels without a template, whose spaces others recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.stats import norm

from romou.core.space import Config, Space

# Scores below this are all alike: how slow a slow config is says little of the fast ones.
_WORST = -np.log(8.0)
# Of knobs that go from 0 to 1: the scale that is expected of one, and within which bounds it is sought, natural logarithms.
_SCALE, _BOUNDS = np.log(0.7), (-3.0, 3.0)
# Variance of a measurement, of that of the scores: as expected and its bounds, natural logarithms.
_NOISE, _NOISE_BOUNDS = np.log(1e-3), (-12.0, -1.0)
# Scales are learnt anew after so many measurements more than last time.
_MORE = 1.15
_STEPS = 12


class KnobFeatures:
    """Features of configs as `TaskFeatures` gives them, of knobs alone: log2(1 + value) of numbers, places among the choices of words, from 0 to 1."""

    has_estimate = False

    def __init__(self, space: Space) -> None:
        self._numbers: dict[str, dict[object, float]] = {}
        for name, choices in space.knobs.items():
            if len(choices) < 2:
                continue
            are_numbers = all(isinstance(choice, int | float) and choice >= 0 for choice in choices)
            places = [np.log2(1 + float(choice)) if are_numbers else float(place) for place, choice in enumerate(choices)]
            self._numbers[name] = {choice: (at - min(places)) / (max(places) - min(places)) for choice, at in zip(choices, places, strict=True)}
        self.columns = tuple(self._numbers)
        self._rows: dict[str, list[float]] = {}

    def __call__(self, configs: Sequence[Config]) -> np.ndarray:
        """Return one row a config."""
        for config in configs:
            if config.key not in self._rows:
                self._rows[config.key] = [numbers[config[name]] for name, numbers in self._numbers.items()]
        return np.array([self._rows[config.key] for config in configs], dtype=np.float64).reshape(len(configs), len(self.columns))

    def expected(self, configs: Sequence[Config]) -> np.ndarray:
        """Return zeros: nothing is expected."""
        return np.zeros(len(configs))


class ScaledProcess:
    """A Gaussian process that learns how far each knob reaches, and prefers the configs from which most improvement is expected.

    The covariance falls exponentially with the sum of distances, each by the scale of its knob (automatic relevance determination; Rasmussen and Williams,
    Gaussian Processes for Machine Learning, section 5.1); scales have the greatest likelihood under a prior. What is to be maximised is the expected
    improvement (Jones, Schonlau and Welch, Efficient Global Optimization, 1998).

    rows: knobs of what was measured, from 0 to 1.   errors: scores less what was expected.   before: an earlier one, whose scales are a start.
    """

    def __init__(self, rows: np.ndarray, errors: np.ndarray, expected: np.ndarray, before: ScaledProcess | None = None) -> None:
        self._rows = rows
        self._best = float(np.max(np.maximum(expected + errors, _WORST)))
        clipped = np.maximum(expected + errors, _WORST) - expected
        self._offset = float(clipped.mean())
        is_fresh = before is not None and len(rows) < _MORE * before._count
        self._count: int = before._count if is_fresh and before is not None else len(rows)
        start = before._logs if before is not None else np.append(np.full(rows.shape[1], _SCALE), _NOISE)
        self._logs: np.ndarray = start if is_fresh else self._learnt(clipped - self._offset, start)
        self._factor, whitened, self._variance = self._fitted(clipped - self._offset, self._logs)
        self._weights = whitened

    def __call__(self, rows: np.ndarray, kinds: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return the expected improvement of each config over the best score."""
        shared = self._shared(rows)
        doubt = np.sqrt(self._variance * np.maximum(1 - (shared**2).sum(axis=0), 1e-10))
        ahead = expected + self._offset + self._weights @ shared - self._best
        return np.asarray(ahead * norm.cdf(ahead / doubt) + doubt * norm.pdf(ahead / doubt))

    def mean(self, rows: np.ndarray, kinds: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return what is expected, corrected."""
        return np.asarray(expected + self._offset + self._weights @ self._shared(rows))

    def _shared(self, rows: np.ndarray) -> np.ndarray:
        # In single precision: it is most of the work, and ranks as well.
        covariance = _covariance(self._rows.astype(np.float32), rows.astype(np.float32), self._logs.astype(np.float32))
        return np.asarray(solve_triangular(self._factor.astype(np.float32), covariance, lower=True, overwrite_b=True, check_finite=False))

    def _fitted(self, errors: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        covariance = _covariance(self._rows, self._rows, logs) + (np.exp(logs[-1]) + 1e-9) * np.eye(len(errors))
        factor = np.linalg.cholesky(covariance)
        whitened = solve_triangular(factor, errors, lower=True)
        return factor, whitened, max(float(whitened @ whitened) / len(errors), 1e-9)

    def _learnt(self, errors: np.ndarray, start: np.ndarray) -> np.ndarray:
        def unlikely(logs: np.ndarray) -> float:
            factor, _, variance = self._fitted(errors, logs)
            prior = ((logs[:-1] - _SCALE) ** 2).sum() / 2 + (logs[-1] - _NOISE) ** 2 / 8
            return float(len(errors) / 2 * np.log(variance) + np.log(np.diag(factor)).sum() + prior)

        bounds = [_BOUNDS] * (len(start) - 1) + [_NOISE_BOUNDS]
        return np.asarray(minimize(unlikely, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}).x)


def _covariance(rows: np.ndarray, others: np.ndarray, logs: np.ndarray) -> np.ndarray:
    distance = np.zeros((len(rows), len(others)), dtype=rows.dtype)
    for column, scale in enumerate(np.exp(logs[:-1])):
        distance -= np.abs(rows[:, None, column] - others[None, :, column]) / scale
    return np.exp(distance)
