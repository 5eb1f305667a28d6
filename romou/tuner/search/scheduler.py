"""Shares trials among the tasks of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass
class Progression:
    """The trials of one task so far. Times in seconds. None for a failed trial.

    others_s: best time of other tasks that together compute the same, or None.
    """

    calls: int
    times: list[float | None] = dataclasses.field(default_factory=list)
    is_exhausted: bool = False
    others_s: float | None = None

    @property
    def best_s(self) -> float | None:
        """The best time. None if no trial worked yet."""
        return min((t for t in self.times if t is not None), default=None)

    @property
    def since_improvement(self) -> int:
        """Trials since the best time was found."""
        best = self.best_s
        if best is None:
            return len(self.times)
        return len(self.times) - 1 - self.times.index(best)

    @property
    def is_hopeless(self) -> bool:
        """Whether the task is much slower than others that compute the same.

        The accepted ratio falls with its trials: 9 after the first one, 3 after four, 1.5 after sixteen.
        """
        best = self.best_s
        if self.others_s is None or not self.times:
            return False
        return best is None or best > (1 + 8 / len(self.times)) * self.others_s

    def gain(self) -> float:
        """Return the seconds that another batch is expected to save in a run of the model, up to a constant factor.

        On the recorded spaces a batch of four saves 31% after the first trial, 6% after 3 trials, 1% after 12 and 0.03%
        after 48, and less the longer there was no improvement. So a task that costs a hundredth of another one gets its
        first batch when the other one has had about thirty trials. A task that is slower than others that compute the
        same saves nothing until it is faster, which is less likely the slower it is.
        """
        best = self.best_s
        if best is None:
            return float("inf") if len(self.times) < 16 else 0.0
        used = best if self.others_s is None else min(best, self.others_s)
        likely = (used / best) ** 2
        return float(self.calls * used * likely / (len(self.times) ** 1.2 * (1 + self.since_improvement / 8)))


def next_task(tasks: Sequence[Progression], *, patience: int) -> int | None:
    """Return the index of the task with the largest expected gain. None if all are exhausted.

    Tasks without a trial come first, in order, so that a complete model exists early. A task without an improvement for
    `patience` trials waits until all others are in the same state.
    """
    for index, task in enumerate(tasks):
        if not task.times and not task.is_exhausted:
            return index
    left = [i for i, task in enumerate(tasks) if not task.is_exhausted]
    improving = [i for i in left if tasks[i].since_improvement < patience]
    # Of tasks without a time yet, the one with the fewest trials.
    return max(improving or left, key=lambda i: (tasks[i].gain(), -len(tasks[i].times)), default=None)
