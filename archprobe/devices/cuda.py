"""CUDA devices, through CuPy. The kernel texts are the same, with the keywords of OpenCL C defined in CUDA C++."""

from __future__ import annotations

from typing import Any

import numpy as np

from archprobe.devices.base import Device, DeviceKind, Facts, ListedDevice, defines
from archprobe.errors import BuildError, DeviceError, KernelError

_PLATFORM = "NVIDIA CUDA"
# A vector is a plain array with the operators that the kernels use. The longest load has 16 bytes.
_PRELUDE = r"""
#define __kernel extern "C" __global__
#define __global
#define __local __shared__
#define __constant const
#define CLK_LOCAL_MEM_FENCE
#define barrier(fence) __syncthreads()
#define get_local_id(d) (threadIdx.x)
#define get_group_id(d) (blockIdx.x)
#define get_local_size(d) (blockDim.x)
#define get_global_size(d) (gridDim.x * blockDim.x)
#define get_global_id(d) (blockIdx.x * blockDim.x + threadIdx.x)
#define atomic_add(place, value) atomicAdd(place, value)
#define ONE_WORK_ITEM __launch_bounds__(1)
#define char4 int
#define as_char4(word) (word)
typedef unsigned int uint;
template <int N> struct alignas(N < 4 ? 4 * N : 16) Vector {
  float s[N];
  Vector() = default;
  /* Copied lane by lane, a vector would be read from memory lane by lane. */
  __device__ Vector(const Vector &o) {
    if constexpr (N == 2) *(uint2 *)s = *(const uint2 *)o.s;
    else for (int i = 0; i < N / 4; ++i) ((uint4 *)s)[i] = ((const uint4 *)o.s)[i];
  }
  __device__ Vector &operator=(const Vector &) = default;
  __device__ Vector(float value) { for (int i = 0; i < N; ++i) s[i] = value; }
  __device__ Vector(float a, float b, float c, float d) : s{a, b, c, d} {}
  __device__ Vector &operator+=(Vector o) { for (int i = 0; i < N; ++i) s[i] += o.s[i]; return *this; }
};
template <int N> __device__ Vector<N> operator+(Vector<N> a, const Vector<N> &b) { return a += b; }
template <int N> __device__ Vector<N> operator*(Vector<N> a, const Vector<N> &b) { for (int i = 0; i < N; ++i) a.s[i] *= b.s[i]; return a; }
template <int N> __device__ Vector<N> operator*(Vector<N> a, float b) { for (int i = 0; i < N; ++i) a.s[i] *= b; return a; }
template <int N> __device__ Vector<N> fma(Vector<N> a, const Vector<N> &b, const Vector<N> &c) {
  for (int i = 0; i < N; ++i) a.s[i] = fmaf(a.s[i], b.s[i], c.s[i]);
  return a;
}
#define float2 Vector<2>
#define float4 Vector<4>
#define float8 Vector<8>
#define float16 Vector<16>
#define FLOAT4(a, b, c, d) float4(a, b, c, d)
#define TOTAL4(v) ((v).s[0] + (v).s[1] + (v).s[2] + (v).s[3])
"""  # noqa: E501


class CudaDevice(Device):
    """A device that compiles through CuPy and NVRTC and times by CUDA events."""

    def __init__(self, index: int) -> None:
        self.cupy = cupy = _binding()
        cupy.cuda.Device(index).use()
        self.facts = _facts(cupy.cuda.runtime, index)
        self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()

    def kernel(self, source: str, name: str, **macros: Any) -> Any:
        text = _PRELUDE + defines(macros) + source
        try:
            kernel = self.cupy.RawModule(code=text, options=("--std=c++17",)).get_function(name)
        except self.cupy.cuda.compiler.CompileException as error:
            raise BuildError(
                f"{self.facts.name} refused a kernel: {str(error)[:800]}", source=text, log=str(error)
            ) from error
        return kernel

    def launch(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> float:
        try:
            self._begin.record()
            self.enqueue(kernel, global_size, local_size, *arguments)
            self._end.record()
            self._end.synchronize()
        except self.cupy.cuda.driver.CUDADriverError as error:
            size = f"{global_size} work-items in groups of {local_size}"
            raise KernelError(
                f"{self.facts.name} did not run {kernel.name} with {size}: {error}", kernel=kernel.name
            ) from error
        return max(float(self.cupy.cuda.get_elapsed_time(self._begin, self._end)) * 1e-3, 1e-9)

    def enqueue(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> None:
        kernel((global_size // local_size,), (local_size,), arguments)

    def finish(self) -> None:
        self.cupy.cuda.get_current_stream().synchronize()

    def buffer(self, data: np.ndarray | int) -> Any:
        try:
            return self.cupy.asarray(data) if isinstance(data, np.ndarray) else self.cupy.zeros(data, np.uint8)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise DeviceError(f"{self.facts.name} did not give a buffer: {error}") from error

    def write(self, buffer: Any, data: np.ndarray) -> None:
        buffer.view(np.uint8).reshape(-1)[: data.nbytes].set(np.ascontiguousarray(data).view(np.uint8).reshape(-1))

    def read(self, buffer: Any, like: np.ndarray) -> np.ndarray:
        read: np.ndarray = buffer.view(np.uint8).reshape(-1)[: like.nbytes].get()
        return read.view(like.dtype).reshape(like.shape)

    def copy(self, to: Any, source: Any, size: int) -> float:
        self._begin.record()
        self.cupy.cuda.runtime.memcpyAsync(
            to.data.ptr, source.data.ptr, size, 3, self.cupy.cuda.get_current_stream().ptr
        )
        self._end.record()
        self._end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(self._begin, self._end)) * 1e-3

    def spill_bytes(self, kernel: Any) -> int:
        return int(kernel.local_size_bytes)

    def lane(self, index: int) -> str:
        return f".s[{index}]"


def list_devices() -> list[ListedDevice]:
    """Return the CUDA devices. DeviceError without CuPy or a device."""
    runtime = _binding().cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"no CUDA device: {error}") from error
    return [
        ListedDevice(
            handle=index,
            name=runtime.getDeviceProperties(index)["name"].decode(),
            platform=_PLATFORM,
            driver=_driver(runtime),
        )
        for index in range(count)
    ]


def _binding() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            "CUDA needs CuPy; `pip install cupy-cuda12x` or the one for your CUDA, or name an OpenCL device"
        ) from error
    return cupy


def _driver(runtime: Any) -> str:
    driver = runtime.driverGetVersion()
    return f"CUDA {driver // 1000}.{driver % 1000 // 10}"


def _facts(runtime: Any, index: int) -> Facts:
    device = runtime.getDeviceProperties(index)
    version = f"{device['major']}.{device['minor']}"
    return Facts(
        api="cuda",
        name=device["name"].decode(),
        vendor="NVIDIA Corporation",
        driver=_driver(runtime),
        platform=_PLATFORM,
        version=f"compute capability {version}",
        is_cpu=False,
        compute_units=device["multiProcessorCount"],
        clock_mhz=runtime.deviceGetAttribute(13, index) // 1000,
        max_work_group_size=device["maxThreadsPerBlock"],
        local_mem_bytes=device["sharedMemPerBlock"],
        constant_bytes=device["totalConstMem"],
        global_mem_bytes=device["totalGlobalMem"],
        max_buffer_bytes=device["totalGlobalMem"] // 4,
        global_cache_bytes=device["l2CacheSize"],
        timer_step_ns=500,
    )


KIND = DeviceKind(name="cuda", title="CUDA", list_devices=list_devices, open=lambda device: CudaDevice(device.handle))
