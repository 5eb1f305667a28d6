"""Builds candidates on the workers of a dask scheduler."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from romou.core.errors import CompatError, ConnectionLostError, UsageError
from romou.core.outcome import Outcome
from romou.measure import dask_job
from romou.measure.build_processes import Built
from romou.measure.builder import FolderBuilder
from romou.measure.child import seconds_left
from romou.measure.options import MeasureOptions
from romou.measure.servers import GO_ON, first_line
from romou.measure.types import Toolchain
from romou.target import Target

if TYPE_CHECKING:
    import distributed

_SCHEME = "dask://"
_POLL_S = 1.0
# Threads only wait; more builds than this at a time wait for one of them.
_MOST_THREADS = 1024


class DaskBuilder(FolderBuilder):
    """`Builder` whose candidates are built by the workers of a dask scheduler, each in a child process of the worker.

    Workers may come and go: what a lost one had is built by another one, and one that comes has its share from the next candidates on. Each has to have
    the tuner's versions of Romou and TVM. Kernels reach the device's compiler when they run, as a worker has no device.

    address: "dask://host:8786".

    UsageError for an address of another form, or where dask is not installed. ConnectionLostError where no scheduler answers within `connect_timeout_s`, has
    no worker by then, or is without one for `unreachable_s` later on. CompatError where a worker has other versions.
    """

    def __init__(
        self, address: str, target: Target, options: MeasureOptions | None = None, *, toolchain: Toolchain | None = None, folder: Path | None = None
    ) -> None:
        self.address = address
        self._client = _connect(address, (options or MeasureOptions()).connect_timeout_s)
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
            found = self._client.run(dask_job.identity, self._target_json)
        except ImportError as error:
            raise _without_romou(self.address, error) from None
        except (OSError, TimeoutError):
            hint = "Start some in Romou's environment: dask worker tcp://HOST:PORT --nthreads CORES"
            raise ConnectionLostError(f"the dask scheduler at {self.address} has no worker within connect_timeout_s = {timeout_s:g} s", hint=hint) from None
        for worker, identity in found.items():
            dask_job.check_same(self._expected, identity, f"dask worker {worker}")

    @property
    def workers(self) -> int:
        """Builds at a time: `build_workers`, or the threads of all workers that are there now."""
        return self._options.build_workers or max(1, self._threads_there())

    def _threads_there(self) -> int:
        with self._lock:
            now = time.monotonic()
            if now - self._asked_at >= _POLL_S:
                try:
                    self._count = sum(self._client.nthreads().values())
                except (OSError, RuntimeError, TypeError, AttributeError):
                    # While the client connects again it has no scheduler to ask.
                    self._count = 0
                self._asked_at = time.monotonic()
                self._seen_at = self._asked_at if self._count else self._seen_at
            return self._count

    def _build(self, job: tuple[Any, ...], entry: str, library: Path, limit_s: float, stop_at: float | None) -> Built | None:
        from concurrent.futures import CancelledError

        import distributed
        from distributed.client import ClosedClientError
        from distributed.comm.core import CommClosedError

        future = None
        while True:
            try:
                if future is None:
                    future = self._client.submit(dask_job.build, self._expected, job, entry, self._options.build_timeout_s, pure=False)
                built, content = future.result(timeout=_POLL_S)
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
                # The connection was cut, and what it had is lost with the scheduler; the client connects again.
                future = None
                time.sleep(_POLL_S)
            if seconds_left(stop_at) <= 0:
                if future is not None:
                    future.cancel()
                return None
            if not self._threads_there() and time.monotonic() - self._seen_at > self._options.unreachable_s:
                raise self._lost(f"has had no worker for unreachable_s = {self._options.unreachable_s:g} s")
        library.write_bytes(content)
        return built

    def _lost(self, how: str) -> ConnectionLostError:
        return ConnectionLostError(f"the dask scheduler at {self.address} {how}", hint=GO_ON)

    def _end_builds(self) -> None:
        self._client.close()


def _connect(address: str, timeout_s: float) -> distributed.Client:
    if not address.startswith(_SCHEME) or len(address) == len(_SCHEME):
        raise UsageError(f"builders={address!r}: expected {_SCHEME}HOST:PORT, the address of a dask scheduler", hint="For example dask://localhost:8786")
    try:
        import distributed
    except ImportError:
        raise UsageError(f"builders={address!r} needs dask, which is not installed", hint="pip install romou[dask]") from None
    # What it says of a lost connection comes as an error of ours.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return distributed.Client(f"tcp://{address.removeprefix(_SCHEME)}", timeout=timeout_s, set_as_default=False, name="romou")
    except (OSError, ValueError) as error:
        hint = "`dask scheduler` starts one; a firewall may be in the way."
        raise ConnectionLostError(f"no dask scheduler answers at {address}: {first_line(error)}", hint=hint) from None


def _without_romou(address: str, error: ImportError) -> CompatError:
    return CompatError(f"a worker of {address} cannot import Romou: {first_line(error)}", hint="Start it in an environment where Romou is installed.")
