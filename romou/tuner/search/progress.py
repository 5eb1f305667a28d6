"""Progress of a search on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn
from rich.progress import Progress as Bar
from rich.text import Text

from romou.base.outcome import Outcome


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """A finished trial and the state of the search. Times are in milliseconds. seconds_left is None without a limit."""

    task: str
    outcome: Outcome
    best_ms: float | None
    gflops: float | None
    model_ms: float | None
    done: int
    total: int
    seconds_left: float | None

    def __str__(self) -> str:
        best = f"best {self.best_ms:.3f} ms" if self.best_ms is not None else "nothing works yet"
        speed = f", {self.gflops:.1f} GFLOPS" if self.gflops is not None else ""
        model = f"; all layers {self.model_ms:.2f} ms" if self.model_ms is not None else ""
        left = f", {math.ceil(self.seconds_left)} s left" if self.seconds_left is not None else ""
        return f"{self.task}: {best}{speed}{model}; {self.total - self.done} trials{left}"


class Progress(Protocol):
    """The interface that a session reports to."""

    def start(self, done: int, total: int) -> None:
        """The search begins. `done` trials are in the records already."""

    def update(self, status: Status) -> None:
        """A trial ended."""

    def stop(self) -> None:
        """The search is over."""


class NoProgress:
    """Progress without output."""

    def start(self, done: int, total: int) -> None: ...
    def update(self, status: Status) -> None: ...
    def stop(self) -> None: ...


class _BarAndText(Bar):
    """A bar, and below it a text as wide as the terminal."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield from (Text(str(task.fields["text"])) for task in self.tasks)


class TerminalProgress:
    """A bar with the current task, its best time and GFLOPS, and the remaining budget."""

    def __init__(self, console: Console | None = None) -> None:
        self._bar = _BarAndText(
            BarColumn(bar_width=40), MofNCompleteColumn(), console=console or Console(stderr=True), transient=True
        )

    def start(self, done: int, total: int) -> None:
        self._bar.start()
        self._task = self._bar.add_task("", total=total, completed=done, text="measuring the default schedules")

    def update(self, status: Status) -> None:
        self._bar.update(self._task, completed=status.done, text=str(status))

    def stop(self) -> None:
        self._bar.stop()


class PlainProgress:
    """A line every few seconds, for logs."""

    def __init__(self, out: TextIO | None = None, *, every_s: float = 5.0) -> None:
        self._out = out or sys.stderr
        self._every_s = every_s
        self._last = -math.inf

    def start(self, done: int, total: int) -> None:
        if done:
            print(f"{done} of {total} trials are in the records", file=self._out, flush=True)

    def update(self, status: Status) -> None:
        if time.monotonic() - self._last >= self._every_s or status.done == status.total:
            self._last = time.monotonic()
            print(f"[{status.done}/{status.total}] {status}", file=self._out, flush=True)

    def stop(self) -> None: ...


class Step:
    """A block that says what it does, in a line on stderr, if it takes longer than `after_s` seconds.

    text: what it does, "checking the outputs".
    is_wanted: see `progress_of`.
    """

    def __init__(
        self, text: str, is_wanted: bool | None, *, after_s: float = 2.0, out: Callable[[str], object] | None = None
    ) -> None:
        self._out, self._own = out, -1
        self._timer = threading.Timer(after_s, self._say, [f"{text} ..."]) if _is_shown(is_wanted) else None

    def __enter__(self) -> None:
        if self._timer is not None:
            if self._out is None:
                with contextlib.suppress(OSError):
                    # `quiet_stderr` may hold stderr back when the line is due.
                    self._own = os.dup(sys.stderr.fileno())
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._own >= 0:
            os.close(self._own)

    def _say(self, line: str) -> None:
        if self._own >= 0:
            os.write(self._own, f"{line}\n".encode())
        elif self._out is not None:
            self._out(line)
        else:
            print(line, file=sys.stderr, flush=True)


def _has_bar() -> bool:
    return sys.stderr.isatty() or Console(stderr=True).is_jupyter


def _is_shown(is_wanted: bool | None) -> bool:
    return _has_bar() if is_wanted is None else is_wanted


def progress_of(is_wanted: bool | None) -> Progress:
    """Return a bar on a terminal or in a notebook, lines elsewhere. None wants no lines, False wants nothing."""
    if not _is_shown(is_wanted):
        return NoProgress()
    return TerminalProgress() if _has_bar() else PlainProgress()


MakeProgress = Callable[[], Progress]
