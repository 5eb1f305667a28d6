"""Builds tvm_patches: its Python, and the OpenCL and Vulkan runtimes that TVM loads (README.md beside this file).

`pip install ./tvm_patches` runs this file for the package without Romou. The setup.py of Romou runs it for its
functions, and builds the same sources.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import shlex
import shutil
from importlib.metadata import version
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import CCompilerError

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

# Relative paths, so that ccache finds results of another checkout.
PATCHES = Path(os.path.relpath(Path(__file__).parent))
COMMON = PATCHES / "device_runtime"
# The root of the checkout has it. A source archive of this folder brings it along.
THIRD_PARTY = PATCHES / "third_party"
if not THIRD_PARTY.exists():
    THIRD_PARTY = Path(os.path.relpath(PATCHES / "../third_party"))
KINDS = ("opencl", "vulkan")


def runtime(kind: str) -> Extension:
    """Return the runtime library of a device kind.

    It is linked with nothing but libdl: libtvm_runtime and libtvm_ffi are in the process before TVM loads it.
    """
    folder = PATCHES / f"{kind}_runtime"
    headers = THIRD_PARTY / kind
    return Extension(
        f"tvm_patches.{kind}_runtime.libtvm_runtime_{kind}",
        sorted(map(str, (*folder.glob("*.cc"), *COMMON.glob("*.cc")))),
        depends=sorted(map(str, (path for where in (folder, COMMON, headers) for path in where.rglob("*.h")))),
        include_dirs=[".", str(folder), str(COMMON), str(COMMON / "shim")],
        libraries=["dl", "pthread"],
        extra_compile_args=["-std=c++20", "-O2", "-fvisibility=hidden", "-Wall", f"-isystem{headers}"],
        language="c++",
    )


def site_folder(package: str) -> Path:
    """Return the folder of an installed package. Raise SystemExit if it is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"building Romou's runtimes needs the headers in the {package} wheel; install with build isolation (pip's"
            " default)"
        )
    return Path(spec.origin).parent


class BuildRuntimes(build_ext):
    """Build shared libraries that TVM loads.

    They are no extension modules of Python: their names have no Python version, and they are not linked with Python.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        # Both libraries at the same time.
        self.parallel = self.parallel or os.cpu_count()

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        self._choose_compiler()
        tvm, ffi = site_folder("tvm"), site_folder("tvm_ffi")
        ext.extra_compile_args += [f"-isystem{folder}" for folder in (tvm / "include", tvm / "src", ffi / "include")]
        ext.extra_compile_args += shlex.split(os.environ.get("CXXFLAGS", ""))
        versions = {
            "ROMOU_TVM_VERSION": version("apache-tvm"),
            "ROMOU_TVM_FFI_VERSION": version("apache-tvm-ffi"),
            "ROMOU_VERSION": runpy.run_path(str(PATCHES / "version.py"))["__version__"],
        }
        ext.define_macros += [(name, f'"{text}"') for name, text in versions.items()]
        # One translation unit: most of the time goes into TVM's headers, which the compiler then reads once.
        unit = Path(self.build_temp, f"{ext.name}.cc")
        text = "".join(f'#include "{source}"\n' for source in ext.sources)
        if not unit.exists() or unit.read_text(encoding="utf-8") != text:
            unit.parent.mkdir(parents=True, exist_ok=True)
            unit.write_text(text, encoding="utf-8")
        ext.depends, ext.sources = [*ext.depends, *ext.sources], [str(unit)]
        try:
            super().build_extension(ext)
        except CCompilerError as error:
            raise SystemExit(
                f"compiling {ext.name} failed ({error}); it needs g++ 11 or clang++ 14, or newer (C++20)"
            ) from error

    def _choose_compiler(self) -> None:
        """Compile and link with CXX, g++ or clang++, without the flags of the compiler that Python was built with."""
        cxx = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if cxx is None:
            raise SystemExit(
                "Romou's runtimes need a C++20 compiler and there is none: apt-get install g++, or set CXX"
            )
        flags = {
            "compiler_so": "-fPIC",
            "compiler_so_cxx": "-fPIC",
            "linker_so": "-shared",
            "linker_so_cxx": "-shared",
            "compiler_cxx": "-shared",
        }
        commands = {
            name: [*shlex.split(cxx), flag] for name, flag in flags.items() if name in self.compiler.executables
        }
        if not os.environ.get("CXX") and (cache := shutil.which("ccache")):
            commands |= {name: [cache, *words] for name, words in commands.items() if name.startswith("compiler_so")}
        self.compiler.set_executables(**commands)


class BuildPython(build_py):
    """Leave this file out of wheels."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if (package, module[1]) != ("tvm_patches", "setup")]


class SourceArchive(sdist):
    """Add the headers stored beside this folder to the archive."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        shutil.copytree(THIRD_PARTY, Path(base_dir, "third_party"), dirs_exist_ok=True)


class AnyPython(bdist_wheel):
    """Tag the wheel for a machine and every Python: the libraries depend on the machine only."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


COMMANDS = {"build_ext": BuildRuntimes, "build_py": BuildPython, "bdist_wheel": AnyPython}

if __name__ == "__main__":
    setup(
        license="Apache-2.0",
        packages=["tvm_patches", "tvm_patches.onnx_converters"],
        package_dir={"tvm_patches": "."},
        package_data={"tvm_patches": ["README.md"]},
        include_package_data=False,
        ext_modules=[runtime(kind) for kind in KINDS],
        cmdclass={**COMMANDS, "sdist": SourceArchive},
    )
