"""Vulkan as a backend. Facts come from Romou's own runtime, so they are those of the device that kernels will run on."""

from __future__ import annotations

import ctypes.util
import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from romou.backends.base import COMMON_LIMITS, DEVICE, FACTS, HOST, IMAGES, Backend, CapturedRun, TargetOption
from romou.backends.command_buffer import CommandBuffer
from romou.backends.vulkan import compiler
from romou.core.errors import DeviceError, RomouError
from romou.hardware import HardwareSpec, load_device

if TYPE_CHECKING:
    import tvm.runtime

    from romou.backends.dialect import Dialect

_NO_LOADER = "Install the Vulkan loader: apt-get install libvulkan1 (Debian, Ubuntu)."
_NO_DRIVER = (
    "Install the GPU vendor's driver, or Mesa's, which runs on the CPU as well (lavapipe): apt-get install mesa-vulkan-drivers. "
    "If one is installed, VK_DRIVER_FILES may point past it; the usual place is /usr/share/vulkan/icd.d."
)
_NO_RUNTIME = "Reinstall Romou so that its C++ runtime is built: pip install --force-reinstall --no-deps romou (needs g++)."
_IMAGE_LIMITS = ("texture_depth_limit", "texture_spatial_limit")
_BUFFERS = "max_per_stage_descriptor_storage_buffer"
# More than any kernel takes: where no limit is given, none is set.
_MANY_BUFFERS = 64
# Of a work group, for which glslang compiles.
_MOST_WORK_ITEMS = 1024


class Vulkan(Backend):
    """The attached Vulkan devices, in the order of `tvm.vulkan(i)`."""

    name = "vulkan"
    title = "Vulkan"
    language = "GLSL"
    source_suffix = "comp"
    options = (
        DEVICE,
        HOST,
        TargetOption(name="half", pattern="arithmetic|storage", error="target option -half={value}: must be arithmetic or storage"),
        IMAGES,
        FACTS,
    )
    limit_names = (*COMMON_LIMITS[:1], _BUFFERS, COMMON_LIMITS[1], *_IMAGE_LIMITS, *COMMON_LIMITS[2:])
    # The least that every device has.
    default_limits: Mapping[str, int] = {**Backend.default_limits, "max_num_threads": 128, "texture_spatial_limit": 4096, "texture_depth_limit": 256}
    device_variable = "ROMOU_VULKAN_DEVICE=NAME"
    has_images = True

    @cached_property
    def dialect(self) -> Dialect:
        from romou.backends.vulkan.dialect import Glsl

        return Glsl()

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
        found = super().device_limits(spec)
        if "max_num_threads" in found:
            found["max_num_threads"] = min(found["max_num_threads"], _MOST_WORK_ITEMS)
        sides = [n for n in (spec.max_image_width_texels, spec.max_image_height_texels) if n]
        return found | ({"texture_spatial_limit": min(sides)} if sides else {})

    def abilities(self, spec: HardwareSpec, options: Mapping[str, Any]) -> dict[str, bool]:
        return {"has_fp16_arithmetic": options.get("half") != "storage" and bool(spec.has_half_arithmetic)}

    def allowed_limits(self, facts: Mapping[str, Any]) -> dict[str, int]:
        """See `Backend.allowed_limits`. Without images nothing fits into one texel: everything stays in buffers."""
        sides, layers = min(facts["max_image_width"], facts["max_image_height"]), facts["max_image_layers"]
        spatial, depth = (int(sides), int(layers)) if facts["has_images"] else (1, 1)
        return super().allowed_limits(facts) | {"texture_spatial_limit": spatial, "texture_depth_limit": depth}

    def narrower_options(self, limits: Mapping[str, int], abilities: Mapping[str, bool], facts: Mapping[str, Any]) -> dict[str, Any]:
        """See `Backend.narrower_options`; a kernel for the device may bind as many buffers as the device does."""
        found = super().narrower_options(limits, abilities, facts)
        found |= {"half": "storage"} if abilities["has_fp16_arithmetic"] and not facts["has_fp16_arithmetic"] else {}
        buffers = int(facts["max_storage_buffers"])
        return found | ({_BUFFERS: buffers} if buffers < limits.get(_BUFFERS, _MANY_BUFFERS) else {})

    def tvm_config(self, options: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
        """See `Backend.tvm_config`; from here on TVM builds Vulkan kernels as Romou does. It has no name for the limits of images."""
        from romou.backends.vulkan import build

        build.install()
        return super().tvm_config(options, {name: limit for name, limit in limits.items() if name not in _IMAGE_LIMITS})

    def list_devices(self) -> list[dict[str, Any]]:
        """See `Backend.list_devices`; `has_robust_image_access`, `has_fp16_arithmetic` and limits besides."""
        import tvm

        ask = tvm.get_global_func(self.function("devices"), allow_missing=True)
        return [] if ask is None else list(json.loads(str(ask())))

    def no_device_error(self, index: int, found: list[dict[str, Any]]) -> DeviceError:
        if found:
            return super().no_device_error(index, found)
        text = "no Vulkan device: no loader was found, or no driver offers a device"
        return DeviceError(text, index=index, hint="`romou doctor` says what is missing.")

    def diagnose(self) -> RomouError:
        import tvm

        if tvm.get_global_func(self.function("devices"), allow_missing=True) is None:
            return DeviceError(f"Romou's Vulkan runtime is not loaded: TVM has no function {self.function('devices')}", hint=_NO_RUNTIME)
        if ctypes.util.find_library("vulkan") is None:
            return DeviceError("no Vulkan loader (libvulkan.so.1) on this machine", hint=f"{_NO_LOADER} {_NO_DRIVER}")
        return DeviceError("the Vulkan loader is there, but no driver offers a device of Vulkan 1.1", hint=_NO_DRIVER)

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
        raise DeviceError(f"-device=host means the CPU through Vulkan, but the runtime sees only {names}", hint=_NO_DRIVER, device="host")

    def lacks(self, facts: Mapping[str, Any]) -> dict[str, str]:
        # The probe computes with fp16 in buffers; images of it are copied, and written as they are.
        if not (facts["has_fp16_arithmetic"] and facts["has_16bit_storage"]):
            return {"fp16": "fp16: the driver offers no arithmetic (shaderFloat16, storageBuffer16BitAccess); kernels store fp16 and compute in fp32"}
        return {}

    def toolchain(self) -> tuple[str, Callable[[], str]]:
        return "glslang", lambda: f"glslang {compiler.version()} ({compiler.glslang()})"

    def split_kernels(self, source: str) -> dict[str, str]:
        return compiler.split(source)

    def can_record(self, facts: Mapping[str, Any]) -> bool:
        return True

    def record(self, device: tvm.runtime.Device, vm: Any, run: Callable[[], None]) -> CapturedRun:
        import tvm_ffi

        return CommandBuffer("a Vulkan command buffer", device.index, run, tvm_ffi.get_global_func(self.function("record")))


def _spec_of(facts: dict[str, Any]) -> HardwareSpec:
    # Only what a driver can answer; caches, registers and bandwidths stay unknown until they are measured.
    asked: dict[str, Any] = {
        "shader_cores": facts["compute_units"],
        "max_work_group_size": facts["max_work_group_size"],
        "local_mem_bytes": facts["local_mem_bytes"],
        "max_image_width_texels": facts["max_image_width"],
        "max_image_height_texels": facts["max_image_height"],
        "clock_mhz": facts.get("clock_mhz"),
        "has_half_arithmetic": bool(facts["has_fp16_arithmetic"] and facts["has_16bit_storage"]),
    }
    if facts["type"] == "cpu":
        asked["warp_sizes"] = (1,)
    elif facts["subgroup_size"]:
        asked["warp_sizes"] = (int(facts["subgroup_size"]),)
    known: dict[str, Any] = {key: value for key, value in asked.items() if value or value is False}
    source = f"asked from the driver of {facts['name']} ({facts['platform']})"
    return HardwareSpec(name=str(facts["name"]), title=f"{facts['name']} ({facts['platform']})", sources=dict.fromkeys(known, source), **known)
