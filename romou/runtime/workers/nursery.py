"""A process that has imported what workers need, and is forked for each of them: a worker then starts at once, where
importing TVM takes over a second.

The process runs no threads, opens no device and calls no kernel, so a fork of it is as good as a fresh process.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from socket import socketpair

from romou.base.interpreter import become, child_environment, forget_import_path, python_command

# What calls of workers name: those of `Toolchain`, and the jobs.
_PRELOADED = (
    "romou.compiler.task",
    "romou.compiler.assembly.kernel",
    "romou.tuner.measure.build_job",
    "romou.tuner.measure.rpc_job",
    "romou.tuner.measure.run_job",
)
# Variables that are read when they are needed, or by no library of a worker: scikit-learn, which XGBoost imports where
# it is installed, sets OpenMP's in this process. Others may be read by a library that is being loaded: a change of one
# takes a fresh process.
_READ_LATE = ("ROMOU_", "PYTEST_", "KMP_")


class NurseryError(Exception):
    """No worker could be forked."""


class Worker:
    """A forked process, with what is needed of `subprocess.Popen`; its parent is the nursery."""

    def __init__(self, nursery: _Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Exit code, the negative signal that ended it, or None while it runs."""
        if self._code is None:
            self._code = self._nursery.exit_code(self.pid)
        return self._code

    def wait(self, timeout_s: float) -> int:
        """The exit code, once it has ended; TimeoutError where that takes longer."""
        stop_at, pause_s = time.monotonic() + timeout_s, 0.0005
        while (code := self.poll()) is None:
            if time.monotonic() > stop_at:
                raise TimeoutError(f"process {self.pid} runs on")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return code


class _Nursery:
    def __init__(self) -> None:
        ours, theirs = socketpair()
        self._lock = threading.Lock()
        self._is_ready = False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed as soon as it is ready, or has failed
        # The end of the process is seen only when its end of the connection is the last.
        with theirs:
            self._process = subprocess.Popen(
                python_command("romou.runtime.workers.nursery", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                env=child_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
                # Ctrl-C reaches only the tuner.
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())

    def _wait_until_ready(self) -> None:
        if self._is_ready:
            return
        with self._output:
            try:
                self._connection.recv()
            except (EOFError, OSError):
                self._output.seek(0)
                raise NurseryError(
                    f"the process that workers are forked of ended\n{self._output.read().decode(errors='replace')}"
                ) from None
        self._is_ready = True

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, environment: dict[str, str], calls: int, output: int) -> Worker:
        with self._lock:
            self._wait_until_ready()
            try:
                self._connection.send((child_environment(**environment), [p for p in sys.path if p], os.getcwd()))
                for descriptor in (calls, output):
                    send_handle(self._connection, descriptor, self._process.pid)
                return Worker(self, self._connection.recv())
            except (EOFError, OSError) as error:
                raise NurseryError(f"the process that workers are forked of is gone: {error}") from error

    def end(self) -> None:
        """Wait until the process has ended; its workers do so by themselves."""
        self._connection.close()
        if not self._is_ready:
            # It has no workers, and would go on importing.
            self._process.kill()
        self._process.wait()

    def exit_code(self, pid: int) -> int | None:
        with self._lock:
            try:
                self._connection.send(pid)
                code: int | None = self._connection.recv()
            except (EOFError, OSError):
                # Somebody killed all processes of this one.
                return -9
            return code


_current: tuple[object, _Nursery] | None = None
_lock = threading.Lock()


def begin() -> None:
    """Start the process that workers are forked of, so that it is ready when the first one is wanted."""
    _nursery(is_new=False)


def start_worker(environment: dict[str, str], calls: int, output: int) -> Worker:
    """Start a worker with this process's environment and `environment`, which serves the socket `calls` and prints into
    the file `output`.
    """
    with contextlib.suppress(NurseryError):
        return _nursery(is_new=False).fork(environment, calls, output)
    # Somebody killed it.
    return _nursery(is_new=True).fork(environment, calls, output)


def _nursery(*, is_new: bool) -> _Nursery:
    global _current
    key = os.getpid(), {name: value for name, value in child_environment().items() if not name.startswith(_READ_LATE)}
    with _lock:
        if is_new or _current is None or _current[0] != key or not _current[1].is_alive():
            _current = key, _Nursery()
            atexit.register(_current[1].end)
        return _current[1]


def main(descriptor: int) -> None:
    """Fork workers until the parent closes its end."""
    forget_import_path()
    for module in _PRELOADED:
        importlib.import_module(module)
    from romou.runtime.workers import child_main

    # Collections in workers leave alone what was imported, and so do their copies of its memory.
    gc.freeze()
    connection = Connection(descriptor)
    connection.send("ready")
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            return
        if isinstance(request, int):
            pid, status = os.waitpid(request, os.WNOHANG)
            connection.send(os.waitstatus_to_exitcode(status) if pid else None)
            continue
        calls, output = recv_handle(connection), recv_handle(connection)
        pid = os.fork()
        if pid == 0:
            connection.close()
            _lead_a_group(output)
            become(*request)
            child_main.main(calls)
            return
        os.close(calls)
        os.close(output)
        connection.send(pid)


def _lead_a_group(output: int) -> None:
    # A group of its own: a compiler started by the worker dies with it.
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)


if __name__ == "__main__":
    main(int(sys.argv[1]))
