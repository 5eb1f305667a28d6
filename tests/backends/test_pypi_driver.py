"""Intel's driver from PyPI is found among the wheels and opened without the user's help, with or without the system's
drivers.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from romou.cli import main
from romou.devices.backends.opencl import BACKEND
from romou.runtime.rpc import Address, connect
from support.devices.platforms import INTEL, POCL
from support.servers import forked
from support.servers.rpc_servers import serving
from tvm_patches import pypi_driver


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make wheels, each in a separate folder, and return the folder of them all."""
    monkeypatch.setattr(sys, "path", [*(str(tmp_path / wheel / "site") for wheel in pypi_driver.WHEELS), *sys.path])
    for wheel, names in pypi_driver.WHEELS.items():
        info = tmp_path / wheel / "site" / f"{wheel.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {wheel}\nVersion: 1.2\n")
        (info / "RECORD").write_text("".join(f"../lib/{name},,\n" for name in ("README", *reversed(names))))
        (tmp_path / wheel / "lib").mkdir()
        for name in names:
            (tmp_path / wheel / "lib" / name).write_text("no library")
    return tmp_path


def origin_of_pypi() -> str:
    return f"PyPI's {pypi_driver.wheel_of(pypi_driver.libraries()[-1])}"


def test_libraries_stand_in_the_order_of_opening(wheels: Path) -> None:
    found = pypi_driver.libraries()
    assert found == [
        str(wheels / wheel / "lib" / name) for wheel, names in pypi_driver.WHEELS.items() for name in names
    ]
    assert pypi_driver.problem() is None
    assert pypi_driver.wheel_of(found[-1]) == "intel-opencl-rt 1.2"
    assert pypi_driver.wheel_of(found[0]) is None


def test_an_incomplete_driver_is_not_opened_and_doctor_says_so(wheels: Path) -> None:
    (wheels / "tbb" / "lib" / "libtbb.so.12").unlink()
    assert pypi_driver.libraries() == []
    assert pypi_driver.problem() == "intel-opencl-rt is installed, but lacks libtbb.so.12 of tbb"
    result = CliRunner().invoke(main, ["doctor", "--json"])
    (finding,) = [f for f in json.loads(result.stdout)["findings"] if f["name"] == "cpu driver"]
    assert (result.exit_code, finding["is_ok"], finding["detail"]) == (1, False, pypi_driver.problem())
    assert finding["hint"] == "Install all of it: pip install --force-reinstall intel-cmplr-lib-rt tbb intel-opencl-rt"


def test_without_the_wheels_there_is_nothing_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert (pypi_driver.libraries(), pypi_driver.problem(), pypi_driver.wheel_of("libOpenCL.so.1")) == ([], None, None)


def test_both_drivers_are_listed_and_each_tells_where_it_came_from(pytestconfig: pytest.Config) -> None:
    """Both compute in one process."""
    INTEL.require(pytestconfig)
    found = BACKEND.list_devices()
    (index,) = [index for index, facts in enumerate(found) if facts["platform"] == INTEL.title]
    assert BACKEND.origin(found[0]) == f"the system's platforms, by {found[0]['library']}"
    report = BACKEND.check_device(index)
    assert (report.is_usable, report.has_images, report.has_fp16, report.origin) == (True, True, True, origin_of_pypi())


def test_the_faster_driver_is_taken_and_named_unless_a_variable_chooses(pytestconfig: pytest.Config) -> None:
    INTEL.require(pytestconfig)
    POCL.require(pytestconfig)
    code = "from romou.devices.targets import Target, device_text; print(device_text(Target('opencl -device=host')))"
    words = {
        chosen: forked.run("-c", code, env={**os.environ, "ROMOU_OPENCL_DEVICE": chosen}).stdout.strip()
        for chosen in ("", POCL.title)
    }
    intel, pocl = rf"opencl:\d .* \({re.escape(INTEL.title)}\)", rf"opencl:\d .* \({POCL.title}\)"
    assert re.fullmatch(f"{intel}, usually faster than {pocl}", words[""])
    assert re.fullmatch(rf"{pocl}; usually faster: --device \d, {intel}", words[POCL.title])


def test_it_serves_where_no_loader_can_be_opened(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """No libOpenCL.so, no ICD file, no variable that names the driver: it computes in the sessions of an RPC server,
    three processes below the first.
    """
    INTEL.require(pytestconfig)
    for name in ("libOpenCL.so.1", "libOpenCL.so"):
        (tmp_path / name).write_text("no library")
    named = {"ROMOU_OPENCL_DEVICE": "", "OCL_ICD_VENDORS": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
    with serving(**named) as server:
        connection = connect(Address.parse(server.address))
        try:
            (facts,) = connection.devices
            assert (facts["platform"], BACKEND.origin(facts)) == (INTEL.title, origin_of_pypi())
            assert BACKEND.reference_kernel(connection.session, 0, facts).time_s() > 0
        finally:
            connection.close()


def test_a_chosen_library_stands_alone(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    INTEL.require(pytestconfig)
    environment = INTEL.environment(
        ROMOU_OPENCL_LIBRARY="libOpenCL.so.1", OCL_ICD_VENDORS=str(tmp_path), ROMOU_OPENCL_DEVICE=""
    )
    code = "from romou.devices.backends.opencl import BACKEND; print(BACKEND.list_devices())"
    done = forked.run("-c", code, env=environment)
    assert done.stdout.strip() == "[]"
