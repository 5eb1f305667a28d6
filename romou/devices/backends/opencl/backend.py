"""OpenCL as a backend.

Facts come from a packed function of the runtime, so they belong to the device that runs kernels.
"""

from __future__ import annotations

import ctypes.util
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from romou.base.errors import DeviceError, RomouError
from romou.base.limits import SubGroups
from romou.devices.backends import base
from romou.devices.backends.compute_api import FP16, IMAGE_LIMITS, ComputeApi
from romou.devices.backends.opencl import extensions, fp16_accesses
from romou.devices.backends.ptx import PTX_PRODUCTS_FROM
from romou.devices.hardware import HardwareSpec, load_device
from romou.devices.hardware.quirks import rules_for
from tvm_patches import compat, pypi_driver
from tvm_patches.runtime import global_function

if TYPE_CHECKING:
    from romou.devices.backends.base import Connection
    from romou.devices.backends.dialect import Dialect
    from romou.devices.backends.programs import Programs

_BY_PIP = "pip install 'romou[cpu]' brings one for the CPU (x86-64, no root needed)."
_NO_LOADER = "Install an OpenCL ICD loader: apt-get install ocl-icd-libopencl1 (Debian, Ubuntu)."
_NO_PLATFORM = (
    f"Install an OpenCL platform: {_BY_PIP} Or: apt-get install pocl-opencl-icd for the CPU, or the GPU vendor's"
    " driver. If one is installed, OCL_ICD_VENDORS may point past it; the usual place is /etc/OpenCL/vendors."
)

# The size for drivers that offer several (cl_intel_required_subgroup_size): Intel's GPUs have it, and it is a vector of
# floats of a CPU with AVX-512.
_USUAL_SUB_GROUP = 16

# OpenCL C's widest vectors.
_LANES = 16

_WAVES = base.TargetOption(
    name="waves", pattern="search", error="target option -waves={value}: must be search, or left out"
)

_CLOCK_KERNEL = """
__kernel void clock_check(__global float *out, int iterations) {
  float a = (float)get_global_id(0), b = a + 1.0f, c = a + 2.0f, d = a + 3.0f;
  for (int i = 0; i < iterations; i++) { a = mad(a, 0.5f, 1.0f); b = mad(b, 0.5f, 1.0f); c = mad(c, 0.5f, 1.0f); d = mad(d, 0.5f, 1.0f); }
  out[get_global_id(0)] = a + b + c + d;
}
"""  # noqa: E501


class OpenCL(ComputeApi):
    """The attached OpenCL devices, in the order of `tvm.opencl(i)`."""

    name = "opencl"
    title = "OpenCL"
    language = "OpenCL C"
    source_suffix = "cl"
    options = (base.DEVICE, base.HOST, FP16, base.IMAGES, base.FACTS, base.WITHOUT, base.VARIANT, _WAVES)
    limit_names = (
        "image_base_address_alignment",
        "max_function_args",
        *base.COMMON_LIMITS[:2],
        *IMAGE_LIMITS,
        *base.COMMON_LIMITS[2:],
        base.BUFFER_BYTES,
    )
    # OpenCL guarantees 1024 bytes of arguments, 8 for each, and Mali accepts no more.
    default_limits: Mapping[str, int] = {
        **base.Backend.default_limits,
        "texture_spatial_limit": 16384,
        "texture_depth_limit": 2048,
        "max_function_args": 1024 // 8,
    }
    buffer_limit = "max_function_args"
    device_variable = "ROMOU_OPENCL_DEVICE=NAME"
    driver_hint = _NO_PLATFORM
    missing = "no ICD loader was found, or no platform offers a device"
    is_optional = False

    @cached_property
    def dialect(self) -> Dialect:
        from romou.devices.backends.opencl import source_attributes
        from romou.devices.backends.opencl.dialect import OpenCLC

        # Kernels of another backend's targets may be OpenCL C too. They call functions that this compiler defines in
        # front of them.
        source_attributes.install()
        return OpenCLC()

    def asked_of(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "constant_mem_bytes": facts["constant_mem_bytes"],
            "warp_sizes": _warp_sizes(facts),
            "has_half_arithmetic": _has_fp16(facts),
            "compute_capability": facts.get("compute_capability") or None,
            "dot_products": _dot_products(facts),
            # For other drivers only a device's file has the size.
            "sub_group_size": max(
                (size for size in facts.get("sub_group_sizes", ()) if size <= _USUAL_SUB_GROUP), default=None
            ),
            "has_sub_group_reductions": extensions.has_any(facts, *extensions.REDUCTIONS),
            "has_sub_group_shuffles": extensions.has_any(facts, *extensions.SHUFFLES),
        }

    def sub_groups_there(self, wanted: SubGroups, facts: Mapping[str, Any]) -> SubGroups | None:
        """See `ComputeApi.sub_groups_there`."""
        name = self.device_of(facts)
        only = load_device(name).sub_group_size if name else None
        sizes = facts.get("sub_group_sizes") or (
            tuple(extensions.QUALCOMM_SIZES) if extensions.has_any(facts, extensions.QUALCOMM_SIZED) else (only,)
        )
        if wanted.size not in sizes:
            return None
        return SubGroups(
            size=wanted.size,
            has_reductions=extensions.has_any(facts, *extensions.REDUCTIONS),
            has_shuffles=extensions.has_any(facts, *extensions.SHUFFLES),
        )

    def abilities(self, spec: HardwareSpec, options: Mapping[str, Any]) -> dict[str, Any]:
        # The option -half states an ability that the facts leave unknown.
        asked = options.get("half")
        has_fp16 = asked == "arithmetic" or (asked is None and bool(spec.has_half_arithmetic))
        prefers_fp16 = has_fp16 and (asked is not None or (spec.fp16_rate or 0) >= 1)
        return {
            "has_native_functions": True,
            "has_fp16_arithmetic": has_fp16,
            "prefers_fp16": prefers_fp16,
            "vector_lanes": _LANES,
            "dot_products": spec.dot_products,
            "has_dot_fallback": True,
            "has_word_images": True,
            "image_pitch_texels": None if options.get("images") == "apart" else spec.image_pitch_texels,
            "has_tensor_cores": (spec.compute_capability or 0) >= PTX_PRODUCTS_FROM,
            "sub_groups": self.sub_groups(spec),
            "searches_waves": _WAVES.name in options,
        }

    def narrower_options(
        self, limits: Mapping[str, int], abilities: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        options = super().narrower_options(limits, abilities, facts)
        options |= {"half": "storage"} if abilities["has_fp16_arithmetic"] and not _has_fp16(facts) else {}
        if abilities["image_pitch_texels"] is None or extensions.has_any(facts, extensions.IMAGES_OVER_BUFFERS):
            return options
        # A CPU only checks a phone's kernels.
        return options if facts["type"] == "cpu" else options | {"images": "apart"}

    def tvm_config(self, options: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
        """See `Backend.tvm_config`. After this call kernels declare their work groups."""
        from romou.devices.backends.opencl import source_attributes

        source_attributes.install()
        return super().tvm_config(options, limits)

    def list_devices(self) -> list[dict[str, Any]]:
        devices = self.attached()
        if devices is None:
            raise DeviceError(
                f"Romou's OpenCL runtime is not loaded: TVM has no function {self.function('devices')}",
                hint=compat.REBUILD,
            )
        return devices

    def diagnose(self) -> RomouError:
        if ctypes.util.find_library("OpenCL") is None:
            return DeviceError(
                "no OpenCL ICD loader (libOpenCL.so.1) on this machine", hint=f"{_NO_PLATFORM} {_NO_LOADER}"
            )
        return DeviceError("the OpenCL ICD loader is there, but no platform offers a device", hint=_NO_PLATFORM)

    def lacks(self, facts: Mapping[str, Any]) -> dict[str, str]:
        # The probe's kernels of fp16 images compute with fp16 too.
        why = "fp16: the driver offers no arithmetic (cl_khr_fp16); kernels store fp16 and compute in fp32"
        return {} if _has_fp16(facts) else {"fp16": why, "fp16_images": why}

    def origin(self, facts: Mapping[str, Any]) -> str | None:
        """See `Backend.origin`."""
        library = str(facts.get("library", ""))
        wheel = pypi_driver.wheel_of(library)
        if wheel is not None:
            return f"PyPI's {wheel}"
        return f"the system's platforms, by {library}" if library else None

    def manifest_line(self, library: str) -> str:
        # Since Android 12 an app needs this line to open a vendor's library.
        return f'<uses-native-library android:name="{PurePosixPath(library).name}" android:required="false"/>'

    def programs(self, library: Any, index: int, connection: Connection | None = None) -> Programs | None:
        """See `Backend.programs`. DeviceError if the driver would end this process because it finds no linker."""
        if connection is None and _lacks_linker(self.facts(index)):
            self.check_usable(index)
        return super().programs(library, index, connection)

    def _repair(self, facts: Mapping[str, Any]) -> str:
        if _lacks_linker(facts):
            return (
                "Its compiler calls the linker `ld`, which is not on PATH: apt-get install binutils, or choose another"
                f" device with {self.device_variable}."
            )
        if facts.get("type") == "cpu" and pypi_driver.wheel_of(str(facts.get("library"))) is not None:
            return (
                f"Reinstall it (pip install --force-reinstall {pypi_driver.DRIVER}) or choose another device with"
                f" {self.device_variable}."
            )
        if facts.get("type") == "cpu":
            return (
                "Reinstall the CPU's platform (apt-get install --reinstall pocl-opencl-icd) or choose another device"
                f" with {self.device_variable}."
            )
        return super()._repair(facts)

    def split_kernels(self, source: str) -> dict[str, str]:
        """See `Backend.split_kernels`.

        TVM writes a marker before each kernel, and after it the declarations of all kernels. The declarations are left
        out.
        """
        kernels = {}
        for part in source.split("// Function: ")[1:]:
            name, _, text = part.partition("\n")
            lines = [line for line in text.splitlines() if not (line.startswith("__kernel ") and line.endswith(");"))]
            kernels[name.strip()] = "\n".join(lines).strip() + "\n"
        return kernels

    def needs_fp16(self, source: str) -> bool:
        return fp16_accesses.needs_fp16(source)

    def compiles_in_parallel(self, facts: Mapping[str, Any]) -> bool:
        """See `Backend.compiles_in_parallel`. False for phones, because parallel compilation was no faster there."""
        return "NVIDIA" in facts["platform"] or facts["type"] == "cpu"

    def begin_recording(self, index: int) -> Any:
        by_driver = not rules_for(self.facts(index)).lists_launches
        return global_function(self.function("record"))(index, by_driver)

    def clock_kernel(self) -> str:
        return _CLOCK_KERNEL


def _lacks_linker(facts: Mapping[str, Any]) -> bool:
    """Return whether PoCL, which may call `ld` for each kernel and end the process without it, finds none."""
    return facts.get("platform") == "Portable Computing Language" and shutil.which("ld") is None


def _has_fp16(facts: Mapping[str, Any]) -> bool:
    return extensions.has_any(facts, "cl_khr_fp16")


def _dot_products(facts: Mapping[str, Any]) -> str | None:
    """Return the bytes that dot products multiply with signed bytes.

    CPUs have them by VNNI. Intel's runtime emulates Khronos' extension, at a tenth of the speed of floats. That
    extension alone is not enough: kernels are OpenCL C 1.2, for which some compilers do not declare its functions.
    """
    if facts["type"] == "cpu":
        return "mixed" if facts.get("has_vnni") else None
    if extensions.has_any(facts, extensions.ARM_DOT):
        return "signed"
    return "mixed" if extensions.has_any(facts, extensions.QUALCOMM_DOT) else None


def _warp_sizes(facts: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the warp sizes that drivers of NVIDIA, AMD and Intel report. None for other drivers."""
    size = int(facts.get("warp_size", 1))
    return (size,) if size > 1 else tuple(sorted(facts.get("sub_group_sizes", ()))) or None
