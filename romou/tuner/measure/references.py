"""The reference result of each task, computed once a session.

Separate processes compute it: it is trusted code, and must survive a crash of a candidate.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.errors import BuildError
from romou.base.folders import HeldFolder
from romou.runtime.workers.child import ChildBugError, ChildCrashError, ChildProcess, ChildTimeoutError, seconds_left
from romou.tuner.measure.measure_options import MeasureOptions
from romou.tuner.measure.types import Toolchain

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask

_AGAIN_S = 0.05


class References:
    """Files with inputs and reference output, one for each task. Several threads may use them.

    folder: for the files. None for a temporary folder, which `close` removes.
    """

    def __init__(self, options: MeasureOptions, toolchain: Toolchain, folder: Path | None) -> None:
        self._options = options
        self._toolchain = toolchain
        self._child = ChildProcess("reference")
        self._lock = threading.Lock()
        self._temporary = None if folder is not None else HeldFolder("run")
        self._folder = folder if folder is not None else self._temporary.path  # type: ignore[union-attr]
        self._found: dict[str, str] = {}
        # References computed ahead, each by an idle process.
        self._ahead: dict[str, Future[str | None]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
        self._others: list[ChildProcess] = []

    def expect(self, tasks: Sequence[TunableTask], processes: int) -> None:
        """Start to compute the references of tasks in this order, `processes` at a time."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(processes, thread_name_prefix="romou-reference")
            self._others = [ChildProcess("reference") for _ in range(processes)]
            for child in self._others:
                self._idle.put(child)
        for task in tasks:
            if task.key not in self._ahead:
                self._ahead[task.key] = self._pool.submit(self._by_idle_child, task)

    def _by_idle_child(self, task: TunableTask) -> str | None:
        child = self._idle.get()
        try:
            return self._compute(child, task, None)
        finally:
            self._idle.put(child)

    def of(self, task: TunableTask, stop_at: float | None) -> str | None:
        """Return the file of `task`. None if `stop_at` came first. BuildError if the reference cannot be computed."""
        with self._lock:
            if task.key not in self._found:
                begun = self._ahead.get(task.key)
                # A reference that is still queued is computed now.
                path = (
                    self._compute(self._child, task, stop_at)
                    if begun is None or begun.cancel()
                    else self._awaited(begun, stop_at)
                )
                if path is None:
                    return None
                self._found[task.key] = path
            return self._found[task.key]

    def _awaited(self, begun: Future[str | None], stop_at: float | None) -> str | None:
        try:
            return begun.result(None if stop_at is None else seconds_left(stop_at))
        except FutureTimeoutError:
            return None

    def _compute(self, child: ChildProcess, task: TunableTask, stop_at: float | None) -> str | None:
        limit_s = min(self._options.reference_timeout_s, seconds_left(stop_at))
        if limit_s <= 0:
            # Starting the process takes seconds, and a search that is over still requests the reference of each
            # remaining candidate.
            return None
        arguments = (self._toolchain, task.to_json(), self._options.seed, str(self._folder))
        try:
            return str(child.call("romou.tuner.measure.run_job:prepare", *arguments, timeout_s=limit_s))
        except ChildTimeoutError:
            if limit_s < self._options.reference_timeout_s:
                return None
            raise BuildError(
                f"{task.name}: its reference result took longer than reference_timeout_s = {limit_s:g} s",
                task=task.name,
                hint="Raise reference_timeout_s.",
            ) from None
        except ChildCrashError as crash:
            raise ChildBugError(f"{task.name}: computing the reference on the CPU failed: {crash}") from crash

    def close(self) -> None:
        """End the processes and remove the temporary folder."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            # A process may just be starting, so this repeats until no thread has a process left.
            while not all(begun.done() for begun in self._ahead.values()):
                for child in self._others:
                    child.interrupt()
                time.sleep(_AGAIN_S)
        for child in (self._child, *self._others):
            child.kill()
        if self._temporary is not None:
            self._temporary.cleanup()
