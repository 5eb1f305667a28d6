"""The OpenCL device that tests run on. No device is a failure, never a skip."""

from __future__ import annotations

import os

# Some ICD loaders look elsewhere by themselves; this is where the system lists its platforms.
os.environ.setdefault("OCL_ICD_VENDORS", "/etc/OpenCL/vendors")

import pytest
import tvm


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden kernels of tests/golden anew.")
    parser.addoption("--update-baseline", action="store_true", help="Write the measures of tests/regression/baselines anew.")


@pytest.fixture(scope="session")
def opencl_device() -> tvm.runtime.Device:
    device = tvm.opencl(0)
    assert device.exist, "no OpenCL device: scripts/test.sh installs PoCL; `romou doctor` says what is wrong"
    return device
