"""Which OpenCL devices the runtime sees, and their limits as a HardwareSpec.

The facts come from the runtime's own packed function, so they are those of the device that kernels will run on: index 0 is
`tvm.opencl(0)`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from romou.core.errors import DeviceError
from romou.hardware import HardwareSpec, load_device

MEND_NO_LOADER = "Install an OpenCL ICD loader: apt-get install ocl-icd-libopencl1 (Debian, Ubuntu)."
MEND_NO_PLATFORM = (
    "Install an OpenCL platform: apt-get install pocl-opencl-icd for the CPU, or the GPU vendor's driver. "
    "If one is installed, OCL_ICD_VENDORS may point past it; the usual place is /etc/OpenCL/vendors."
)


def list_devices() -> list[dict[str, Any]]:
    """Facts of every OpenCL device that the runtime can see, in `tvm.opencl(i)` order; empty without a loader or platform."""
    import tvm

    ask = tvm.get_global_func("romou.opencl.devices", allow_missing=True)
    if ask is None:
        raise DeviceError(
            "Romou's OpenCL runtime is not loaded: TVM has no function romou.opencl.devices",
            hint="Reinstall Romou so that its C++ runtime is built: pip install --force-reinstall --no-deps romou (needs g++).",
        )
    found = json.loads(str(ask()))
    return list(found)


def no_device_error(index: int, found: list[dict[str, Any]]) -> DeviceError:
    """The error for a device index that does not exist, with what to do about it."""
    if found:
        names = ", ".join(f"{i}: {facts['name']}" for i, facts in enumerate(found))
        return DeviceError(f"there is no OpenCL device {index}; the runtime sees {names}", index=index, hint="`romou devices` lists them.")
    return DeviceError("no OpenCL device: no ICD loader was found, or no platform offers a device", index=index, hint="`romou doctor` says what is missing.")


def device_index(device_name: str | None, found: list[dict[str, Any]] | None = None) -> int:
    """Which `tvm.opencl(i)` a target runs on: the first CPU for "host", the first device for everything else.

    Parameters
    ----------
    found
        The devices of another machine; None: those of this one.

    Raises
    ------
    DeviceError
        No device is attached, or "host" was asked for and no device is a CPU.
    """
    found = list_devices() if found is None else found
    if not found:
        raise no_device_error(0, found)
    if device_name != "host":
        return 0
    for index, facts in enumerate(found):
        if facts["type"] == "cpu":
            return index
    names = ", ".join(str(facts["name"]) for facts in found)
    raise DeviceError(f"-device=host means the CPU through OpenCL, but the runtime sees only {names}", hint=MEND_NO_PLATFORM, device="host")


def attached_spec() -> HardwareSpec:
    """The limits of the attached device, asked from its driver; DeviceError without one."""
    return _spec_of(list_devices()[device_index(None)])


def host_spec() -> HardwareSpec:
    """The CPU's limits asked from its driver, the rest (or all, where no CPU device is attached) from host.json."""
    minimum = load_device("host")
    try:
        asked = _spec_of(list_devices()[device_index("host")])
    except DeviceError:
        return minimum
    return dataclasses.replace(asked, name=minimum.name, title=minimum.title).filled_from(minimum)


def _spec_of(facts: dict[str, Any]) -> HardwareSpec:
    # Only what a driver can answer; caches, registers and bandwidths stay unknown until they are measured.
    asked: dict[str, Any] = {
        "shader_cores": facts["compute_units"],
        "max_work_group_size": facts["max_work_group_size"],
        "local_mem_bytes": facts["local_mem_bytes"],
        "constant_mem_bytes": facts["constant_mem_bytes"],
        "max_image_width_texels": facts["max_image_width"],
        "max_image_height_texels": facts["max_image_height"],
        "clock_mhz": facts["clock_mhz"],
    }
    asked["has_half_arithmetic"] = "cl_khr_fp16" in facts["extensions"].split()
    if facts["type"] == "cpu":
        asked["warp_sizes"] = (1,)
    known: dict[str, Any] = {key: value for key, value in asked.items() if value or value is False}
    source = f"asked from the driver of {facts['name']} ({facts['platform']})"
    return HardwareSpec(name=str(facts["name"]), title=f"{facts['name']} ({facts['platform']})", sources=dict.fromkeys(known, source), **known)
