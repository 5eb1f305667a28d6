"""The pipeline of candidates through builder and runner, which work at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Any

from romou.tuner.measure.types import Builder, BuildResult, Candidate, MeasureResult, Runner

# Most threads, one for each device.
_MOST_THREADS = 256


class Pipeline:
    """Builds candidates ahead of measurements.

    The device runs whichever candidate is built first, so it does not wait for a slow build. Builds start only until
    enough candidates wait for the device, so that later proposals are based on more results. If kernels run on the
    cores that build, building and running alternate in the order of the proposals.

    measure: runs one built candidate, on any thread. It returns None if the time limit came first
    is_apart: whether builds and kernels run on different cores
    """

    def __init__(
        self,
        builder: Builder,
        runner: Runner,
        measure: Callable[[BuildResult], MeasureResult | None],
        *,
        is_apart: bool,
    ) -> None:
        self._builder = builder
        self._runner = runner
        self._measure = measure
        self._is_apart = is_apart

    def search(
        self,
        propose: Callable[[], Sequence[Candidate]],
        *,
        batch_size: int,
        is_over: Callable[[], bool],
        stop_at: float | None,
        meanwhile: Callable[[], None],
    ) -> Iterator[tuple[BuildResult, MeasureResult]]:
        """Yield each candidate with its result until none is proposed or `is_over`. Running candidates are finished.

        meanwhile: called whenever builds have started
        """
        waiting: deque[Future[BuildResult | None]] = deque()

        def refill(running: int) -> int:
            width = self._runner.width
            while (
                not is_over()
                and self._wants_more(waiting, running, max(batch_size, 2 * width))
                and (batch := propose())
            ):
                waiting.extend(self._builder.start(batch, stop_at=stop_at))
                meanwhile()
            if is_over():
                _drop(waiting)
            return width

        return self._results(waiting, refill)

    def measure(self, built: Iterable[BuildResult]) -> Iterator[tuple[BuildResult, MeasureResult]]:
        """Yield built candidates with their results, started in this order."""
        waiting: deque[Future[BuildResult | None]] = deque()
        for result in built:
            waiting.append(Future())
            waiting[-1].set_result(result)
        return self._results(waiting, lambda _: self._runner.width)

    def _wants_more(self, waiting: deque[Future[BuildResult | None]], running: int, enough: int) -> bool:
        if not self._is_apart:
            return not waiting and not running
        built = sum(future.done() for future in waiting)
        return built < enough and len(waiting) - built < self._builder.workers

    def _results(
        self, waiting: deque[Future[BuildResult | None]], refill: Callable[[int], int]
    ) -> Iterator[tuple[BuildResult, MeasureResult]]:
        running: dict[Future[MeasureResult | None], BuildResult] = {}
        pool: Executor | None = None
        try:
            while True:
                width = refill(len(running))
                if pool is None or (width > 1 and isinstance(pool, _Here)):
                    pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="romou-run") if width > 1 else _Here()
                if not waiting and not running:
                    return
                if not self._is_apart:
                    wait(waiting)
                ready = [future for future in waiting if future.done()][: max(0, width - len(running))]
                for future in ready:
                    waiting.remove(future)
                    built = future.result()
                    if built is not None:
                        # The next candidates are built meanwhile.
                        width = refill(len(running) + 1)
                        running[pool.submit(self._measure, built)] = built
                if not ready:
                    wait([*running, *(waiting if len(running) < width else ())], return_when=FIRST_COMPLETED)
                for finished in [future for future in running if future.done()]:
                    result = finished.result()
                    built = running.pop(finished)
                    if result is not None:
                        yield built, result
        finally:
            _drop(waiting)
            if pool is not None:
                # After an error, running candidates end as usual, or when the runner is closed.
                pool.shutdown(wait=False, cancel_futures=True)


def _drop(waiting: deque[Future[BuildResult | None]]) -> None:
    for future in waiting:
        future.cancel()
    waiting.clear()


class _Here(Executor):
    """An executor that runs tasks immediately in this thread, so that Ctrl-C reaches the caller of a single device."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*arguments, **named))
        return done
