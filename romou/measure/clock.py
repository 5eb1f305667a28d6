"""Whether a device throttles: a reference kernel, timed now and then, against its best time on the same device."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(kw_only=True)
class ClockWatch:
    """The reference kernel's times on one device.

    every_s: how long a ratio holds.   limit: the ratio above which the device should cool down.
    """

    every_s: float
    limit: float
    best_s: float | None = None
    ratio: float | None = None
    _asked_at: float | None = None
    _pause_s: float = 0.0
    _cooled_s: float = 0.0

    def is_due(self, now: float) -> bool:
        """Whether the kernel should be timed again."""
        return self._asked_at is None or now - self._asked_at >= self.every_s

    def tell(self, seconds: float, now: float, *, longest_s: float) -> float:
        """A new time of the kernel; for how many seconds the device should be left alone, and the kernel be timed again then. 0: go on.

        Pauses double. After `longest_s` of them in a row it goes on: hot days have no end, and the ratio tells.
        """
        self._asked_at = now
        self.best_s = seconds if self.best_s is None else min(self.best_s, seconds)
        self.ratio = seconds / self.best_s
        if self.ratio <= self.limit or self._cooled_s >= longest_s:
            self._pause_s = self._cooled_s = 0.0
            return 0.0
        self._pause_s = min(max(1.0, 2 * self._pause_s), longest_s - self._cooled_s)
        self._cooled_s += self._pause_s
        # Due again as soon as the pause is over.
        self._asked_at = None
        return self._pause_s
