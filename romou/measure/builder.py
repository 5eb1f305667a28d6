"""Builds candidates in worker processes on this machine."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from romou.core.folders import HeldFolder
from romou.core.outcome import Outcome
from romou.measure.child import ChildCrashError, ChildProcess, ChildTimeoutError, seconds_left
from romou.measure.options import MeasureOptions
from romou.measure.types import BuildResult, Candidate, StoredAs, Toolchain
from romou.target import Target

_MOST_WORKERS = 8


class LocalBuilder:
    """`Builder` with `build_workers` processes that live as long as the builder.

    A build that exceeds `build_timeout_s`, crashes or runs out of memory ends as BUILD_ERROR of its candidate alone.

    folder: where the libraries of candidates go; a temporary folder, removed by `close`, where None.
    compile_for: a device ("opencl:0") whose driver compiles the kernels in the workers already: drivers keep the result, so that the one process that runs
        candidates need not wait for its compiler. Not for a device that is this machine's CPU, which is busy enough.
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
        self._target_json = target.to_json()
        self._options = options or MeasureOptions()
        self._toolchain = toolchain or Toolchain()
        self._compile_for = compile_for
        workers = self._options.build_workers or min(os.cpu_count() or 1, _MOST_WORKERS)
        self._temporary = None if folder is not None else HeldFolder("build")
        self._folder = folder if folder is not None else self._temporary.path  # type: ignore[union-attr]
        self._folder.mkdir(parents=True, exist_ok=True)
        # One thread per build and TVM's own pool at one thread: the workers are the parallelism. What a killed worker leaves, the compiler's
        # files too, goes with the folder.
        environment = {"TVM_NUM_THREADS": "1", "TMPDIR": str(self._folder.absolute())}
        self._children = [ChildProcess("build", environment=environment) for _ in range(workers)]
        self._idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
        for child in self._children:
            self._idle.put(child)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="romou-build")

    def build(self, batch: Sequence[Candidate], *, stop_at: float | None = None) -> list[BuildResult]:
        """See `Builder.build`. Exceptions of a bug in a worker come out here."""
        futures = [self._threads.submit(self._build_one, candidate, stop_at) for candidate in batch]
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
        library = self._folder / f"{candidate.task.key}-{candidate.trial}-{os.getpid()}.so"
        child = self._idle.get()
        start = time.monotonic()
        scopes: tuple[str, ...] = ()
        stored: tuple[StoredAs | None, ...] = ()
        try:
            arguments = (self._toolchain, candidate.task.to_json(), dict(candidate.config), self._target_json, str(library), candidate.name, self._compile_for)
            outcome, seconds, error, scopes, stored = child.call("romou.measure.build_job:build", *arguments, timeout_s=limit_s)
        except ChildTimeoutError:
            if limit_s < self._options.build_timeout_s:
                return None
            outcome, seconds, error = Outcome.BUILD_ERROR, time.monotonic() - start, f"building took longer than build_timeout_s = {limit_s:g} s"
        except ChildCrashError as crash:
            outcome, seconds, error = Outcome.BUILD_ERROR, time.monotonic() - start, str(crash)
        finally:
            self._idle.put(child)
        if outcome != Outcome.OK:
            library.unlink(missing_ok=True)
        path = str(library) if outcome == Outcome.OK else None
        return BuildResult(candidate=candidate, outcome=outcome, library=path, seconds=seconds, error=error, scopes=scopes, stored=stored, entry=candidate.name)

    def close(self) -> None:
        """End all workers, also in the middle of a build, and remove the temporary folder."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.kill()
        self._threads.shutdown(wait=True)
        if self._temporary is not None:
            self._temporary.cleanup()
