"""Shares trials among the tasks of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass
class Progression:
    """The trials of one task so far; times in seconds."""

    calls: int
    times: list[float | None] = dataclasses.field(default_factory=list)
    is_exhausted: bool = False

    @property
    def best_s(self) -> float | None:
        """The best time; None as long as nothing worked."""
        return min((t for t in self.times if t is not None), default=None)

    @property
    def since_improvement(self) -> int:
        """Trials since the best time was found."""
        best = self.best_s
        if best is None:
            return len(self.times)
        return len(self.times) - 1 - self.times.index(best)

    def is_hopeless_beside(self, others: Sequence[Progression]) -> bool:
        """Whether a task that does what others do together is so much slower than they are that trials of it are in
        vain.

        The more trials it had, the less it may be slower: nine times after the first one, three times after four, half
        as much again after sixteen.
        """
        best, theirs = self.best_s, [other.best_s for other in others]
        if not others or not self.times or None in theirs:
            return False
        return best is None or best > (1 + 8 / len(self.times)) * sum(t for t in theirs if t is not None)

    def gain(self) -> float:
        """Seconds a run of the model may win by another batch, up to a factor: what the task costs now, times what
        share of that is still won.

        On the recorded spaces of benchmarks/data a batch of four after the first trial wins 31%, 6% after 3 trials, 1%
        after 12, 0.03% after 48, and the less, the longer nothing was won. So a task that costs a hundredth of another
        one has its first batch when that has had some thirty trials.
        """
        best = self.best_s
        if best is None:
            return float("inf") if len(self.times) < 16 else 0.0
        return float(self.calls * best / (len(self.times) ** 1.2 * (1 + self.since_improvement / 8)))


def next_task(tasks: Sequence[Progression], *, patience: int) -> int | None:
    """The index of the task with the largest expected gain; None when all are exhausted.

    Tasks without any trial come first, in order, so that a complete model exists early. A task that ran out of patience
    waits until all others did too.
    """
    for index, task in enumerate(tasks):
        if not task.times and not task.is_exhausted:
            return index
    left = [i for i, task in enumerate(tasks) if not task.is_exhausted]
    improving = [i for i in left if tasks[i].since_improvement < patience]
    return max(improving or left, key=lambda i: tasks[i].gain(), default=None)
