"""ArchProbe and Romou give a device the same number, in whatever order drivers are found."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path

import pytest

from archprobe.devices.base import ListedDevice
from archprobe.devices.order import in_order
from archprobe.errors import UsageError
from support.devices.platforms import RUSTICL
from support.servers import forked
from tvm_patches import pypi_driver

VENDORS = Path(os.environ.get("OCL_ICD_VENDORS", "/etc/OpenCL/vendors"))
# Both lists of each kind as (platform, name).
BOTH = """
import json
from archprobe.devices import device_kinds, listed_devices
from romou.devices import attached_devices
theirs = {kind: [(d["platform"].strip(), d["name"].strip()) for d in attached_devices() if d["backend"] == kind]
          for kind in ("opencl", "vulkan")}
ours = {kind: [(d.platform, d.name) for d in listed_devices(device_kinds()[kind])] for kind in theirs}
print(json.dumps([ours, theirs]))
"""


@pytest.mark.parametrize(
    ("is_reversed", "variables"),
    [
        (False, {}),
        (True, {}),
        (True, {"ROMOU_OPENCL_DEVICE": "portable", "ROMOU_VULKAN_DEVICE": "LLVM"}),
        (False, {"ROMOU_OPENCL_DEVICE": "1", "ROMOU_VULKAN_DEVICE": "0"}),
    ],
    ids=["names", "names reversed", "by name", "by number"],
)
def test_a_device_has_one_number(tmp_path: Path, is_reversed: bool, variables: dict[str, str]) -> None:
    """The drivers are those of the system and Intel's of PyPI, as ICD files whose names stand in both orders."""
    drivers = sorted({file.read_text().strip() for file in VENDORS.glob("*.icd")} | {*pypi_driver.libraries()[-1:]})
    for index, driver in enumerate(reversed(drivers) if is_reversed else drivers):
        (tmp_path / f"{index}.icd").write_text(driver + "\n")
    environment = {"ROMOU_OPENCL_DEVICE": "", "OCL_ICD_VENDORS": str(tmp_path), **dict(RUSTICL.variables), **variables}
    done = forked.run("-c", BOTH, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads(done.stdout.splitlines()[-1])
    assert ours == theirs
    assert ours["opencl"]
    wanted = variables.get("ROMOU_OPENCL_DEVICE", "")
    assert not wanted.isalpha() or wanted in ours["opencl"][0][0].lower()


def test_types_come_in_order_and_a_variable_puts_devices_first(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [
        ListedDevice(handle=None, name=name, platform=platform, driver="1", rank=rank)
        for rank, (name, platform) in enumerate(
            [("Adreno 740", "QUALCOMM"), ("NPU", "Vendor"), ("EPYC", "Intel(R) OpenCL"), ("pthread-EPYC", "PoCL")]
        )
    ]
    orders = list(itertools.permutations(devices))
    for wanted, first in (("", 0), ("740", 0), ("2", 2), ("epyc", 2), ("POCL", 3), ("vendor", 1)):
        monkeypatch.setenv("ROMOU_TEST_DEVICE", wanted)
        for order in random.Random(0).sample(orders, 4):
            found = in_order(order, "ROMOU_TEST_DEVICE")
            assert found[0] is devices[first]
            if wanted in ("", "740"):
                assert found == devices
    monkeypatch.setenv("ROMOU_TEST_DEVICE", "7")
    assert in_order(devices, "ROMOU_TEST_DEVICE")[0].name == "Adreno 740"
    monkeypatch.setenv("ROMOU_TEST_DEVICE", "mali")
    with pytest.raises(UsageError, match=r"ROMOU_TEST_DEVICE='mali' matches no device; found are Adreno 740  \(QUALC"):
        in_order(devices, "ROMOU_TEST_DEVICE")
