"""Devices: facts, presets, targets, backends. `romou.devices()` returns the attached devices.

The result has the facts of each attached device, as `romou devices` lists them, and is empty if there is none. Each
entry has at least "device", which the argument `device` takes ("opencl:0"), "backend", "index", "name", "platform",
"vendor", "driver" and "type" ("cpu" or "gpu"). Nothing runs on the devices.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def attached_devices() -> list[dict[str, Any]]:
    """Return the facts of each attached device: `romou.devices()`."""
    from romou.devices.backends import device_backends

    return [
        {"device": f"{backend.name}:{index}", "backend": backend.name, "index": index, **facts}
        for backend in device_backends()
        for index, facts in enumerate(backend.list_devices())
    ]


class _Package(ModuleType):
    """The package as a module that can be called: `romou.devices` names the package and the function."""

    def __call__(self) -> list[dict[str, Any]]:
        return attached_devices()


sys.modules[__name__].__class__ = _Package
