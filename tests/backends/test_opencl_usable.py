"""Every attached OpenCL device is checked. A machine without one is a failure here, not a skip."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romou.base.errors import DeviceError, UsageError
from romou.devices.backends import backend, base, probe, usable
from romou.devices.backends.opencl import BACKEND, OpenCL
from romou.devices.backends.usable import DeviceReport
from support.servers import forked

FACTS = (
    "name",
    "platform",
    "driver",
    "type",
    "compute_units",
    "max_work_group_size",
    "local_mem_bytes",
    "constant_mem_bytes",
    "clock_mhz",
)


def test_an_unknown_kind_is_one_error_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        backend("opengl")
    assert (
        str(caught.value) == "unknown target kind 'opengl'; known: cuda, null, opencl, vulkan\nDid you mean 'opencl'?"
    )


def test_a_device_is_attached_and_described() -> None:
    found = BACKEND.list_devices()
    assert found, "no OpenCL device; install pocl-opencl-icd"
    for facts in found:
        assert set(FACTS) <= set(facts)


@pytest.fixture(scope="module")
def reports() -> list[DeviceReport]:
    """Return the report of `check_device` on each device."""
    return [BACKEND.check_device(index) for index in range(len(BACKEND.list_devices()))]


def test_every_device_computes_correctly(reports: list[DeviceReport]) -> None:
    for index, report in enumerate(reports):
        assert report.is_usable, report
        assert report.problem is None
        assert report.device == BACKEND.list_devices()[index]["name"]
    assert BACKEND.is_usable(0)


def test_the_cpu_has_images(reports: list[DeviceReport]) -> None:
    report = reports[BACKEND.device_index("host")]
    assert report.has_images, report.notes


def test_unknown_index() -> None:
    count = len(BACKEND.list_devices())
    with pytest.raises(DeviceError, match=f"there is no OpenCL device {count}; the runtime sees 0: "):
        BACKEND.check_device(count)
    assert not BACKEND.is_usable(count)
    assert str(BACKEND.no_device_error(0, [])).startswith("no OpenCL device: ")


def test_a_wrong_result_is_a_problem() -> None:
    with pytest.raises(ArithmeticError, match=r"2 \* x: 1 of 3 values wrong, the first at 1: 5\.0, not 4\.0"):
        probe._expect(np.array([2.0, 5.0, 6.0]), np.array([2.0, 4.0, 6.0]), "2 * x")


@pytest.mark.parametrize(
    ("answers", "crash", "problem"),
    [
        ({"buffers": "ArithmeticError: wrong"}, None, "ArithmeticError: wrong"),
        (
            {},
            "the driver crashed on a tiny kernel (signal 11): no message",
            "the driver crashed on a tiny kernel (signal 11): no message",
        ),
    ],
)
def test_a_broken_device_is_reported_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, answers: Any, crash: Any, problem: str
) -> None:
    monkeypatch.setattr(base, "run_probe", lambda kind, index, timeout_s, without: (answers, crash))
    report = BACKEND.check_device(0)
    assert (report.is_usable, report.has_images, report.has_fp16, report.problem) == (False, False, False, problem)
    assert report.hint is not None
    assert "ROMOU_OPENCL_DEVICE" in report.hint


def test_pocl_without_a_linker_is_one_error_and_no_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """PoCL would end the process, seen with PoCL 3.1. It is tried in another one if no `ld` is on PATH."""
    pocl = {**BACKEND.facts(0), "platform": "Portable Computing Language", "keeps_programs": False}
    crash = "the driver crashed on a tiny kernel (signal 6): Final linking of kernel main_kernel failed."
    monkeypatch.setattr(OpenCL, "list_devices", lambda self: [pocl, {**pocl, "platform": "another"}])
    monkeypatch.setattr(base, "run_probe", lambda kind, index, timeout_s, without: ({}, crash))
    assert BACKEND.programs(None, 0) is None
    monkeypatch.setenv("PATH", "")
    assert BACKEND.programs(None, 1) is None
    with pytest.raises(DeviceError, match=f"{re.escape(crash)}\nIts compiler calls the linker `ld`, .* binutils"):
        BACKEND.programs(None, 0)


def test_a_missing_aspect_is_only_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"buffers": None, "images": "no images\nlong log", "fp16": None}
    monkeypatch.setattr(base, "run_probe", lambda kind, index, timeout_s, without: (answers, None))
    monkeypatch.setattr(OpenCL, "lacks", lambda self, facts: {})
    report = BACKEND.check_device(0)
    assert (report.is_usable, report.has_images, report.has_fp16) == (True, False, True)
    assert "no images" in " ".join(report.limits)


def test_fp16_that_the_driver_does_not_offer_is_one_line_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {**BACKEND.facts(0), "extensions": "cl_khr_command_buffer"}
    monkeypatch.setattr(OpenCL, "list_devices", lambda self: [facts])
    report = BACKEND.check_device(0)
    assert (report.is_usable, report.has_fp16) == (True, False)
    assert report.notes == (
        "fp16: the driver offers no arithmetic (cl_khr_fp16); kernels store fp16 and compute in fp32",
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the driver crashed on a tiny kernel (signal 11)"),
        ("raise SystemExit('no way')", "the probe failed (exit code 1): no way"),
        ("import time; time.sleep(60)", "a tiny kernel did not finish within 0.5 s"),
    ],
)
def test_crash_and_hang_do_not_end_the_caller(monkeypatch: pytest.MonkeyPatch, code: str, expected: str) -> None:
    real_run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: real_run([sys.executable, "-c", code], **options))
    answers, problem = usable.run_probe("opencl", 0, 0.5)
    assert answers == {}
    assert problem is not None
    assert problem.startswith(expected)


def test_host_without_a_cpu_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenCL, "list_devices", lambda self: [{"name": "Big GPU", "type": "gpu"}])
    assert BACKEND.device_index(None) == BACKEND.device_index("adreno640") == 0
    with pytest.raises(
        DeviceError, match="-device=host means the CPU through OpenCL, but the runtime sees only Big GPU"
    ):
        BACKEND.device_index("host")
    assert BACKEND.spec("host").source_of("local_mem_bytes").startswith("minimum that OpenCL 1.2 asks")


def test_no_platform_is_an_error_not_a_crash(tmp_path: Path) -> None:
    code = "from romou.devices.targets import Target; Target('opencl').spec"
    env = {**os.environ, "OCL_ICD_VENDORS": str(tmp_path), "ROMOU_OPENCL_LIBRARY": "libOpenCL.so.1"}
    done = forked.run("-c", code, env=env)
    assert done.returncode == 1
    assert "DeviceError: no OpenCL device: no ICD loader was found, or no platform offers a device" in done.stderr
