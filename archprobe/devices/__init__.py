"""The devices that probes run on.

Each kind is one file in this folder, with a `KIND` that names and opens it. The folder is searched for such files, so
no list names them.
"""

from __future__ import annotations

import importlib
import pkgutil

from archprobe.devices.base import Device, DeviceKind, ListedDevice
from archprobe.devices.order import in_order
from archprobe.errors import DeviceError, UsageError

# The kinds behind RPC.
SERVED = ("opencl", "vulkan")


def device_kinds() -> dict[str, DeviceKind]:
    """Return every kind of device by its name, OpenCL first."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    kinds = [module.KIND for module in modules if hasattr(module, "KIND")]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: (kind.name != "opencl", kind.name))}


def listed_devices(kind: DeviceKind, *, rpc: str = "") -> list[ListedDevice]:
    """Return the devices of a kind in the order of their numbers, here or at the RPC server `rpc`.

    DeviceError if the kind's binding is missing or the server does not exist. UsageError if the kind's variable names
    no device.
    """
    if not rpc:
        return in_order(kind.list_devices(), kind.variable)
    from archprobe.devices.rpc import list_devices

    return list_devices(rpc, kind.name)


def open_device(text: str, *, rpc: str = "") -> Device:
    """Open the device `kind:INDEX` of this machine, or of the RPC server at `rpc` (see `RpcDevice`).

    The index is a place in `listed_devices`, over all platforms.

    UsageError if the text is not a device, or is of another API over RPC. DeviceError if the device or the server does
    not exist.
    """
    name, _, index = text.partition(":")
    kinds = device_kinds()
    if name not in kinds or not (index or "0").isdigit():
        others = " or ".join(f"{other}:0" for other in kinds if other != "opencl")
        raise UsageError(
            f"{text!r} names no device; write opencl:0 for the first OpenCL device, opencl:1 for the second, {others}",
            device=text,
        )
    number = int(index or 0)
    if not rpc:
        kind = kinds[name]
        devices = listed_devices(kind)
        if number < len(devices):
            return kind.open(devices[number])
        seen = "; ".join(f"{name}:{i} is {device.name}" for i, device in enumerate(devices))
        raise DeviceError(
            f"there is no {kind.title} device {number}; the driver loader sees {seen or f'none: {kind.driver_hint}'}",
            index=number,
        )
    if name not in SERVED:
        raise UsageError(
            f"behind RPC only OpenCL and Vulkan are probed, not {name!r}; write --device opencl:0", device=text
        )
    from archprobe.devices.rpc import RpcDevice

    return RpcDevice(rpc, number, kind=name)
