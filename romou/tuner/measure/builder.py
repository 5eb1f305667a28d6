"""Builds candidates in worker processes on this machine."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from romou.base.errors import InvalidConfigError
from romou.base.folders import HeldFolder
from romou.base.outcome import Outcome
from romou.devices.targets import Target
from romou.runtime.workers.calls import shorten
from romou.runtime.workers.child import seconds_left
from romou.tuner.measure.build_processes import BuildProcesses, Built
from romou.tuner.measure.measure_options import MeasureOptions
from romou.tuner.measure.types import BuildResult, Candidate, Toolchain

_MOST_WORKERS = 8


class FolderBuilder(ABC):
    """A `Builder` that writes libraries into a folder. Each current build has a thread, at most `most` of them.

    folder: for the libraries of candidates. None for a temporary folder, which `close` removes.
    """

    def __init__(
        self,
        target: Target,
        options: MeasureOptions | None,
        toolchain: Toolchain | None,
        folder: Path | None,
        *,
        most: int,
    ) -> None:
        self._target, self._target_json = target, target.to_json()
        self._options = options or MeasureOptions()
        self._toolchain = toolchain or Toolchain()
        self._temporary = None if folder is not None else HeldFolder("build")
        self._folder = folder if folder is not None else self._temporary.path  # type: ignore[union-attr]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="romou-build")

    @abstractmethod
    def _build(
        self, job: tuple[Any, ...], entry: str, library: Path, limit_s: float, stop_at: float | None
    ) -> Built | None:
        """Build into the file `library`. None if `stop_at` came first.

        job: toolchain, task, config and target for `build_job.build`.
        """

    def start(self, batch: Sequence[Candidate], *, stop_at: float | None = None) -> list[Future[BuildResult | None]]:
        """See `Builder.start`. A bug in a worker is the exception of its future."""
        return [self._threads.submit(self._build_one, candidate, stop_at) for candidate in batch]

    def build(self, batch: Sequence[Candidate], *, stop_at: float | None = None) -> list[BuildResult]:
        """Build a batch and return the results in its order.

        Builds not finished at `stop_at` (`time.monotonic`) are left out.
        """
        futures = self.start(batch, stop_at=stop_at)
        try:
            results = [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return [result for result in results if result is not None]

    def _build_one(self, candidate: Candidate, stop_at: float | None) -> BuildResult | None:
        limit_s = min(self._options.build_timeout_s, seconds_left(stop_at))
        if limit_s <= 0:
            return None
        try:
            task_json = candidate.task.to_json_for(candidate.config, self._target)
        except InvalidConfigError as refusal:
            text = shorten(f"{type(refusal).__name__}: {refusal}")
            return BuildResult(candidate=candidate, outcome=Outcome.INVALID, library=None, seconds=0.0, error=text)
        library = self._folder / f"{candidate.task.key}-{candidate.trial}-{os.getpid()}.so"
        job = (self._toolchain, task_json, dict(candidate.config), self._target_json)
        built = self._build(job, candidate.name, library, limit_s, stop_at)
        if built is None:
            return None
        outcome, seconds, error, scopes, stored = built
        if outcome != Outcome.OK:
            library.unlink(missing_ok=True)
        path = str(library) if outcome == Outcome.OK else None
        return BuildResult(
            candidate=candidate,
            outcome=outcome,
            library=path,
            seconds=seconds,
            error=error,
            scopes=scopes,
            stored=stored,
            entry=candidate.name,
        )

    @abstractmethod
    def _end_builds(self) -> None:
        """End current builds."""

    def close(self) -> None:
        """End all workers, also in the middle of a build, and remove the temporary folder."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._end_builds()
        self._threads.shutdown(wait=True)
        if self._temporary is not None:
            self._temporary.cleanup()


class LocalBuilder(FolderBuilder):
    """A `Builder` with `build_workers` processes that live until the builder is closed.

    A build that exceeds `build_timeout_s`, crashes or runs out of memory is a BUILD_ERROR of its candidate only.

    folder: see `FolderBuilder`.
    compile_for: a device ("opencl:0") whose driver compiles the kernels in the workers. Drivers cache the result, so
        the process that runs candidates does not wait for its compiler. None for this machine's CPU, whose cores are
        already busy with builds.
    """

    def __init__(
        self,
        target: Target,
        options: MeasureOptions | None = None,
        *,
        toolchain: Toolchain | None = None,
        folder: Path | None = None,
        compile_for: str | None = None,
    ) -> None:
        self.workers = (options or MeasureOptions()).build_workers or min(os.cpu_count() or 1, _MOST_WORKERS)
        super().__init__(target, options, toolchain, folder, most=self.workers)
        self._compile_for = compile_for
        self._processes = BuildProcesses(self._folder)

    def _build(
        self, job: tuple[Any, ...], entry: str, library: Path, limit_s: float, stop_at: float | None
    ) -> Built | None:
        return self._processes.build(
            (*job, str(library), entry, self._compile_for), limit_s, self._options.build_timeout_s
        )

    def _end_builds(self) -> None:
        self._processes.close()
