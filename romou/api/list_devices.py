"""romou.list_devices: the attached devices."""

from __future__ import annotations

from typing import Any

from romou.devices.backends import device_backends


def list_devices() -> list[dict[str, Any]]:
    """Return the facts of each attached device, as `romou devices` lists them. Empty if there is none.

    Each entry has at least "device", which the argument `device` takes ("opencl:0"), "backend", "index", "name",
    "platform", "vendor", "driver" and "type" ("cpu" or "gpu"). Nothing runs on the devices.
    """
    return [
        {"device": f"{backend.name}:{index}", "backend": backend.name, "index": index, **facts}
        for backend in device_backends()
        for index, facts in enumerate(backend.list_devices())
    ]
