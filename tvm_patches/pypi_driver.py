"""Finds Intel's OpenCL driver for CPUs among the installed wheels (`pip install 'romou[cpu]'`): a device without root
and without an ICD file.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

# In the order in which they are opened: each needs those before it, and two wheels may lie in two folders. The driver
# is the last.
WHEELS = {
    "intel-cmplr-lib-rt": ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so"),
    "tbb": ("libtbb.so.12",),
    "intel-opencl-rt": ("libintelocl.so",),
}
DRIVER = "intel-opencl-rt"


def libraries() -> list[str]:
    """Return the paths of the driver's libraries in the order of opening, the driver last; empty unless all are there."""  # noqa: E501
    found, missing = _find()
    return [] if missing else found


def problem() -> str | None:
    """Return what an installed driver lacks, for a person; None where it is complete, and where it is not installed."""
    missing = _find()[1]
    return f"{DRIVER} is installed, but lacks {', '.join(missing)}" if missing and _files(DRIVER) else None


def wheel_of(library: str) -> str | None:
    """Return the driver's wheel and version where `library` is the driver; None for any other library."""
    return f"{DRIVER} {importlib.metadata.version(DRIVER)}" if libraries()[-1:] == [library] else None


def _find() -> tuple[list[str], list[str]]:
    """(paths in the order of opening, what is missing)."""
    found, missing = [], []
    for wheel, names in WHEELS.items():
        files = _files(wheel)
        for name in names:
            if name in files and files[name].exists():
                found.append(str(files[name]))
            else:
                missing.append(f"{name} of {wheel}")
    return found, missing


def _files(wheel: str) -> dict[str, Path]:
    """Name -> path of each file of an installed wheel."""
    try:
        return {file.name: Path(str(file.locate())).resolve() for file in importlib.metadata.files(wheel) or ()}
    except importlib.metadata.PackageNotFoundError:
        return {}
