"""Times of a single kernel: in a captured run if the host is slower than short kernels."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from romou.base.errors import DeviceError
from romou.devices.backends.base import Backend
from romou.devices.backends.launch_times import launch_times

KERNEL_S, HOST_S, LONG_S = 2e-6, 5e-6, 2e-4


class Module:
    """A module whose kernel only counts. A launch by the host takes longer than the kernel."""

    def __init__(self, host_s: float = HOST_S) -> None:
        self.host_s = host_s
        self.launches: list[tuple[str, ...]] = []
        self.evaluated: list[tuple[int, int]] = []

    def __getitem__(self, entry: str) -> Callable[..., None]:
        return lambda *tensors: self.launches.append((entry, *tensors))

    def timed(self, entry: str, device: Any, arguments: Any, *, number: int, repeat: int) -> list[float]:
        self.evaluated.append((number, repeat))
        return [self.host_s] * repeat


@pytest.fixture(autouse=True)
def _timed_by_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("romou.devices.backends.launch_times.timed", Module.timed)


class Recorder(Backend):
    """A device kind whose captured runs take as long as their kernels."""

    name, is_launch_bound = "recorder", True

    def record(self, device: Any, vm: Any, run: Callable[[], None]) -> Any:
        assert vm is None
        run()
        self.launched, self.timed = 0, 0

        def launch() -> None:
            self.launched += 1

        def time_ms() -> float:
            self.timed += 1
            return 1e3 * KERNEL_S * len(device.launches)

        return SimpleNamespace(launch=launch, time_ms=time_ms)


@pytest.mark.parametrize(("number", "recorded", "runs"), [(10, 10, 1), (64, 64, 1), (1000, 64, 16)])
def test_launches_are_recorded(number: int, recorded: int, runs: int) -> None:
    module, recorder = Module(), Recorder()
    times = launch_times(recorder, module, "entry", module, ["a", "b"], number=number, repeat=3)
    assert times == pytest.approx([KERNEL_S] * 3)
    assert module.launches == [("entry", "a", "b")] * recorded
    assert (recorder.launched, recorder.timed) == (1, 3 * runs)
    assert not module.evaluated


@pytest.mark.parametrize("number", [1, 100])
@pytest.mark.parametrize("recorder", [None, Backend()], ids=["remote", "not bound"])
def test_tvm_times_the_others(recorder: Backend | None, number: int) -> None:
    module = Module()
    assert launch_times(recorder, module, "entry", module, [], number=number, repeat=2) == [HOST_S] * 2
    assert module.evaluated == [(number, 2)]
    assert not module.launches


def test_a_single_short_launch_says_nothing() -> None:
    module = Module()
    times = launch_times(Recorder(), module, "entry", module, [], number=1, repeat=2)
    assert times == pytest.approx([KERNEL_S] * 2)
    assert module.evaluated == [(1, 2)]
    assert module.launches == [("entry",)] * 16


def test_a_single_long_launch_is_timed() -> None:
    module = Module(LONG_S)
    assert launch_times(Recorder(), module, "entry", module, [], number=1, repeat=2) == [LONG_S] * 2
    assert module.evaluated == [(1, 2)]
    assert not module.launches


def test_without_a_recording_package() -> None:
    class Lacking(Recorder):
        def record(self, device: Any, vm: Any, run: Callable[[], None]) -> Any:
            raise DeviceError("a CUDA graph takes the Python package cuda-bindings, which is not installed")

    module = Module()
    assert launch_times(Lacking(), module, "entry", module, [], number=100) == [HOST_S]
