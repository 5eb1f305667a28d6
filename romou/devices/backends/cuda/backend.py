"""CUDA as a backend: NVIDIA GPUs through TVM's CUDA runtime."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from romou.base.errors import DeviceError, UsageError
from romou.base.limits import SubGroups
from romou.devices.backends.base import COMMON_LIMITS, DEVICE, FACTS, HOST, VARIANT, Backend, CapturedRun, TargetOption
from romou.devices.backends.cuda.overlapped_launches import KERNEL
from romou.devices.backends.ptx import PTX_PRODUCTS_FROM
from romou.devices.hardware import HardwareSpec

if TYPE_CHECKING:
    import tvm.runtime

    from romou.devices.backends.dialect import Dialect

# Device file -> architecture, which a report measured through OpenCL does not contain. The suffix enables all
# instructions of the generation.
ARCHITECTURES = {"nvidia_h200": "sm_90a"}
# Local memory of a work group that has not opted in to more.
_LOCAL_BYTES = 49152
# The only architecture with wgmma (PTX ISA).
_WARP_GROUPS_IN = "sm_90a"
# Architecture -> most local memory of a work group that opts in, in KiB, and that of others from 8.0 on (CUDA C++
# Programming Guide, Technical Specifications per Compute Capability).
_ASKED_KIB, _LEAST_ASKED_KIB = {80: 163, 87: 163, 90: 227, 100: 227, 103: 227, 110: 227}, 99
# The first architecture that promises progress to all work-items that run (CUDA C++ Programming Guide, Volta).
_WAITING_FROM = 70
# The first architecture with dp4a (PTX ISA).
_DOT_PRODUCTS_FROM = 61
_INSTALL = (
    "It takes an NVIDIA GPU with its driver, and libcudart.so.13: pip install 'romou[cuda]', or a CUDA 13 toolkit."
)
# nvml.h: the library, the flag that does not attach GPUs, and the longest version text.
_NVML, _NVML_ATTACH_NONE, _NVML_CHARS = "libnvidia-ml.so.1", 2, 80


class Cuda(Backend):
    """The attached NVIDIA GPUs, in the order of `tvm.cuda(i)`."""

    name = "cuda"
    title = "CUDA"
    language = "CUDA C++"
    source_suffix = "cu"
    # On an H200, without tensor cores, OpenCL's model corrects the estimate of CUDA kernels as well.
    learns_from = "opencl"
    trusts_nearest = True
    is_launch_bound = True
    is_vendors_own = True
    options = (
        DEVICE,
        TargetOption(
            name="arch",
            pattern=r"sm_\d{2,3}[af]?",
            error="target option -arch={value}: must be a CUDA architecture such as sm_80 or sm_90a",
        ),
        HOST,
        FACTS,
        # TF32 changes numbers, so it needs this option.
        TargetOption(name="tf32", pattern="allow", error="target option -tf32={value}: must be allow, or left out"),
        VARIANT,
    )
    # NVRTC takes seconds for a kernel, so a batch waits for builds and not for the device.
    search_options: Mapping[str, int] = {"batch_size": 8}
    # Captured launches have a steady time: on an H100, medians of six kernels were within 1% with 20, 5 and 2 ms alike,
    # and a candidate takes 41 ms instead of 87.
    measure_options: Mapping[str, float] = {"min_repeat_ms": 5.0}
    device_variable = "CUDA_VISIBLE_DEVICES=NUMBER"

    @functools.cached_property
    def dialect(self) -> Dialect:
        from romou.devices.backends.cuda.dialect import CudaCpp

        return CudaCpp()

    def named_devices(self) -> tuple[str, ...]:
        return tuple(sorted(ARCHITECTURES))

    def named_device(self, device_name: str) -> str:
        """See `Backend.named_device`. UsageError also for a device that CUDA does not run on."""
        device_name = super().named_device(device_name)
        if device_name not in ARCHITECTURES:
            names = ", ".join(self.named_devices())
            raise UsageError(
                f"device {device_name!r} is no CUDA device; with -device= cuda knows {names}",
                hint="Leave -device= out for the attached GPU.",
            )
        return device_name

    def architecture(self, options: Mapping[str, Any]) -> str:
        """Return the architecture that NVRTC compiles for, e.g. "sm_90a".

        It comes from the target option, else from the named device, else from the attached device. DeviceError if there
        is none of these.
        """
        if "arch" in options:
            return str(options["arch"])
        if "device" in options:
            return ARCHITECTURES[options["device"]]
        devices = self.list_devices()
        if not devices:
            error = self.no_device_error(0, devices)
            raise DeviceError(
                error.message,
                hint="Without one, name what to compile for: cuda -device=nvidia_h200, or cuda -arch=sm_80.",
            )
        return str(devices[0]["arch"])

    def attached_spec(self) -> HardwareSpec:
        """See `Backend.attached_spec`.

        Without a device, it returns the facts of every GPU since 2018, because an architecture is enough to compile.
        """
        devices = self.list_devices()
        if not devices:
            common: dict[str, Any] = {
                "max_work_group_size": 1024,
                "local_mem_bytes": _LOCAL_BYTES,
                "warp_sizes": (32,),
                "has_half_arithmetic": True,
            }
            source = "CUDA C++ Programming Guide, compute capabilities from 7.5 on"
            return HardwareSpec(name="cuda", title="any CUDA device", sources=dict.fromkeys(common, source), **common)
        facts = devices[0]
        asked: dict[str, Any] = {
            "shader_cores": facts["compute_units"],
            "max_work_group_size": facts["max_work_group_size"],
            "local_mem_bytes": facts["local_mem_bytes"],
            "clock_mhz": facts["clock_mhz"],
            "warp_sizes": (facts["warp_size"],),
            "has_half_arithmetic": True,
        }
        source = f"asked from the driver of {facts['name']} ({facts['platform']})"
        return HardwareSpec(
            name=facts["name"],
            title=f"{facts['name']} ({facts['platform']})",
            nearest=next((name for name, arch in ARCHITECTURES.items() if arch == facts["arch"]), None),
            sources=dict.fromkeys(asked, source),
            **asked,
        )

    def device_limits(self, spec: HardwareSpec) -> dict[str, int]:
        """See `Backend.device_limits`. Warps run in lockstep, which TVM relies on."""
        local = min(spec.local_mem_bytes or _LOCAL_BYTES, _LOCAL_BYTES)
        return dict(zip(COMMON_LIMITS, (spec.max_work_group_size or 1024, local, 32), strict=True))

    def abilities(self, spec: HardwareSpec, options: Mapping[str, Any]) -> dict[str, Any]:
        """See `Backend.abilities`. Scalar fp16 arithmetic is no faster than fp32, so it is not offered."""
        architecture = self.architecture(options)
        number = int(re.sub(r"\D", "", architecture))
        has_tensor_cores = number >= PTX_PRODUCTS_FROM
        return {
            "has_vector_arithmetic": False,
            "dot_products": "mixed" if number >= _DOT_PRODUCTS_FROM else None,
            "has_tensor_cores": has_tensor_cores,
            "asked_local_memory_bytes": _ASKED_KIB.get(number, _LEAST_ASKED_KIB) << 10 if has_tensor_cores else None,
            "has_warp_groups": architecture == _WARP_GROUPS_IN,
            "has_waiting_groups": number >= _WAITING_FROM,
            "allows_tf32": has_tensor_cores and "tf32" in options,
            # No warp instruction reduces floats.
            "sub_groups": SubGroups(size=32, has_reductions=False, has_shuffles=True),
        }

    def tvm_config(self, options: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
        """See `Backend.tvm_config`. After this call TVM compiles CUDA with NVRTC."""
        from romou.devices.backends.cuda import nvrtc

        nvrtc.install()
        return {**super().tvm_config(options, limits), "arch": self.architecture(options)}

    @property
    def bare_tvm_config(self) -> dict[str, Any]:
        """See `Backend.bare_tvm_config`. Without an architecture TVM looks for a device, and warns if there is none."""
        return {"kind": self.tvm_kind, "arch": "sm_50"}

    def list_devices(self) -> list[dict[str, Any]]:
        """See `Backend.list_devices`. The entries also have `warp_size`, `clock_mhz` and `arch`."""
        from tvm_patches import cuda_runtime, runtime

        devices: list[dict[str, Any]] = []
        for index in range(cuda_runtime.device_count()):
            ask = functools.partial(runtime.device_attribute, runtime.device("cuda", index))
            major, minor = str(ask("compute_version")).split(".")
            devices.append(
                {
                    "name": str(ask("device_name")),
                    "platform": "NVIDIA CUDA",
                    "vendor": "NVIDIA Corporation",
                    "driver": _driver(),
                    "uuid": cuda_runtime.device_uuid(index),
                    "type": "gpu",
                    "compute_units": int(ask("multi_processor_count")),
                    "clock_mhz": int(ask("max_clock_rate")) // 1000,
                    "max_work_group_size": int(ask("max_threads_per_block")),
                    "local_mem_bytes": int(ask("max_shared_memory_per_block")),
                    "warp_size": int(ask("warp_size")),
                    # From 9.0 on, instructions that only one generation has need the suffix.
                    "arch": f"sm_{major}{minor}" + ("a" if int(major) >= 9 else ""),
                    "has_images": False,
                    "extensions": "",
                }
            )
        return devices

    def no_device_error(self, index: int, devices: list[dict[str, Any]]) -> DeviceError:
        from tvm_patches import cuda_runtime

        if devices:
            return super().no_device_error(index, devices)
        return DeviceError(
            f"no CUDA device: {cuda_runtime.load() or 'the driver offers none'}", index=index, hint=_INSTALL
        )

    def toolchain(self) -> tuple[str, Callable[[], str]]:
        from romou.devices.backends.cuda import nvrtc

        return "nvrtc", lambda: f"CUDA's compiler {nvrtc.version()}"

    def split_kernels(self, source: str) -> dict[str, str]:
        """See `Backend.split_kernels`. Text before the first declaration belongs to all kernels."""
        heads = list(KERNEL.finditer(source))
        starts = [head.start() for head in heads]
        return {
            head["name"]: f"{source[: starts[0]].strip()}\n\n{source[head.start() : end].strip()}\n"
            for head, end in zip(heads, [*starts[1:], len(source)], strict=False)
            if head["end"] == "{"
        }

    def prepare_to_load(self) -> None:
        """See `Backend.prepare_to_load`.

        A model compiled on a machine without CUDA contains text, which is compiled when it is loaded.
        """
        from romou.devices.backends.cuda import nvrtc
        from tvm_patches import cuda_runtime

        if cuda_runtime.load() is not None:
            raise self.no_device_error(0, [])
        nvrtc.install()

    def can_record(self, facts: Mapping[str, Any]) -> bool:
        return True

    def record(self, device: tvm.runtime.Device, vm: Any, run: Callable[[], None]) -> CapturedRun:
        from romou.devices.backends.cuda.graph import CudaGraph

        return CudaGraph(device, vm, run)


@functools.cache
def _driver() -> str:
    """Return the version of NVIDIA's driver by NVML.

    The CUDA runtime does not report it, and `nvidia-smi` queries every GPU first.
    """
    version = ctypes.create_string_buffer(_NVML_CHARS)
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        return f"unknown (no {_NVML})"
    if nvml.nvmlInitWithFlags(_NVML_ATTACH_NONE):
        return "unknown (NVML does not answer)"
    try:
        return (
            "unknown (NVML does not tell it)"
            if nvml.nvmlSystemGetDriverVersion(version, _NVML_CHARS)
            else version.value.decode()
        )
    finally:
        # The flag lasts as long as the library is open. PyTorch, which counts its GPUs with NVML, would find none in
        # this process.
        nvml.nvmlShutdown()
