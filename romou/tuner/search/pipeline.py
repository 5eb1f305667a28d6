"""Candidates on their way through builder and runner, so that neither waits for the other without need."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Any

from romou.tuner.measure.types import Builder, BuildResult, Candidate, MeasureResult, Runner

# Threads that wait for a device each; there are as many as devices.
_MOST_THREADS = 256


class Pipeline:
    """Builds candidates ahead of those that are measured.

    The device takes whichever candidate is built first, so a slow build keeps nobody waiting. As many are built at a
    time as the builder can, unless enough are built and wait for the device: what is proposed later knows more. Where
    kernels run on the cores that build, the two take turns, and the order is that of the proposals.

    measure: runs one built candidate, from any thread; None where the time limit came first.
    is_apart: builds and kernels do not share cores.
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
        """Each candidate with its result, as soon as it is there, until none is proposed or `is_over`; what runs by
        then is still measured.

        meanwhile: called whenever the builder has got something to do.
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
        """Each of these with its result, started in their order."""
        waiting: deque[Future[BuildResult | None]] = deque()
        for one in built:
            waiting.append(Future())
            waiting[-1].set_result(one)
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
                        # What comes next is built meanwhile.
                        width = refill(len(running) + 1)
                        running[pool.submit(self._measure, built)] = built
                if not ready:
                    wait([*running, *(waiting if len(running) < width else ())], return_when=FIRST_COMPLETED)
                for finished in [future for future in running if future.done()]:
                    result = finished.result()
                    one = running.pop(finished)
                    if result is not None:
                        yield one, result
        finally:
            _drop(waiting)
            if pool is not None:
                # After an error what runs ends by itself, or when the runner is closed.
                pool.shutdown(wait=False, cancel_futures=True)


def _drop(waiting: deque[Future[BuildResult | None]]) -> None:
    for future in waiting:
        future.cancel()
    waiting.clear()


class _Here(Executor):
    """Runs what is submitted at once, in this thread: for a single device, whose Ctrl-C is then the caller's."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*arguments, **named))
        return done
