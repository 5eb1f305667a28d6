"""Device kinds that kernels can run on, one folder each.

A backend is a `romou.devices.backends.base.Backend` under an entry point of the group `romou.devices.backends`, so
another package can bring one:

    [project.entry-points."romou.backends"]
    opencl = "romou.devices.backends.opencl:BACKEND"
"""

from __future__ import annotations

import functools
from importlib import metadata
from typing import TYPE_CHECKING

from romou.base.errors import CompatError, UsageError, unknown_name

if TYPE_CHECKING:
    from romou.devices.backends.base import Backend

GROUP = "romou.backends"
# What a target is where none is given, and what lowered functions without a target are read as.
DEFAULT_KIND = "opencl"


@functools.cache
def installed() -> dict[str, metadata.EntryPoint]:
    """Kind
    ->  entry point of its backend; the default kind first, the others by name. CompatError where there is none.
    """
    found = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    if DEFAULT_KIND not in found:
        hint = "Install Romou again; in a checkout: pip install -e ."
        raise CompatError(
            f"no backend {DEFAULT_KIND!r} is installed: the metadata of Romou's package is missing or old", hint=hint
        )
    return dict(sorted(found.items(), key=lambda item: (item[0] != DEFAULT_KIND, item[0])))


def backend(kind: str) -> Backend:
    """The backend of a device kind; UsageError that lists the known ones otherwise."""
    if kind not in installed():
        error = unknown_name("target kind", kind, installed())
        raise UsageError(
            error.message,
            hint=error.hint or f"A target starts with its kind: '{DEFAULT_KIND} -device=host'.",
            kind=kind,
        )
    found: Backend = installed()[kind].load()
    return found


def device_backends() -> list[Backend]:
    """The backends that run kernels on devices: all but those that stand in for one."""
    return [found for found in map(backend, installed()) if found.has_kernels]
