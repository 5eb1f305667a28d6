"""The reference result of each task, computed once a session in a process of its own: it is trusted code, and must not die with a candidate."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from romou.core.errors import BuildError
from romou.core.folders import HeldFolder
from romou.measure.child import ChildBugError, ChildCrashError, ChildProcess, ChildTimeoutError, seconds_left
from romou.measure.options import MeasureOptions
from romou.measure.types import Toolchain

if TYPE_CHECKING:
    from romou.tasks.tunable import TunableTask


class References:
    """Files with inputs and reference output, one a task, in `folder`, or in a temporary one, removed by `close`, where that is None.

    May be asked by several threads.
    """

    def __init__(self, options: MeasureOptions, toolchain: Toolchain, folder: Path | None) -> None:
        self._options = options
        self._toolchain = toolchain
        self._child = ChildProcess("reference")
        self._lock = threading.Lock()
        self._temporary = None if folder is not None else HeldFolder("run")
        self._folder = folder if folder is not None else self._temporary.path  # type: ignore[union-attr]
        self._found: dict[str, str] = {}

    def of(self, task: TunableTask, stop_at: float | None) -> str | None:
        """The file of `task`; None where `stop_at` came first; BuildError where the reference cannot be computed."""
        with self._lock:
            if task.key not in self._found:
                path = self._compute(task, stop_at)
                if path is None:
                    return None
                self._found[task.key] = path
            return self._found[task.key]

    def _compute(self, task: TunableTask, stop_at: float | None) -> str | None:
        limit_s = min(self._options.reference_timeout_s, seconds_left(stop_at))
        if limit_s <= 0:
            # Starting the process takes seconds, and a search that is over asks for each candidate that is left.
            return None
        arguments = (self._toolchain, task.to_json(), self._options.seed, str(self._folder))
        try:
            return str(self._child.call("romou.measure.run_job:prepare", *arguments, timeout_s=limit_s))
        except ChildTimeoutError:
            if limit_s < self._options.reference_timeout_s:
                return None
            raise BuildError(
                f"{task.name}: its reference result took longer than reference_timeout_s = {limit_s:g} s", task=task.name, hint="Raise reference_timeout_s."
            ) from None
        except ChildCrashError as crash:
            raise ChildBugError(f"{task.name}: computing the reference on the CPU failed: {crash}") from crash

    def close(self) -> None:
        """End the process and remove the temporary folder."""
        self._child.kill()
        if self._temporary is not None:
            self._temporary.cleanup()
