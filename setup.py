"""Builds Romou: its Python packages, and the OpenCL and Vulkan runtimes that TVM loads (see tvm_patches/README.md).

Metadata, dependencies and tool settings are in pyproject.toml.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
from importlib.metadata import version
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

PATCHES = Path("tvm_patches")
COMMON = PATCHES / "device_runtime"


def runtime(kind: str) -> Extension:
    """The library of a device kind. libtvm_runtime and libtvm_ffi are in the process already when TVM loads it: nothing
    is linked but libdl.
    """
    folder = PATCHES / f"{kind}_runtime"
    return Extension(
        ".".join((folder / f"libtvm_runtime_{kind}").parts),
        sorted(map(str, (*folder.glob("*.cc"), *COMMON.glob("*.cc")))),
        depends=sorted(map(str, (*folder.rglob("*.h"), *COMMON.rglob("*.h")))),
        include_dirs=[".", str(folder), str(COMMON), str(COMMON / "shim"), str(folder / "khronos")],
        libraries=["dl", "pthread"],
        extra_compile_args=["-std=c++20", "-O2", "-fvisibility=hidden", "-Wall"],
        language="c++",
    )


def site_folder(package: str) -> Path:
    """Return the folder of an installed package; SystemExit with what to do where it is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"building Romou's runtimes needs the headers in the {package} wheel; install with build isolation (pip's"
            " default)"
        )
    return Path(spec.origin).parent


class BuildRuntime(build_ext):
    """Build shared libraries for TVM to load. They are no Python extension modules: their names have no Python version,
    and nothing of Python is linked.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        # Both libraries at the same time.
        self.parallel = self.parallel or os.cpu_count()

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        cxx = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if cxx is None:
            raise SystemExit(
                "Romou's runtimes need a C++20 compiler and there is none: apt-get install g++, or set CXX"
            )
        # Python's own flags belong to the compiler that Python was built with.
        commands = {
            "compiler_so": "-fPIC",
            "compiler_so_cxx": "-fPIC",
            "linker_so": "-shared",
            "linker_so_cxx": "-shared",
            "compiler_cxx": "-shared",
        }
        executables = {
            name: [*shlex.split(cxx), flag] for name, flag in commands.items() if name in self.compiler.executables
        }
        if not os.environ.get("CXX") and (cache := shutil.which("ccache")):
            # Paths below are relative, so that what one checkout compiled serves another.
            executables |= {
                name: [cache, *words] for name, words in executables.items() if name.startswith("compiler_so")
            }
        self.compiler.set_executables(**executables)
        tvm, ffi = site_folder("tvm"), site_folder("tvm_ffi")
        ext.extra_compile_args += [f"-isystem{folder}" for folder in (tvm / "include", tvm / "src", ffi / "include")]
        ext.extra_compile_args += shlex.split(os.environ.get("CXXFLAGS", ""))
        versions = {
            "TVM": version("apache-tvm"),
            "TVM_FFI": version("apache-tvm-ffi"),
            "": self.distribution.get_version(),
        }
        ext.define_macros += [
            (f"ROMOU_{name}_VERSION".replace("__", "_"), f'"{text}"') for name, text in versions.items()
        ]
        # All sources in one: the compiler reads TVM's headers once, which is most of its work.
        whole = Path(self.build_temp, f"{ext.name}.cc")
        text = "".join(f'#include "{source}"\n' for source in ext.sources)
        if not whole.exists() or whole.read_text(encoding="utf-8") != text:
            whole.parent.mkdir(parents=True, exist_ok=True)
            whole.write_text(text, encoding="utf-8")
        ext.depends, ext.sources = [*ext.depends, *ext.sources], [str(whole)]
        try:
            super().build_extension(ext)
        except CCompilerError as error:
            raise SystemExit(
                f"compiling {ext.name} failed ({error}); it needs g++ 11 or clang++ 14, or newer (C++20)"
            ) from error


class AnyPython(bdist_wheel):
    """Tag the wheel for a machine and every Python: the library depends on the machine alone."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(
    license="Apache-2.0",
    # What lies beside the code and is read by it, or compiled for a phone. MANIFEST.in says what else is in the source
    # archive.
    include_package_data=False,
    package_data={
        "": (
            [f"**/*.{suffix}" for suffix in ("json", "onnx", "ubj.gz", "cc", "cl", "h", "html", "md", "txt")]
            + ["py.typed", "**/LICENSE"]
        )
    },
    packages=find_packages(include=["romou*", "tvm_patches*", "archprobe*"]),
    ext_modules=[runtime("opencl"), runtime("vulkan")],
    cmdclass={"build_ext": BuildRuntime, "bdist_wheel": AnyPython},
)
