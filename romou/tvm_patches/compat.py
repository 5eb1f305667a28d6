"""Checks that this is the TVM that Romou was made for. Its libraries share a C++ ABI, and a wrong pair crashes without a message."""

from __future__ import annotations

import functools
import importlib.metadata

from romou import tvm_patches
from romou.core.errors import CompatError
from romou.core.version import __version__

PINNED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
HINT = "pip install " + " ".join(f"{name}=={version}" for name, version in PINNED.items())
REBUILD = "Reinstall Romou so that its C++ runtime is built: pip install --force-reinstall --no-deps romou (from a checkout: pip install .)."


@functools.cache
def check_versions() -> None:
    """Raise CompatError unless the TVM packages are the pinned pair and the OpenCL runtime was built for them.

    Called at first use, not at import, so that `romou doctor` can say what is wrong.
    """
    for name, wanted in PINNED.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError as error:
            raise CompatError(f"{name} is not installed; Romou needs {wanted}", hint=HINT, package=name) from error
        if found != wanted:
            raise CompatError(f"{name} is {found}; this Romou works with {wanted} alone, other versions crash", hint=HINT, package=name, found=found)
    check_runtime()


def romou_versions() -> dict[str, str]:
    """Return the versions that both sides of a connection must share; the other side's `romou.rpc.versions` has the same keys."""
    return {"tvm": PINNED["apache-tvm"], "tvm_ffi": PINNED["apache-tvm-ffi"], "romou": __version__}


def check_runtime() -> None:
    """Raise CompatError unless Romou's OpenCL runtime is in the process and was built against the pinned TVM."""
    import tvm

    if tvm_patches.load_error is not None:
        raise CompatError(f"Romou's OpenCL runtime could not be loaded: {tvm_patches.load_error}", hint=REBUILD)
    ask = tvm.get_global_func("romou.opencl.built_against", allow_missing=True)
    if ask is None:
        raise CompatError("Romou's OpenCL runtime was not loaded by TVM: the entry point tvm.backends of the romou package is not installed", hint=REBUILD)
    built = str(ask())
    if built != PINNED["apache-tvm"]:
        raise CompatError(f"Romou's OpenCL runtime was built against TVM {built}, but {PINNED['apache-tvm']} is installed", hint=REBUILD, found=built)
