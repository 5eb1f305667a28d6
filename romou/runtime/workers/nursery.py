"""A process that has imported the modules of child processes and forks them, so that they start without importing TVM.

Importing TVM takes over a second. The nursery runs no threads, opens no device and calls no kernel, so its forks are
equivalent to fresh processes.
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

# Modules of the functions that child processes call.
_PRELOADED = (
    "romou.compiler.task",
    "romou.compiler.assembly.kernel",
    "romou.runtime.module.timing_job",
    "romou.tuner.measure.build_job",
    "romou.tuner.measure.rpc_job",
    "romou.tuner.measure.run_job",
)
# Prefixes of variables that a running nursery may see changed, because they are read late or by no library of a child.
# (scikit-learn, which XGBoost imports, sets OpenMP's in this process.) Other variables may be read while a library is
# loaded, so a change of them starts a new nursery.
_SAFE_TO_CHANGE = ("ROMOU_", "PYTEST_", "KMP_")


class NurseryError(Exception):
    """No worker could be forked."""


class Worker:
    """A forked process with the methods of `subprocess.Popen` that `ChildProcess` needs. Its parent is the nursery."""

    def __init__(self, nursery: _Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, the negated signal that ended the process, or None while it runs."""
        if self._code is None:
            self._code = self._nursery.exit_code(self.pid)
        return self._code

    def wait(self, timeout_s: float) -> int:
        """Return the exit code once the process has ended. Raise TimeoutError if that takes longer."""
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
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process is ready or has failed
        # The end of the process is noticed only if no other process holds its end of the connection.
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
        """End the process and wait for it. Its children end when their connections close."""
        self._connection.close()
        if not self._is_ready:
            # The process has no children yet, and would continue importing.
            self._process.kill()
        self._process.wait()

    def exit_code(self, pid: int) -> int | None:
        with self._lock:
            try:
                self._connection.send(pid)
                code: int | None = self._connection.recv()
            except (EOFError, OSError):
                # All processes of the nursery were killed.
                return -9
            return code


_current: tuple[object, _Nursery] | None = None
_lock = threading.Lock()


def begin() -> None:
    """Start the nursery ahead of the first child process."""
    _nursery(is_new=False)


def start_worker(environment: dict[str, str], calls: int, output: int) -> Worker:
    """Fork a worker with this process's environment and `environment`.

    calls: descriptor of the socket that it serves.
    output: descriptor of the file that it prints to.
    """
    with contextlib.suppress(NurseryError):
        return _nursery(is_new=False).fork(environment, calls, output)
    # The nursery was killed.
    return _nursery(is_new=True).fork(environment, calls, output)


def _nursery(*, is_new: bool) -> _Nursery:
    global _current
    environment = child_environment().items()
    key = os.getpid(), {name: value for name, value in environment if not name.startswith(_SAFE_TO_CHANGE)}
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

    # Garbage collections in children must not touch imported objects, so that their memory stays shared.
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
    # A compiler that the worker starts is in its process group and dies with it.
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)


if __name__ == "__main__":
    main(int(sys.argv[1]))
