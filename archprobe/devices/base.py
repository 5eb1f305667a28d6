"""The interface of all devices: facts, kernels built from one text, and runs timed by the device's clock.

One kernel text serves OpenCL, CUDA and Vulkan. It is OpenCL C with three macros that each device file defines:
FLOAT4(a, b, c, d), TOTAL4(v), ONE_WORK_ITEM.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from archprobe.errors import DeviceError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The properties that the driver reports.

    Sizes are in bytes, image sizes in texels, the clock in MHz, the timer's step in ns.

    `api` is the name of the device's kind, "opencl" for instance. `is_remote` means that calls go over a network: only
    the device's clock times them.
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
    global_cache_bytes: int = 0
    global_cache_line_bytes: int = 0
    has_images: bool = False
    max_image_width: int = 0
    max_image_height: int = 0
    timer_step_ns: int
    extensions: tuple[str, ...] = ()
    page_bytes: int | None = None
    is_remote: bool = False

    @property
    def units(self) -> int:
        """Compute units to fill with work: enough for a large device if the driver does not report them."""
        return self.compute_units or (4 if self.is_cpu else 64)


class Device(abc.ABC):
    """A device and a queue that times its commands. Buffers and kernels are handles of the device's API."""

    facts: Facts
    # Components of the widest vector that a kernel can declare.
    widest = 16

    @abc.abstractmethod
    def kernel(self, source: str, name: str, **macros: Any) -> Any:
        """Build the kernel `name` of `source` with macros.

        BuildError, with the source and the compiler's log, if that fails.
        """

    @abc.abstractmethod
    def launch(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> float:
        """Run once, wait, and return the seconds from the kernel's start to its end.

        The time is by the device's clock. KernelError if the launch fails.
        """

    @abc.abstractmethod
    def enqueue(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> None:
        """Enqueue a launch without waiting for it or timing it. `finish` waits."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Wait until everything enqueued has run."""

    @abc.abstractmethod
    def buffer(self, data: np.ndarray | int) -> Any:
        """Allocate a buffer of `data`, or of `data` zero bytes if it is a number. DeviceError if memory is short."""

    @abc.abstractmethod
    def write(self, buffer: Any, data: np.ndarray) -> None:
        """Copy `data` to the buffer's start."""

    @abc.abstractmethod
    def read(self, buffer: Any, like: np.ndarray) -> np.ndarray:
        """Return the buffer's first elements, with the shape and type of `like`."""

    @abc.abstractmethod
    def copy(self, to: Any, source: Any, size: int) -> float:
        """Copy `size` bytes by the driver's copy command. Return the seconds that it took."""

    def image(self, texels: np.ndarray, *, is_written: bool = False) -> Any:
        """Allocate a 1-D (w, 4) or 2-D (h, w, 4) image of int32 or float32 texels with four channels.

        DeviceError if the device cannot.
        """
        raise DeviceError("images are probed through OpenCL and Vulkan only", shape=texels.shape)

    def spill_bytes(self, kernel: Any) -> int:
        """Return the private memory outside registers that the driver reports for `kernel`, or 0 if it reports none."""
        return 0

    def lane(self, index: int) -> str:
        """Return the text that selects component `index` of a vector in a kernel."""
        return f".s{index:x}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedDevice:
    """A device that a driver lists.

    handle: the binding's object for it
    name, platform, driver: the names that the driver reports, and its version
    rank: place of the device's type among the types; lower ranks come first
    """

    handle: Any
    name: str
    platform: str
    driver: str
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.name}  ({self.platform}, driver {self.driver})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """A kind of device.

    name: the word before the colon of `--device name:INDEX`
    title: the API's name
    list_devices: lists the devices in the order of their drivers; DeviceError if the binding is missing
    open: opens one of them
    driver_hint: how to get a driver
    variable: the environment variable that puts devices first, "" if there is none
    """

    name: str
    title: str
    list_devices: Callable[[], list[ListedDevice]]
    open: Callable[[ListedDevice], Device]
    driver_hint: str = "install the device's driver"
    variable: str = ""


def defines(macros: Mapping[str, Any]) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in macros.items())
