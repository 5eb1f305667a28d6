"""The work that a tuning run does ahead in background threads."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from romou.base.errors import DeviceError
from romou.compiler import compilation
from romou.compiler.compilation import Compilation, import_model
from romou.devices.targets import Target
from romou.driver.search.ahead import DefaultKernels, DeferredThread, DeviceProbe
from romou.driver.site import TimingSite
from romou.tuner.measure import MeasureOptions
from support.models.small_networks import NetworkBuilder

TARGET = Target("null")


def imported() -> Compilation:
    g = NetworkBuilder({"image": (1, 4, 9, 9)})
    return Compilation.of(import_model(g.model(g.conv("image", 4, 4)), None), TARGET)


def test_deferred_work_begins_at_start_or_at_the_end() -> None:
    with DeferredThread() as later:
        first = later.submit(threading.current_thread)
        assert not first.done()
        later.start()
        assert first.result(60).name.startswith("romou-later")
    with DeferredThread() as later:
        second = later.submit(int)
    assert second.result() == 0


def test_deferred_work_is_cancelled_after_an_error() -> None:
    cancelled: list[Future[int]] = []

    def fail() -> None:
        with DeferredThread() as later:
            cancelled.append(later.submit(int))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert cancelled[0].cancelled()


def test_default_kernels_wait_for_the_thread() -> None:
    with DeferredThread() as later:
        kernels = DefaultKernels(imported(), None, later)
        assert kernels.lowered.program is None
        later.start()
        assert not kernels.has_failed
        assert kernels.compiled().program is not None


def test_default_kernels_are_there_at_once_without_a_thread() -> None:
    kernels = DefaultKernels(imported(), None, None)
    assert kernels.lowered.program is not None
    assert kernels.compiled() is kernels.lowered


def test_default_kernels_that_fail_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such instruction")

    with DeferredThread() as later:
        kernels = DefaultKernels(imported(), None, later)
        ends = kernels.ending_early(None)
        assert not ends(None)  # type: ignore[arg-type]
        monkeypatch.setattr(compilation, "compile_model", fail)
        later.start()
        assert kernels.has_failed
        assert ends(None)  # type: ignore[arg-type]


def test_a_probe_finds_the_device_and_tries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = DeviceProbe(TARGET, None)
    with probe.runner(MeasureOptions(), identify=False) as (site, _):
        assert site.named == TARGET
        assert site.name
    probe.wait_until_usable()

    def unusable(_: object) -> None:
        raise DeviceError("broken")

    monkeypatch.setattr(TimingSite, "check_usable", unusable)
    with pytest.raises(DeviceError, match="broken"):
        DeviceProbe(TARGET, None).wait_until_usable()
