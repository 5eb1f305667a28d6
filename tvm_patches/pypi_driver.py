"""Finds Intel's OpenCL driver for CPUs among the installed wheels (`pip install 'romou[cpu]'`).

It gives a device without root and without an ICD file.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

# In the order of opening, the driver last. Each library needs the ones before it, and wheels may be in two folders.
WHEELS = {
    "intel-cmplr-lib-rt": ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so"),
    "tbb": ("libtbb.so.12",),
    "intel-opencl-rt": ("libintelocl.so",),
}
DRIVER = "intel-opencl-rt"


def libraries() -> list[str]:
    """Return the paths of the driver's libraries in the order of opening, the driver last. Empty if one is missing."""
    paths, missing = _find()
    return [] if missing else paths


def problem() -> str | None:
    """Return a message about the missing parts of an installed driver. None if it is complete or not installed."""
    missing = _find()[1]
    return f"{DRIVER} is installed, but lacks {', '.join(missing)}" if missing and _files(DRIVER) else None


def wheel_of(library: str) -> str | None:
    """Return the driver's wheel and version if `library` is the driver. None for any other library."""
    return f"{DRIVER} {importlib.metadata.version(DRIVER)}" if libraries()[-1:] == [library] else None


def _find() -> tuple[list[str], list[str]]:
    """Return the paths in the order of opening, and the missing files."""
    paths, missing = [], []
    for wheel, names in WHEELS.items():
        files = _files(wheel)
        for name in names:
            if name in files and files[name].exists():
                paths.append(str(files[name]))
            else:
                missing.append(f"{name} of {wheel}")
    return paths, missing


def _files(wheel: str) -> dict[str, Path]:
    """Return name -> path of each file of an installed wheel."""
    try:
        return {file.name: Path(str(file.locate())).resolve() for file in importlib.metadata.files(wheel) or ()}
    except importlib.metadata.PackageNotFoundError:
        return {}
