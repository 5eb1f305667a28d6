"""NVIDIA's clocks while kernels are timed through Vulkan.

With only short launches of Vulkan, a GPU falls back to its idle clock after some seconds. On an H200 a kernel then
takes five times as long. A CUDA context in the same process keeps the clocks up, even if it is unused.
"""

from __future__ import annotations

import ctypes
import functools

_LIBRARY = "libcuda.so.1"
_NAME_BYTES = 256


@functools.cache
def hold(name: str) -> int:
    """Keep the clocks of NVIDIA's GPUs of that name up until this process ends.

    Return their number, 0 without CUDA's driver.
    """
    try:
        cuda = ctypes.CDLL(_LIBRARY)
    except OSError:
        return 0
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    held = 0
    for ordinal in range(count.value):
        device, context, own = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetName(own, _NAME_BYTES, device):
            continue
        if own.value.decode() == name and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            held += 1
    return held
