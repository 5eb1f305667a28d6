"""Checks that the installed TVM has the version that this package was made for.

The libraries of TVM, tvm-ffi and the device runtimes share a C++ ABI, and a wrong pair crashes without a message.
"""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path

import tvm_patches
from tvm_patches import runtime
from tvm_patches.errors import VersionError
from tvm_patches.version import __version__

PINNED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
# Others that work, too (value_hashes.py). Runtimes are built for the pinned one.
ALSO = {"apache-tvm-ffi": ("0.1.15.post1", "0.1.15.post2")}
HINT = "pip install " + " ".join(f"{name}=={version}" for name, version in PINNED.items())
REBUILD = (
    "Reinstall Romou, so that its C++ runtime is built: pip install --force-reinstall --no-deps PATH, its wheel or its"
    " checkout (needs g++)."
)


@functools.cache
def check_versions() -> None:
    """Raise VersionError unless the TVM packages are a pair that works and the runtimes were built for it.

    It runs at first use, not at import, so that `romou doctor` can report the mismatch.
    """
    for name, wanted in PINNED.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError as error:
            raise VersionError(f"{name} is not installed; Romou needs {wanted}", hint=HINT, package=name) from error
        known = (wanted, *ALSO.get(name, ()))
        if installed not in known:
            raise VersionError(
                f"{name} is {installed}; this Romou works with {' or '.join(known)} only, other versions crash",
                hint=HINT,
                package=name,
                found=installed,
            )
    check_runtime()


def romou_versions() -> dict[str, str]:
    """Return the versions that both sides of an RPC connection must share, by the keys of `romou.rpc.versions`."""
    return {"tvm": PINNED["apache-tvm"], "tvm_ffi": PINNED["apache-tvm-ffi"], "romou": __version__}


def check_runtime() -> None:
    """Raise VersionError unless Romou's runtimes are in the process and were built against the pinned TVM.

    If only one runtime is missing, the error comes when its devices are used: an editable installation may be older
    than the runtime's sources.
    """
    for kind, error in tvm_patches.load_errors.items():
        if tvm_patches.RUNTIMES.get(kind, Path()).exists() or len(tvm_patches.load_errors) >= len(tvm_patches.RUNTIMES):
            raise VersionError(f"Romou's runtime of {kind} devices could not be loaded: {error}", hint=REBUILD)
    for kind in tvm_patches.RUNTIMES:
        ask = runtime.global_function(f"romou.{kind}.built_against", allow_missing=True)
        if ask is None and kind in tvm_patches.load_errors:
            continue
        if ask is None:
            text = (
                f"Romou's runtime of {kind} devices was not loaded by TVM: the entry point tvm.backends of the romou"
                " package is not installed"
            )
            raise VersionError(text, hint=REBUILD)
        built = str(ask())
        if built != PINNED["apache-tvm"]:
            text = (
                f"Romou's runtime of {kind} devices was built against TVM {built}, but {PINNED['apache-tvm']} is"
                " installed"
            )
            raise VersionError(text, hint=REBUILD, found=built)
