"""Transfer data: what was measured of other tasks, or of this one on other devices, as training data for a task's cost
model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from romou.base.space import Config
from romou.tuner.search.features import TaskFeatures, aligned
from romou.tuner.search.ordinal import KnobFeatures

# From fewer points than this a tree learns nothing.
FEWEST = 4
_FAILED_RATIO = 32.0


def scores(times_s: Sequence[float | None]) -> np.ndarray:
    """Return log(best time / time): 0 for the best, less for slower ones.

    None, a failed config, and all that is slower still count as 32 times the best.
    """
    best = min((t for t in times_s if t is not None), default=1.0)
    return -np.log([min(t / best, _FAILED_RATIO) if t is not None else _FAILED_RATIO for t in times_s])


def levelled(expected: np.ndarray, labels: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Return what is expected, moved by a constant, so that it is right on average."""
    return expected + (np.average(labels - expected, weights=weight) if len(labels) else 0.0)


def is_enough(times_s: Sequence[float | None], fewest: int = FEWEST) -> bool:
    """Whether anything can be learnt from the measurements: of too few, the best says nothing."""
    return len(times_s) >= fewest and sum(t is not None for t in times_s) >= 2


class TransferData:
    """Features and scores of the configs of several tasks, each in relation to the task's own best."""

    def __init__(self) -> None:
        self._groups: list[tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray]] = []

    def __len__(self) -> int:
        """Number of tasks that have data."""
        return len(self._groups)

    def add(
        self, features: TaskFeatures | KnobFeatures, configs: Sequence[Config], times_s: Sequence[float | None]
    ) -> None:
        """Add one task on one device; too few measurements are passed over."""
        if is_enough(times_s):
            found = scores(times_s)
            self._groups.append(
                (features.columns, features(configs), found, levelled(features.expected(configs), found, np.exp(found)))
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the features of all tasks, each once."""
        return tuple(dict.fromkeys(name for columns, *_ in self._groups for name in columns))

    def joined(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """Return all rows over `columns`, their scores, what was expected of them, and weights; None where there is no
        data.

        By the weights fast configs count more, and all tasks the same.
        """
        if not self._groups:
            return None
        columns, rows, found, expected = zip(*self._groups, strict=True)
        rows = [aligned(some, have, self.columns) for some, have in zip(rows, columns, strict=True)]
        each = np.mean([len(scores) for scores in found])
        weights = [each * np.exp(scores) / np.exp(scores).sum() for scores in found]
        return np.concatenate(rows), np.concatenate(found), np.concatenate(expected), np.concatenate(weights)
