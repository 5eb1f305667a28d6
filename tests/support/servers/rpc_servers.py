"""Servers and trackers as separate processes on loopback, for tests."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from romou.runtime.rpc import Address
from romou.runtime.rpc.tracker import Tracker

KEY = "phone"


@dataclass
class Server:
    """A running `romou serve`."""

    process: psutil.Process
    port: int
    log: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}/{KEY}"

    def serving(self) -> psutil.Process:
        """The process that the watchdog watches."""
        return wait_for(lambda: next(iter(self.process.children()), None))

    def session(self) -> psutil.Process:
        """Wait for the process of a running session and return it."""
        return wait_for(self.running_session)

    def candidate(self) -> psutil.Process:
        """Wait until a library was sent to a running session as a whole, and return the session's process."""

        def ask() -> psutil.Process | None:
            session = self.running_session()
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                if session is not None and list((Path(session.cwd()) / "files").glob("candidate_*.so")):
                    return session
            return None

        return wait_for(ask)

    def running_session(self) -> psutil.Process | None:
        """Return the process of the running session, if there is one."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return next(
                (
                    p
                    for child in self.process.children()
                    for p in child.children()
                    if p.status() != psutil.STATUS_ZOMBIE
                ),
                None,
            )
        return None


def wait_for(ask, seconds: float = 60.0):  # type: ignore[no-untyped-def]
    """Wait until `ask` returns neither None nor False, and return its result."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = ask()
        if found:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"nothing in {seconds} s")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def end(process: psutil.Process) -> None:
    """Kill a process and all its children."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


@contextlib.contextmanager
def started(command: list[str], **environment: str) -> Iterator[tuple[psutil.Process, Path]]:
    """Run a process. Yield it and the file of its output."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        how: dict[str, Any] = {"env": {**os.environ, **environment}, "stdin": subprocess.DEVNULL}
        with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, **how) as process:
            try:
                yield psutil.Process(process.pid), log
            finally:
                with contextlib.suppress(psutil.NoSuchProcess):
                    ours = psutil.Process(process.pid)
                    rest = ours.children(recursive=True)
                    # Terminated first, since a killed process leaves its folder behind.
                    ours.terminate()
                    psutil.wait_procs([ours], timeout=10)
                    for one in [*rest, ours]:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            one.kill()


@contextlib.contextmanager
def serving(*options: str, key_from: Sequence[str] = ("--key", KEY), **environment: str) -> Iterator[Server]:
    """Run `romou serve` on a free port."""
    with _served(
        [sys.executable, "-m", "romou.cli", "serve", "--port", "0", *key_from, *options], **environment
    ) as server:
        yield server


@contextlib.contextmanager
def serving_watched(hang_s: float) -> Iterator[Server]:
    """Run a server with a watchdog that waits only `hang_s` seconds."""
    code = (
        f"import sys\nfrom romou.runtime.rpc.serve import *\nserve(ServeOptions(port=0, key={KEY!r}, hang_s={hang_s}),"
        " lambda line: print(line, file=sys.stderr))"
    )
    with _served([sys.executable, "-c", code]) as server:
        yield server


@contextlib.contextmanager
def _served(command: list[str], **environment: str) -> Iterator[Server]:
    with started(command, **environment) as (process, log):
        line = wait_for(lambda: next((x for x in log.read_text().splitlines() if x.startswith("serving on ")), None))
        yield Server(process, int(line.split()[2].rstrip(",").rpartition(":")[2]), log)


@contextlib.contextmanager
def tracking(port: int) -> Iterator[str]:
    """Run TVM's tracker and yield its host:port."""
    command = [
        sys.executable,
        "-m",
        "tvm.exec.rpc_tracker",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--port-end",
        str(port + 1),
        "--silent",
    ]
    with started(command):
        wait_for(lambda: answers(port))
        yield f"127.0.0.1:{port}"


def answers(port: int) -> bool:
    """Return whether a process listens on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


# TVM's own server, with the OpenCL runtime and the changes of CODE. It forks, so that sessions have them too.
_PLAIN = """
import json, sys
import tvm, tvm_ffi
from tvm.rpc import server
exec(sys.argv[2])
tracker = ("127.0.0.1", int(sys.argv[4])) if sys.argv[4] else None
server._popen_start_rpc_server("127.0.0.1", int(sys.argv[1]), int(sys.argv[1]) + 1, key=sys.argv[3], tracker_addr=tracker, silent=True)
"""  # noqa: E501
OTHER_VERSION = """
theirs = json.loads(str(tvm.get_global_func("romou.rpc.versions")()))
tvm_ffi.register_global_func("romou.rpc.versions", lambda: json.dumps({**theirs, "tvm": "0.26.0"}), override=True)
"""


@contextlib.contextmanager
def plain_server(code: str = "", tracker: str = "", **environment: str) -> Iterator[str]:
    """Run TVM's own RPC server and yield its host:port/key. tracker: host:port of a tracker to register with."""
    port = free_port()
    with started([sys.executable, "-c", _PLAIN, str(port), code, KEY, tracker.rpartition(":")[2]], **environment):
        if tracker:
            # A connection without a session makes a registered server register again: it would be missing meanwhile.
            address = Address.parse(f"tracker://{tracker}/{KEY}")
            wait_for(lambda: any(where.endswith(f":{port}") for where in Tracker(address).servers().get(KEY, ())))
        else:
            wait_for(lambda: answers(port))
        yield f"127.0.0.1:{port}/{KEY}"
