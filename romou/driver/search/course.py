"""A call of `tune` in time: when it began, when its budget ends, and what it says meanwhile."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from romou.base.clock import Deadline
from romou.tuner.search.progress import Step

# The share of the search's time that the choice of kernels by times of the whole model may take.
CHOICE_SHARE = 0.1
# A search leaves this much of the budget for what follows it, but no more than this share.
_FINISH_S, _FINISH_COMPILES, _MOST_FINISH_SHARE = 5.0, 2.0, 0.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Course:
    """A call of `tune` in time.

    started: when it began, by `time.monotonic`.
    deadline: the end of the seconds that the user gave. They count from the search on: the model is compiled by then.
    left_for_finish_s: the part of these seconds that the search leaves for the choice, the checks and the times.
    doing: says what is done in a block, if that takes more than two seconds.
    """

    started: float = dataclasses.field(default_factory=time.monotonic)
    deadline: Deadline = dataclasses.field(default_factory=Deadline)
    left_for_finish_s: float = 0.0
    doing: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext()

    @classmethod
    def of(cls, is_wanted: bool | None) -> Course:
        """Return the course of a call that begins now. is_wanted: see `progress_of`."""
        return cls(doing=lambda what: Step(what, is_wanted))

    def searching(self, seconds: float | None) -> Course:
        """Return the course of a search that begins now. seconds: its budget, with what follows. None: no limit."""
        if seconds is None:
            return self
        left_s = min(_MOST_FINISH_SHARE * seconds, _FINISH_S + _FINISH_COMPILES * self.seconds)
        return dataclasses.replace(self, deadline=Deadline(seconds), left_for_finish_s=left_s)

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self.started

    def may_choose(self) -> Callable[[], bool]:
        """Return a function that says whether a choice of kernels, which begins now, may go on."""
        stop_at = time.monotonic() + CHOICE_SHARE * self.seconds
        return lambda: time.monotonic() < stop_at and not self.deadline.is_over
