"""A Gaussian process over knobs, for searches that have only knobs and measurements."""

from __future__ import annotations

import functools

import numpy as np
import scipy  # loads each subpackage on first use. scipy.stats would take a second

from romou.tuner.search.cost_model import GaussianProcess

# Prior mean and bounds of a knob's length scale, as natural logarithms. Knobs range from 0 to 1.
_SCALE, _SCALE_BOUNDS = np.log(0.7), (-3.0, 3.0)
# Bounds of the shares of the covariance's terms, up to a factor, as natural logarithms.
_SHARE_BOUNDS = (-6.0, 6.0)
# Variance of the measurement noise relative to the scores' variance, as natural logarithms: prior mean, bounds, and
# prior standard deviation.
_NOISE, _NOISE_BOUNDS, _NOISE_DOUBT = np.log(1e-3), (-12.0, -1.0), 2.0
_JITTER = 1e-8
# Length scales are learnt anew after the number of measurements has grown by this factor.
_MORE = 1.15
_STEPS = 15


class Ranked:
    """Scores as normal quantiles of their ranks (`values`).

    The distances between fast configs then do not depend on how slow the slow configs are.
    """

    def __init__(self, scores: np.ndarray) -> None:
        # Equal scores share the mean of their ranks.
        _, kind, counts = np.unique(scores, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[kind]
        self.values = np.asarray(scipy.special.ndtri((ranks - 0.5) / len(scores)))
        self._values, first = np.unique(self.values, return_index=True)
        self._scores = scores[first]

    def back(self, values: np.ndarray) -> np.ndarray:
        """Return the scores of values, interpolated linearly between the measurements and extrapolated beyond them."""
        if len(self._values) == 1:
            return np.full(len(values), self._scores[0])
        slope = (self._scores[-1] - self._scores[0]) / (self._values[-1] - self._values[0])
        beyond = np.maximum(values - self._values[-1], 0) + np.minimum(values - self._values[0], 0)
        return np.asarray(np.interp(values, self._values, self._scores) + slope * beyond)


class KnobProcess(GaussianProcess):
    """A Gaussian process that learns a length scale for each knob, and prefers configs by their expected improvement.

    The covariance is a weighted sum of three terms: single knobs, pairs of knobs, and all knobs together (Duvenaud,
    Nickisch and Rasmussen, Additive Gaussian Processes, 2011). Along a knob it falls exponentially with the distance,
    on a length scale that is learnt (Rasmussen and Williams, Gaussian Processes for Machine Learning, section 5.1).
    Length scales and weights have the greatest likelihood under a prior. A call returns the expected improvement
    (Jones, Schonlau and Welch, Efficient Global Optimization, 1998) of ranked scores.

    rows: knobs of the measured configs, from 0 to 1.
    scores: the measured scores. Expected scores are ignored, because other tasks and devices have other fast configs.
    before: an earlier process, trained on the first of these rows. Its results are reused.
    """

    def __init__(self, rows: np.ndarray, scores: np.ndarray, before: KnobProcess | None = None) -> None:
        self._rows, self._ranked = rows, Ranked(scores)
        values = self._ranked.values
        self._best, self._offset = float(values.max()), float(values.mean())
        errors = values - self._offset
        self._kernel: Covariance = before._kernel if before is not None else Covariance(rows.shape[1])
        self._learnt_from: int = len(rows) if before is None else before._learnt_from
        # Results for the configs `_pool`: whitened covariances, and their sums of squares.
        self._pool: np.ndarray | None = None
        self._pooled: np.ndarray = np.empty((0, 0), np.float32)
        self._certain: np.ndarray = np.empty(0, np.float32)
        if before is None or len(rows) >= _MORE * before._learnt_from:
            self._learnt_from = len(rows)
            self._kernel = self._kernel.learnt(rows, errors)
            self._factor = self._kernel.factor(rows)
        else:
            self._factor = before._factor
            for index in range(len(before._rows), len(rows)):
                self._factor = self._kernel.longer(self._factor, rows[:index], rows[index])
            if before._pool is not None:
                self._pool, self._pooled, self._certain = before._pool, before._pooled, before._certain
        self._weights = scipy.linalg.solve_triangular(self._factor, errors, lower=True)
        self._variance = max(float(self._weights @ self._weights) / len(rows), 1e-9)

    def __call__(self, rows: np.ndarray, kinds: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return the expected improvement of each config over the best score.

        The results of the previous call are reused if the array is the same.
        """
        ahead = self._value(rows) - self._best
        doubt = np.sqrt(self._variance * np.maximum(1 - self._certain, _JITTER))
        ratio = ahead / doubt
        return np.asarray(ahead * scipy.special.ndtr(ratio) + doubt * np.exp(-ratio * ratio / 2) / np.sqrt(2 * np.pi))

    def mean(self, rows: np.ndarray, kinds: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return the expected score of each config."""
        return self._ranked.back(self._value(rows))

    def _value(self, rows: np.ndarray) -> np.ndarray:
        self._whiten(rows)
        return np.asarray(self._offset + self._weights.astype(np.float32) @ self._pooled)

    def _whiten(self, rows: np.ndarray) -> None:
        """Compute the whitened covariance of the measurements with these configs.

        This is most of the work. It is done in single precision, which ranks configs as well.
        """
        if self._pool is not rows:
            self._pool, self._pooled, self._certain = (
                rows,
                np.empty((0, len(rows)), np.float32),
                np.zeros(len(rows), np.float32),
            )
        done, factor = len(self._pooled), self._factor.astype(np.float32)
        if done == len(self._rows):
            return
        fresh = self._kernel(self._rows[done:], rows, np.float32) - factor[done:, :done] @ self._pooled
        fresh = scipy.linalg.solve_triangular(
            factor[done:, done:], fresh, lower=True, overwrite_b=True, check_finite=False
        )
        self._pooled = np.concatenate([self._pooled, fresh])
        self._certain = self._certain + (fresh**2).sum(axis=0)


class Covariance:
    """The covariance of `KnobProcess`, with variance 1.

    logs: natural logarithms of the length scales, the shares and the noise
    """

    def __init__(self, knobs: int, logs: np.ndarray | None = None) -> None:
        self._knobs = knobs
        # With less than three knobs, a pair already has all knobs, so one term is enough.
        self._parts = 3 if knobs > 2 else 1
        self._logs = np.concatenate([np.full(knobs, _SCALE), np.zeros(self._parts), [_NOISE]]) if logs is None else logs

    def __call__(self, rows: np.ndarray, others: np.ndarray, dtype: type[np.floating] = np.float64) -> np.ndarray:
        """Return the covariance of rows with others, without noise."""
        scales = np.exp(self._logs[: self._knobs]).astype(dtype)
        near = [
            np.exp(-np.abs(np.subtract.outer(a, b)) / scale)
            for a, b, scale in zip(rows.T.astype(dtype), others.T.astype(dtype), scales, strict=True)
        ]
        return _weighted(self._shares(self._logs).astype(dtype), _parts(near, self._parts))

    def factor(self, rows: np.ndarray) -> np.ndarray:
        """Return the Cholesky factor of the covariance of measurements."""
        return np.linalg.cholesky(self(rows, rows) + (np.exp(self._logs[-1]) + _JITTER) * np.eye(len(rows)))

    def longer(self, factor: np.ndarray, rows: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Return the Cholesky factor with one more row."""
        own = scipy.linalg.solve_triangular(factor, self(rows, row[None])[:, 0], lower=True)
        last = np.sqrt(max(1 + np.exp(self._logs[-1]) + _JITTER - own @ own, _JITTER))
        return np.block([[factor, np.zeros((len(rows), 1))], [own[None], np.array([[last]])]])

    def learnt(self, rows: np.ndarray, errors: np.ndarray) -> Covariance:
        """Return the likeliest covariance. The optimization starts from this one."""
        apart = [np.abs(np.subtract.outer(column, column)) for column in rows.T]
        bounds = [_SCALE_BOUNDS] * self._knobs + [_SHARE_BOUNDS] * self._parts + [_NOISE_BOUNDS]
        optimum = scipy.optimize.minimize(
            self._unlikely,
            self._logs,
            (apart, errors),
            "L-BFGS-B",
            jac=True,
            bounds=bounds,
            options={"maxiter": _STEPS},
        )
        return Covariance(self._knobs, optimum.x)

    def _shares(self, logs: np.ndarray) -> np.ndarray:
        shares = np.exp(logs[self._knobs : -1])
        return np.asarray(shares / shares.sum())

    def _unlikely(self, logs: np.ndarray, apart: list[np.ndarray], errors: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the negative logarithm of likelihood times prior, and its gradient.

        The variance is the likeliest one.
        """
        knobs, scales, noise = self._knobs, np.exp(logs[: self._knobs]), np.exp(logs[-1])
        near = [np.exp(-distance / scale) for distance, scale in zip(apart, scales, strict=True)]
        shares, parts = self._shares(logs), _parts(near, self._parts)
        covariance = _weighted(shares, parts)
        factor = np.linalg.cholesky(covariance + (noise + _JITTER) * np.eye(len(errors)))
        inverse = scipy.linalg.cho_solve((factor, True), np.eye(len(errors)))
        solved = inverse @ errors
        variance = max(float(errors @ solved) / len(errors), 1e-12)
        # Derivative of the negative log likelihood by each element of the covariance.
        slope = 0.5 * (inverse - np.outer(solved, solved) / variance)
        prior = np.concatenate([logs[:knobs] - _SCALE, logs[knobs:-1], [(logs[-1] - _NOISE) / _NOISE_DOUBT**2]])
        gradient = prior.copy()
        for knob, (distance, scale) in enumerate(zip(apart, scales, strict=True)):
            by_scale = shares[-1] * parts[-1]
            if self._parts > 1:
                rest = functools.reduce(np.add, near) - near[knob]
                by_scale = by_scale + near[knob] * (shares[0] / knobs + shares[1] * 2 * rest / (knobs * (knobs - 1)))
            gradient[knob] += float((slope * by_scale * distance).sum()) / scale
        for index, (share, part) in enumerate(zip(shares, parts, strict=True)):
            gradient[knobs + index] += float((slope * share * (part - covariance)).sum())
        gradient[-1] += float(np.trace(slope)) * noise
        surprise = ((logs[:-1] - np.append(np.full(knobs, _SCALE), np.zeros(self._parts))) ** 2).sum() / 2 + (
            (logs[-1] - _NOISE) / _NOISE_DOUBT
        ) ** 2 / 2
        return float(len(errors) / 2 * np.log(variance) + np.log(np.diag(factor)).sum() + surprise), gradient


def _parts(near: list[np.ndarray], count: int) -> list[np.ndarray]:
    """Return the mean over knobs, the mean over pairs of knobs, and the product of all.

    If `count` is 1, return only the product.
    """
    product = functools.reduce(np.multiply, near)
    if count == 1:
        return [product]
    each, knobs = functools.reduce(np.add, near), len(near)
    squares = functools.reduce(np.add, (closeness * closeness for closeness in near))
    return [each / knobs, (each * each - squares) / (knobs * (knobs - 1)), product]


def _weighted(shares: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    return functools.reduce(np.add, (share * part for share, part in zip(shares, parts, strict=True)))
