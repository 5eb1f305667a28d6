"""Linking of compiled modules into shared libraries, for this machine or another one."""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from romou.base.environment import variable
from romou.base.errors import BuildError, UsageError
from romou.base.folders import HeldFolder

_ANDROID_API = 24
_LONGEST_ERROR = 1000
_COMPILERS = ("g++", "clang++", "c++", "gcc", "clang", "cc")
# Kernels come as objects, so a linker alone does, too.
_LINKERS = ("ld", "ld.lld")
_SHARED = ("-shared", "-fPIC")
# Android's newer devices load no library that is laid out for smaller pages.
_ANDROID_PAGES = "-Wl,-z,max-page-size=16384"
# Room for the objects of a model without its weights.
_LEAST_FREE = 4 << 20


def export_library(
    module: Any, path: str | Path, *, host: str | None = None, entry: str | None = None, weight_bytes: int = 0
) -> None:
    """Link a TVM module or executable into the shared library `path`.

    host: LLVM triple of the machine that loads it. None for this one.
    entry: a second name for the module's function `main`.
    weight_bytes: bytes of the module's weights.

    Raises
    ------
    BuildError
        There is no compiler for `host`, or it fails.
    UsageError
        The folder of temporary files is full.
    """
    how = _how_to_link(host, entry)
    try:
        with HeldFolder("link") as objects:
            free = shutil.disk_usage(objects).free
            if free < weight_bytes + _LEAST_FREE:
                # LLVM would end the process.
                text = f"{Path(path).name} cannot be linked: {tempfile.gettempdir()} has {free / 2**20:.1f} MiB left"
                raise UsageError(
                    f"{text}, and it takes {(weight_bytes + _LEAST_FREE) / 2**20:.0f}",
                    hint="Free some space, or set TMPDIR to another folder.",
                )
            module.export_library(str(path), workspace_dir=objects, **how)
    except RuntimeError as error:
        if os.strerror(errno.ENOSPC) in str(error):
            text = f"{path} cannot be written: {os.strerror(errno.ENOSPC)}"
            raise UsageError(text, hint="Free some space, or choose another folder, or TMPDIR.") from error
        raise BuildError(f"{Path(path).name} cannot be linked: {str(error).strip()[:_LONGEST_ERROR]}") from error


def _how_to_link(host: str | None, entry: str | None) -> dict[str, Any]:
    """Return TVM's arguments for linking. See `export_library`."""
    command = linker() if is_here(host) else (compiler_for(str(host)),)
    symbol = f"__tvm_ffi_{entry}=__tvm_ffi_main"
    if Path(command[-1]).name not in _LINKERS:
        options = [] if entry is None else [f"-Wl,--defsym,{symbol}"]
        options += [_ANDROID_PAGES] if host is not None and "android" in host else []
        return {"cc": command[0]} | ({"options": [*_SHARED, *options]} if options else {})

    def link(output: str, objects: Sequence[str], options: Sequence[str] | None = None) -> None:
        named = [] if entry is None else [f"--defsym={symbol}"]
        arguments = [*command, "-shared", *named, "-o", output, *objects]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or f"{command[-1]} ended with {done.returncode}")

    link.get_target_triple = lambda: f"{platform.machine()}-unknown-linux-gnu"  # type: ignore[attr-defined]
    return {"fcompile": link}


def linker() -> tuple[str, ...]:
    """Return the command that links libraries for this machine: a compiler, or a linker without one.

    Raises
    ------
    BuildError
        There is none, with how to get one.
    """
    own = variable("CXX")
    for name in (*([own] if own else []), *_COMPILERS, *_LINKERS):
        if (path := shutil.which(name)) is not None:
            return (path,)
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "ld.lld")
    names = ", ".join((*([f"CXX={own}"] if own else []), *_COMPILERS, *_LINKERS))
    raise BuildError(
        f"no linker, which every tuned or saved model needs: none of {names} is on PATH",
        hint="apt-get install g++ (Debian, Ubuntu), or without root: pip install ziglang",
    )


def check_linker(host: str | None) -> None:
    """Raise BuildError unless libraries can be linked for `host`, an LLVM triple. None is this machine."""
    if is_here(host):
        linker()
    else:
        compiler_for(str(host))


def is_here(host: str | None) -> bool:
    """Return whether libraries linked for this machine load on `host`."""
    return host is None or (host.partition("-")[0] == platform.machine() and "android" not in host)


def compiler_for(host: str) -> str:
    """Return the C++ compiler that links for the triple `host`. Raises BuildError, with how to get one."""
    machine = host.partition("-")[0]
    if "android" in host:
        ndk = variable("ANDROID_NDK_HOME")
        pattern = f"toolchains/llvm/prebuilt/*/bin/{machine}-linux-android{_ANDROID_API}-clang++"
        compilers = sorted(Path(ndk).glob(pattern)) if ndk else []
        if not compilers:
            reason = f"={ndk} holds no {pattern}" if ndk else " is not set"
            raise BuildError(
                f"no compiler for {host}: ANDROID_NDK_HOME{reason}",
                hint="Install the NDK and set ANDROID_NDK_HOME to its folder.",
                host=host,
            )
        return str(compilers[0])
    name = f"{machine}-linux-gnu-g++"
    compiler = shutil.which(name)
    if compiler is None:
        raise BuildError(
            f"no compiler for {host}: {name} is not there",
            hint=f"apt-get install g++-{machine.replace('_', '-')}-linux-gnu",
            host=host,
        )
    return compiler
