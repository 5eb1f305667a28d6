"""The phone's runtime and its RPC server in a separate process, for tests."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support.suite.compiled import holding

ROOT = Path(__file__).parents[3]
APP = ROOT / "tvm_patches/app_runtime"
HERE, ARM64 = "x86_64-linux-gnu", "aarch64-linux-gnu"


class Server:
    """A running RPC server: its port and its output so far."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        environment = {**os.environ, "PYTHONPATH": "", **variables}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.port = int(self.wait_for(r"serving on \S+:(\d+)")[1])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self.lines.append("(ended)")
            self._news.notify_all()

    def wait_for(self, pattern: str, timeout_s: float = 60) -> re.Match[str]:
        """Wait for the first output line that matches and return the match."""
        found: re.Match[str] | None = None

        def is_there() -> bool:
            nonlocal found
            found = next((m for m in map(re.compile(pattern).search, self.lines) if m), None)
            return found is not None or self.lines[-1:] == ["(ended)"]

        with self._news:
            self._news.wait_for(is_there, timeout_s)
        assert found, f"the server did not print {pattern!r}: {self.lines}"
        return found


@contextlib.contextmanager
def running(command: Sequence[str], **variables: str) -> Iterator[Server]:
    """Run a server with `variables` in its environment."""
    server = Server(command, variables)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait(60)


def build(target: str, out: Path) -> Path:
    """Build the runtime of a phone. Of several processes that do, one compiles, and the others find its objects."""
    # Not optimized: compiling would take longer than running.
    script = [str(ROOT / "tvm_patches/build_phone_runtime.sh"), "--target", target, "--out", str(out)]
    with holding(f"phone_runtime_{target}"):
        done = subprocess.run(
            script,
            env={**os.environ, "CXXFLAGS": "-O0", "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def compile_c(source: Path, runtime: Path, program: Path, compiler: str = "gcc") -> Path:
    """Compile a C program against the runtime, as the page says."""
    command = [compiler, "-Wall", "-Werror", "-O1", str(source), f"-I{APP}", f"-L{runtime}", "-lromou"]
    command += [f"-Wl,-rpath,{runtime}", f"-Wl,-rpath-link,{runtime}", "-o", str(program)]
    subprocess.run(command, check=True)
    return program
