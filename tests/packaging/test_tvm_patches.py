"""`pip install ./tvm_patches` brings OpenCL and Vulkan devices to plain TVM, in an environment without Romou."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
# Whatever plain TVM code does: no import of tvm_patches.
KERNEL = """
import importlib.util
import numpy as np
import tvm
from tvm.script import ir as I, tirx as T

assert importlib.util.find_spec("romou") is None

@I.ir_module
class Module:
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for i in T.thread_binding(64, thread="threadIdx.x"):
            B[i] = A[i] * T.float32(2)

device = tvm.opencl(0)
assert device.exist
assert tvm.get_global_func("device_api.vulkan", allow_missing=True) is not None
numbers = np.arange(64, dtype="float32")
result = tvm.runtime.tensor(np.zeros(64, "float32"), device)
tvm.compile(Module, tvm.target.Target("opencl", host="llvm"))(tvm.runtime.tensor(numbers, device), result)
np.testing.assert_array_equal(result.numpy(), 2 * numbers)

import tvm_patches
from tvm_patches import compat
from tvm_patches.onnx_converters import from_onnx
compat.check_versions()
print(tvm_patches.__file__)
"""


Environment = tuple[str, Path]


@pytest.fixture(scope="module")
def installed(source: Path, fresh_environment: Callable[[], Environment], compiler: dict[str, str]) -> Environment:
    """Return an environment with the package of a checkout: (Python, site folder)."""
    python, site = fresh_environment()
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "./tvm_patches"],
        check=True,
        cwd=source,
        stdin=subprocess.DEVNULL,
        env={**ENVIRONMENT, **compiler},
    )
    return python, site


def test_plain_tvm_runs_a_kernel_on_opencl(installed: Environment, tmp_path: Path) -> None:
    python, site = installed
    # TVMScript is read from a file.
    (tmp_path / "kernel.py").write_text(KERNEL)
    done = subprocess.run([python, "kernel.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(site)


def test_it_brings_the_package_and_no_sources(source: Path, installed: Environment) -> None:
    _, site = installed
    files = {str(path.relative_to(site)) for path in (site / "tvm_patches").rglob("*") if path.suffix != ".pyc"}
    names = {name for name in files if Path(site, name).is_file()}
    sources = [path.relative_to(source) for path in (source / "tvm_patches").rglob("*.py")]
    python = {str(path) for path in sources if "build" not in path.parts}
    assert names == (python - {"tvm_patches/setup.py"}) | {
        "tvm_patches/README.md",
        "tvm_patches/opencl_runtime/libtvm_runtime_opencl.so",
        "tvm_patches/vulkan_runtime/libtvm_runtime_vulkan.so",
    }


def test_its_source_archive_brings_the_headers(source: Path, tmp_path: Path) -> None:
    code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, cwd=source / "tvm_patches", check=True, capture_output=True)
    (packed,) = tmp_path.glob("romou_tvm_patches-*.tar.gz")
    with tarfile.open(packed) as file:
        names = {name.split("/", 1)[1] for name in file.getnames() if "/" in name}
    assert {"setup.py", "opencl_runtime/module.cc", "third_party/vulkan/vulkan/vulkan_core.h"} <= names


def test_both_projects_pin_the_same_tvm_and_have_one_version(source: Path) -> None:
    def pinned(path: Path) -> set[str]:
        return set(re.findall(r'"(apache-tvm(?:-ffi)?==[^"]+)"', path.read_text(encoding="utf-8")))

    def version(path: Path) -> str:
        (text,) = re.findall(r'^(?:__version__|version) = "([^"]+)"', path.read_text(encoding="utf-8"), re.M)
        return str(text)

    assert pinned(source / "pyproject.toml") == pinned(source / "tvm_patches/pyproject.toml")
    versioned = ("pyproject.toml", "romou/base/version.py", "tvm_patches/version.py")
    assert len({version(source / name) for name in versioned}) == 1
