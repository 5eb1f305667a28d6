"""Checks that this is the TVM that Romou was made for. Its libraries share a C++ ABI, and a wrong pair crashes without
a message.
"""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path

import tvm_patches
from romou.base.errors import CompatError
from romou.base.version import __version__

PINNED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
HINT = "pip install " + " ".join(f"{name}=={version}" for name, version in PINNED.items())
REBUILD = (
    "Reinstall Romou so that its C++ runtime is built: pip install --force-reinstall --no-deps romou (from a checkout:"
    " pip install .)."
)


@functools.cache
def check_versions() -> None:
    """Raise CompatError unless the TVM packages are the pinned pair and the runtimes were built for them.

    Called at first use, not at import, so that `romou doctor` can say what is wrong.
    """
    for name, wanted in PINNED.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError as error:
            raise CompatError(f"{name} is not installed; Romou needs {wanted}", hint=HINT, package=name) from error
        if found != wanted:
            raise CompatError(
                f"{name} is {found}; this Romou works with {wanted} alone, other versions crash",
                hint=HINT,
                package=name,
                found=found,
            )
    check_runtime()


def romou_versions() -> dict[str, str]:
    """Return the versions that both sides of a connection must share; the other side's `romou.rpc.versions` has the
    same keys.
    """
    return {"tvm": PINNED["apache-tvm"], "tvm_ffi": PINNED["apache-tvm-ffi"], "romou": __version__}


def check_runtime() -> None:
    """Raise CompatError unless Romou's runtimes are in the process and were built against the pinned TVM.

    One that is missing alone says so where its devices are asked for: an editable installation may be older than it.
    """
    import tvm

    for kind, error in tvm_patches.load_errors.items():
        if tvm_patches.RUNTIMES.get(kind, Path()).exists() or len(tvm_patches.load_errors) >= len(tvm_patches.RUNTIMES):
            raise CompatError(f"Romou's runtime of {kind} devices could not be loaded: {error}", hint=REBUILD)
    for kind in tvm_patches.RUNTIMES:
        ask = tvm.get_global_func(f"romou.{kind}.built_against", allow_missing=True)
        if ask is None and kind in tvm_patches.load_errors:
            continue
        if ask is None:
            text = (
                f"Romou's runtime of {kind} devices was not loaded by TVM: the entry point tvm.backends of the romou"
                " package is not installed"
            )
            raise CompatError(text, hint=REBUILD)
        built = str(ask())
        if built != PINNED["apache-tvm"]:
            text = (
                f"Romou's runtime of {kind} devices was built against TVM {built}, but {PINNED['apache-tvm']} is"
                " installed"
            )
            raise CompatError(text, hint=REBUILD, found=built)
