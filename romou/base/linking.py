"""Linking of compiled modules into shared libraries, for this machine or another one."""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

from romou.base.environment import variable
from romou.base.errors import BuildError, UsageError
from romou.base.folders import HeldFolder

_ANDROID_API = 24
_LONGEST_ERROR = 1000
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
    how: dict[str, Any] = {} if is_here(host) else {"cc": compiler_for(str(host))}
    if entry is not None:
        how["options"] = ["-shared", "-fPIC", f"-Wl,--defsym,__tvm_ffi_{entry}=__tvm_ffi_main"]
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
        raise BuildError(f"{Path(path).name} cannot be linked: {str(error).strip()[:_LONGEST_ERROR]}") from error


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
            raise BuildError(
                f"no compiler for {host}: ANDROID_NDK_HOME={ndk or 'is not set, or'} holds no Android NDK",
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
