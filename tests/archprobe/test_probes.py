"""The probes on the attached OpenCL device (PoCL's CPU if there is no GPU): they run, measure their subject, and claim
nothing false.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from archprobe import session
from archprobe.analysis.answer import answered
from archprobe.curve import Findings
from archprobe.devices import open_device
from archprobe.devices.base import Device
from archprobe.errors import BuildError, DeviceError, KernelError, ReportError, UsageError
from archprobe.meter import Meter, half_width, powers
from archprobe.probes import ORDER, all_probes, caches, registers
from archprobe.probes.arithmetic import full_grid, multiply_add
from archprobe.probes.probe import Probe
from archprobe.report.document import Report, load_report

CLAIM = 0.9


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("opencl:0")


@pytest.fixture
def meter(device: Device) -> Meter:
    return Meter(device=device, is_quick=True, least_s=1e-4, tolerance=0.1, budget_s=0.3, max_repeats=2, min_repeats=2)


@pytest.fixture(scope="module")
def report(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("run") / "report.json"
    written = session.run(device, all_probes(), path, is_quick=True)
    assert load_report(path).to_dict() == written.to_dict()
    return written


def test_every_probe_ends_and_says_how(report: Report) -> None:
    assert list(report.aspects) == [*(probe.aspect for probe in all_probes()), "Conclusions"]
    for aspect, findings in report.aspects.items():
        assert findings.state in ("done", "not_applicable"), (aspect, findings.reason)
        assert findings.method, aspect
        assert findings.answers or findings.reason, aspect


def test_what_has_no_meaning_on_a_cpu_says_so(report: Report, device: Device) -> None:
    if not device.facts.is_cpu:
        pytest.skip("the device is no CPU")
    off = {aspect for aspect, findings in report.aspects.items() if findings.state == "not_applicable"}
    assert off == {
        "WarpSizeMethodA",
        "WarpSizeMethodB",
        "WarpDivergence",
        "RunningOrder",
        "RegisterSweep",
        "RegCount",
        "ImageCacheHierarchyPChase",
        "ImageCachelineSize",
        "ImageStrides",
        "ImageBandwidth",
    }
    assert "not applicable" in report.answers()["Gflops.AluCount"].reason


def test_limits_are_those_that_the_device_keeps(report: Report, device: Device) -> None:
    answers = report.answers()
    assert answers["Device.LogicThreadCount"].value == device.facts.max_work_group_size
    assert answers["Device.MaxLocalMemSize"].value == device.facts.local_mem_bytes


def test_probes_for_gpus_claim_nothing_on_a_cpu(device: Device, meter: Meter) -> None:
    """Kernels for GPUs run everywhere. A report of a CPU must not claim a warp, a register file or a texture cache."""
    if not device.facts.is_cpu:
        pytest.skip("the device is no CPU")
    for probe in all_probes():
        if probe.name not in ("warp_time", "warp_order", "warp_divergence", "image_cache"):
            continue
        # What another process does in the middle of a curve looks like a step, seldom at the same place again.
        claimed = claims(probe.measure(meter))
        for _ in range(4):
            if claimed:
                claimed &= claims(probe.measure(meter))
        assert not claimed, probe.name


def claims(found: Findings) -> set[str]:
    return {
        key for key, answer in found.answers.items() if answer.confidence >= CLAIM and not key.startswith("Latency")
    }


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_chase_visits_every_element_once_in_a_lap(meter: Meter, shuffled: bool) -> None:
    chases = caches.BufferChase(meter, 4096, is_shuffled=shuffled)
    chases.prepare(2048, 64)
    chain = meter.device.read(chases.chain, np.zeros(1024, np.int32))
    place, seen = 0, []
    for _ in range(2048 // 64):
        seen.append(place)
        place = int(chain[place])
    assert place == 0
    assert sorted(seen) == list(range(0, 512, 16))


def test_a_register_kernel_keeps_its_values(device: Device) -> None:
    text = registers.source(7)
    assert text.count("*= r") == 7
    seed, out = device.buffer(np.full(16, 1.0, np.float32)), device.buffer(64)
    # Ones stay ones: the total is not the number that would be written.
    assert device.launch(device.kernel(text, "registers"), 1, 1, np.int32(3), out, seed) > 0
    assert device.read(out, np.ones(1, np.float32))[0] == 0


def test_twice_the_iterations_take_about_twice_the_time(meter: Meter) -> None:
    groups, size = full_grid(meter)
    run, operations = multiply_add(meter, components=4, groups=groups, group_size=size)
    assert meter.calibrate(run, least_s=1e-3) >= 8
    assert operations == 2.0 * groups * size * 16 * 8


def test_work_that_a_compiler_removed_is_noticed(meter: Meter) -> None:
    with pytest.raises(KernelError, match="removed the kernel's work"):
        meter.calibrate(lambda n: 1e-6)
    with pytest.raises(KernelError, match="does not follow the work"):
        meter.calibrate(lambda n: 1.0)


def test_a_sweep_repeats_until_it_knows(device: Device) -> None:
    times = iter(np.random.default_rng(1).uniform(0.9, 1.1, 100000))
    meter = Meter(device=device, least_s=1e-6, tolerance=1e-9, max_repeats=5)
    curve = meter.sweep("c", (1, 2, 4), lambda x: lambda n: n * x * 1e-3 * next(times), x_label="x")
    assert curve.repeats == 5
    assert np.allclose(curve.ys, np.array([1, 2, 4]) * 1e6, rtol=0.15)
    still = Meter(device=device, least_s=1e-6).sweep("c", (1, 2), lambda x: lambda n: n * x * 1e-3, x_label="x")
    assert (still.repeats, still.spread) == (3, 0.0)
    assert half_width([1.0]) == 1.0
    assert powers(3, 20) == [4, 8, 16]


def test_a_probe_that_fails_is_a_finding(meter: Meter) -> None:
    def fail(_: Meter) -> Findings:
        raise KernelError("it broke")

    probe = Probe(name="x", aspect="X", title="X", method="m", measure=fail)
    found = session.run_probe(probe, meter)
    assert (found.state, found.reason, found.method) == ("failed", "it broke", "m")
    off = dataclasses.replace(probe, not_on_cpu="no lanes")
    if meter.device.facts.is_cpu:
        assert session.run_probe(off, meter).reason == "no lanes"


def counted(name: str, log: list[str], *, stops: bool = False, stops_at: int = 0, is_repeated: bool = False) -> Probe:
    def measure(meter: Meter) -> Findings:
        log.append(name)
        if stops or log.count(name) == stops_at:
            raise KeyboardInterrupt
        return Findings(answers={"N": answered(len(meter.earlier_answers), "count", 0.9, "counted")})

    return Probe(name=name, aspect=name.upper(), title=name, method="m", measure=measure, is_repeated=is_repeated)


def test_second_runs_come_after_all_first_ones_and_go_on_too(device: Device, tmp_path: Path) -> None:
    path, log = tmp_path / "r.json", []
    probes = [counted(name, log, is_repeated=True) for name in "ab"]
    stopped = [counted("a", log, is_repeated=True, stops_at=2), probes[1]]
    with pytest.raises(KeyboardInterrupt):
        session.run(device, stopped, path)
    assert log == ["a", "b", "a"]
    # Before its second run an answer is a hint, and nothing is concluded.
    begun = load_report(path)
    assert {answer.confidence for answer in begun.answers().values()} == {0.7}
    assert list(begun.aspects) == ["A", "B"]
    report = session.run(device, probes, path)
    assert log == ["a", "b", "a", "a", "b"]
    assert [findings.runs for findings in report.aspects.values()] == [2, 2]
    assert report.header["IsComplete"]


def test_a_run_that_was_cut_off_goes_on(device: Device, tmp_path: Path) -> None:
    path, log = tmp_path / "r.json", []
    with pytest.raises(KeyboardInterrupt):
        session.run(device, [counted("a", log), counted("b", log, stops=True)], path)
    assert not load_report(path).header["IsComplete"]
    report = session.run(device, [counted("a", log), counted("b", log), counted("c", log)], path)
    assert log == ["a", "b", "b", "c"]
    # Later probes see what earlier ones found, before and after the cut.
    assert [report.answers()[f"{aspect}.N"].value for aspect in "ABC"] == [0, 1, 2]
    assert report.header["IsComplete"]
    session.run(device, [counted("a", log)], path)
    assert log[-1] == "a"


def test_a_run_goes_on_only_with_its_own_device_and_kind(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt):
        session.run(device, [counted("a", []), counted("b", [], stops=True)], path, is_quick=True)
    with pytest.raises(
        ReportError, match="begun as a quick run, this is a full one. Choose another file, or start afresh with --fresh"
    ):
        session.run(device, [], path)
    other = load_report(path)
    dataclasses.replace(other, header={**other.header, "Driver": {**other.header["Driver"], "driver": "0.0"}}).save(
        path
    )
    with pytest.raises(ReportError, match="begun on another device: its driver is '0.0'"):
        session.run(device, [], path, is_quick=True)
    assert session.run(device, [], path, is_fresh=True).aspects == {}


def test_devices_that_are_none(device: Device) -> None:
    for name in ("metal:0", "opencl:x", "0"):
        with pytest.raises(UsageError, match="names no device; write opencl:0"):
            open_device(name)
    with pytest.raises(DeviceError, match=r"CUDA needs CuPy|no CUDA device|there is no CUDA device 99"):
        open_device("cuda:99")
    with pytest.raises(DeviceError, match="there is no OpenCL device 99; the driver loader sees opencl:0 is"):
        open_device("opencl:99")
    with pytest.raises(BuildError, match="refused a kernel") as caught:
        device.kernel("__kernel void f( {", "f")
    assert caught.value.source == "__kernel void f( {"
    assert set(ORDER) == {probe.name for probe in all_probes()}
