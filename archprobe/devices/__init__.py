"""The devices that probes run on.

Each kind is one file in this folder, with a `KIND` that names and opens it. The folder is searched for such files, so
no list names them.
"""

from __future__ import annotations

import importlib
import pkgutil

from archprobe.devices.base import Device, DeviceKind
from archprobe.errors import UsageError


def device_kinds() -> dict[str, DeviceKind]:
    """Return every kind of device by its name, OpenCL first."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    kinds = [module.KIND for module in modules if hasattr(module, "KIND")]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: (kind.name != "opencl", kind.name))}


def open_device(text: str, *, rpc: str = "") -> Device:
    """Open the device `kind:INDEX` of this machine, or of the RPC server at `rpc` (see `RpcDevice`).

    OpenCL devices are counted over all platforms.

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
        return kinds[name].open_index(number)
    if name not in ("opencl", "vulkan"):
        raise UsageError(
            f"behind RPC only OpenCL and Vulkan are probed, not {name!r}; write --device opencl:0", device=text
        )
    from archprobe.devices.rpc import RpcDevice

    return RpcDevice(rpc, number, kind=name)
