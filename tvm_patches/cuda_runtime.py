"""Loads the wheel's CUDA runtime, with the CUDA library of NVIDIA's wheels if there is no other."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

_SIDECAR, _DRIVER, _CUDART = "libtvm_runtime_cuda.so", "libcuda.so.1", "libcudart.so.13"
_libraries: list[ctypes.CDLL] = []


def load() -> str | None:
    """Load TVM's CUDA runtime into the process. Return None, or the reason why it cannot be loaded.

    TVM tries too, but looks in system folders only and reports nothing.
    """
    import tvm_ffi

    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return None
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return f"no NVIDIA driver on this machine ({_DRIVER})"
    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:
        return "TVM is not installed"
    sidecar = Path(spec.origin).parent / "lib" / _SIDECAR
    if not sidecar.is_file():
        return f"this TVM wheel brings no CUDA runtime ({sidecar})"
    problem = ""
    for cudart in (_CUDART, *_cudart_of_wheels()):
        try:
            _libraries.append(ctypes.CDLL(cudart, mode=ctypes.RTLD_GLOBAL))
            _libraries.append(ctypes.CDLL(str(sidecar), mode=ctypes.RTLD_LOCAL))
            return None
        except OSError as error:
            problem = str(error)
    return f"TVM's CUDA runtime needs {_CUDART}: {problem}"


def device_count() -> int:
    """Return the number of GPUs under CUDA_VISIBLE_DEVICES. 0 without a driver or TVM's CUDA runtime.

    TVM is not called, because its query for a missing device leaves an error in the CUDA runtime. PyTorch in the same
    process would take it for one of its errors.
    """
    if load() is not None:
        return 0
    driver, count = ctypes.CDLL(_DRIVER), ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def device_uuid(index: int) -> str:
    """Return the UUID of a GPU in hex digits, the same in OpenCL and Vulkan. "" if the driver does not report it."""
    driver, device, uuid = ctypes.CDLL(_DRIVER), ctypes.c_int(0), (ctypes.c_ubyte * 16)()
    if (
        driver.cuInit(0) != 0
        or driver.cuDeviceGet(ctypes.byref(device), index) != 0
        or driver.cuDeviceGetUuid(uuid, device) != 0
    ):
        return ""
    return bytes(uuid).hex()


def _cudart_of_wheels() -> list[str]:
    """Return the paths of NVIDIA's wheels' CUDA runtime."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except ImportError:
        return []
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return [str(path) for folder in folders for path in Path(folder).glob(f"*/lib/{_CUDART}")]
