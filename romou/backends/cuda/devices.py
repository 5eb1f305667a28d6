"""Which NVIDIA GPUs TVM's CUDA runtime sees, and their limits as a HardwareSpec."""

from __future__ import annotations

import functools
import subprocess
from typing import Any

from romou.core.errors import DeviceError
from romou.hardware import HardwareSpec

MEND = "It takes an NVIDIA GPU with its driver, and libcudart.so.13: pip install 'romou[cuda]', or a CUDA 13 toolkit."
_SMI_TIMEOUT_S = 30.0


def list_devices() -> list[dict[str, Any]]:
    """Facts of every CUDA device, in `tvm.cuda(i)` order, under the names that OpenCL devices have; empty without a GPU or its driver."""
    import tvm

    from romou.tvm_patches import cuda_runtime

    found: list[dict[str, Any]] = []
    for device in map(tvm.cuda, range(cuda_runtime.device_count())):
        major, minor = str(device.compute_version).split(".")
        found.append(
            {
                "name": str(device.device_name),
                "platform": "NVIDIA CUDA",
                "vendor": "NVIDIA Corporation",
                "driver": _driver(),
                "type": "gpu",
                "compute_units": int(device.multi_processor_count),
                "clock_mhz": int(device.max_clock_rate) // 1000,
                "max_work_group_size": int(device.max_threads_per_block),
                "local_mem_bytes": int(device.max_shared_memory_per_block),
                "warp_size": int(device.warp_size),
                # From 9.0 on, instructions of one generation alone need the suffix.
                "arch": f"sm_{major}{minor}" + ("a" if int(major) >= 9 else ""),
                "has_images": False,
                "extensions": "",
            }
        )
    return found


def no_device_error(index: int, found: list[dict[str, Any]]) -> DeviceError:
    """The error for a device index that does not exist, with what to do about it."""
    from romou.tvm_patches import cuda_runtime

    if found:
        names = ", ".join(f"{i}: {facts['name']}" for i, facts in enumerate(found))
        return DeviceError(f"there is no CUDA device {index}; the runtime sees {names}", index=index, hint="`romou devices` lists them.")
    return DeviceError(f"no CUDA device: {cuda_runtime.load() or 'the driver offers none'}", index=index, hint=MEND)


def device_index(device_name: str | None) -> int:
    """Which `tvm.cuda(i)` a target runs on: the first; DeviceError without one."""
    found = list_devices()
    if not found:
        raise no_device_error(0, found)
    return 0


def attached_architecture() -> str:
    """What CUDA's compiler makes code for on the attached device."""
    found = list_devices()
    if not found:
        error = no_device_error(0, found)
        raise DeviceError(error.message, hint="Without one, name what to compile for: cuda -device=nvidia_h200, or cuda -arch=sm_80.")
    return str(found[0]["arch"])


def attached_spec() -> HardwareSpec:
    """The limits of the attached device, asked from its driver; those of every CUDA device without one."""
    found = list_devices()
    if not found:
        # Compiling for an architecture that was named needs no device; what every GPU since 2018 has is a limit all the same.
        known: dict[str, Any] = {"max_work_group_size": 1024, "local_mem_bytes": 49152, "warp_sizes": (32,), "has_half_arithmetic": True}
        source = "CUDA C++ Programming Guide, compute capabilities from 7.5 on"
        return HardwareSpec(name="cuda", title="any CUDA device", sources=dict.fromkeys(known, source), **known)
    facts = found[0]
    asked: dict[str, Any] = {
        "shader_cores": facts["compute_units"],
        "max_work_group_size": facts["max_work_group_size"],
        "local_mem_bytes": facts["local_mem_bytes"],
        "clock_mhz": facts["clock_mhz"],
        "warp_sizes": (facts["warp_size"],),
        "has_half_arithmetic": True,
    }
    source = f"asked from the driver of {facts['name']} ({facts['platform']})"
    return HardwareSpec(name=facts["name"], title=f"{facts['name']} ({facts['platform']})", sources=dict.fromkeys(asked, source), **asked)


@functools.cache
def _driver() -> str:
    """Version of NVIDIA's driver, which the CUDA runtime does not tell."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, stdin=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown (nvidia-smi does not answer)"
    return done.stdout.split()[0] if done.stdout.split() else "unknown"
