"""Work that a tuning run does ahead, in background threads: the device is looked for, default kernels are compiled."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import tvm

from romou.compiler.compilation import Compilation
from romou.devices.targets import Target
from romou.driver.site import TimingSite, local_runner, local_site, remote_runner
from romou.runtime.rpc import Address
from romou.tuner.measure import MeasureOptions, Runner
from romou.tuner.search import Trial, TrialCallback

_T = TypeVar("_T")


class DeviceProbe:
    """A device that is looked for while the model is imported, and tried while the model is lowered."""

    def __init__(self, target: Target, address: Address | None, index: int | None = None) -> None:
        self._target, self._address = target, address
        self._checks: list[Future[object]] = []
        executor = ThreadPoolExecutor(2, thread_name_prefix="romou-probe")
        self._attached = executor.submit(local_site, target, index) if address is None else None
        if self._attached is not None:
            self._checks.append(executor.submit(lambda attached: attached.result().check_usable(), self._attached))
        executor.shutdown(wait=False)

    @contextlib.contextmanager
    def runner(self, options: MeasureOptions, *, identify: bool) -> Iterator[tuple[TimingSite, Runner]]:
        """Yield the device and a runner of candidates on it. identify: start the process that runs them."""
        if self._attached is not None:
            opened = local_runner(self._attached.result(), options)
        else:
            assert self._address is not None
            opened = remote_runner(self._target, options, self._address)
        with opened as (site, runner), ThreadPoolExecutor(1, thread_name_prefix="romou-identify") as executor:
            if identify:
                self._checks.append(executor.submit(runner.fingerprint))
            yield site, runner

    def wait_until_usable(self) -> None:
        """Raise DeviceError unless the device computes a tiny kernel correctly and candidates can run on it."""
        # In this order: the tiny kernel's error says more.
        for check in self._checks:
            check.result()


class DeferredThread:
    """A background thread that works only after `start`, so that it takes no time from more urgent work.

    At the end of a `with` block, the work is started and waited for. After an exception, work that has not begun is
    cancelled.
    """

    def __init__(self) -> None:
        self._may_begin = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="romou-later")
        self._executor.submit(self._may_begin.wait)

    def submit(self, work: Callable[[], _T]) -> Future[_T]:
        return self._executor.submit(work)

    def start(self) -> None:
        """Let the work begin."""
        self._may_begin.set()

    def __enter__(self) -> DeferredThread:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        if kind is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self.start()
        self._executor.shutdown(wait=True)


class DefaultKernels:
    """A model with default kernels. They are compiled at once, or by a `DeferredThread` while candidates are measured.

    In the second case, nodes fall back only after the search: `has_failed` says whether they have to.
    """

    def __init__(self, imported: Compilation, max_memory: int | None, thread: DeferredThread | None) -> None:
        self._imported, self._max_memory = imported, max_memory
        if thread is None:
            self.lowered = self._compiled_with_fallbacks()
            self._compiled: Future[Compilation] = Future()
            self._compiled.set_result(self.lowered)
        else:
            self.lowered = imported.lowered()
            # The thread would have another pass context.
            context = tvm.transform.PassContext.current()
            self._compiled = thread.submit(lambda: assembled_in(context, self.lowered))

    @property
    def has_failed(self) -> bool:
        """Wait until all default kernels are compiled, and return whether one of them cannot be."""
        return self._compiled.exception() is not None

    def compiled(self) -> Compilation:
        """Return the model with default kernels, and with fallbacks for nodes that have no working one."""
        return self._compiled_with_fallbacks() if self.has_failed else self._compiled.result()

    def ending_early(self, callback: TrialCallback | None) -> TrialCallback:
        """Return `callback`, which also ends the search as soon as the default kernels have failed.

        It raises ModelError as soon as a tensor of the model is known to be too large.
        """
        is_checked = False

        def ends(trial: Trial) -> bool | None:
            nonlocal is_checked
            answer = None if callback is None else callback(trial)
            if not is_checked and self._compiled.done():
                is_checked = True
                if self.has_failed:
                    return True
                self._compiled.result().within(None)
            return answer

        return ends

    def _compiled_with_fallbacks(self) -> Compilation:
        compiled = self._imported.with_default_kernels()
        compiled.within(self._max_memory)  # a model that takes too much memory is an error before the search
        return compiled


def assembled_in(context: tvm.transform.PassContext, lowered: Compilation) -> Compilation:
    """Return `lowered` assembled in this thread, with another thread's pass context."""
    with context:
        return lowered.assembled()
