"""Builds Romou: its Python packages, and the OpenCL runtime that TVM loads (see romou/tvm_patches/README.md).

Metadata, dependencies and tool settings are in pyproject.toml.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).parent
RUNTIME = Path("romou/tvm_patches/opencl_runtime")


def site_folder(package: str) -> Path:
    """Where the wheel of `package` lies; SystemExit with what to do where it is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"building Romou's OpenCL runtime needs the headers in the {package} wheel; install with build isolation (pip's default)")
    return Path(spec.origin).parent


def definitions(romou: str) -> list[str]:
    """Versions that the runtime is built for, as the compiler's options: what the headers at hand belong to, and Romou's own."""
    from importlib.metadata import version

    found = {"ROMOU_TVM_VERSION": version("apache-tvm"), "ROMOU_TVM_FFI_VERSION": version("apache-tvm-ffi"), "ROMOU_VERSION": romou}
    return [f'-D{name}="{text}"' for name, text in found.items()]


class BuildRuntime(build_ext):
    """One shared library for TVM to load; it is no Python extension module, so nothing of Python is compiled in."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise SystemExit("Romou's OpenCL runtime needs a C++20 compiler and there is none: apt-get install g++, or set CXX")
        tvm, ffi = site_folder("tvm"), site_folder("tvm_ffi")
        includes = [RUNTIME, RUNTIME / "shim", tvm / "include", tvm / "src", ffi / "include"]
        output = Path(self.get_ext_fullpath(ext.name))
        output.parent.mkdir(parents=True, exist_ok=True)
        command = [*compiler.split(), "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", *definitions(self.distribution.get_version())]
        command += [f"-I{path}" for path in includes[:2]] + [f"-isystem{path}" for path in includes[2:]]
        # libtvm_runtime and libtvm_ffi are in the process already when TVM loads this library: nothing is linked but libdl.
        command += [*ext.sources, "-o", str(output), "-ldl", "-lpthread"]
        try:
            subprocess.run(command, cwd=ROOT, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"compiling Romou's OpenCL runtime failed ({error}); it needs g++ 11 or clang++ 14, or newer (C++20)") from error


class AnyPython(bdist_wheel):
    """The library depends on the machine, not on the Python version."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(
    license="Apache-2.0",
    # Data is listed below; what MANIFEST.in adds is for the source archive.
    include_package_data=False,
    packages=find_packages(include=["romou*", "archprobe*"]),
    package_data={
        "romou": ["py.typed"],
        "romou.deploy": ["*.cc"],
        "romou.hardware": ["devices/*.json"],
        "romou.models": ["*.onnx"],
        "romou.search": ["pretrained_models/*"],
        "romou.tvm_patches": ["README.md", "opencl_runtime/*.cc", "opencl_runtime/*.h", "opencl_runtime/shim/tvm/support/*.h"],
        "archprobe": ["**/*.json", "**/*.cl", "**/*.html"],
    },
    ext_modules=[Extension("romou.tvm_patches.opencl_runtime.libtvm_runtime_opencl", sorted(str(p.relative_to(ROOT)) for p in (ROOT / RUNTIME).glob("*.cc")))],
    cmdclass={"build_ext": BuildRuntime, "bdist_wheel": AnyPython},
)
