"""Finished trials, as passed to a caller's callback."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

from romou.base.knob import Choice
from romou.base.outcome import Outcome


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """A finished trial.

    task      name of the kernel
    number    1 for the first trial. Trials in the records are counted before it
    config    knob -> choice
    outcome   how the trial ended. Equal to its text, "ok"
    time_s    median of one call in seconds. None unless the outcome is OK
    best_s    the task's best time so far in seconds, this trial included. None if none worked yet
    model_s   the best times of all tasks so far, over all their calls, in seconds. None until each task has a kernel.
              Tasks that keep their default schedule without a trial are not in it
    error     why the trial failed. None if the outcome is OK
    """

    task: str
    number: int
    config: Mapping[str, Choice]
    outcome: Outcome
    time_s: float | None
    best_s: float | None
    model_s: float | None = None
    error: str | None = None


# Called with each finished trial. True ends the search.
TrialCallback: TypeAlias = "Callable[[Trial], bool | None]"
