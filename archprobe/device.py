"""One OpenCL device: its facts, building kernels, and running them with the time that the device itself took."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np

from archprobe.errors import BuildError, DeviceError, KernelError, UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What the driver says of a device. Sizes in bytes, image sizes in texels, the clock in MHz, the timer's step in ns."""

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


class Device:
    """A device that kernels run on, and a queue that times them.

    `launch` gives seconds by the device's own clock: from the start of the kernel to its end, without the host's part.
    """

    def __init__(self, cl_device: Any) -> None:
        import pyopencl as cl

        self.cl = cl
        self.handle = cl_device
        self.context = cl.Context([cl_device])
        self.queue = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self.facts = _facts(cl, cl_device)

    def build(self, source: str, **macros: Any) -> Any:
        """Compile OpenCL C with -D macros; BuildError holds the source and the compiler's log."""
        options = [f"-D{name}={value}" for name, value in macros.items()]
        try:
            with warnings.catch_warnings():
                # Some compilers report on every kernel that they build.
                warnings.simplefilter("ignore")
                return self.cl.Program(self.context, source).build(options=options)
        except self.cl.RuntimeError as error:
            head = f"{self.facts.name} refused a kernel built with {' '.join(options) or 'no options'}"
            raise BuildError(f"{head}: {str(error)[:800]}", source=source, log=str(error)) from error

    def kernel(self, source: str, name: str, **macros: Any) -> Any:
        """The kernel `name` of `source`."""
        return self.cl.Kernel(self.build(source, **macros), name)

    def launch(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> float:
        """Run once and wait; seconds that the device took. KernelError where it refuses or fails."""
        try:
            event = kernel(self.queue, (global_size,), (local_size,), *arguments)
            event.wait()
            return max(event.profile.end - event.profile.start, 1) * 1e-9
        except self.cl.Error as error:
            size = f"{global_size} work-items in groups of {local_size}"
            raise KernelError(f"{self.facts.name} did not run {kernel.function_name} with {size}: {error}", kernel=kernel.function_name) from error

    def buffer(self, data: np.ndarray | int) -> Any:
        """A buffer holding `data`, or of so many bytes, which are zeroed."""
        flags = self.cl.mem_flags
        try:
            if isinstance(data, np.ndarray):
                return self.cl.Buffer(self.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(data))
            buffer = self.cl.Buffer(self.context, flags.READ_WRITE, data)
            self.cl.enqueue_fill_buffer(self.queue, buffer, np.zeros(1, np.uint32), 0, data // 4 * 4)
            return buffer
        except self.cl.Error as error:
            size = data.nbytes if isinstance(data, np.ndarray) else data
            raise DeviceError(f"{self.facts.name} did not give a buffer of {size} bytes: {error}", size=size) from error

    def image(self, texels: np.ndarray, *, is_written: bool = False) -> Any:
        """A 1-D (w, 4) or 2-D (h, w, 4) image of int32 or float32 texels of four channels."""
        kind = self.cl.channel_type.FLOAT if texels.dtype == np.float32 else self.cl.channel_type.SIGNED_INT32
        form = self.cl.ImageFormat(self.cl.channel_order.RGBA, kind)
        flags = self.cl.mem_flags
        access: Any = flags.READ_WRITE if is_written else flags.READ_ONLY
        try:
            shape = texels.shape[:-1][::-1]
            return self.cl.Image(self.context, access | flags.COPY_HOST_PTR, form, shape=shape, hostbuf=np.ascontiguousarray(texels))
        except self.cl.Error as error:
            raise DeviceError(f"{self.facts.name} did not give an image of {texels.shape[:-1]} texels: {error}", shape=texels.shape) from error

    def read(self, buffer: Any, like: np.ndarray) -> np.ndarray:
        """The content of `buffer`, as many elements as `like` has."""
        result = np.empty_like(like)
        self.cl.enqueue_copy(self.queue, result, buffer)
        return result

    def spill_bytes(self, kernel: Any) -> int:
        """Private memory outside of registers, by the driver's word; drivers that do not tell say 0."""
        try:
            return int(kernel.get_work_group_info(self.cl.kernel_work_group_info.PRIVATE_MEM_SIZE, self.handle))
        except self.cl.Error:
            return 0


def open_device(text: str) -> Device:
    """The device that `opencl:INDEX` names, counted over all platforms; UsageError or DeviceError otherwise."""
    kind, _, index = text.partition(":")
    if kind != "opencl" or not (index or "0").isdigit():
        raise UsageError(f"{text!r} names no device; write opencl:0 for the first OpenCL device, opencl:1 for the second", device=text)
    found = list_devices()
    number = int(index or 0)
    if number >= len(found):
        names = "; ".join(f"opencl:{i} is {d.name.strip()}" for i, d in enumerate(found))
        names = names or "none at all: install the GPU's driver, or pocl-opencl-icd for the CPU"
        raise DeviceError(f"there is no OpenCL device {number}; the driver loader sees {names}", index=number)
    return Device(found[number])


def list_devices() -> list[Any]:
    """All OpenCL devices of all platforms, as pyopencl gives them; empty without a driver."""
    try:
        import pyopencl as cl
    except ImportError as error:
        raise DeviceError("pyopencl is not installed; `pip install pyopencl`") from error
    try:
        return [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:
        return []


def _facts(cl: Any, d: Any) -> Facts:
    extensions = tuple(d.extensions.split())
    images = bool(d.image_support)
    return Facts(
        name=d.name.strip(),
        vendor=d.vendor.strip(),
        driver=d.driver_version.strip(),
        platform=d.platform.name.strip(),
        version=d.version.strip(),
        is_cpu=bool(d.type & cl.device_type.CPU),
        compute_units=d.max_compute_units,
        clock_mhz=d.max_clock_frequency,
        max_work_group_size=d.max_work_group_size,
        local_mem_bytes=d.local_mem_size,
        constant_bytes=d.max_constant_buffer_size,
        global_mem_bytes=d.global_mem_size,
        max_buffer_bytes=d.max_mem_alloc_size,
        global_cache_bytes=d.global_mem_cache_size,
        global_cache_line_bytes=d.global_mem_cacheline_size,
        has_images=images,
        max_image_width=d.image2d_max_width if images else 0,
        max_image_height=d.image2d_max_height if images else 0,
        timer_step_ns=d.profiling_timer_resolution,
        extensions=extensions,
        page_bytes=getattr(d, "page_size_qcom", None) if any("qcom" in e for e in extensions) else None,
    )
