"""A device that kernels run on: its facts, building kernels, and running them with the time that the device itself took.

One kernel text serves OpenCL, CUDA and Vulkan: OpenCL C, with the few words of a prelude (`opencl.py`, `cuda.py`, `glsl.py`) where they differ:
FLOAT4(a, b, c, d), TOTAL4(v), ONE_WORK_ITEM.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import numpy as np

from archprobe.errors import DeviceError, UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What the driver says of a device; `api` is "opencl", "cuda" or "vulkan". Sizes in bytes, image sizes in texels, the clock in MHz, the timer's step in ns.

    `is_remote`: calls go over a network, so only the device's own clock times them.
    """

    api: str
    name: str
    vendor: str
    driver: str
    platform: str
    version: str
    is_cpu: bool
    compute_units: int
    clock_mhz: int
    max_work_group_size: int
    local_mem_bytes: int
    constant_bytes: int
    global_mem_bytes: int
    max_buffer_bytes: int
    global_cache_bytes: int
    global_cache_line_bytes: int
    has_images: bool
    max_image_width: int
    max_image_height: int
    timer_step_ns: int
    extensions: tuple[str, ...]
    page_bytes: int | None = None
    is_remote: bool = False

    @property
    def units(self) -> int:
        """Compute units to fill with work: enough for a large device where the driver does not tell."""
        return self.compute_units or (4 if self.is_cpu else 64)


class Device(abc.ABC):
    """A device and a queue that times what runs on it; buffers and kernels are handles of the API behind it."""

    facts: Facts
    # Components of the widest vector that a kernel can declare.
    widest = 16

    @abc.abstractmethod
    def kernel(self, source: str, name: str, **macros: Any) -> Any:
        """The kernel `name` of `source`, built with macros; BuildError holds the source and the compiler's log."""

    @abc.abstractmethod
    def launch(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> float:
        """Run once and wait; seconds by the device's own clock, from the start of the kernel to its end. KernelError where it fails."""

    @abc.abstractmethod
    def enqueue(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> None:
        """Run without waiting or timing; `finish` waits."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Wait until all is done."""

    @abc.abstractmethod
    def buffer(self, data: np.ndarray | int) -> Any:
        """A buffer holding `data`, or of so many bytes, which are zeroed; DeviceError where there is no room."""

    @abc.abstractmethod
    def write(self, buffer: Any, data: np.ndarray) -> None:
        """Put `data` at the buffer's start."""

    @abc.abstractmethod
    def read(self, buffer: Any, like: np.ndarray) -> np.ndarray:
        """The content of `buffer`, as many elements as `like` has."""

    @abc.abstractmethod
    def copy(self, to: Any, source: Any, size: int) -> float:
        """Copy `size` bytes by the driver's own command; seconds that it took."""

    @abc.abstractmethod
    def image(self, texels: np.ndarray, *, is_written: bool = False) -> Any:
        """A 1-D (w, 4) or 2-D (h, w, 4) image of int32 or float32 texels of four channels; DeviceError where there is none."""

    @abc.abstractmethod
    def spill_bytes(self, kernel: Any) -> int:
        """Private memory outside of registers, by the driver's word; drivers that do not tell say 0."""

    @abc.abstractmethod
    def lane(self, index: int) -> str:
        """How a kernel writes component `index` of a vector."""


def open_device(text: str, *, rpc: str = "") -> Device:
    """The device that `opencl:INDEX` (counted over all platforms), `cuda:INDEX` or `vulkan:INDEX` names, here or at the address `rpc` (see `RpcDevice`).

    Raises
    ------
    UsageError
        The text names no device, or another API behind RPC.
    DeviceError
        There is no such device, or no such server.
    """
    api, _, index = text.partition(":")
    if api not in ("opencl", "cuda", "vulkan") or not (index or "0").isdigit():
        raise UsageError(f"{text!r} names no device; write opencl:0 for the first OpenCL device, opencl:1 for the second, cuda:0 or vulkan:0", device=text)
    number = int(index or 0)
    if rpc and api != "opencl":
        raise UsageError(f"behind RPC only OpenCL is probed, not {api!r}; write --device opencl:0", device=text)
    if rpc:
        from archprobe.rpc import RpcDevice

        return RpcDevice(rpc, number)
    if api == "cuda":
        from archprobe.cuda import CudaDevice

        return CudaDevice(number)
    if api == "vulkan":
        from archprobe.vulkan import VulkanDevice

        return VulkanDevice(number)
    from archprobe.opencl import OpenCLDevice, list_devices

    found = list_devices()
    if number >= len(found):
        names = "; ".join(f"opencl:{i} is {d.name.strip()}" for i, d in enumerate(found))
        names = names or "none at all: install the GPU's driver, or pocl-opencl-icd for the CPU"
        raise DeviceError(f"there is no OpenCL device {number}; the driver loader sees {names}", index=number)
    return OpenCLDevice(found[number])
