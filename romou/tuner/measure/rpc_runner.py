"""A runner for devices behind RPC servers, which continues when servers die, hang or throttle.

Each candidate has a separate session, in a local process that can be killed: connect, upload, run, end. A
candidate's leftovers end with the session, and the next candidate uses any free device. A failure before the candidate
runs counts against the device, which is tried again and finally set aside. After a failure during the run the
candidate is tried once more, and then counts as failed.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from pathlib import Path
from typing import Any

from romou.base.errors import CompatError, ConnectionLostError, DeviceError, first_line
from romou.base.outcome import Outcome
from romou.devices.backends import DEFAULT_KIND, backend
from romou.runtime.rpc import Address
from romou.runtime.rpc.connection import TELL_S, is_loopback, telling
from romou.runtime.rpc.tracker import Tracker
from romou.runtime.workers.child import ChildCrashError, ChildProcess, ChildTimeoutError, seconds_left
from romou.tuner.measure.fingerprint import DeviceFingerprint, split_device
from romou.tuner.measure.measure_options import MeasureOptions
from romou.tuner.measure.runner import CheckingRunner, run_spec, timed_out
from romou.tuner.measure.servers import GO_ON, Servers
from romou.tuner.measure.types import BuildResult, RunReply, Toolchain

logger = logging.getLogger("romou")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
# Interval of checks whether the run is to end, while waiting for the tracker.
_SLICE_S = 2.0
# Silence that is always told of.
_LATEST_TELL_S = 10.0
_UPLOADS = 5
_END_S = 5.0

_TROUBLE = (ConnectionLostError, ChildTimeoutError, ChildCrashError)


@dataclasses.dataclass(kw_only=True)
class _Lane:
    """The process of one session at a time, and a connection to the tracker."""

    child: ChildProcess
    tracker: Tracker | None
    is_open: bool = False


class RpcRunner(CheckingRunner):
    """A `Runner` for the server at an address, or all servers under the key of a tracker.

    `width` threads may call `run`. All devices must have the kind and driver of the first one. Others are set aside.

    kind, device_name: the target's. "host" is the server's CPU, any other name its first device.
    folder: see `CheckingRunner`.

    Raises
    ------
    DeviceError
        The tracker has no server with this key.
    ConnectionLostError
        The tracker does not answer.
    """

    def __init__(
        self,
        address: Address,
        options: MeasureOptions | None = None,
        *,
        kind: str = DEFAULT_KIND,
        device_name: str | None = None,
        toolchain: Toolchain | None = None,
        folder: Path | None = None,
    ) -> None:
        super().__init__(options, toolchain, folder)
        self._address = address
        self._kind = kind
        self._device_name = device_name
        self._servers = Servers(address, self._options)
        self._lanes: list[_Lane] = []
        self._idle: queue.SimpleQueue[_Lane] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._facts: dict[str, Any] | None = None
        self._host = ""
        self._device = ""
        self._is_here = False
        self._slowest_open_s = 0.0
        self._last_trouble = ""
        self._add_lanes(1)
        self._closing = threading.Event()

    @property
    def width(self) -> int:
        """Return the current number of servers not set aside. Only one thread may call it at a time."""
        width = self._servers.count()
        self._add_lanes(width)
        return width

    def _add_lanes(self, count: int) -> None:
        for _ in range(count - len(self._lanes)):
            tracker = Tracker(self._address) if self._address.is_tracker else None
            self._lanes.append(_Lane(child=ChildProcess("connection"), tracker=tracker))
            self._idle.put(self._lanes[-1])

    @property
    def facts(self) -> dict[str, Any]:
        """Return the device's facts, see `Backend.list_devices`. Errors as in `fingerprint`."""
        if self._facts is None:
            lane = self._idle.get()
            try:
                self._open(lane, None, with_clock=False)
                self._end(lane)
            finally:
                self._idle.put(lane)
        assert self._facts is not None
        return self._facts

    @property
    def host(self) -> str:
        """The LLVM triple of the device's machine. Errors as in `fingerprint`."""
        return self._host if self.facts else ""

    @property
    def device(self) -> str:
        """The device at the server, "opencl:0". Errors as in `fingerprint`."""
        return self._device if self.facts else ""

    def fingerprint(self) -> DeviceFingerprint:
        """Return name, driver and platform of the devices.

        DeviceError, ConnectionLostError or CompatError if there is no usable device, see `romou.runtime.rpc.connect`.
        """
        return self._fingerprint_of(self.facts)

    def sensors(self, root: str = "/sys") -> dict[str, dict[str, int]]:
        """Return the clocks and temperatures that the server can read below `root`. Errors as in `fingerprint`."""
        lane = self._idle.get()
        try:
            self._open(lane, None, with_clock=False)
            return dict(lane.child.call("romou.tuner.measure.rpc_job:sensors", root, timeout_s=_END_S))
        finally:
            self._end(lane)
            self._idle.put(lane)

    def _fingerprint_of(self, facts: dict[str, Any]) -> DeviceFingerprint:
        return DeviceFingerprint.of_facts(self._kind, facts, is_here=self._is_here)

    def _run_one(self, built: BuildResult, reference: str, best_s: float, stop_at: float | None) -> RunReply | None:
        # The first device determines which device is meant.
        self.fingerprint()
        lane = self._idle.get()
        try:
            return self._run_on(lane, built, reference, best_s, stop_at)
        finally:
            self._idle.put(lane)

    def _run_on(
        self, lane: _Lane, built: BuildResult, reference: str, best_s: float, stop_at: float | None
    ) -> RunReply | None:
        """Return the reply of a candidate. None if `stop_at` came first.

        The candidate is tried once more if a server failed during its run.
        """
        options = self._options
        spec = run_spec(built, reference, self._device, best_s, options)
        name = f"{built.entry}.so"
        started = time.monotonic()
        troubles: list[tuple[str, Exception]] = []
        uploads = 0
        while True:
            server = self._open(lane, stop_at)
            if server is None:
                return None
            try:
                lane.child.call(
                    "romou.tuner.measure.rpc_job:upload", spec.library, name, timeout_s=options.upload_timeout_s
                )
            except (*_TROUBLE, DeviceError) as error:
                uploads += 1
                self._end(lane)
                self._servers.blame(server, error)
                if uploads == _UPLOADS:
                    raise DeviceError(
                        f"{name} could not be sent in {uploads} attempts, the last to {server}: {first_line(error)}",
                        hint=GO_ON,
                    ) from error
                continue
            limit_s = min(options.run_timeout_s, seconds_left(stop_at))
            try:
                reply = lane.child.call("romou.tuner.measure.rpc_job:run", spec, name, timeout_s=limit_s)
            except _TROUBLE as error:
                if self._closing.is_set() or (limit_s < options.run_timeout_s and isinstance(error, ChildTimeoutError)):
                    return None
                troubles.append((server, error))
                logger.info("%s failed under %s: %s", server, built.entry, first_line(error))
                if len(troubles) == 2:
                    reply = _blamed(troubles, options)
                    break
            else:
                assert isinstance(reply, RunReply)
                self._servers.praise(server)
                for other, trouble in troubles:
                    if other != server:
                        self._servers.blame(other, trouble)
                break
            finally:
                self._end(lane)
        clock = self._servers.clock(server)
        if reply.clock_s:
            clock.note(*reply.clock_s)
        return dataclasses.replace(reply, run_s=time.monotonic() - started, clock_ratio=clock.ratio)

    def _open(self, lane: _Lane, stop_at: float | None, *, with_clock: bool = True) -> str | None:
        """Start a session with a healthy, cool device. Return its server's name, or None if `stop_at` came first."""
        # A server that is slow to answer is no news the second time.
        after_s = min(max(TELL_S, 2 * self._slowest_open_s), _LATEST_TELL_S)
        with telling(self._tell_of_silence, after_s):
            return self._open_patiently(lane, stop_at, with_clock=with_clock)

    def _open_patiently(self, lane: _Lane, stop_at: float | None, *, with_clock: bool) -> str | None:
        retry_s = _FIRST_PAUSE_S
        while not self._closing.is_set() and seconds_left(stop_at) > 0:
            server: Address | None = None
            try:
                server = self._next_server(lane, stop_at)
                if server is None:
                    self._give_up_if_unreachable(
                        ConnectionLostError(
                            f"no device of {self._address} was free for {self._options.unreachable_s:g} s"
                        )
                    )
                    continue
                pause_s = self._begin(lane, server, with_clock=with_clock)
            except _TROUBLE as error:
                self._end(lane)
                if server is not None:
                    self._servers.blame(server.where, error)
                self._last_trouble = first_line(error)
                self._give_up_if_unreachable(error)
                self._pause(retry_s, stop_at)
                retry_s = min(2 * retry_s, _LONGEST_PAUSE_S)
                continue
            except (DeviceError, CompatError) as error:
                # Waiting fixes none of these.
                self._end(lane)
                if server is None or not self._address.is_tracker:
                    raise
                self._servers.set_aside(server.where, error)
                continue
            if pause_s == 0:
                return server.where
            self._end(lane)
            logger.info(
                "%s runs at %.2f of its speed; leaving it alone for %g s",
                server.where,
                1 / (self._servers.clock(server.where).ratio or 1),
                pause_s,
            )
            self._pause(pause_s, stop_at)
        return None

    def _next_server(self, lane: _Lane, stop_at: float | None) -> Address | None:
        """Return a server reserved for a session. None if none was free for a while.

        DeviceError if all of the tracker's servers are set aside.
        """
        if lane.tracker is None:
            return self._address
        server = lane.tracker.request(min(_SLICE_S, seconds_left(stop_at)))
        if server is None or not self._servers.is_aside(server, lane.tracker):
            return server
        self._pause(_FIRST_PAUSE_S, stop_at)
        return None

    def _begin(self, lane: _Lane, server: Address, *, with_clock: bool) -> float:
        """Connect, and check the device and its clock. Return the seconds that it has to cool down first."""
        options, started = self._options, time.monotonic()
        # The server's limit is longer, and only counts if the connection is lost.
        limit_s = 2 * options.connect_timeout_s + options.upload_timeout_s + 2 * options.run_timeout_s
        arguments = (server, self._kind, options.connect_timeout_s, limit_s)
        devices, host = lane.child.call(
            "romou.tuner.measure.rpc_job:connect", *arguments, timeout_s=3 * options.connect_timeout_s
        )
        index = backend(self._kind).device_index(self._device_name, list(devices))
        facts = devices[index]
        with self._lock:
            if self._facts is None:
                self._facts, self._host, self._device = facts, host, f"{self._kind}:{index}"
                self._is_here = is_loopback(server.host)
        clock = self._servers.clock(server.where)
        if (fingerprint := self._fingerprint_of(facts)) != (
            wanted := self._fingerprint_of(self._facts)
        ) or split_device(self._device)[1] != index:
            raise DeviceError(
                f"{server.where} is another device: {fingerprint.name}, driver {fingerprint.driver};"
                f" measured on {wanted.name}, driver {wanted.driver}"
            )
        pause_s = 0.0
        if with_clock and clock.is_due(time.monotonic()):
            seconds = lane.child.call(
                "romou.tuner.measure.rpc_job:clock_check",
                self._device,
                options.hold_clock_ms,
                timeout_s=options.connect_timeout_s,
            )
            pause_s = clock.tell(
                seconds, time.monotonic(), longest_s=0.0 if facts["type"] == "cpu" else options.cool_down_s
            )
        lane.is_open = True
        self._servers.heard()
        self._slowest_open_s = max(self._slowest_open_s, time.monotonic() - started)
        self._last_trouble = ""
        return pause_s

    def _end(self, lane: _Lane) -> None:
        """End the lane's session, by force if necessary."""
        lane.is_open = False
        if self._closing.is_set():
            # A call would start the process anew.
            lane.child.kill()
            return
        try:
            lane.child.call("romou.tuner.measure.rpc_job:disconnect", timeout_s=_END_S)
        except _TROUBLE:
            lane.child.kill()

    def _give_up_if_unreachable(self, error: Exception) -> None:
        if self._is_new_server():
            # The address is more likely wrong than the server about to come back.
            raise (
                error
                if isinstance(error, ConnectionLostError)
                else ConnectionLostError(f"{self._address}: {first_line(error)}")
            ) from error
        limit_s = self._options.unreachable_s
        if not self._is_answering(limit_s):
            raise DeviceError(
                f"no device answered for unreachable_s = {limit_s:g} s; the last error: {first_line(error)}", hint=GO_ON
            ) from error

    def _tell_of_silence(self) -> None:
        """Warn that no device answers."""
        if self._closing.is_set() or self._is_answering(TELL_S):
            return
        options, trouble = self._options, self._last_trouble and f" ({self._last_trouble})"
        limit_s = options.connect_timeout_s if self._is_new_server() else options.unreachable_s
        logger.warning("no answer from %s yet%s; trying for up to %g s", self._address, trouble, limit_s)

    def _is_answering(self, within_s: float) -> bool:
        """Return whether a session is open, or a device has answered in the last `within_s` seconds."""
        return any(lane.is_open for lane in self._lanes) or self._servers.silent_s() <= within_s

    def _is_new_server(self) -> bool:
        return self._facts is None and not self._address.is_tracker

    def _pause(self, seconds: float, stop_at: float | None) -> None:
        self._closing.wait(min(seconds, seconds_left(stop_at)))

    def close(self) -> None:
        """End the processes, also in the middle of a candidate, and remove the temporary folder."""
        self._closing.set()
        for lane in self._lanes:
            lane.child.kill()
            if lane.tracker is not None:
                lane.tracker.close()
        self._servers.close()
        self._references.close()


def _blamed(troubles: list[tuple[str, Exception]], options: MeasureOptions) -> RunReply:
    """Return the reply of a candidate after two sessions failed during its runs."""
    texts = "; ".join(f"on {server}: {first_line(error)}" for server, error in troubles)
    if all(isinstance(error, ChildTimeoutError) for _, error in troubles):
        reply = timed_out(options)
        return dataclasses.replace(reply, error=f"{reply.error}, twice ({texts})")
    return RunReply(outcome=Outcome.RUN_ERROR, error=f"took the server down twice: {texts}")
