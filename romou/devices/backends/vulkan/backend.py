"""Vulkan as a backend. Facts come from Romou's runtime, so they belong to the device that runs kernels."""

from __future__ import annotations

import ctypes.util
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from romou.base.errors import DeviceError, RomouError
from romou.base.limits import SubGroups
from romou.devices.backends import base
from romou.devices.backends.compute_api import FP16, IMAGE_LIMITS, ComputeApi
from romou.devices.backends.vulkan import clocks, glslang
from romou.devices.hardware import HardwareSpec
from tvm_patches import compat
from tvm_patches.runtime import global_function

if TYPE_CHECKING:
    from romou.devices.backends.dialect import Dialect

_NO_LOADER = "Install the Vulkan loader: apt-get install libvulkan1 (Debian, Ubuntu)."
_NO_DRIVER = (
    "Install the GPU vendor's driver, or Mesa's, which runs on the CPU as well (lavapipe): apt-get install"
    " mesa-vulkan-drivers. If one is installed, VK_DRIVER_FILES may point past it; the usual place is"
    " /usr/share/vulkan/icd.d."
)
_BUFFERS = "max_per_stage_descriptor_storage_buffer"
_CLOCK_KERNEL = """#version 450
layout(local_size_x_id = 1) in;
layout(std430, binding = 0) writeonly buffer Out { float sums[]; };
layout(push_constant) uniform Scalars { int iterations; };
void main() {
  float a = float(gl_GlobalInvocationID.x), b = a + 1.0, c = a + 2.0, d = a + 3.0;
  for (int i = 0; i < iterations; i++) { a = a * 0.5 + 1.0; b = b * 0.5 + 1.0; c = c * 0.5 + 1.0; d = d * 0.5 + 1.0; }
  sums[gl_GlobalInvocationID.x] = a + b + c + d;
}
"""
# Devices with cooperative matrices whose file, measured through OpenCL, does not say so.
_WITH_MATRICES = ("nvidia_h200",)
# More than any kernel needs: a device without a limit in its file has none.
_MANY_BUFFERS = 64
# The platform of NVIDIA's GPUs, by the name of their driver.
_NVIDIA = "NVIDIA"
# The largest work group that glslang compiles.
_MOST_WORK_ITEMS = 1024


class Vulkan(ComputeApi):
    """The attached Vulkan devices, in the order of `tvm.vulkan(i)`."""

    name = "vulkan"
    title = "Vulkan"
    language = "GLSL"
    source_suffix = "comp"
    # Schedules, passes and spaces are the same; only the language differs.
    learns_from = "opencl"
    options = (base.DEVICE, base.HOST, FP16, base.IMAGES, base.FACTS, base.WITHOUT, base.VARIANT)
    limit_names = (
        *base.COMMON_LIMITS[:1],
        _BUFFERS,
        base.COMMON_LIMITS[1],
        *IMAGE_LIMITS,
        *base.COMMON_LIMITS[2:],
        base.BUFFER_BYTES,
    )
    buffer_limit = _BUFFERS
    # Vulkan's guaranteed minimum.
    default_limits: Mapping[str, int] = {
        **base.Backend.default_limits,
        "max_num_threads": 128,
        "texture_spatial_limit": 4096,
        "texture_depth_limit": 256,
    }
    device_variable = "ROMOU_VULKAN_DEVICE=NAME"
    driver_hint = _NO_DRIVER
    missing = "no loader was found, or no driver offers a device"

    @cached_property
    def dialect(self) -> Dialect:
        from romou.devices.backends.vulkan.dialect import Glsl

        return Glsl()

    def device_limits(self, spec: HardwareSpec) -> dict[str, int]:
        limits = super().device_limits(spec)
        if "max_num_threads" in limits:
            limits["max_num_threads"] = min(limits["max_num_threads"], _MOST_WORK_ITEMS)
        own_limits = {_BUFFERS: spec.max_storage_buffers, "texture_depth_limit": spec.max_image_layers}
        return limits | {name: value for name, value in own_limits.items() if value}

    def asked_of(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "max_storage_buffers": int(facts["max_storage_buffers"]),
            "max_image_layers": int(facts["max_image_layers"]),
            "has_half_arithmetic": bool(facts["has_fp16_arithmetic"] and facts["has_16bit_storage"]),
            "has_cooperative_matrices": bool(facts["has_cooperative_matrix"]),
            "dot_products": facts.get("fast_dot_products") or None,
            "warp_sizes": (int(facts["subgroup_size"]),) if facts["subgroup_size"] else None,
            "sub_group_size": int(facts["subgroup_size"]),
            "has_sub_group_reductions": bool(facts.get("has_subgroup_reductions")),
            "has_sub_group_shuffles": bool(facts.get("has_subgroup_shuffles")),
        }

    def sub_groups_there(self, wanted: SubGroups, facts: Mapping[str, Any]) -> SubGroups | None:
        """See `ComputeApi.sub_groups_there`. The runtime makes drivers keep to the size that they report."""
        reductions, shuffles = bool(facts.get("has_subgroup_reductions")), bool(facts.get("has_subgroup_shuffles"))
        return SubGroups(size=int(facts["subgroup_size"]), has_reductions=reductions, has_shuffles=shuffles)

    def abilities(self, spec: HardwareSpec, options: Mapping[str, Any]) -> dict[str, Any]:
        has_matrices = (
            spec.has_cooperative_matrices if spec.has_cooperative_matrices is not None else spec.name in _WITH_MATRICES
        )
        return {
            "has_fp16_arithmetic": options.get("half") != "storage" and bool(spec.has_half_arithmetic),
            "has_cooperative_matrices": bool(has_matrices) and glslang.knows_matrices(),
            "dot_products": spec.dot_products,
            "sub_groups": self.sub_groups(spec),
        }

    def preset_name(self, spec: HardwareSpec) -> str | None:
        """See `Backend.preset_name`. Through Vulkan, NVIDIA's GPUs have fp16 vectors and no PTX, unlike CUDA."""
        # The titles of files and of attached devices name the maker, the latter as the driver's name.
        return "nvidia_vulkan" if _NVIDIA in spec.title else None

    def narrower_options(
        self, limits: Mapping[str, int], abilities: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Backend.narrower_options`. A kernel may bind the attached device's number of buffers."""
        options = super().narrower_options(limits, abilities, facts)
        lacking = {
            "multiply_add:coopmat": abilities["has_cooperative_matrices"] and not facts["has_cooperative_matrix"],
            "multiply:dot": abilities["dot_products"] is not None and not facts.get("has_dot_products"),
        }
        if any(lacking.values()):
            choices = [choice for choice, is_lacking in lacking.items() if is_lacking]
            options[base.WITHOUT.name] = "+".join(filter(None, (options.get(base.WITHOUT.name), *choices)))
        options |= {"half": "storage"} if abilities["has_fp16_arithmetic"] and not facts["has_fp16_arithmetic"] else {}
        buffers = int(facts["max_storage_buffers"])
        return options | ({_BUFFERS: buffers} if buffers < limits.get(_BUFFERS, _MANY_BUFFERS) else {})

    def tvm_config(self, options: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
        """See `Backend.tvm_config`.

        After this call TVM builds Vulkan kernels with Romou's code generator. TVM has no name for limits of images.
        """
        from romou.devices.backends.vulkan import build

        build.install()
        return super().tvm_config(options, {name: limit for name, limit in limits.items() if name not in IMAGE_LIMITS})

    def list_devices(self) -> list[dict[str, Any]]:
        """See `Backend.list_devices`.

        The entries also have `has_robust_image_access`, `has_fp16_arithmetic` and limits.
        """
        return self.attached() or []

    def diagnose(self) -> RomouError:
        if global_function(self.function("devices"), allow_missing=True) is None:
            return DeviceError(
                f"Romou's Vulkan runtime is not loaded: TVM has no function {self.function('devices')}",
                hint=compat.REBUILD,
            )
        if ctypes.util.find_library("vulkan") is None:
            return DeviceError("no Vulkan loader (libvulkan.so.1) on this machine", hint=f"{_NO_LOADER} {_NO_DRIVER}")
        return DeviceError("the Vulkan loader is there, but no driver offers a device of Vulkan 1.1", hint=_NO_DRIVER)

    def lacks(self, facts: Mapping[str, Any]) -> dict[str, str]:
        # The probe computes with fp16 in buffers. Images of fp16 are copied and written without arithmetic.
        if not (facts["has_fp16_arithmetic"] and facts["has_16bit_storage"]):
            return {
                "fp16": (
                    "fp16: the driver offers no arithmetic (shaderFloat16, storageBuffer16BitAccess); kernels store"
                    " fp16 and compute in fp32"
                )
            }
        return {}

    def toolchain(self) -> tuple[str, Callable[[], str]]:
        return "glslang", glslang.describe

    def split_kernels(self, source: str) -> dict[str, str]:
        return glslang.split(source)

    def clock_kernel(self) -> bytes:
        return glslang.kept_shader(_CLOCK_KERNEL)

    def hold_clocks(self, index: int) -> None:
        facts = self.list_devices()[index]
        if facts["platform"] == _NVIDIA:
            clocks.hold(str(facts["name"]))
