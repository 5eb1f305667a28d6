"""Whole models on a device behind an RPC server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from romou.base.errors import CompatError, ConnectionLostError, DeviceError
from romou.devices.backends import DEFAULT_KIND
from romou.runtime.module.machine import MAIN
from romou.runtime.rpc import Address, connection
from romou.runtime.rpc.connection import telling
from romou.runtime.workers.child import ChildCrashError, ChildProcess, ChildTimeoutError

logger = logging.getLogger("romou")

_ATTEMPTS = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
# Seconds to wait for all answers of a server until a session is open.
_PATIENCE_S = 12.0
# Time limit for the child process of a session to load TVM, in seconds.
_START_S = 60.0
_SLOWEST_UPLOAD_BYTES_PER_S = 250e3
# Time that one call may take, besides its upload.
_CALL_S = 300.0
_TROUBLE = (ConnectionLostError, ChildTimeoutError, ChildCrashError)


class RemoteDevice:
    """A device that keeps several models loaded in one session, so that they can be compared alternately.

    The session begins with the first call and lasts until `release`. Other tuners cannot use the device meanwhile. If
    the session is lost, the next call begins another one and sends its model again.

    device_name: name in the target. "host" is the server's CPU, any other name its first device.
    kind: device kind of the target.
    wanted: the device's name in its driver, or None for any. A tracker's device with another name is not used.
    """

    def __init__(
        self,
        address: Address,
        device_name: str | None = None,
        *,
        kind: str = DEFAULT_KIND,
        wanted: str | None = None,
    ) -> None:
        self.address = address
        self._kind = kind
        self._device_name = device_name
        self._wanted = wanted
        self._child = ChildProcess("connection")
        self._is_open = False
        self._loaded: set[str] = set()
        # Models and threads share one session.
        self._lock = threading.RLock()

    def run(
        self, library: Path, inputs: Sequence[np.ndarray], *, entry: str = MAIN, sizes: Sequence[int] = ()
    ) -> list[np.ndarray]:
        """Return the outputs of the model in the file `library`. The server identifies the model by the file's name.

        entry: the function of the library that computes the model.
        sizes: the sizes that it takes at run time.

        Raise DeviceError if the device failed or cannot be reached in several attempts, CompatError if the server has
        another version of TVM or Romou.
        """
        outputs = self._call(library, "run", entry, list(inputs), tuple(sizes))
        assert isinstance(outputs, list)
        return outputs

    def times(
        self,
        library: Path,
        inputs: Sequence[np.ndarray],
        repeat: int,
        *,
        is_wall: bool = False,
        entry: str = MAIN,
        sizes: Sequence[int] = (),
    ) -> list[float]:
        """Return milliseconds of `repeat` runs, see `TunedModel.times`. Sizes and errors as in `run`."""
        times = self._call(library, "times", entry, list(inputs), repeat, is_wall, tuple(sizes))
        assert isinstance(times, list)
        return times

    def profile(
        self, library: Path, inputs: Sequence[np.ndarray], repeat: int, *, entry: str = MAIN
    ) -> tuple[str, list[tuple[str, list[float]]]]:
        """Return the device's name, and the calls of a run, see `Machine.profile`. Errors as in `run`."""
        device, calls = self._call(library, "profile", entry, list(inputs), repeat)
        return device, calls

    def operator_times(
        self,
        library: Path,
        function: str,
        scopes: Sequence[str],
        arrays: Sequence[np.ndarray],
        number: int,
        repeat: int,
    ) -> list[float]:
        """Return milliseconds per launch of one function of the model, the mean of `number` for each of `repeat`.

        scopes: memory scope of each parameter.
        arrays: contents of each parameter, sent with every call into new tensors.

        Raise UsageError if the model has no such function. Other errors as in `run`.
        """
        times = self._call(
            library,
            "operator_times",
            function,
            list(scopes),
            list(arrays),
            number,
            repeat,
            upload_bytes=sum(a.nbytes for a in arrays),
        )
        assert isinstance(times, list)
        return times

    def _call(self, library: Path, function: str, *arguments: Any, upload_bytes: int = 0) -> Any:
        with self._lock:
            return self._call_alone(library, function, *arguments, upload_bytes=upload_bytes)

    def _call_alone(self, library: Path, function: str, *arguments: Any, upload_bytes: int) -> Any:
        pause_s, patience_s = _FIRST_PAUSE_S, _PATIENCE_S
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if not self._is_open:
                    self._connect(patience_s)
                if library.name not in self._loaded:
                    self._job("load", str(library), library.name, timeout_s=self._limit_for(library.stat().st_size))
                    self._loaded.add(library.name)
                return self._job(function, library.name, *arguments, timeout_s=self._limit_for(upload_bytes))
            except _TROUBLE as error:
                self.release()
                patience_s -= getattr(error, "waited_s", 0.0)
                if attempt == _ATTEMPTS or patience_s <= 0:
                    tries = f"{attempt} attempts, the last" if attempt > 1 else "an attempt"
                    raise DeviceError(
                        f"no model runs at {self.address} after {tries}: {error}", address=str(self.address)
                    ) from error
                logger.info("%s failed (%s); trying again", self.address, error)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except (DeviceError, CompatError):
                self.release()
                raise
        raise AssertionError("unreachable")

    def _limit_for(self, upload_bytes: int) -> float:
        return _CALL_S + upload_bytes / _SLOWEST_UPLOAD_BYTES_PER_S

    def _connect(self, patience_s: float) -> None:
        waiting = (
            f"connecting to {self.address}: no answer yet; waiting for up to {patience_s:g} s, because it serves one"
            " session at a time"
        )
        arguments = (self.address, self._kind, self._device_name, self._wanted, patience_s)
        try:
            with telling(lambda: logger.warning(waiting), connection.TELL_S):
                self._job("connect", *arguments, timeout_s=_START_S + 2 * patience_s)
        except (DeviceError, CompatError) as error:
            if not self.address.is_tracker:
                raise
            # Another server of the tracker may work.
            raise ConnectionLostError(str(error)) from error
        self._is_open = True

    def _job(self, function: str, *arguments: Any, timeout_s: float) -> Any:
        return self._child.call(f"romou.runtime.module.remote_job:{function}", *arguments, timeout_s=timeout_s)

    def release(self) -> None:
        """End the session, so that others can use the device. The next call begins another session."""
        self._child.kill()
        self._is_open = False
        self._loaded.clear()
