"""Inputs and results of a measurement: Candidate -> BuildResult -> MeasureResult. This file imports no TVM.

A failed trial is data, an `Outcome`. All other failures are exceptions.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeAlias

from romou.base.outcome import Outcome
from romou.base.space import Config

if TYPE_CHECKING:
    import numpy as np

    from romou.compiler.task import TunableTask
    from romou.tuner.measure.fingerprint import DeviceFingerprint


# A packed weight as NumPy array -> the weight in the kernel's layout.
StoredAs: TypeAlias = "Callable[[np.ndarray], np.ndarray]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toolchain:
    """The functions that a worker process imports and calls, each as "module:name"."""

    load_task: str = "romou.tuner.pruning.tasks:load_task"
    load_target: str = "romou.devices.targets:Target.from_json"
    build: str = "romou.compiler.assembly.kernel:build_task"
    build_reference: str = "romou.compiler.assembly.kernel:build_reference"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A config of a task, to be measured.

    trial: its number in the search
    is_winner: whether it is measured again as a result of the search, and checked for outputs that change between runs
    winners: number of winners measured together
    """

    task: TunableTask
    config: Config
    trial: int
    is_winner: bool = False
    winners: int = 1

    @property
    def name(self) -> str:
        """A unique identifier made of the kernel and the config."""
        return f"candidate_{self.task.key}_{hashlib.sha256(self.config.key.encode()).hexdigest()[:16]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A candidate after building.

    outcome: OK, INVALID or BUILD_ERROR
    library: file of the built library
    error: text unless the outcome is OK
    scopes: memory scope of each parameter
    stored: function that converts each parameter's array to the kernel's layout. It can be pickled. None: no conversion
    entry: name of the function in the library
    """

    candidate: Candidate
    outcome: Outcome
    library: str | None
    seconds: float
    error: str | None = None
    scopes: tuple[str, ...] = ()
    stored: tuple[StoredAs | None, ...] = ()
    entry: str = "main"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunReply:
    """The result of running a candidate, from the process that ran it.

    times_s: every repeat, each the mean of the launches that fill `min_repeat_ms`. Empty unless the outcome is OK
    relative_l2_error: |out - ref| / |ref|. None if the output was not compared or not finite
    max_error: largest |out - ref| / (|ref| + rms(ref)) of an element. None in the same cases
    run_s: seconds to load, run, check and time it
    clock_ratio: time of a reference kernel shortly before, relative to its best (1: full speed). None if not measured
    clock_s: seconds of the reference kernel right before and right after the timings. Empty without `hold_clock_ms`
    """

    outcome: Outcome
    times_s: tuple[float, ...] = ()
    error: str | None = None
    relative_l2_error: float | None = None
    max_error: float | None = None
    run_s: float = 0.0
    clock_ratio: float | None = None
    clock_s: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureResult(RunReply):
    """A candidate after running.

    seed: seed of its inputs
    """

    candidate: Candidate
    seed: int = 0


class Builder(Protocol):
    """Builds candidates, several at a time. A session has one builder."""

    @property
    def workers(self) -> int:
        """Number of concurrent builds."""

    def start(self, batch: Sequence[Candidate], *, stop_at: float | None = None) -> list[Future[BuildResult | None]]:
        """Start builds, and return their results in the order of `batch`.

        A result is None if the build was not finished at `stop_at`.

        stop_at: by `time.monotonic`
        """

    def close(self) -> None:
        """End all worker processes."""


class Runner(Protocol):
    """Runs built candidates on one device, or on several equal ones, here, remote or simulated."""

    @property
    def width(self) -> int:
        """Number of threads that may call `run` at the same time."""

    def fingerprint(self) -> DeviceFingerprint:
        """Return the fingerprint of the device."""

    def expect(self, tasks: Sequence[TunableTask]) -> None:
        """Prepare for candidates of these tasks, in about this order, on cores that no kernel runs on."""

    def run(
        self, batch: Sequence[BuildResult], *, best_s: float | None = None, stop_at: float | None = None
    ) -> Iterator[MeasureResult]:
        """Yield a result for each built candidate, in order.

        best_s: best time of the batch's task so far
        stop_at: by `time.monotonic`. Candidates not finished by then have no result
        """

    def close(self) -> None:
        """Release the device."""
