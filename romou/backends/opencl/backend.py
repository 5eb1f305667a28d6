"""OpenCL as a backend. Facts come from the runtime's own packed function, so they are those of the device that kernels will run on."""

from __future__ import annotations

import ctypes.util
import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from romou.backends.base import COMMON_LIMITS, DEVICE, FACTS, HOST, IMAGES, WITHOUT, Backend, CapturedRun, TargetOption
from romou.backends.command_buffer import CommandBuffer
from romou.core.errors import DeviceError, RomouError
from romou.hardware import HardwareSpec, load_device
from romou.tvm_patches import pypi_driver

if TYPE_CHECKING:
    import tvm.runtime

    from romou.backends.dialect import Dialect

_BY_PIP = "pip install 'romou[cpu]' brings one for the CPU (x86-64, no root needed)."
_NO_LOADER = "Install an OpenCL ICD loader: apt-get install ocl-icd-libopencl1 (Debian, Ubuntu)."
_NO_PLATFORM = (
    f"Install an OpenCL platform: {_BY_PIP} Or: apt-get install pocl-opencl-icd for the CPU, or the GPU vendor's driver. "
    "If one is installed, OCL_ICD_VENDORS may point past it; the usual place is /etc/OpenCL/vendors."
)

# One fused multiply-add after the other: it takes as long as the clock is slow, whatever the memory does.
_CLOCK_KERNEL = """
__kernel void clock_check(__global float *out, int iterations) {
  float a = (float)get_global_id(0), b = a + 1.0f, c = a + 2.0f, d = a + 3.0f;
  for (int i = 0; i < iterations; i++) { a = mad(a, 0.5f, 1.0f); b = mad(b, 0.5f, 1.0f); c = mad(c, 0.5f, 1.0f); d = mad(d, 0.5f, 1.0f); }
  out[get_global_id(0)] = a + b + c + d;
}
"""
_CLOCK_ITERATIONS, _CLOCK_LOCAL, _CLOCK_GROUPS_PER_UNIT, _CLOCK_LAUNCHES = 4096, 64, 4, 3


class OpenCL(Backend):
    """The attached OpenCL devices, in the order of `tvm.opencl(i)`."""

    name = "opencl"
    title = "OpenCL"
    language = "OpenCL C"
    source_suffix = "cl"
    options = (
        DEVICE,
        HOST,
        TargetOption(name="half", pattern="arithmetic|storage", error="target option -half={value}: must be arithmetic or storage"),
        IMAGES,
        FACTS,
        WITHOUT,
    )
    limit_names = ("image_base_address_alignment", "max_function_args", *COMMON_LIMITS[:2], "texture_depth_limit", "texture_spatial_limit", *COMMON_LIMITS[2:])
    default_limits: Mapping[str, int] = {**Backend.default_limits, "texture_spatial_limit": 16384, "texture_depth_limit": 2048}
    device_variable = "ROMOU_OPENCL_DEVICE=NAME"
    has_images = True
    is_served = True
    is_optional = False

    @cached_property
    def dialect(self) -> Dialect:
        from romou.backends.opencl.dialect import OpenCLC

        return OpenCLC()

    def spec(self, device_name: str | None) -> HardwareSpec:
        """See `Backend.spec`. Limits of "host" are asked from the CPU's driver; the rest, or all where no CPU is attached, is in host.json."""
        if device_name != "host":
            return super().spec(device_name)
        minimum = load_device("host")
        try:
            asked = _spec_of(self.facts(self.device_index("host")))
        except DeviceError:
            return minimum
        return dataclasses.replace(asked, name=minimum.name, title=minimum.title).filled_from(minimum)

    def attached_spec(self) -> HardwareSpec:
        facts = self.facts(self.device_index(None))
        return self.with_known_facts(_spec_of(facts), facts)

    def device_limits(self, spec: HardwareSpec) -> dict[str, int]:
        sides = [n for n in (spec.max_image_width_texels, spec.max_image_height_texels) if n]
        return super().device_limits(spec) | ({"texture_spatial_limit": min(sides)} if sides else {})

    def abilities(self, spec: HardwareSpec, options: Mapping[str, Any]) -> dict[str, bool]:
        # What is not known of a device, the user may say.
        asked = options.get("half")
        has_fp16 = asked == "arithmetic" or (asked is None and bool(spec.has_half_arithmetic))
        return {"has_fp16_arithmetic": has_fp16, "prefers_fp16": has_fp16 and (asked is not None or (spec.fp16_rate or 0) >= 1)}

    def allowed_limits(self, facts: Mapping[str, Any]) -> dict[str, int]:
        """See `Backend.allowed_limits`. Without images nothing fits into one texel: everything stays in buffers."""
        sides, layers = min(facts["max_image_width"], facts["max_image_height"]), facts["max_image_layers"]
        spatial, depth = (int(sides), int(layers)) if facts["has_images"] else (1, 1)
        return super().allowed_limits(facts) | {"texture_spatial_limit": spatial, "texture_depth_limit": depth}

    def narrower_options(self, limits: Mapping[str, int], abilities: Mapping[str, bool], facts: Mapping[str, Any]) -> dict[str, Any]:
        found = super().narrower_options(limits, abilities, facts)
        return found | ({"half": "storage"} if abilities["has_fp16_arithmetic"] and not _has_fp16(facts) else {})

    def tvm_config(self, options: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
        """See `Backend.tvm_config`; from here on kernels name their work groups."""
        from romou.backends.opencl import compiler

        compiler.install()
        return super().tvm_config(options, limits)

    def list_devices(self) -> list[dict[str, Any]]:
        import tvm

        ask = tvm.get_global_func(self.function("devices"), allow_missing=True)
        if ask is None:
            raise DeviceError(
                f"Romou's OpenCL runtime is not loaded: TVM has no function {self.function('devices')}",
                hint="Reinstall Romou so that its C++ runtime is built: pip install --force-reinstall --no-deps romou (needs g++).",
            )
        return list(json.loads(str(ask())))

    def no_device_error(self, index: int, found: list[dict[str, Any]]) -> DeviceError:
        if found:
            return super().no_device_error(index, found)
        text = "no OpenCL device: no ICD loader was found, or no platform offers a device"
        return DeviceError(text, index=index, hint="`romou doctor` says what is missing.")

    def diagnose(self) -> RomouError:
        if ctypes.util.find_library("OpenCL") is None:
            return DeviceError("no OpenCL ICD loader (libOpenCL.so.1) on this machine", hint=f"{_NO_PLATFORM} {_NO_LOADER}")
        return DeviceError("the OpenCL ICD loader is there, but no platform offers a device", hint=_NO_PLATFORM)

    def device_index(self, device_name: str | None, found: list[dict[str, Any]] | None = None) -> int:
        """See `Backend.device_index`; for "host" it is the first CPU, and DeviceError where no device is one."""
        found = self.list_devices() if found is None else found
        index = super().device_index(device_name, found)
        if device_name != "host":
            return index
        for index, facts in enumerate(found):
            if facts["type"] == "cpu":
                return index
        names = ", ".join(str(facts["name"]) for facts in found)
        raise DeviceError(f"-device=host means the CPU through OpenCL, but the runtime sees only {names}", hint=_NO_PLATFORM, device="host")

    def lacks(self, facts: Mapping[str, Any]) -> dict[str, str]:
        # What the probe's kernels of fp16 images compute with is fp16 as well.
        why = "fp16: the driver offers no arithmetic (cl_khr_fp16); kernels store fp16 and compute in fp32"
        return {} if _has_fp16(facts) else {"fp16": why, "fp16_images": why}

    def origin(self, facts: Mapping[str, Any]) -> str | None:
        """See `Backend.origin`."""
        library = str(facts.get("library", ""))
        wheel = pypi_driver.wheel_of(library)
        if wheel is not None:
            return f"PyPI's {wheel}"
        return f"the system's platforms, by {library}" if library else None

    def _repair(self, facts: Mapping[str, Any]) -> str:
        if facts.get("type") == "cpu" and pypi_driver.wheel_of(str(facts.get("library"))) is not None:
            return f"Reinstall it (pip install --force-reinstall {pypi_driver.DRIVER}) or choose another device with {self.device_variable}."
        if facts.get("type") == "cpu":
            return f"Reinstall the CPU's platform (apt-get install --reinstall pocl-opencl-icd) or choose another device with {self.device_variable}."
        return super()._repair(facts)

    def split_kernels(self, source: str) -> dict[str, str]:
        """See `Backend.split_kernels`. TVM puts a marker before each kernel and, after it, declarations of all kernels, which are left out."""
        kernels = {}
        for part in source.split("// Function: ")[1:]:
            name, _, text = part.partition("\n")
            lines = [line for line in text.splitlines() if not (line.startswith("__kernel ") and line.endswith(");"))]
            kernels[name.strip()] = "\n".join(lines).strip() + "\n"
        return kernels

    def compiles_in_parallel(self, facts: Mapping[str, Any]) -> bool:
        """See `Backend.compiles_in_parallel`.

        Not on phones, whose drivers were not seen to gain by it.
        """
        return "NVIDIA" in facts["platform"] or facts["type"] == "cpu"

    def can_record(self, facts: Mapping[str, Any]) -> bool:
        return "cl_khr_command_buffer" in facts["extensions"].split()

    def record(self, device: tvm.runtime.Device, vm: Any, run: Callable[[], None]) -> CapturedRun:
        import tvm_ffi

        return CommandBuffer("an OpenCL command buffer", device.index, run, tvm_ffi.get_global_func(self.function("record")))

    def clock_kernel_s(self, session: Any, index: int, facts: Mapping[str, Any]) -> float:
        import numpy as np
        import tvm.runtime

        work_items = max(1, facts["compute_units"]) * _CLOCK_GROUPS_PER_UNIT * _CLOCK_LOCAL
        module = session.get_function(self.function("source_kernel"))(index, _CLOCK_KERNEL, "clock_check")
        output = tvm.runtime.empty((work_items,), "float32", session.device(self.device_type, index))
        launch = module["launch"]
        times = [int(launch("mi", work_items, _CLOCK_LOCAL, output, _CLOCK_ITERATIONS)) for _ in range(_CLOCK_LAUNCHES)]
        found = output.numpy()
        # Each of the four sums goes to 2.
        if not np.allclose(found, 8.0, rtol=1e-3):
            raise DeviceError(f"computes wrong numbers: {found.min():g} to {found.max():g} where all are 8")
        return max(min(times), 1) * 1e-9


def _has_fp16(facts: Mapping[str, Any]) -> bool:
    return "cl_khr_fp16" in facts["extensions"].split()


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
        "has_half_arithmetic": _has_fp16(facts),
    }
    if facts["type"] == "cpu":
        asked["warp_sizes"] = (1,)
    known: dict[str, Any] = {key: value for key, value in asked.items() if value or value is False}
    source = f"asked from the driver of {facts['name']} ({facts['platform']})"
    return HardwareSpec(name=str(facts["name"]), title=f"{facts['name']} ({facts['platform']})", sources=dict.fromkeys(known, source), **known)
