"""What goes into a measurement and what comes out of it; no TVM in this file.

The one way through: Candidate -> BuildResult -> MeasureResult. An `Outcome` is data; anything else is an exception.
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


# A packed weight as NumPy array -> the same as a kernel takes it.
StoredAs: TypeAlias = "Callable[[np.ndarray], np.ndarray]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toolchain:
    """The functions that a worker process calls, each as "module:name" because a worker has to find them by itself."""

    load_task: str = "romou.tuner.pruning.tasks:load_task"
    load_target: str = "romou.devices.targets:Target.from_json"
    build: str = "romou.compiler.assembly.kernel:build_task"
    build_reference: str = "romou.compiler.assembly.kernel:build_reference"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One config of one task, with its place in the search.

    is_winner: it is to be kept, unless its output changes when it is run again and again.
    winners: how many of them are measured together.
    """

    task: TunableTask
    config: Config
    trial: int
    is_winner: bool = False
    winners: int = 1

    @property
    def name(self) -> str:
        """Names the kernel and the config, as an identifier: no other candidate has it."""
        return f"candidate_{self.task.key}_{hashlib.sha256(self.config.key.encode()).hexdigest()[:16]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A candidate after building.

    `outcome` is OK, `library` its file, `entry` the name of its function, `scopes` the memory scope of each parameter
    and `stored` what makes of each one's array what the kernel takes (None: nothing; can be pickled); or INVALID or
    BUILD_ERROR with `error`.
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
    """How a candidate ran, as the process that ran it tells.

    `times_s` holds every repeat, each the mean of as many launches as fill `min_repeat_ms`; empty unless the outcome is
    OK. `relative_l2_error` is |out - ref| / |ref|; `max_error` the largest |out - ref| / (|ref| + rms(ref)) of an
    element; both None where the output was not compared or not finite. `run_s`: seconds to load, run, check and time
    it. `clock_ratio`: how much longer than at its best the device took for a reference kernel shortly before (1: full
    speed), None where that was not asked.
    """

    outcome: Outcome
    times_s: tuple[float, ...] = ()
    error: str | None = None
    relative_l2_error: float | None = None
    max_error: float | None = None
    run_s: float = 0.0
    clock_ratio: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureResult(RunReply):
    """A candidate after running. `seed` gives its inputs again."""

    candidate: Candidate
    seed: int = 0


class Builder(Protocol):
    """Builds candidates, several at a time. One per session."""

    @property
    def workers(self) -> int:
        """How many it builds at a time now; more of them wait."""

    def start(self, batch: Sequence[Candidate], *, stop_at: float | None = None) -> list[Future[BuildResult | None]]:
        """Begin to build; the results in the order of `batch`, None where one was not finished at `stop_at`
        (`time.monotonic`).
        """

    def close(self) -> None:
        """End all worker processes."""


class Runner(Protocol):
    """Runs built candidates on one device, or on several that are alike. Remote and simulated runners implement the
    same.
    """

    @property
    def width(self) -> int:
        """How many candidates it runs at a time: so many threads may call `run`."""

    def fingerprint(self) -> DeviceFingerprint:
        """The device that the results belong to."""

    def expect(self, tasks: Sequence[TunableTask]) -> None:
        """Candidates of these tasks come soon, in about this order: what needs no device may be done ahead, on cores
        that no kernel runs on.
        """

    def run(
        self, batch: Sequence[BuildResult], *, best_s: float | None = None, stop_at: float | None = None
    ) -> Iterator[MeasureResult]:
        """A result for each built candidate, in order, as soon as it is there.

        `best_s` is the best time of the batch's task so far. Ends early at `stop_at` (`time.monotonic`): a candidate
        that is cut off by it has no result.
        """

    def close(self) -> None:
        """Let go of the device."""
