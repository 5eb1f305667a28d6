"""What few measurements say of the rest: a Gaussian process, which also tells how little it knows."""

from __future__ import annotations

import numpy as np

# Of what it learns, log seconds: how far an expectation is off, that of all configs of a kind together, and a measurement.
_OFF, _KIND_OFF, _NOISE = 0.4, 0.4, 0.07
# Two configs whose features, log2 of numbers, differ by so much on average have little to say of each other (1 / e of what they would).
_REACH = 2.0


class GaussianProcess:
    """Learns by how much an expectation is wrong, for at most some hundred measurements: the time to learn grows with their cube.

    The covariance falls exponentially with the mean distance of the features (Rasmussen and Williams, Gaussian Processes for Machine Learning,
    sections 2.2 and 4.2.1: Matern, nu = 1/2): neighbours are alike, and what is far off stays as expected, but for a constant, and one of its kind.

    rows: features of what was measured, (measurements, features).   kinds: of which of several algorithms each is; they are expected to be wrong together.
    errors: what was measured less what was expected.
    """

    def __init__(self, rows: np.ndarray, kinds: np.ndarray, errors: np.ndarray) -> None:
        self._rows, self._kinds = rows, kinds
        self._offset = float(np.mean(errors))
        self._factor = np.linalg.cholesky(self._covariance(rows, kinds) + _NOISE**2 * np.eye(len(rows)))
        self._whitened = np.linalg.solve(self._factor, errors - self._offset)

    def __call__(self, rows: np.ndarray, kinds: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """The upper confidence bound: what is expected, corrected, and one standard deviation more, so that what is not known is tried."""
        shared = np.linalg.solve(self._factor, self._covariance(rows, kinds))
        variance = np.maximum(_OFF**2 + _KIND_OFF**2 - (shared**2).sum(axis=0), 0)
        return np.asarray(expected + self._offset + self._whitened @ shared + np.sqrt(variance))

    def _covariance(self, rows: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Covariance of what was measured with others, (measurements, others)."""
        distances = np.stack([np.abs(rows - row).mean(axis=1) for row in self._rows])
        return np.asarray(_OFF**2 * np.exp(-distances.astype(float) / _REACH) + _KIND_OFF**2 * (self._kinds[:, None] == kinds))
