"""A child process that may hang, crash or run out of memory without taking the caller with it.

multiprocessing does not fit: its "spawn" and "forkserver" import the caller's main script again, which runs it twice if
the script lacks a main guard, and "fork" deadlocks after TVM has started threads. TVM's popen pool does not report the
signal that ended a worker.
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
    """The call took longer than its limit, and the process was killed."""


class ChildCrashError(Exception):
    """The process ended during a call. The text names the signal and the end of the error output."""


class ChildBugError(Exception):
    """The called function raised an error that is no RomouError. The text holds the traceback of the child process."""


class ChildProcess:
    """A child process, started at the first call and after each death. Only one thread may use it.

    name: name in error messages.
    environment: variables set for the process besides this process's.
    """

    def __init__(self, name: str, *, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.starts = 0
        self._environment = environment or {}
        self._process: Worker | None = None
        self._connection: Connection | None = None
        self._stderr: Any = None

    def call(self, function: str, *arguments: Any, timeout_s: float = math.inf) -> Any:
        """Run "module:name" with `arguments` in the process and return its result. Starting does not count as time.

        Raise ChildTimeoutError, ChildCrashError or ChildBugError. After the first two, the next call starts a new
        process. Raise the function's RomouError again.
        """
        if not self.is_alive:
            self._start()
        assert self._connection is not None
        start_of_output = os.fstat(self._stderr.fileno()).st_size
        try:
            self._connection.send((function, arguments, timeout_s))
            kind, value = self._receive(timeout_s, start_of_output)
        except BaseException:
            # Also after Ctrl-C: the next call would otherwise receive the reply of this one.
            self.kill()
            raise
        if kind == "romou_error":
            assert isinstance(value, RomouError)
            raise value
        if kind == "bug":
            type_name, text, trace = value
            raise ChildBugError(f"{type_name} in the {self.name} process: {text}\n{trace}")
        return value

    @property
    def is_alive(self) -> bool:
        """True if the process runs, so that the next call starts no other one."""
        return self._process is not None and self._process.poll() is None

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
        """End the process from a thread other than the caller's. The call ends with ChildCrashError."""
        process = self._process
        if process is None:
            return
        # A process that is just starting has no process group yet.
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
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
    """Return the seconds until `stop_at` on `time.monotonic`, never below zero. Without a limit it is infinite."""
    return math.inf if stop_at is None else max(0.0, stop_at - time.monotonic())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
