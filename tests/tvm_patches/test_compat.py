"""The version check: the message for each mismatch."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm
import tvm_ffi

import romou
import tvm_patches
from romou.base.compat import check_versions
from tvm_patches import compat, runtime
from tvm_patches.errors import VersionError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    compat.check_versions.cache_clear()
    yield
    compat.check_versions.cache_clear()


def test_this_installation_is_right() -> None:
    compat.check_versions()
    for kind in tvm_patches.RUNTIMES:
        assert str(tvm.get_global_func(f"romou.{kind}.built_against")()) == compat.PINNED["apache-tvm"]


@pytest.mark.parametrize("package", sorted(compat.PINNED))
def test_another_version(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.99" if name == package else real(name))
    with pytest.raises(VersionError, match=rf"{package} is 0\.99; this Romou works with") as caught:
        compat.check_versions()
    assert caught.value.hint == "pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1"


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(VersionError, match="apache-tvm is not installed"):
        compat.check_versions()


@pytest.mark.parametrize("kind", sorted(tvm_patches.RUNTIMES))
def test_a_runtime_that_did_not_load(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(tvm_patches, "load_errors", {kind: f"libtvm_runtime_{kind}.so: undefined symbol"})
    with pytest.raises(VersionError, match=f"could not be loaded: libtvm_runtime_{kind}.so") as caught:
        compat.check_versions()
    assert "Reinstall Romou" in (caught.value.hint or "")


@pytest.mark.parametrize("kind", sorted(tvm_patches.RUNTIMES))
def test_a_runtime_of_another_tvm(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    real = runtime.global_function
    monkeypatch.setattr(
        runtime,
        "global_function",
        lambda name, *a, **k: (lambda: "0.26.0") if name == f"romou.{kind}.built_against" else real(name, *a, **k),
    )
    with pytest.raises(VersionError, match=r"built against TVM 0\.26\.0"):
        compat.check_versions()


def test_romou_raises_it_as_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.99" if name == "apache-tvm" else real(name))
    with pytest.raises(romou.CompatError, match=r"apache-tvm is 0\.99") as caught:
        check_versions()
    assert (caught.value.exit_code, caught.value.found, caught.value.hint) == (1, "0.99", compat.HINT)


def test_autoload_never_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tvm_patches, "RUNTIMES", {"opencl": tmp_path / "absent.so"})
    monkeypatch.setattr(tvm_patches, "load_errors", {})
    monkeypatch.setattr(tvm_patches, "_libraries", [])
    monkeypatch.setattr(tvm_ffi, "get_global_func", lambda name, allow_missing: None)
    tvm_patches.autoload()
    assert "absent.so" in tvm_patches.load_errors["opencl"]


def test_another_runtime_is_left_alone(tmp_path: Path) -> None:
    """A copy of the library plays the OpenCL runtime of another TVM. Loading ours on top of it
    would end the process.
    """
    other = tmp_path / "libtvm_runtime_opencl.so"
    shutil.copy(tvm_patches.RUNTIMES["opencl"], other)
    code = f"""
import ctypes, os
os.environ["TVM_DEVICE_BACKEND_AUTOLOAD"] = "0"
import tvm
ctypes.CDLL({str(other)!r})
import tvm_patches
from tvm_patches import compat, runtime
tvm_patches.autoload()
assert tvm.opencl(0).exist
try:
    compat.check_versions()
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("VersionError")
    assert "another runtime of opencl devices is in the process already" in done.stdout
