"""Runs recorded by Romou's runtimes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CommandBuffer:
    """A run in a command buffer, with the memory that it was recorded with.

    what: the kind of command buffer for a person, "an OpenCL command buffer".
    start: the runtime's function `record`, of this machine or of a connection.
    """

    def __init__(self, what: str, index: int, run: Callable[[], None], start: Callable[[int], Any]) -> None:
        recording = start(index)
        # Deleting it ends the recording, whatever happened.
        run()
        launches = recording["finish"]()
        self.what = f"{what} of {launches} launches"
        self._launch, self._time_ns = recording["launch"], recording["time_ns"]

    def launch(self) -> None:
        self._launch()

    def time_ms(self) -> float:
        return float(self._time_ns()) * 1e-6
