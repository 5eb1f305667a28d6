"""OpenCL devices, through pyopencl."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from archprobe.devices.base import Device, DeviceKind, Facts, ListedDevice
from archprobe.errors import BuildError, DeviceError, KernelError

# The platform of Intel's driver for CPUs, which PyPI has too.
_INTEL = "Intel(R) OpenCL"
PRELUDE = """
#define FLOAT4(a, b, c, d) (float4)(a, b, c, d)
#define TOTAL4(v) ((v).x + (v).y + (v).z + (v).w)
#define ONE_WORK_ITEM __attribute__((reqd_work_group_size(1, 1, 1)))
"""


class OpenCLDevice(Device):
    """A device that runs kernels through pyopencl and times them by events."""

    def __init__(self, cl_device: Any) -> None:
        import pyopencl as cl

        self.cl = cl
        self.handle = cl_device
        self.context = cl.Context([cl_device])
        self.queue = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self.facts = _facts(cl, cl_device)

    def kernel(self, source: str, name: str, **macros: Any) -> Any:
        options = [f"-D{name}={value}" for name, value in macros.items()]
        try:
            with warnings.catch_warnings():
                # Some compilers report on every kernel that they build.
                warnings.simplefilter("ignore")
                return self.cl.Kernel(self.cl.Program(self.context, PRELUDE + source).build(options=options), name)
        except self.cl.RuntimeError as error:
            head = f"{self.facts.name} refused a kernel built with {' '.join(options) or 'no options'}"
            raise BuildError(f"{head}: {str(error)[:800]}", source=source, log=str(error)) from error

    def launch(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> float:
        try:
            return _seconds(kernel(self.queue, (global_size,), (local_size,), *arguments))
        except self.cl.Error as error:
            size = f"{global_size} work-items in groups of {local_size}"
            raise KernelError(
                f"{self.facts.name} did not run {kernel.function_name} with {size}: {error}",
                kernel=kernel.function_name,
            ) from error

    def enqueue(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> None:
        kernel(self.queue, (global_size,), (local_size,), *arguments)

    def finish(self) -> None:
        self.queue.finish()

    def write(self, buffer: Any, data: np.ndarray) -> None:
        self.cl.enqueue_copy(self.queue, buffer, np.ascontiguousarray(data))

    def copy(self, to: Any, source: Any, size: int) -> float:
        return _seconds(self.cl.enqueue_copy(self.queue, to, source, byte_count=size))

    def buffer(self, data: np.ndarray | int) -> Any:
        flags = self.cl.mem_flags
        try:
            if isinstance(data, np.ndarray):
                return self.cl.Buffer(
                    self.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(data)
                )
            buffer = self.cl.Buffer(self.context, flags.READ_WRITE, data)
            self.cl.enqueue_fill_buffer(self.queue, buffer, np.zeros(1, np.uint32), 0, data // 4 * 4)
            return buffer
        except self.cl.Error as error:
            size = data.nbytes if isinstance(data, np.ndarray) else data
            raise DeviceError(f"{self.facts.name} did not give a buffer of {size} bytes: {error}", size=size) from error

    def image(self, texels: np.ndarray, *, is_written: bool = False) -> Any:
        kind = self.cl.channel_type.FLOAT if texels.dtype == np.float32 else self.cl.channel_type.SIGNED_INT32
        form = self.cl.ImageFormat(self.cl.channel_order.RGBA, kind)
        flags = self.cl.mem_flags
        access: Any = flags.READ_WRITE if is_written else flags.READ_ONLY
        try:
            shape = texels.shape[:-1][::-1]
            return self.cl.Image(
                self.context, access | flags.COPY_HOST_PTR, form, shape=shape, hostbuf=np.ascontiguousarray(texels)
            )
        except self.cl.Error as error:
            raise DeviceError(
                f"{self.facts.name} did not give an image of {texels.shape[:-1]} texels: {error}", shape=texels.shape
            ) from error

    def read(self, buffer: Any, like: np.ndarray) -> np.ndarray:
        result = np.empty_like(like)
        self.cl.enqueue_copy(self.queue, result, buffer)
        return result

    def spill_bytes(self, kernel: Any) -> int:
        try:
            return int(kernel.get_work_group_info(self.cl.kernel_work_group_info.PRIVATE_MEM_SIZE, self.handle))
        except self.cl.Error:
            return 0


def _seconds(event: Any) -> float:
    event.wait()
    return max(int(event.profile.end) - int(event.profile.start), 1) * 1e-9


def list_devices() -> list[ListedDevice]:
    """Return the OpenCL devices of all platforms, by the platforms' names. The list is empty without a driver.

    The order of the loader is not kept: pyopencl's and the system's list platforms in different orders.
    """
    listed = [
        ListedDevice(
            handle=device,
            name=device.name.strip(),
            platform=platform.name.strip(),
            driver=device.driver_version.strip(),
            rank=_rank(device.type, platform.name),
        )
        for platform in _platforms()
        for device in _devices_of(platform)
    ]
    return sorted(listed, key=lambda device: (device.platform, device.driver))


def _devices_of(platform: Any) -> list[Any]:
    import pyopencl as cl

    try:
        return list(platform.get_devices())
    except cl.Error:
        return []


def _rank(kind: int, platform: str) -> int:
    """Return the place of a device type: GPUs, accelerators, CPUs with Intel's driver, other CPUs, the rest."""
    import pyopencl as cl

    types = cl.device_type
    if kind & types.GPU:
        return 0
    if kind & types.ACCELERATOR:
        return 1
    if not kind & types.CPU:
        return 4
    return 2 if platform == _INTEL else 3


@functools.cache
def _platforms() -> list[Any]:
    """Return the platforms that the loader finds on its first call, and Intel's driver from PyPI."""
    driver = _driver_from_pypi()
    with _with_driver(driver) if driver else contextlib.nullcontext():
        try:
            import pyopencl as cl
        except ImportError as error:
            raise DeviceError("pyopencl is not installed; `pip install pyopencl`") from error
        try:
            # The loader lists the driver twice if the system installed it too.
            return list(dict.fromkeys(cl.get_platforms()))
        except cl.Error:
            return []


def _driver_from_pypi() -> str | None:
    """Load the libraries of Intel's driver for CPUs into the process and return its path.

    None if its wheels are not installed.
    """
    try:
        from tvm_patches import pypi_driver
    except ImportError:
        return None
    libraries = pypi_driver.libraries()
    for library in libraries[:-1]:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    return libraries[-1] if libraries else None


@contextlib.contextmanager
def _with_driver(driver: str) -> Iterator[None]:
    """Add one more driver for the loader while the block runs.

    The loader reads the variable once, and processes started later do not inherit it.
    """
    before = os.environ.get("OCL_ICD_VENDORS")
    vendors = Path(before or "/etc/OpenCL/vendors")
    with tempfile.TemporaryDirectory(prefix="archprobe-icd-") as folder:
        for file in vendors.glob("*.icd") if vendors.is_dir() else [vendors] if vendors.is_file() else ():
            shutil.copy(file, folder)
        Path(folder, "pypi.icd").write_text(driver + "\n", encoding="utf-8")
        os.environ["OCL_ICD_VENDORS"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["OCL_ICD_VENDORS"]
            else:
                os.environ["OCL_ICD_VENDORS"] = before


def _facts(cl: Any, d: Any) -> Facts:
    extensions = tuple(d.extensions.split())
    images = bool(d.image_support)
    return Facts(
        api="opencl",
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


KIND = DeviceKind(
    name="opencl",
    title="OpenCL",
    list_devices=list_devices,
    open=lambda device: OpenCLDevice(device.handle),
    driver_hint="install the GPU's driver, or pocl-opencl-icd for the CPU",
    variable="ROMOU_OPENCL_DEVICE",
)
