"""Device kinds that kernels can run on, one folder each.

A backend is a `romou.devices.backends.base.Backend` under an entry point of the group `romou.backends`, so another
package can bring one:

    [project.entry-points."romou.backends"]
    opencl = "romou.devices.backends.opencl:BACKEND"
"""

from __future__ import annotations

import functools
from importlib import metadata
from typing import TYPE_CHECKING

from romou.base.errors import CompatError, UsageError, unknown_name
from romou.devices.hardware import device_called, soc_called

if TYPE_CHECKING:
    from romou.devices.backends.base import Backend

GROUP = "romou.backends"
# The kind of a target that names none, and the language of lowered functions without a target.
DEFAULT_KIND = "opencl"


@functools.cache
def installed() -> dict[str, metadata.EntryPoint]:
    """Return kind -> entry point of its backend, the default kind first, the others by name.

    Raises
    ------
    CompatError
        No backend is installed.
    """
    entry_points = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    if DEFAULT_KIND not in entry_points:
        hint = "Install Romou again, from its wheel or its checkout: pip install --force-reinstall --no-deps PATH."
        raise CompatError(
            f"no backend {DEFAULT_KIND!r} is installed: the metadata of Romou's package is missing or old", hint=hint
        )
    return dict(sorted(entry_points.items(), key=lambda item: (item[0] != DEFAULT_KIND, item[0])))


def backend(kind: str) -> Backend:
    """Return the backend of a device kind. UsageError lists the known kinds."""
    if kind not in installed():
        error = unknown_name("target kind", kind, installed())
        soc = soc_called(kind)
        device = device_called(kind) or (None if soc is None else soc.gpu)
        usual = f"A target starts with its kind: '{DEFAULT_KIND} -device={device or 'host'}'."
        hint = usual + f" Or leave it out and give the device: --device {device}" if device else error.hint or usual
        raise UsageError(error.message, hint=hint, kind=kind)
    loaded: Backend = installed()[kind].load()
    return loaded


def device_backends() -> list[Backend]:
    """Return the backends that run kernels on devices."""
    return [loaded for loaded in map(backend, installed()) if loaded.has_kernels]
