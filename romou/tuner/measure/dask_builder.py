"""Builds candidates on the workers of a dask scheduler."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any

from romou.base.errors import CompatError, ConnectionLostError, first_line
from romou.base.outcome import Outcome
from romou.devices.targets import Target
from romou.runtime.rpc.connection import patiently
from romou.runtime.workers.child import seconds_left
from romou.tuner.measure import dask_job
from romou.tuner.measure.build_processes import Built
from romou.tuner.measure.builder import FolderBuilder
from romou.tuner.measure.dask_scheduler import SchedulerAddress, connect
from romou.tuner.measure.measure_options import MeasureOptions
from romou.tuner.measure.servers import GO_ON
from romou.tuner.measure.types import Toolchain

_POLL_S = 1.0
# Time limit for a worker's identity: the worker imports TVM first.
_IDENTITY_S = 60.0
# Threads only wait. Above this number of concurrent builds, a further build waits for a thread.
_MOST_THREADS = 1024


class DaskBuilder(FolderBuilder):
    """A `Builder` on the workers of a dask scheduler. Each candidate is built in a child process of a worker.

    Workers may come and go. The builds of a lost worker are repeated by another one, and a new worker gets its share
    with the next candidates. Each worker needs the tuner's versions of Romou and TVM. Workers have no device, so the
    device's compiler compiles kernels when they run.

    address: "dask://host:8786".
    is_trusted: the scheduler may be on another machine, reached without TLS (`dask_scheduler.connect`).

    Raises
    ------
    UsageError
        The address has another form or is not trusted, or dask is not installed.
    ConnectionLostError
        No scheduler answers within `connect_timeout_s`, it has no worker by then, or it later has none for
        `unreachable_s`.
    CompatError
        A worker has other versions, or its answer is no build.
    """

    def __init__(
        self,
        address: str,
        target: Target,
        options: MeasureOptions | None = None,
        *,
        toolchain: Toolchain | None = None,
        folder: Path | None = None,
        is_trusted: bool = False,
    ) -> None:
        self.address = address
        self._client = connect(
            SchedulerAddress.parse(address), (options or MeasureOptions()).connect_timeout_s, is_trusted=is_trusted
        )
        super().__init__(target, options, toolchain, folder, most=_MOST_THREADS)
        self._lock = threading.Lock()
        self._asked_at, self._count, self._seen_at = -math.inf, 0, time.monotonic()
        try:
            self._expected = dask_job.identity(self._target_json)
            self._check_workers()
        except BaseException:
            self.close()
            raise

    def _check_workers(self) -> None:
        timeout_s = self._options.connect_timeout_s
        try:
            self._client.wait_for_workers(1, timeout=timeout_s)
            end = time.monotonic() + max(timeout_s, _IDENTITY_S)
            identities = patiently(lambda: self._client.run(dask_job.identity, self._target_json), end)
        except ImportError as error:
            raise _without_romou(self.address, error) from None
        except (OSError, TimeoutError):
            hint = "Start some in Romou's environment: dask worker tcp://HOST:PORT --nthreads CORES"
            raise ConnectionLostError(
                f"the dask scheduler at {self.address} has no worker within connect_timeout_s = {timeout_s:g} s",
                hint=hint,
            ) from None
        for worker, identity in identities.items():
            if not isinstance(identity, dict):
                raise _not_a_build(self.address, identity)
            dask_job.check_same(self._expected, identity, f"dask worker {worker}")

    @property
    def workers(self) -> int:
        """Number of concurrent builds: `build_workers`, or the threads of all current workers."""
        return self._options.build_workers or max(1, self._threads_there())

    def _threads_there(self) -> int:
        with self._lock:
            now = time.monotonic()
            if now - self._asked_at >= _POLL_S:
                try:
                    self._count = sum(self._client.nthreads().values())
                except (OSError, RuntimeError, TypeError, AttributeError):
                    # While the client reconnects, there is no scheduler to query.
                    self._count = 0
                self._asked_at = time.monotonic()
                self._seen_at = self._asked_at if self._count else self._seen_at
            return self._count

    def _build(
        self, job: tuple[Any, ...], entry: str, library: Path, limit_s: float, stop_at: float | None
    ) -> Built | None:
        from concurrent.futures import CancelledError

        import distributed
        from distributed.client import ClosedClientError
        from distributed.comm.core import CommClosedError

        future = None
        while True:
            try:
                if future is None:
                    future = self._client.submit(
                        dask_job.build, self._expected, job, entry, self._options.build_timeout_s, pure=False
                    )
                answer = future.result(timeout=_POLL_S)
                break
            except distributed.KilledWorker as error:
                return Outcome.BUILD_ERROR, 0.0, f"each dask worker that built it died: {first_line(error)}", (), ()
            except ImportError as error:
                raise _without_romou(self.address, error) from None
            except distributed.TimeoutError:
                pass
            except (CancelledError, CommClosedError, ClosedClientError, RuntimeError) as error:
                if self._client.status == "closed":
                    raise self._lost(f"is gone: {first_line(error)}") from None
                if isinstance(error, RuntimeError) and self._client.status == "running":
                    raise
                # The connection was cut, and the scheduler lost the build. The client reconnects.
                future = None
                time.sleep(_POLL_S)
            if seconds_left(stop_at) <= 0:
                if future is not None:
                    future.cancel()
                return None
            if not self._threads_there() and time.monotonic() - self._seen_at > self._options.unreachable_s:
                raise self._lost(f"has had no worker for unreachable_s = {self._options.unreachable_s:g} s")
        built, content = _checked(answer, self.address)
        library.write_bytes(content)
        return built

    def _lost(self, how: str) -> ConnectionLostError:
        return ConnectionLostError(f"the dask scheduler at {self.address} {how}", hint=GO_ON)

    def _end_builds(self) -> None:
        self._client.close()


def _checked(answer: Any, address: str) -> tuple[Built, bytes]:
    """Return a worker's answer if it has the form of a `dask_job.build` result. CompatError otherwise."""
    match answer:
        case ((Outcome() as outcome, float(), None | str(), tuple() as scopes, tuple() as stored), bytes() as content):
            is_text = all(isinstance(scope, str) for scope in scopes)
            is_ours = all(
                form is None or type(form).__module__.partition(".")[0] == __package__.partition(".")[0]
                for form in stored
            )
            if is_text and is_ours and len(scopes) == len(stored) and (outcome == Outcome.OK) == bool(content):
                return (outcome, answer[0][1], answer[0][2], scopes, stored), content
    raise _not_a_build(address, answer)


def _not_a_build(address: str, answer: Any) -> CompatError:
    return CompatError(
        f"a worker of {address} answered {str(answer)[:80]!r}, which is no build", hint="Is that scheduler yours?"
    )


def _without_romou(address: str, error: ImportError) -> CompatError:
    return CompatError(
        f"a worker of {address} cannot import Romou: {first_line(error)}",
        hint="Start it in an environment where Romou is installed.",
    )
