"""Processes that build candidates, for a builder on this machine or a worker of dask."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, TypeAlias

from romou.base.outcome import Outcome
from romou.runtime.workers.child import ChildCrashError, ChildProcess, ChildTimeoutError
from romou.tuner.measure.types import StoredAs

# The result of `build_job.build`.
Built: TypeAlias = "tuple[Outcome, float, str | None, tuple[str, ...], tuple[StoredAs | None, ...]]"


class BuildProcesses:
    """Child processes that build into files, one for each concurrent build. Several threads may share them.

    folder: for temporary files. Files that a killed process leaves, the compiler's included, are removed with it.
    """

    def __init__(self, folder: Path) -> None:
        # TVM's thread pool has one thread, because the processes run in parallel.
        self._environment = {"TVM_NUM_THREADS": "1", "TMPDIR": str(folder.absolute())}
        self._lock = threading.Lock()
        self._all: list[ChildProcess] = []
        self._idle: list[ChildProcess] = []

    def build(self, arguments: tuple[Any, ...], limit_s: float, build_timeout_s: float) -> Built | None:
        """Return the result of `build_job.build` for `arguments`.

        None if `limit_s` is below `build_timeout_s` and cut the build off.

        A crash is a BUILD_ERROR of the candidate, and so is a build that takes longer than `build_timeout_s`.
        """
        with self._lock:
            if not self._idle:
                self._idle.append(ChildProcess("build", environment=self._environment))
                self._all.append(self._idle[-1])
            child = self._idle.pop()
        start = time.monotonic()
        try:
            built: Built = child.call("romou.tuner.measure.build_job:build", *arguments, timeout_s=limit_s)
        except ChildTimeoutError:
            if limit_s < build_timeout_s:
                return None
            return (
                Outcome.BUILD_ERROR,
                time.monotonic() - start,
                f"building took longer than build_timeout_s = {limit_s:g} s",
                (),
                (),
            )
        except ChildCrashError as crash:
            return Outcome.BUILD_ERROR, time.monotonic() - start, str(crash), (), ()
        finally:
            with self._lock:
                self._idle.append(child)
        return built

    def close(self) -> None:
        """End all of them, also in the middle of a build."""
        with self._lock:
            for child in self._all:
                child.kill()
