"""TVM's runtime without its compiler: all that a compiled model takes to run.

`import tvm` loads the compiler, a library of 260 MB with 700 modules of Python. Here, only the runtime is loaded.
Functions that take a device or a tensor take TVM's own, too, also those behind a connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

import tvm_patches

with contextlib.suppress(KeyError):
    # At a process's first failure in C++, tvm_ffi reads the symbols of all libraries that are loaded, and never again.
    # The import of TVM has such a failure: it takes 0.6 s once the drivers and their LLVM are loaded, and 0.04 s here.
    tvm_ffi.Map({"": 0})["missing"]

# TVM's numbers: of a device's attributes (runtime/device_api.h), of the host's type, of the pooled allocator
# (vm/memory_manager.h), and what types of devices behind a connection are multiples of.
_ATTRIBUTES = {
    "exist": 0,
    "max_threads_per_block": 1,
    "warp_size": 2,
    "max_shared_memory_per_block": 3,
    "compute_version": 4,
    "device_name": 5,
    "max_clock_rate": 6,
    "multi_processor_count": 7,
}
_CPU, _POOLED, _CONNECTED = 1, 2, 128


def global_function(name: str, *, allow_missing: bool = False) -> Any:
    """Return the function that C++ or Python has registered with the runtime.

    ValueError if there is none, or None with `allow_missing`.
    """
    load()
    return tvm_ffi.get_global_func(name, allow_missing=True) if allow_missing else tvm_ffi.get_global_func(name)


@functools.cache
def load() -> None:
    """Load TVM's runtime and the device runtimes, unless the process has them."""
    spec = importlib.util.find_spec("tvm")
    if spec is not None and spec.origin is not None:
        ctypes.CDLL(str(Path(spec.origin).with_name("lib") / "libtvm_runtime.so"), mode=ctypes.RTLD_GLOBAL)
    tvm_patches.load_runtimes()


def device(kind: str, index: int = 0) -> Any:
    """Return the handle of a device. kind: TVM's name of the device type."""
    load()
    return tvm_ffi.device(kind, index)


def device_attribute(device: Any, name: str) -> Any:
    """Return an attribute of a device by TVM's name of it, or None."""
    return global_function("runtime.GetDeviceAttr")(device.dlpack_device_type(), device.index, _ATTRIBUTES[name])


def type_there(device: Any) -> int:
    """Return the number of a device's type on its machine."""
    return int(device.dlpack_device_type() % _CONNECTED)


def exists(device: Any) -> bool:
    """Return whether a driver has the device."""
    return bool(device_attribute(device, "exist"))


def synchronize(device: Any) -> None:
    """Wait until the device has done what was launched on it."""
    global_function("runtime.Device_StreamSync")(device, 0)


def device_tensor(array: np.ndarray, device: Any, scope: str = "global") -> Any:
    """Copy `array` to a device, into a memory scope: "global" for a buffer, a texture scope for an image."""
    make = global_function("runtime.TVMTensorAllocWithScope")
    memory = None if scope == "global" else scope
    made = make(tvm_ffi.Shape(array.shape), tvm_ffi.dtype(array.dtype.name), device, memory)
    write(made, array)
    return made


def write(tensor: Any, values: Any) -> None:
    """Copy an array of the same shape, or another tensor, into a tensor. ValueError for another shape."""
    if not isinstance(values, np.ndarray):
        global_function("runtime.TVMTensorCopyFromTo")(values, tensor)
        return
    if values.shape != tuple(tensor.shape):
        raise ValueError(f"an array of {values.shape} does not fit a tensor of {tuple(tensor.shape)}")
    data = np.asarray(values, str(tensor.dtype), order="C")
    global_function("runtime.TVMTensorCopyFromBytes")(tensor, ctypes.c_void_p(data.ctypes.data), data.nbytes)


def read(tensor: Any) -> np.ndarray:
    """Return the elements of a tensor."""
    array = np.empty(tuple(tensor.shape), str(tensor.dtype))
    read_into(tensor, array)
    return array


def read_into(tensor: Any, array: np.ndarray) -> None:
    """Copy the elements of a tensor into an array in C order, of the same shape and type."""
    global_function("runtime.TVMTensorCopyToBytes")(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)


def timed(
    module: Any, function: str, device: Any, arguments: Sequence[Any], *, number: int = 1, repeat: int = 1
) -> list[float]:
    """Return the seconds of a call on the device's clock, as means over `number` calls, `repeat` times.

    Another call comes first, which is not timed.
    """
    # At least 0 ms, without a pause, with the caches as they are, and nothing called before
    how = 0, 100, 0, 1, 0, ""
    place = device.dlpack_device_type(), device.index
    evaluate = global_function("runtime.RPCTimeEvaluator")(module, function, *place, number, repeat, *how)
    return list(struct.unpack(f"@{repeat}d", bytes(evaluate(*arguments))))


def virtual_machine(library: Any, device: Any, scopes: int) -> Any:
    """Return a virtual machine, which runs the functions of a library. scopes: kinds of memory of its tensors."""
    # What was compiled in this process is TVM's executable.
    machine = (library.jit() if hasattr(library, "jit") else library)["vm_load_executable"]()
    # One device for each kind of memory. The host computes shapes.
    kind = type_there(device)
    host = [] if kind == _CPU else [_CPU, 0, _POOLED]
    machine["vm_initialization"](*[kind, device.index, _POOLED] * scopes, *host)
    return machine
