"""The devices that tests run on. No OpenCL device is a failure, never a skip; without a CUDA device CUDA kernels are compiled and not run."""

from __future__ import annotations

import os

# Some ICD loaders look elsewhere by themselves; this is where the system lists its platforms.
os.environ.setdefault("OCL_ICD_VENDORS", "/etc/OpenCL/vendors")

import pytest
import tvm
from operators import kind_id, target_of

from romou.target import Target


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden kernels of tests/golden anew.")
    parser.addoption("--update-baseline", action="store_true", help="Write the measures of tests/regression/baselines anew.")


@pytest.fixture(scope="session")
def opencl_device() -> tvm.runtime.Device:
    device = tvm.opencl(0)
    assert device.exist, "no OpenCL device: scripts/test.sh installs PoCL; `romou doctor` says what is wrong"
    return device


@pytest.fixture(params=["opencl", "cuda"], ids=kind_id)
def target(request: pytest.FixtureRequest) -> Target:
    """What a test of kernels is repeated for; `operators.assert_agrees` runs them, or compiles them where there is no device."""
    return target_of(request.param)


@pytest.fixture(params=["cuda"], ids=kind_id)
def cuda_target(request: pytest.FixtureRequest) -> Target:
    """CUDA alone, for a test whose id says whether kernels are run."""
    return target_of(request.param)
