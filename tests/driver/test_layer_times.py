"""Times of layers before and after: alternate, so that drift cancels, and add up to the model's."""

from __future__ import annotations

import pytest
import tvm

import romou
from romou.base.errors import DeviceError
from romou.driver.choice import layer_times
from romou.runtime.module.timed import noise_of
from support.models.small_networks import NetworkBuilder


class DriftingDevice:
    """Timers of kernels on a device that becomes slower by 10% with each call."""

    def __init__(self) -> None:
        self.calls = 0

    def kernel(self, ms: float) -> layer_times.Timer:
        def times(number: int, repeat: int) -> list[float]:
            self.calls += 1
            return [ms * 1.1**self.calls] * repeat

        return times


def test_drift_cancels() -> None:
    device = DriftingDevice()
    before, after = layer_times._alternately([[lambda: device.kernel(40.0)], [lambda: device.kernel(10.0)]])
    assert [len(before), len(after)] == [layer_times.ROUNDS] * 2
    # Calls: two that count launches, then rounds in the orders 01, 10, 01.
    assert sum(before) / sum(after) == pytest.approx(4.0, rel=0.1)
    # The drift within a side is told.
    assert max(noise_of(before), noise_of(after)) > 0.1


def test_kernels_that_one_replaces_are_added_up() -> None:
    device = DriftingDevice()
    pair = [lambda: device.kernel(1.0), lambda: device.kernel(2.0)]
    (rounds,) = layer_times._alternately([pair])
    assert rounds[0] > 3.0


def test_noise_is_half_the_range() -> None:
    assert noise_of([9.0, 10.0, 11.0]) == pytest.approx(0.1)
    assert noise_of([10.0]) == 0.0
    # A model without kernels may take no time that a clock sees.
    assert noise_of([0.0, 0.0, 0.0]) == 0.0


def test_layers_add_up_to_the_model(opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has the time of its kernel in the model, times the calls that a run really makes.

    Each kernel takes another power of two, so a layer that is missing, there twice, or has a candidate's time shows.
    """
    times_ms: dict[str, float] = {}

    def operator_timer(self: romou.TunedModel, function: str, *_: object) -> layer_times.Timer:
        ms = times_ms.setdefault(function, 2.0 ** len(times_ms))
        return lambda number, repeat: [ms] * repeat

    monkeypatch.setattr(romou.TunedModel, "operator_timer", operator_timer)
    g = NetworkBuilder({"x": (1, 8, 9, 9)})
    y = g.add("Relu", g.conv("x", 8, 16, pads=[1, 1, 1, 1]))
    for _ in range(2):
        y = g.add("Relu", g.conv(y, 16, 16, pads=[1, 1, 1, 1]))
    model = romou.tune(g.model(g.conv(y, 16, 8)), trials=2, work_dir=False)
    summary = model.summary()
    assert len(summary.rows) >= 3
    assert max(row.calls for row in summary.rows) == 2
    run_ms = sum(times_ms[call.function] for call in model.profile(repeat=1).calls)
    for field in ("default_ms", "tuned_ms"):
        assert sum(getattr(row, field) * row.calls for row in summary.rows) == run_ms, (field, summary.rows, times_ms)


def test_a_kernel_that_cannot_be_timed_keeps_the_time_of_the_search(
    opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def operator_timer(self: romou.TunedModel, function: str, *_: object) -> layer_times.Timer:
        raise DeviceError(f"no memory for {function}")

    monkeypatch.setattr(romou.TunedModel, "operator_timer", operator_timer)
    g = NetworkBuilder({"x": (1, 8, 9, 9)})
    summary = romou.tune(g.model(g.conv("x", 8, 12)), trials=2, work_dir=False).summary()
    assert all(row.noise is None and row.default_ms for row in summary.rows if row.trials)
    assert "is not timed in the model: no memory for" in caplog.text


def test_same_kernels_are_timed_once(opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    def operator_timer(self: romou.TunedModel, function: str, *_: object) -> layer_times.Timer:
        timed.append(function)
        return lambda number, repeat: [1.0] * repeat

    monkeypatch.setattr(romou.TunedModel, "operator_timer", operator_timer)
    g = NetworkBuilder({"x": (1, 8, 9, 9)})
    summary = romou.tune(g.model(g.conv("x", 8, 12)), trials=0, work_dir=False).summary()
    assert len(timed) == layer_times.ROUNDS * len(summary.rows)
    assert all(row.default_ms == row.tuned_ms is not None for row in summary.rows)
