"""State of the servers at an address.

It has their number, the ones set aside, the time of the last answer, and the speed of their clocks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time

from romou.base.errors import ConnectionLostError, DeviceError, first_line
from romou.runtime.rpc import Address
from romou.runtime.rpc.tracker import Tracker
from romou.tuner.measure.measure_options import MeasureOptions

logger = logging.getLogger("romou")

# A server is set aside after this many consecutive failures, if there are other servers.
_FAILURES = 3
GO_ON = "What was measured is recorded; the same call goes on where it stopped."


@dataclasses.dataclass(kw_only=True)
class _Server:
    """A server's state. reason: why it was set aside, or None."""

    clock: ClockWatch
    failures: int = 0
    reason: str | None = None


class Servers:
    """The servers under the key of a tracker, or the one server at an address. Several threads may share it.

    DeviceError if the tracker has no server with this key. ConnectionLostError if the tracker does not answer.
    """

    def __init__(self, address: Address, options: MeasureOptions) -> None:
        self.address = address
        self._options = options
        self._tracker = Tracker(address) if address.is_tracker else None
        if self._tracker is not None:
            self._tracker.check_key()
        self._lock = threading.Lock()
        self._known: dict[str, _Server] = {}
        self._last_contact = time.monotonic()
        self._count = 1

    def count(self) -> int:
        """Return the current number of servers not set aside: a tracker's servers come and go.

        Only one thread may call it at a time.
        """
        if self._tracker is None:
            return 1
        # While the tracker is unreachable, the servers are taken as unchanged.
        with contextlib.suppress(ConnectionLostError):
            self._count = max(1, len({*self._tracker.servers().get(self.address.key, ())} - set(self.aside())))
        return self._count

    def aside(self) -> dict[str, str]:
        with self._lock:
            return {where: server.reason for where, server in self._known.items() if server.reason is not None}

    def is_aside(self, server: Address, tracker: Tracker) -> bool:
        """Return whether a server from `tracker` is set aside. DeviceError if all of the tracker's servers are."""
        aside = self.aside()
        if server.where not in aside:
            return False
        if set(tracker.servers().get(self.address.key, [])) <= set(aside):
            raise DeviceError(
                f"no device is left: {'; '.join(f'{where}: {reason}' for where, reason in aside.items())}", hint=GO_ON
            )
        return True

    def clock(self, where: str) -> ClockWatch:
        with self._lock:
            return self._at(where).clock

    def heard(self) -> None:
        """Record that a server answered now."""
        with self._lock:
            self._last_contact = time.monotonic()

    def silent_s(self) -> float:
        """Return the seconds since a server answered."""
        with self._lock:
            return time.monotonic() - self._last_contact

    def praise(self, where: str) -> None:
        """Record that a candidate ran on a server."""
        with self._lock:
            self._at(where).failures = 0
            self._last_contact = time.monotonic()

    def blame(self, where: str, error: Exception) -> None:
        """Record a failure that no candidate caused."""
        with self._lock:
            server = self._at(where)
            server.failures += 1
            failures = server.failures
        if failures >= _FAILURES and self.address.is_tracker:
            self.set_aside(where, DeviceError(f"failed {failures} times in a row, the last time: {first_line(error)}"))

    def set_aside(self, where: str, error: Exception) -> None:
        """Exclude a server from the rest of this run."""
        with self._lock:
            server = self._at(where)
            is_new = server.reason is None
            server.reason = first_line(error)
        if is_new:
            logger.warning("%s is set aside for the rest of this run: %s", where, first_line(error))

    def _at(self, where: str) -> _Server:
        watch = ClockWatch(every_s=self._options.clock_every_s, limit=self._options.clock_limit)
        return self._known.setdefault(where, _Server(clock=watch))

    def close(self) -> None:
        if self._tracker is not None:
            self._tracker.close()


@dataclasses.dataclass(kw_only=True)
class ClockWatch:
    """The reference kernel's times on one device.

    every_s: seconds before a ratio is measured again
    limit: the ratio above which the device should cool down
    """

    every_s: float
    limit: float
    best_s: float | None = None
    ratio: float | None = None
    _asked_at: float | None = None
    _pause_s: float = 0.0
    _cooled_s: float = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether the kernel should be timed again."""
        return self._asked_at is None or now - self._asked_at >= self.every_s

    def note(self, *seconds: float) -> None:
        """Record new times of the kernel, the slowest of which is compared with the best one so far."""
        self.best_s = min(seconds if self.best_s is None else (self.best_s, *seconds))
        self.ratio = max(seconds) / self.best_s

    def tell(self, seconds: float, now: float, *, longest_s: float) -> float:
        """Record a new time of the kernel. Return the seconds to cool down before the next one. 0 to continue.

        Pauses double. After `longest_s` of consecutive pauses the search continues: hot days do not end, and the ratio
        is recorded.
        """
        self._asked_at = now
        self.note(seconds)
        assert self.ratio is not None
        if self.ratio <= self.limit or self._cooled_s >= longest_s:
            self._pause_s = self._cooled_s = 0.0
            return 0.0
        self._pause_s = min(max(1.0, 2 * self._pause_s), longest_s - self._cooled_s)
        self._cooled_s += self._pause_s
        # Due again as soon as the pause is over.
        self._asked_at = None
        return self._pause_s
