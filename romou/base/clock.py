"""The time of day, as files have it, and the end of a budget of seconds."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable


def timestamp() -> str:
    """Return the time now in UTC, to the second, in ISO 8601."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


class Deadline:
    """The time at which a budget of seconds is spent. It counts from now.

    seconds: None for no limit.
    clock: returns seconds, as `time.monotonic`.
    """

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stop_at = math.inf if seconds is None else clock() + seconds

    @property
    def left_s(self) -> float:
        """The seconds that are left, never below zero. Infinite without a limit."""
        return max(0.0, self._stop_at - self._clock())

    @property
    def is_over(self) -> bool:
        """True if no time is left."""
        return self.left_s == 0.0

    def before(self, seconds: float) -> float | None:
        """Return the moment on the clock that is this long before the end. None without a limit."""
        return None if math.isinf(self._stop_at) else self._stop_at - seconds
