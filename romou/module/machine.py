"""A model's virtual machine on a device, of this machine or behind a connection: the same calls for both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from romou.backends import backend
from romou.backends.base import CapturedRun
from romou.core.errors import DeviceError, UsageError
from romou.measure.run_job import device_tensor
from romou.tir.primitives import SEPARATORS

_ENTRY = "main"
# Of the check whether a replay is worth while.
_PAIRS = 3


class Machine:
    """Runs and times a compiled model. `library`: TVM's executable or module, or a connection's; `device`: where it lies.

    module_of: (library, name) -> the module of the library that has the compiled function of that name, or None.   kind: of the target; None
    for a device behind a connection, where runs are not recorded.   replay: see `TunedModel.replay`.
    """

    def __init__(self, library: Any, device: Any, module_of: Callable[[Any, str], Any], *, kind: str | None = None, replay: bool | None = None) -> None:
        from tvm import relax

        self._library = library
        self._device = device
        self._module_of = module_of
        # Relax counts a device for each memory scope that a module names; here all of them are one.
        self._vm = relax.VirtualMachine(library, [device] * (1 + len(SEPARATORS)))
        self._inputs: list[Any] = []
        self._has_run = False
        self._is_here = kind is not None
        self._kind = kind
        self._replay: CapturedRun | None = None
        self._outputs: list[Any] = []
        self._is_required = replay is True
        self._is_open = replay is not False and kind is not None
        self.launching = "kernel by kernel" if replay is False else "kernel by kernel: runs behind a connection are not recorded"
        if self._is_open:
            self.launching = "kernel by kernel so far: the second run is recorded"

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for inputs in call order."""
        # The first run is none to record: drivers compile kernels in it, and many a process ends after it.
        replay = self._recorded() if self._has_run else None
        self._set(inputs)
        if replay is None:
            return [o.numpy() for o in self._invoke()]
        replay.launch()
        return [o.numpy() for o in self._outputs]

    def times(self, inputs: Sequence[np.ndarray], repeat: int, *, is_wall: bool = False, is_replayed: bool = True) -> list[float]:
        """Milliseconds of `repeat` runs after one warm-up; see `TunedModel.times`."""
        self._set(inputs)
        self._launch()
        replay = self._recorded() if is_replayed else None
        launch = self._launch if replay is None else replay.launch
        self._device.sync()
        if is_wall:
            return [self._wall_ms(launch) for _ in range(repeat)]
        if replay is not None:
            replay.launch()
            return [replay.time_ms() for _ in range(repeat)]
        evaluator = self._vm.time_evaluator("invoke_stateful", self._device, number=1, repeat=repeat)
        return [1e3 * float(t) for t in evaluator(_ENTRY).results]

    def timer(self, function: str, scopes: Sequence[str], arrays: Sequence[np.ndarray]) -> Callable[[int, int], list[float]]:
        """See `TunedModel.operator_timer`; scopes: of the parameters."""
        module = self._module_of(self._library, function)
        if module is None:
            raise UsageError(f"the model has no function {function!r}", function=function)
        tensors = [device_tensor(array, self._device, scope) for array, scope in zip(arrays, scopes, strict=True)]

        def times(number: int, repeat: int) -> list[float]:
            found = module.time_evaluator(function, self._device, number=number, repeat=repeat)(*tensors)
            return [1e3 * float(t) for t in found.results]

        return times

    def _set(self, inputs: Sequence[np.ndarray]) -> None:
        """Copy the inputs into tensors that stay the same, as a recorded run needs it; behind a connection the machine there has copies of its own."""
        import tvm.runtime

        arrays = [np.ascontiguousarray(a) for a in inputs]
        if self._inputs and self._is_here:
            for tensor, array in zip(self._inputs, arrays, strict=True):
                tensor.copyfrom(array)
            return
        self._inputs = [tvm.runtime.tensor(a, self._device) for a in arrays]
        # The stateful calls are those that take tuples over a connection.
        self._vm.set_input(_ENTRY, *self._inputs)

    def _launch(self) -> None:
        """Kernel by kernel."""
        self._vm.invoke_stateful(_ENTRY)
        self._has_run = True

    def _invoke(self) -> list[Any]:
        """Launch kernel by kernel; the outputs, new tensors."""
        self._launch()
        outputs = self._vm.get_outputs(_ENTRY)
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    def _recorded(self) -> CapturedRun | None:
        """The recorded run, where it computes the same and takes no longer; recorded at the first call, after which `launching` says what came of it.

        Raises
        ------
        DeviceError
            It is required, and cannot be.
        """
        if not self._is_open:
            return self._replay
        try:
            self._replay, self.launching = self._record()
            self._is_open = False
        except (DeviceError, RuntimeError) as error:
            self._is_open = self._is_required
            self._outputs = []
            reason = str(error).strip().splitlines()[0]
            if self._is_required:
                raise DeviceError(f"the run cannot be recorded on {self._kind}: {reason}", reason=reason) from error
            self.launching = f"kernel by kernel: {reason}"
        return self._replay

    def _record(self) -> tuple[CapturedRun | None, str]:
        """A recording that gives what the plain run gives, or None where that is faster; and how the model is launched then."""
        assert self._kind is not None
        expected = [o.numpy() for o in self._invoke()]
        replay = backend(self._kind).record(self._device, self._vm, lambda: self._outputs.extend(self._invoke()))
        for output, right in zip(self._outputs, expected, strict=True):
            # What a replay does not write would else be there from the run before.
            output.copyfrom((~np.atleast_1d(right).view(np.uint8)).view(right.dtype).reshape(right.shape))
        replay.launch()
        if any(o.numpy().tobytes() != right.tobytes() for o, right in zip(self._outputs, expected, strict=True)):
            raise DeviceError(f"{replay.what} was recorded, but its outputs are not those of the run")
        plain_ms, replay_ms = (min(times) for times in zip(*((self._wall_ms(self._launch), self._wall_ms(replay.launch)) for _ in range(_PAIRS)), strict=True))
        if replay_ms > plain_ms and not self._is_required:
            self._outputs = []
            return None, f"kernel by kernel: {replay.what} takes {replay_ms:.3f} ms, which is longer than {plain_ms:.3f} ms"
        return replay, f"{replay.what}: {replay_ms:.3f} ms, kernel by kernel {plain_ms:.3f} ms"

    def _wall_ms(self, launch: Callable[[], object]) -> float:
        start = time.perf_counter()
        launch()
        self._device.sync()
        return 1e3 * (time.perf_counter() - start)
