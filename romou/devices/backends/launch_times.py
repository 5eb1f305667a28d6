"""The times of a single kernel, launched as a model launches it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from romou.base.errors import DeviceError
from tvm_patches.runtime import timed

if TYPE_CHECKING:
    import tvm

    from romou.devices.backends.base import Backend, CapturedRun

# Launches of a captured run. The start of the run, some microseconds, is a small part of their time.
_RECORDED = 64
# Where the host is slower than short kernels, a single launch takes ten microseconds, whatever the kernel takes. A
# kernel that seems to take less than the first number of seconds is timed by the second number of launches instead.
_SHORT_S, _LAUNCHES_OF_SHORT = 1e-4, 16


def launch_times(
    backend: Backend | None,
    module: tvm.runtime.Module,
    entry: str,
    device: tvm.runtime.Device,
    tensors: Sequence[Any],
    *,
    number: int,
    repeat: int = 1,
) -> list[float]:
    """Return the seconds of a launch on the device's clock, as means over `number` launches, `repeat` times.

    The kernel has run on these tensors before. Instead of a single launch that seems short, several are timed.

    backend: the device's. None for a device behind a connection, whose server times.
    """

    def by_tvm(number: int) -> list[float]:
        return timed(module, entry, device, tensors, number=number, repeat=repeat)

    if backend is None or not backend.is_launch_bound:
        return by_tvm(number)
    if number == 1:
        times = by_tvm(1)
        if min(times) >= _SHORT_S:
            return times
        number = _LAUNCHES_OF_SHORT
    launch, recorded = module[entry], min(number, _RECORDED)

    def run() -> None:
        for _ in range(recorded):
            launch(*tensors)

    try:
        return _times_of_runs(backend.record(device, None, run), recorded, math.ceil(number / recorded), repeat)
    except DeviceError:
        # Without the package that records, models are launched kernel by kernel, too.
        return by_tvm(number)


def _times_of_runs(run: CapturedRun, launches: int, runs: int, repeat: int) -> list[float]:
    run.launch()
    return [sum(run.time_ms() for _ in range(runs)) / 1e3 / (runs * launches) for _ in range(repeat)]
