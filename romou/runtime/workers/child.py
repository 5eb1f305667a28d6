"""A worker process that may hang, crash or run out of memory without taking the tuner with it.

Not multiprocessing: its "spawn" and "forkserver" import the caller's main script again, which tunes twice where the
script lacks a main guard, and "fork" after TVM has started threads deadlocks. Not TVM's popen pool: it does not tell by
which signal a worker died.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

from romou.base.errors import RomouError
from romou.runtime.workers.calls import shorten
from romou.runtime.workers.nursery import NurseryError, Worker, start_worker

_START_TIMEOUT_S = 60.0


class ChildTimeoutError(Exception):
    """The call took longer than its limit; the process was killed."""


class ChildCrashError(Exception):
    """The process ended in the middle of a call. The text names the signal and holds the end of its error output."""


class ChildBugError(Exception):
    """The called function raised something that is no RomouError; the text holds the traceback of the other process."""


class ChildProcess:
    """One worker process, started at the first call and again after each death. For one thread at a time.

    name: stands in error texts.   environment: variables set for the process beside this one's own.
    """

    def __init__(self, name: str, *, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.starts = 0
        self._environment = environment or {}
        self._process: Worker | None = None
        self._connection: Connection | None = None
        self._stderr: Any = None

    def call(self, function: str, *arguments: Any, timeout_s: float = math.inf) -> Any:
        """What "module:name" returns for `arguments`, computed in the process. Starting the process does not count as
        time.

        ChildTimeoutError, ChildCrashError, ChildBugError as they say; after the first two the next call starts a new
        process. RomouError as raised by the function.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._connection is not None
        start_of_output = os.fstat(self._stderr.fileno()).st_size
        try:
            self._connection.send((function, arguments, timeout_s))
            kind, value = self._receive(timeout_s, start_of_output)
        except BaseException:
            # Also after Ctrl-C: the reply would be taken for that of the next call.
            self.kill()
            raise
        if kind == "romou_error":
            assert isinstance(value, RomouError)
            raise value
        if kind == "bug":
            type_name, text, trace = value
            raise ChildBugError(f"{type_name} in the {self.name} process: {text}\n{trace}")
        return value

    def _receive(self, timeout_s: float, start_of_output: int) -> tuple[str, Any]:
        assert self._connection is not None
        try:
            if not self._connection.poll(None if math.isinf(timeout_s) else max(timeout_s, 0)):
                raise ChildTimeoutError(f"no answer from the {self.name} process within {timeout_s:g} s")
            kind, value = self._connection.recv()
            return kind, value
        except (EOFError, ConnectionError) as error:
            raise ChildCrashError(self._death(start_of_output)) from error

    def _death(self, start_of_output: int) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(5)
        except TimeoutError:
            return f"the {self.name} process closed its connection"
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"
        self._stderr.seek(start_of_output)
        output = self._stderr.read().decode(errors="replace")
        return f"the {self.name} process {how}" + (f"\n{shorten(output)}" if output.strip() else "")

    def _start(self) -> None:
        self.kill()
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed in kill()
        self._connection = Connection(ours.detach())
        self.starts += 1
        try:
            with theirs:
                self._process = start_worker(self._environment, theirs.fileno(), self._stderr.fileno())
            kind, _ = self._receive(_START_TIMEOUT_S, 0)
        except (ChildCrashError, ChildTimeoutError, NurseryError) as error:
            self.kill()
            raise ChildBugError(f"the {self.name} process did not start: {error}") from error
        assert kind == "ready"

    def interrupt(self) -> None:
        """End the process from another thread than the one that calls it, whose call ends with ChildCrashError."""
        process = self._process
        if process is None:
            return
        # One that is just starting has no group of its own yet.
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process and everything it started, at once."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.interrupt()
        if self._process is not None:
            self._process.wait(math.inf)
            self._process = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None


def seconds_left(stop_at: float | None) -> float:
    """Seconds until `stop_at` on `time.monotonic`, never below zero; infinite without one."""
    return math.inf if stop_at is None else max(0.0, stop_at - time.monotonic())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
