"""The devices that tests run on. A missing OpenCL device is a failure, never a skip. Without a CUDA device CUDA kernels
are compiled and not run.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from support.devices import short_pocl

# Some ICD loaders search elsewhere by default. Loaded drivers were chosen by it, so it is set before TVM is imported.
if Path(os.environ.get("OCL_ICD_VENDORS", short_pocl.SYSTEM)) == short_pocl.SYSTEM:
    os.environ["OCL_ICD_VENDORS"] = str(short_pocl.vendors())
# The tests' CPU is PoCL, also if a faster driver is installed.
if short_pocl.is_first():
    os.environ.setdefault("ROMOU_OPENCL_DEVICE", "Portable Computing Language")
# Images of containers often set it: each of the many processes that tests start would compile the project's modules
# again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Threads of OpenMP and BLAS spin while they wait, which slows other workers on the same cores. One thread also gives
# the same sums on every machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import tvm

from romou.devices.backends import base
from romou.devices.targets import Target
from support.kernels.operators import kind_id, target_of
from support.suite.exhaustive import exhaustive

pytest_plugins = ["support.suite.left_out"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden kernels of tests/golden anew.")
    parser.addoption(
        "--all-platforms",
        action="store_true",
        help="A missing OpenCL platform of tests/support/devices/platforms.py is a failure, not a skip.",
    )
    parser.addoption(
        "--update-baseline", action="store_true", help="Write the measures of tests/regression/baselines anew."
    )


def pytest_collection_finish() -> None:
    """Take all modules and tests out of Python's garbage collection, which would otherwise traverse them repeatedly."""
    gc.freeze()
    # Graphs of TVM are many objects and few circles.
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put records without a work_dir into a folder of the test run, and keep no programs: PoCL takes seconds to return
    a model's programs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROMOU_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("ROMOU_PROGRAM_CACHE_MB", "0")
        yield


# Variables that tests set and no driver reads.
_NO_DRIVER_READS = re.compile(r"PYTEST_|ROMOU_(?!OPENCL|VULKAN|CUDA)|KMP_|COLUMNS$|LINES$|NO_COLOR$|FORCE_COLOR$|TERM$")


@pytest.fixture(scope="session", autouse=True)
def _a_device_is_tried_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the result of a device's check for all workers of the run: it runs in another process for a second or two,
    and is not repeated in the same environment.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    real = base.run_probe

    def run_probe(
        kind: str, index: int, timeout_s: float, *, without: Iterable[str] = ()
    ) -> tuple[dict[str, str | None], str | None]:
        environment = {name: value for name, value in os.environ.items() if not _NO_DRIVER_READS.match(name)}
        key = json.dumps([kind, index, *without, *sorted(environment.items())])
        file = folder / f"probe-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        if file.exists():
            return json.loads(file.read_text()), None
        answers, crash = real(kind, index, timeout_s, without=without)
        if not crash:
            partial = file.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(answers))
            partial.replace(file)
        return answers, crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "run_probe", run_probe)
        yield


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a separate cache, so that no test continues from another one's records."""
    monkeypatch.setenv("ROMOU_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "caches" / uuid.uuid4().hex))


@pytest.fixture(autouse=True)
def _no_fallback(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test if a kernel cannot be built or is wrong. A test that plants such a kernel uses `fallbacks`."""
    if "fallbacks" not in request.fixturenames:
        monkeypatch.setenv("ROMOU_NO_FALLBACK", "1")


@pytest.fixture
def fallbacks() -> None:
    """Allow missing or wrong kernels: the test checks their replacements."""


@pytest.fixture(scope="session")
def opencl_device() -> tvm.runtime.Device:
    device = tvm.opencl(0)
    assert device.exist, "no OpenCL device: scripts/test.sh installs PoCL; `romou doctor` says what is wrong"
    return device


@pytest.fixture(params=["opencl", "cuda", pytest.param("vulkan", marks=exhaustive)], ids=kind_id)
def target(request: pytest.FixtureRequest) -> Target:
    """Return the target of a repeated kernel test. `operators.assert_agrees` runs its kernels, or compiles them if
    there is no device.
    """
    return target_of(request.param)


@pytest.fixture(params=["cuda"], ids=kind_id)
def cuda_target(request: pytest.FixtureRequest) -> Target:
    """Return only CUDA, for a test with an id that says whether kernels are run."""
    return target_of(request.param)


@pytest.fixture(scope="session")
def vulkan_device() -> tvm.runtime.Device:
    device = tvm.device("vulkan", 0)
    assert device.exist, "no Vulkan device: scripts/test.sh installs lavapipe; `romou doctor` says what is wrong"
    return device
