"""Single kernels of a model are timed in a child process: one that leaves its tensors may end the process that runs it.

In a run of the model it may not, since other tensors lie before and behind its own.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from romou.base.device_lock import alone_on
from romou.base.errors import DeviceError, UsageError, first_line
from romou.devices.backends import backend
from romou.devices.backends.launch_times import launch_times
from romou.runtime.module.library import module_of
from romou.runtime.module.machine import check_process
from romou.runtime.workers.child import ChildCrashError, ChildProcess
from tvm_patches.libraries import load_library
from tvm_patches.quiet import quiet_stderr
from tvm_patches.runtime import device_tensor

_JOB = "romou.runtime.module.timing_job"


class KernelTimers:
    """The timers of a model's functions on device number `index` of this machine."""

    def __init__(self, kind: str, index: int) -> None:
        self._kind, self._index = kind, index
        self._child = ChildProcess("kernel timing")
        self._numbers = itertools.count()
        # The process that has the library, by the number of starts, and tensors that it may free.
        self._loaded, self._unused = 0, list[int]()
        weakref.finalize(self, self._child.kill)

    def close(self) -> None:
        """End the process, and free its memory on the device. The next timer starts another one."""
        self._child.kill()

    def timer(
        self, library: Callable[[], Path], function: str, scopes: Sequence[str], arrays: Sequence[np.ndarray]
    ) -> Callable[[int, int], list[float]]:
        """Return a timer, see `TunedModel.operator_timer`.

        library: returns the file of the model's kernels. Timers keep it, so that a model goes with its last user.
        scopes: memory scopes of the parameters.

        Raises
        ------
        UsageError
            The library has no such function.
        DeviceError
            The device failed, or the kernel ended the process.
        """
        check_process()
        number = next(self._numbers)
        self._call(library, "hold", number, function, list(scopes), list(arrays))
        holder = self._loaded

        def times(launches: int, repeat: int) -> list[float]:
            check_process()
            nonlocal holder
            if self._loaded != holder:
                self._call(library, "hold", number, function, list(scopes), list(arrays))
                holder = self._loaded
            here = backend(self._kind)
            facts = here.facts(self._index)
            with alone_on(facts["name"], here.identity(facts)):
                here.hold_clocks(self._index)
                found: list[float] = self._call(library, "times", number, launches, repeat)
            return found

        weakref.finalize(times, self._unused.append, number)
        return times

    def _call(self, library: Callable[[], Path], name: str, *arguments: Any) -> Any:
        try:
            if not self._child.is_alive or not self._loaded:
                self._child.call(f"{_JOB}:load", self._kind, self._index, library())
                self._loaded = self._child.starts
            unused, self._unused[:] = list(self._unused), []
            return self._child.call(f"{_JOB}:{name}", unused, *arguments)
        except ChildCrashError as crash:
            self._loaded = 0
            raise DeviceError(f"the kernel ended its process: {first_line(crash)}") from crash


# In the child process

_library: Any = None
_kind, _device = "", None
# Number of a timer -> (module, function, tensors)
_held: dict[int, tuple[Any, str, list[Any]]] = {}


def load(kind: str, index: int, library: Path) -> None:
    """Load a model's kernels, with the programs that an earlier run has kept."""
    global _library, _kind, _device
    _kind, _device = kind, backend(kind).device(index)
    backend(kind).prepare_to_load()
    with quiet_stderr(), backend(kind).keeping_programs():
        _library = load_library(library)
    programs = backend(kind).programs(_library, index)
    if programs is not None:
        programs.prepare()


def hold(
    unused: Iterable[int], number: int, function: str, scopes: Sequence[str], arrays: Sequence[np.ndarray]
) -> None:
    """Copy a function's arguments to the device. unused: numbers of timers that are gone."""
    _drop(unused)
    module = module_of(_library, function)
    if module is None:
        raise UsageError(f"the model has no function {function!r}", function=function)
    _held[number] = (
        module,
        function,
        [device_tensor(array, _device, scope) for array, scope in zip(arrays, scopes, strict=True)],
    )


def times(unused: Iterable[int], number: int, launches: int, repeat: int) -> list[float]:
    """Return milliseconds of a launch, see `launch_times`."""
    _drop(unused)
    module, function, tensors = _held[number]
    try:
        seconds = launch_times(backend(_kind), module, function, _device, tensors, number=launches, repeat=repeat)
    except RuntimeError as error:
        raise DeviceError(f"the device failed: {first_line(error)}") from error
    return [1e3 * each for each in seconds]


def _drop(numbers: Iterable[int]) -> None:
    for number in numbers:
        _held.pop(number, None)
