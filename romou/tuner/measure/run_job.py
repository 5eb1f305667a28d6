"""The job of the device process.

It computes the reference of a task once. Then it loads, runs, compares and times candidates.

The device and the tensors of the last tasks stay allocated between calls. All calls of the driver or a built kernel are
inside `_kernel_call`: an exception there, of any type, is the kernel's failure. Anywhere else it is a bug.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from romou.base.device_lock import device_lock
from romou.base.errors import DeviceError
from romou.base.outcome import Outcome
from romou.devices.backends import backend
from romou.devices.backends.launch_times import launch_times
from romou.devices.backends.reference_kernel import ReferenceKernel
from romou.runtime.workers.calls import resolve, shorten
from romou.tuner.measure import guards, verify
from romou.tuner.measure.fingerprint import DeviceFingerprint, identified_device, split_device
from romou.tuner.measure.types import RunReply, StoredAs, Toolchain
from tvm_patches.libraries import load_library
from tvm_patches.runtime import device_tensor

_KEPT_TASKS = 4
# Library file -> module with kernels that the driver has compiled. `run` removes it.
_compiled: dict[str, Any] = {}


class KernelError(Exception):
    """A failure of a built kernel or the driver. The text is for the record. The cause is the original exception."""


@contextlib.contextmanager
def _kernel_call(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise KernelError(shorten(f"{what}: {type(error).__name__}: {error}")) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The data of one candidate for `run`, in a form that can be pickled.

    entry: the candidate's function in the library, under a name that no other candidate's library has.
    scopes, names: the memory scope of each parameter, "global" for a buffer, and its name.
    stored: see `BuildResult`.
    precision: see `verify.compare`.
    trust_runs, trust_s: see `MeasureOptions`.
    trust_pause_s: pause between the two halves of these runs.
    hold_clock_s: see `MeasureOptions`.
    """

    library: str
    entry: str
    scopes: tuple[str, ...]
    names: tuple[str, ...]
    stored: tuple[StoredAs | None, ...]
    reference: str
    device: str
    repeat: int
    min_repeat_ms: float
    skip_above_s: float
    race_above_s: float
    timing_limit_s: float
    trust_runs: int
    trust_s: float
    trust_pause_s: float
    hold_clock_s: float = 0.0
    precision: str | None = None


def open_device(device: str) -> tuple[DeviceFingerprint, str]:
    """Return `identified_device`, after the driver prepared for a first allocation. CUDA creates its context then."""
    import tvm

    identified = identified_device(device)
    kind, index = split_device(device)
    # A device that fails here fails the first candidate, whose error describes the failure.
    with contextlib.suppress(Exception):
        tvm.runtime.empty((1,), "float32", backend(kind).device(index))
    return identified


def prepare(toolchain: Toolchain, task_json: str, seed: int, folder: str) -> str:
    """Compute inputs and reference output of a task on the CPU, unless they exist. Return their file.

    BuildError if the reference is not finite.
    """
    import tvm

    task = resolve(toolchain.load_task)(task_json)
    path = verify.reference_path(Path(folder), task, seed)
    with contextlib.suppress(OSError, ValueError):
        verify.load_reference(path)
        return str(path)
    function = resolve(toolchain.build_reference)(task)["main"]
    inputs, output = [], np.empty(0)
    for is_positive in (False, True):
        inputs = verify.make_inputs(task, seed, is_positive=is_positive)
        tensors = [tvm.runtime.tensor(array) for array in (*inputs, verify.poison(*verify.output_spec(task)))]
        function(*tensors)
        output = tensors[-1].numpy()
        if output.dtype.kind != "f" or np.isfinite(output).all():
            break
    verify.finite_or_raise(task, output)
    verify.save_reference(path, inputs, output)
    return str(path)


def compile_kernels(library: str, device: str) -> None:
    """Let the driver compile a candidate's kernels for the next call of `run`. The device is not used.

    An error here occurs again in `run`, which reports it.
    """
    kind, index = split_device(device)
    _compiled.clear()
    with contextlib.suppress(Exception):
        module = load_library(Path(library))
        if backend(kind).compile_kernels(module, index):
            _compiled[library] = module


def take_device(path: Path) -> None:
    """Wait for a device's lock, and hold it until the end of the next call of `run`.

    The lock ends with this process, which may outlive the tuner by one candidate.
    """
    device_lock(path).acquire()


def run(spec: RunSpec, lock: Path | None = None) -> RunReply:
    """Load, run, compare and time one candidate. A wrong candidate is not timed. DeviceError if the device is gone.

    lock: the file of `take_device`.
    """
    import tvm

    try:
        device = _device(spec.device)
        window = tvm.get_global_func(backend(split_device(spec.device)[0]).function("window"), allow_missing=True)
        return check_and_time(
            spec, device, lambda: _compiled.pop(spec.library, None) or load_library(Path(spec.library)), window
        )
    except KernelError as error:
        return RunReply(outcome=Outcome.RUN_ERROR, error=str(error))
    finally:
        if lock is not None:
            device_lock(lock).release()


def check_and_time(
    spec: RunSpec,
    device: Any,
    load: Callable[[], Any],
    window: Callable[[Any], Any] | None,
    clock: ReferenceKernel | None = None,
) -> RunReply:
    """Run, compare and time the module that `load` returns, on a device of this machine or of a connection.

    window: see `guards.guard`.
    clock: keeps the device busy before each timing, and is timed before and after them. None for neither.

    Raises
    ------
    KernelError
        The driver, the kernel or the connection failed.
    LookupError
        The module is another candidate's.
    """
    inputs, reference = _reference(spec.reference)
    stored = enumerate(zip(inputs, spec.stored[: len(inputs)], strict=True))
    inputs = [array if form is None else _stored(spec.reference, index, form) for index, (array, form) in stored]
    with _kernel_call("loading the candidate"):
        module = load()
    try:
        with _kernel_call("loading the candidate"):
            function = module[spec.entry]
    except KernelError as error:
        if isinstance(error.__cause__, AttributeError):
            raise LookupError(
                f"{spec.library} is not the library of {spec.entry}: a result of it would be another candidate's"
            ) from error
        raise
    with _kernel_call("copying the inputs"):
        # Every candidate gets new tensors: one that writes past its output must not damage the inputs of the next.
        arrays = (*inputs, verify.poison(reference.shape, str(reference.dtype)))
        guarded = guards.guard(arrays, spec.names, spec.scopes, device, window)
    with _kernel_call("running the kernel"):
        function(*(each.tensor for each in guarded))
        device.sync()
        output, written = guarded[-1].output()
        faults = [fault for fault in (*(each.fault() for each in guarded[:-1]), written) if fault is not None]
    checked = verify.compare(output, reference, spec.precision)
    errors: dict[str, Any] = {"relative_l2_error": checked.relative_l2_error, "max_error": checked.max_error}
    problems = [*faults, *([] if checked.problem is None else [checked.problem])]
    if problems:
        return RunReply(outcome=Outcome.WRONG_RESULT, error="; ".join(problems), **errors)
    with _kernel_call("copying the inputs"):
        tensors = [each.without_zones(is_output=each is guarded[-1]) for each in guarded]
        guarded.clear()
    times, clock_s = _time_between(spec, module, device, tensors, clock)
    with _kernel_call("reading the output after timing"):
        output = tensors[-1].numpy()
    again = verify.compare(output, reference, spec.precision)
    if again.problem is not None:
        # Right at first and wrong later: a race between work-items, or an output that is added to instead of written.
        return RunReply(
            outcome=Outcome.WRONG_RESULT,
            error=f"right in the first run, wrong after repeated runs: {again.problem}",
            **errors,
        )
    changed = _change(spec, function, device, tensors, arrays)
    if changed is not None:
        return RunReply(outcome=Outcome.UNSTABLE, error=changed, **errors)
    return RunReply(outcome=Outcome.OK, times_s=times, clock_s=clock_s, **errors)


def _change(spec: RunSpec, function: Any, device: Any, tensors: list[Any], arrays: Sequence[np.ndarray]) -> str | None:
    """Return a description of the change in the output of repeated runs on the same inputs. None if it did not change.

    Runs on the inputs and on the reversed inputs alternate. There is a pause in the middle.
    """
    if not spec.trust_runs:
        return None
    first: list[np.ndarray] = []
    with _kernel_call("running the kernel again and again"):
        reversed_inputs = [
            device_tensor(np.ascontiguousarray(np.flip(array)), device, scope)
            for array, scope in zip(arrays[:-1], spec.scopes, strict=False)
        ]
        start = time.monotonic()
        for number in range(max(spec.trust_runs, 4)):
            if number == spec.trust_runs // 2:
                time.sleep(spec.trust_pause_s)
            if number >= 4 and time.monotonic() - start > spec.trust_s:
                break
            tensors[-1].copyfrom(arrays[-1])
            function(*(reversed_inputs if number % 2 else tensors[:-1]), tensors[-1])
            device.sync()
            # Bytes, because NaNs differ from themselves.
            output = tensors[-1].numpy().reshape(-1).view(np.uint8)
            if number < 2:
                first.append(output)
            elif count := np.count_nonzero(output != first[number % 2]):
                return (
                    f"its output changed in run {number + 1} on the same inputs: {count} of {output.nbytes} bytes are"
                    " not those of the first run"
                )
    return None


def _time_between(
    spec: RunSpec, module: Any, device: Any, tensors: list[Any], clock: ReferenceKernel | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the result of `_time`, and the times of the reference kernel before and after. None are without `clock`.

    The device was busy with the candidate right before the second one, which shows a clock that fell meanwhile.
    """
    if clock is None:
        return _time(spec, module, device, tensors, lambda: None), ()
    with _kernel_call("timing the reference kernel"):
        clock.hold(spec.hold_clock_s)
        before_s = clock.time_s()
    times = _time(spec, module, device, tensors, lambda: clock.hold(spec.hold_clock_s))
    with _kernel_call("timing the reference kernel"):
        return times, (before_s, clock.time_s())


def _time(
    spec: RunSpec, module: Any, device: Any, tensors: list[Any], hold_clock: Callable[[], None]
) -> tuple[float, ...]:
    """Return the seconds of one launch for each repeat, as means. Only one repeat if the first is already too slow."""
    with _kernel_call("timing the kernel"):
        hold_clock()
        here = None if guards.is_remote(device) else backend(split_device(spec.device)[0])
        measured = functools.partial(launch_times, here, module, spec.entry, device, tensors)
        (first_s,) = measured(number=1)
        if first_s > spec.skip_above_s or first_s * spec.repeat > spec.timing_limit_s:
            return (first_s,)
        longest_s = spec.timing_limit_s / spec.repeat
        number = math.ceil(min(spec.min_repeat_ms / 1e3, longest_s) / max(first_s, 1e-7))
        times: list[float] = []
        while len(times) < spec.repeat and (not times or times[0] <= spec.race_above_s):
            hold_clock()
            times += measured(number=max(1, number))
    return tuple(times)


def _device(device: str) -> Any:
    kind, index = split_device(device)
    handle = backend(kind).device(index)
    if not handle.exist:
        raise DeviceError(f"there is no device {device}", device=device, hint="`romou doctor` says what is missing.")
    backend(kind).hold_clocks(index)
    return handle


@functools.lru_cache(_KEPT_TASKS)
def _stored(path: str, index: int, form: StoredAs) -> np.ndarray:
    """Return an input of a reference in the kernel's layout. Many candidates share it."""
    return form(_reference(path)[0][index])


@functools.lru_cache(_KEPT_TASKS)
def _reference(path: str) -> tuple[list[np.ndarray], np.ndarray]:
    return verify.load_reference(Path(path))
