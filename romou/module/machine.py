"""A model's virtual machine on a device, of this machine or behind a connection: the same calls for both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from romou.errors import UsageError
from romou.measure.run_job import device_tensor
from romou.primitives import SEPARATORS

_ENTRY = "main"


class Machine:
    """Runs and times a compiled model. `library`: TVM's executable or module, or a connection's; `device`: where it lies.

    module_of: (library, name) -> the module of the library that has the compiled function of that name, or None.
    """

    def __init__(self, library: Any, device: Any, module_of: Callable[[Any, str], Any]) -> None:
        from tvm import relax

        self._library = library
        self._device = device
        self._module_of = module_of
        # Relax counts a device for each memory scope that a module names; here all of them are one.
        self._vm = relax.VirtualMachine(library, [device] * (1 + len(SEPARATORS)))

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for inputs in call order."""
        self._set(inputs)
        self._vm.invoke_stateful(_ENTRY)
        outputs = self._vm.get_outputs(_ENTRY)
        return [o.numpy() for o in (outputs if isinstance(outputs, tuple) else (outputs,))]

    def times(self, inputs: Sequence[np.ndarray], repeat: int, *, is_wall: bool = False) -> list[float]:
        """Milliseconds of `repeat` runs after one warm-up; see `TunedModel.times`."""
        self._set(inputs)
        self._vm.invoke_stateful(_ENTRY)
        self._device.sync()
        if is_wall:
            return [self._wall_ms() for _ in range(repeat)]
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
        import tvm.runtime

        # The stateful calls are those that take tuples over a connection.
        self._vm.set_input(_ENTRY, *(tvm.runtime.tensor(np.ascontiguousarray(a), self._device) for a in inputs))

    def _wall_ms(self) -> float:
        start = time.perf_counter()
        self._vm.invoke_stateful(_ENTRY)
        self._device.sync()
        return 1e3 * (time.perf_counter() - start)
