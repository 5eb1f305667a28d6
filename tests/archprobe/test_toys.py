"""A new kind of device and a new probe are one file each: they are put into their folders, and the command line runs
them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import archprobe.devices
import archprobe.probes
from archprobe.cli import app
from archprobe.report.document import load_report

DEVICE = '''
import numpy as np
from archprobe.devices.base import Device, DeviceKind, Facts, ListedDevice

NUMBERS = ("compute_units", "clock_mhz", "max_work_group_size", "local_mem_bytes", "constant_bytes", "global_mem_bytes", "max_buffer_bytes",
           "global_cache_bytes", "global_cache_line_bytes", "max_image_width", "max_image_height", "timer_step_ns")


class ToyDevice(Device):
    """A simulated device: a kernel runs for as many microseconds as its first argument says."""

    def __init__(self, index):
        words = dict.fromkeys(("vendor", "driver", "platform", "version"), "toy")
        self.facts = Facts(api="toy", name=f"Toy {index}", is_cpu=False, has_images=False, extensions=(), **words, **dict.fromkeys(NUMBERS, 64))

    def kernel(self, source, name, **macros):
        return name

    def launch(self, kernel, global_size, local_size, *arguments):
        return 1e-6 * int(arguments[0])

    def enqueue(self, kernel, global_size, local_size, *arguments): ...
    def finish(self): ...
    def write(self, buffer, data): ...

    def buffer(self, data):
        return np.zeros(data, np.uint8) if isinstance(data, int) else data

    def read(self, buffer, like):
        return like

    def copy(self, to, source, size):
        return 1e-6


def list_devices():
    return [ListedDevice(handle=index, name=f"Toy {index}", platform="toy", driver="1") for index in range(4)]


KIND = DeviceKind(name="toy", title="Toy", list_devices=list_devices, open=lambda device: ToyDevice(device.handle))
'''  # noqa: E501
PROBE = """
import numpy as np
from archprobe.analysis.bandwidth import rate
from archprobe.curve import Findings
from archprobe.probes.probe import probe


@probe("Step", "Time of a step", "a loop of n steps")
def step(meter):
    seconds, _ = meter.rate(lambda n: meter.device.launch("step", 1, 1, np.int32(n)))
    return Findings(answers={"StepTime": rate(seconds * 1e6, "us")})
"""


@pytest.fixture
def _toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package, file, text in (
        (archprobe.devices, "toy_device.py", DEVICE),
        (archprobe.probes, "toy_probe.py", PROBE),
    ):
        folder = tmp_path / package.__name__
        folder.mkdir()
        (folder / file).write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])


@pytest.mark.usefixtures("_toys")
def test_a_toy_probe_runs_on_a_toy_device(tmp_path: Path) -> None:
    target = tmp_path / "toy.json"
    result = CliRunner().invoke(
        app, ["run", "--device", "toy:3", "--only", "step", "-o", str(target)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    report = load_report(target)
    assert (report.device_name, list(report.aspects)) == ("Toy 3", ["Step"])
    answer = report.answers()["Step.StepTime"]
    assert (round(answer.number(), 6), answer.unit) == (1.0, "us")


def test_without_their_files_neither_is_known(tmp_path: Path) -> None:
    assert "toy" not in archprobe.devices.device_kinds()
    assert "step" not in {probe.name for probe in archprobe.probes.all_probes()}
    assert list(archprobe.devices.device_kinds()) == ["opencl", "cuda", "vulkan"]
