"""Transfer data: measurements of other tasks, or on other devices, as training data for a task's cost model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from romou.base.space import Config
from romou.compiler.operators.costs.features import TaskFeatures, aligned

# A tree needs at least this many points.
FEWEST = 4
_FAILED_RATIO = 32.0


def scores(times_s: Sequence[float | None]) -> np.ndarray:
    """Return log(best time / time): 0 for the best, less for slower ones.

    Failed configs (None) and slower ones count as 32 times the best.
    """
    best = min((t for t in times_s if t is not None), default=1.0)
    return -np.log([min(t / best, _FAILED_RATIO) if t is not None else _FAILED_RATIO for t in times_s])


def levelled(expected: np.ndarray, labels: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Return the expected scores shifted by a constant so that they are right on average."""
    return expected + (np.average(labels - expected, weights=weight) if len(labels) else 0.0)


def is_enough(times_s: Sequence[float | None], fewest: int = FEWEST) -> bool:
    """Return whether there are enough measurements to train on."""
    return len(times_s) >= fewest and sum(t is not None for t in times_s) >= 2


class TransferData:
    """Features and scores of the configs of several tasks. Each score is relative to the task's own best."""

    def __init__(self) -> None:
        self._groups: list[tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray]] = []

    def __len__(self) -> int:
        """Return the number of tasks that have data."""
        return len(self._groups)

    def add(self, features: TaskFeatures, configs: Sequence[Config], times_s: Sequence[float | None]) -> None:
        """Add one task on one device, unless it has too few measurements."""
        if is_enough(times_s):
            self.add_rows(features.columns, features(configs), features.expected(configs), times_s)

    def add_rows(
        self, columns: tuple[str, ...], rows: np.ndarray, expected: np.ndarray, times_s: Sequence[float | None]
    ) -> None:
        """Add the measured kernels of one task.

        rows: their features, (kernels, columns)
        expected: their expected scores
        """
        labels = scores(times_s)
        self._groups.append((columns, rows, labels, levelled(expected, labels, np.exp(labels))))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the features of all tasks, without repetition."""
        return tuple(dict.fromkeys(name for columns, *_ in self._groups for name in columns))

    def joined(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """Return all rows over `columns`, their scores, expected scores, and weights. None if there is no data.

        Fast configs weigh more. All tasks weigh the same.
        """
        if not self._groups:
            return None
        columns, rows, labels, expected = zip(*self._groups, strict=True)
        rows = [aligned(task_rows, have, self.columns) for task_rows, have in zip(rows, columns, strict=True)]
        each = np.mean([len(scores) for scores in labels])
        weights = [each * np.exp(scores) / np.exp(scores).sum() for scores in labels]
        return np.concatenate(rows), np.concatenate(labels), np.concatenate(expected), np.concatenate(weights)
