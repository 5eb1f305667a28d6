"""A synthetic device for tests of the search. Its builds and kernel times are functions of the config."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from romou.base.outcome import Outcome
from romou.compiler.task import TunableTask
from romou.tuner.measure import BuildResult, Candidate, DeviceFingerprint, MeasureResult

FINGERPRINT = DeviceFingerprint(kind="opencl", name="made up", driver="1", platform="p")


class Builder:
    def __init__(self, invalid_every: int = 0) -> None:
        self.built = 0
        self.invalid_every = invalid_every

    workers = 4

    def start(self, batch: Sequence[Candidate], *, stop_at: float | None = None) -> list[Future[BuildResult | None]]:
        results: list[Future[BuildResult | None]] = []
        for candidate in batch:
            self.built += 1
            bad = bool(self.invalid_every) and self.built % self.invalid_every == 0
            results.append(Future())
            results[-1].set_result(
                BuildResult(
                    candidate=candidate,
                    outcome=Outcome.INVALID if bad else Outcome.OK,
                    library=None if bad else "x",
                    seconds=0.01,
                    error="no" if bad else None,
                )
            )
        return results

    def close(self) -> None: ...


class Runner:
    """A runner with seconds that are a function of the config. Every `wrong` task fails."""

    width = 1

    def __init__(
        self,
        wrong: str = "",
        fail_after: int = 1_000_000,
        error: type[BaseException] = KeyboardInterrupt,
        seconds: float = 0.0,
    ) -> None:
        self.seen: list[str] = []
        self.wrong, self.fail_after, self.error, self.seconds = wrong, fail_after, error, seconds

    def expect(self, tasks: Sequence[TunableTask]) -> None:
        """Do nothing: synthetic kernels have no references."""

    def fingerprint(self) -> DeviceFingerprint:
        return FINGERPRINT

    def run(
        self, batch: Sequence[BuildResult], *, best_s: float | None = None, stop_at: float | None = None
    ) -> Iterator[MeasureResult]:
        for built in batch:
            if len(self.seen) >= self.fail_after:
                raise self.error
            if stop_at is not None and time.monotonic() > stop_at:
                return
            time.sleep(self.seconds)
            candidate = built.candidate
            self.seen.append(f"{candidate.task.key} {candidate.config.key}")
            if candidate.task.key == self.wrong:
                yield MeasureResult(candidate=candidate, outcome=Outcome.WRONG_RESULT, error="nothing works")
            else:
                yield MeasureResult(
                    candidate=candidate,
                    outcome=Outcome.OK,
                    times_s=(0.001 + sum(map(len, candidate.config.key.split(","))) * 1e-6,),
                    relative_l2_error=0.0,
                )

    def close(self) -> None: ...
