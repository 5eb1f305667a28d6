"""The reference kernel: a fixed piece of arithmetic whose time shows a device's clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from romou.base.errors import DeviceError
from tvm_patches.runtime import device_tensor, read

_ITERATIONS, _LOCAL, _GROUPS_PER_UNIT, _LAUNCHES = 4096, 64, 4, 3


class ReferenceKernel:
    """A fixed piece of arithmetic on a server's device, which is timed, or keeps the device busy.

    module: the kernel `clock_check(float *out, int iterations)` of `ComputeApi.clock_kernel`, loaded
    device: TVM's handle of the device
    facts: `Backend.list_devices` of it

    Raises
    ------
    DeviceError
        The device computes wrong results.
    """

    def __init__(self, module: Any, device: Any, facts: Mapping[str, Any]) -> None:
        self._launch, self._enqueue = module["launch"], module["enqueue"]
        self._work_items = max(1, facts["compute_units"]) * _GROUPS_PER_UNIT * _LOCAL
        self._output = device_tensor(np.zeros(self._work_items, "float32"), device)
        self._best_s = math.inf
        self._run_s()
        sums = read(self._output)
        # Each of the four sums converges to 2.
        if not np.allclose(sums, 8.0, rtol=1e-3):
            raise DeviceError(f"computes wrong results: {sums.min():g} to {sums.max():g} where all are 8")

    def time_s(self) -> float:
        """Return the seconds of one launch, the least of a few.

        A larger time than before means that the device throttles, or that its clock has not risen.
        """
        return min(self._run_s() for _ in range(_LAUNCHES))

    def hold(self, seconds: float) -> None:
        """Keep the device busy for about `seconds`, so that its clock is up for the next launch. Do not wait."""
        if seconds <= 0:
            return
        iterations = _ITERATIONS * math.ceil(seconds / self._best_s)
        self._enqueue("mi", self._work_items, _LOCAL, self._output, min(iterations, 2**31 - 1))

    def _run_s(self) -> float:
        seconds = max(int(self._launch("mi", self._work_items, _LOCAL, self._output, _ITERATIONS)), 1) * 1e-9
        self._best_s = min(self._best_s, seconds)
        return seconds
