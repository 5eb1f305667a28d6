"""Runs recorded by Romou's runtimes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RecordedRun:
    """A run in a command buffer or a list of launches, with the memory that it was recorded with.

    recording: the runtime's object, which records already.
    """

    def __init__(self, recording: Any, run: Callable[[], None]) -> None:
        # Deleting the object ends the recording, whatever happened.
        run()
        launches = recording["finish"]()
        self.what = f"{recording['what']()} of {launches} launches"
        self._launch, self._time_ns = recording["launch"], recording["time_ns"]

    def launch(self) -> None:
        self._launch()

    def time_ms(self) -> float:
        return float(self._time_ns()) * 1e-6
