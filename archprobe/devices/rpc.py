"""Devices behind a TVM RPC server, a phone's for instance.

They run through the Romou runtimes that the server has: OpenCL, and Vulkan without images.

On the server: ``romou serve --port 9090 --key phone``. Kernels are compiled and timed on the server. Only their text
(for Vulkan, SPIR-V), arguments and results travel.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from archprobe.devices.base import Device, Facts, ListedDevice, defines
from archprobe.devices.glsl import compile_kernel
from archprobe.devices.opencl import PRELUDE
from archprobe.errors import ArchProbeError, BuildError, ConnectionLostError, DeviceError, KernelError, UsageError

# Romou is needed for RPC only.
if TYPE_CHECKING:
    from romou.runtime.rpc import Connection

_TYPES: dict[np.dtype[Any], str] = {np.dtype(np.int32): "i", np.dtype(np.uint32): "u", np.dtype(np.float32): "f"}
_TITLES = {"opencl": "OpenCL", "vulkan": "Vulkan"}
_ZERO = """
__kernel void zero_words(__global uint *out, uint count) {
  for (uint i = get_global_id(0); i < count; i += get_global_size(0)) out[i] = 0;
}
__kernel void zero_texels(__write_only image2d_t out, uint width, uint count) {
  for (uint i = get_global_id(0); i < count; i += get_global_size(0)) WRITE(out, (int2)(i % width, i / width), (VECTOR)(0));
}
"""  # noqa: E501


class RpcDevice(Device):
    """A device that runs kernels through ``romou.KIND.source_kernel`` of the server at `address`.

    `kind` is "opencl" or "vulkan", and `index` the device's number among its kind. `address` is "host:port/key"
    (`romou.runtime.rpc.Address` lists the other places of the key), or "tracker://host:port/key" for the first free
    server of a tracker.

    UsageError if `address` has another form. DeviceError if no server answers, the key differs, the server has no Romou
    or other versions, or it has no such device. ConnectionLostError from any method, once the connection is cut.
    """

    def __init__(self, address: str, index: int, *, kind: str = "opencl", patience_s: float = 20.0) -> None:
        self.connection = _connect(address, kind, patience_s)
        self.session = self.connection.session
        devices = self.connection.devices
        if index >= len(devices):
            names = "; ".join(f"{kind}:{i} is {d['name']}" for i, d in enumerate(devices))
            title = _TITLES.get(kind, kind)
            raise DeviceError(
                f"the server at {self.connection.server} has no {title} device {index}; it sees"
                f" {names or 'none at all'}",
                index=index,
            )
        self.facts = _facts(kind, devices[index])
        if kind == "vulkan":
            self.widest = 4
        self.index = index
        self.handle = self.session.device(kind, index)
        self._source_kernel = self.session.get_function(f"romou.{kind}.source_kernel")
        self._timed_copy = self.session.get_function(f"romou.{kind}.timed_copy")
        self._zero: dict[str, Any] = {}

    def kernel(self, source: str, name: str, **macros: Any) -> Any:
        text: str | bytes = defines(macros) + PRELUDE + source
        if self.facts.api == "vulkan":
            text = compile_kernel(defines(macros) + source, name, self.facts.name).spirv
        with self._remote(BuildError, "refused a kernel", source=source):
            module = self._source_kernel(self.index, text, name)
            return {key: module[key] for key in ("launch", "enqueue", "private_bytes")}

    def launch(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> float:
        with self._remote(KernelError, f"did not run a kernel with {global_size} work-items in groups of {local_size}"):
            return max(int(kernel["launch"](*_packed(global_size, local_size, arguments))), 1) * 1e-9

    def enqueue(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> None:
        with self._remote(KernelError, f"did not run a kernel with {global_size} work-items in groups of {local_size}"):
            kernel["enqueue"](*_packed(global_size, local_size, arguments))

    def finish(self) -> None:
        with self._remote(KernelError, "did not finish"):
            self.handle.sync()

    def buffer(self, data: np.ndarray | int) -> Any:
        import tvm.runtime

        size = data.nbytes if isinstance(data, np.ndarray) else data
        with self._remote(DeviceError, f"did not give a buffer of {size} bytes", size=size):
            if isinstance(data, np.ndarray):
                return tvm.runtime.tensor(np.ascontiguousarray(data), self.handle)
            buffer = tvm.runtime.empty((data,), "uint8", self.handle)
        self._fill("zero_words", buffer, np.uint32(data // 4))
        return buffer

    def write(self, buffer: Any, data: np.ndarray) -> None:
        source = self.buffer(data)
        self._copy(buffer, source, data.nbytes)

    def read(self, buffer: Any, like: np.ndarray) -> np.ndarray:
        import tvm.runtime

        with self._remote(DeviceError, f"did not give a buffer of {like.nbytes} bytes"):
            result = tvm.runtime.empty((like.nbytes,), "uint8", self.handle)
            self._timed_copy(buffer, result, like.nbytes)
            read: np.ndarray = result.numpy()
            return read.view(like.dtype).reshape(like.shape)

    def copy(self, to: Any, source: Any, size: int) -> float:
        return max(self._copy(to, source, size), 1) * 1e-9

    def _copy(self, to: Any, source: Any, size: int) -> int:
        with self._remote(KernelError, f"did not copy {size} bytes"):
            return int(self._timed_copy(source, to, size))

    def image(self, texels: np.ndarray, *, is_written: bool = False) -> Any:
        import tvm.runtime

        scope, shape = f"global.image{texels.ndim - 1}d", texels.shape
        is_empty = texels.ndim == 3 and not texels.any()
        with self._remote(DeviceError, f"did not give an image of {shape[:-1]} texels", shape=shape):
            if not is_empty:
                return tvm.runtime.tensor(np.ascontiguousarray(texels), self.handle, mem_scope=scope)
            image = tvm.runtime.empty(shape, str(texels.dtype), self.handle, mem_scope=scope)
        # Zeros are written on the server: a large image of them would take long to travel.
        vector = (
            {"WRITE": "write_imagef", "VECTOR": "float4"}
            if texels.dtype == np.float32
            else {"WRITE": "write_imagei", "VECTOR": "int4"}
        )
        self._fill("zero_texels", image, np.uint32(shape[1]), np.uint32(shape[0] * shape[1]), **vector)
        return image

    def _fill(self, name: str, target: Any, *sizes: np.uint32, **macros: str) -> None:
        key = name + macros.get("VECTOR", "")
        if key not in self._zero:
            # The other kernel of the text must be compiled too.
            macros = macros or {"WRITE": "write_imagef", "VECTOR": "float4"}
            text = _ZERO if self.facts.has_images else _ZERO[: _ZERO.index("__kernel void zero_texels")]
            self._zero[key] = self.kernel(text, name, **macros)
        local = min(64, self.facts.max_work_group_size)
        self.launch(self._zero[key], self.facts.units * 16 * local, local, target, *sizes)

    def spill_bytes(self, kernel: Any) -> int:
        with self._remote(KernelError, "did not tell a kernel's private memory"):
            return int(kernel["private_bytes"]())

    @contextlib.contextmanager
    def _remote(self, kind: type[ArchProbeError], what: str, **fields: Any) -> Iterator[None]:
        """Raise the server's errors as `kind`, and every other error as the end of the connection."""
        from tvm.error import RPCError

        try:
            yield
        except RPCError as error:
            text = str(error).partition("Error caught from RPC call:")[2].strip() or str(error)
            raise kind(
                f"{self.facts.name} {what}: {text[:800]}", **({"log": text} if kind is BuildError else {}), **fields
            ) from error
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            message = (
                f"the connection to {self.connection.server} was cut ({reason}); the same command goes on where it"
                " stopped"
            )
            raise ConnectionLostError(message, address=self.connection.server) from error


def list_devices(address: str, kind: str) -> list[ListedDevice]:
    """Return the server's devices of a kind in the server's order. It raises the same errors as `RpcDevice`."""
    connection = _connect(address, kind)
    connection.close()
    names = ("name", "platform", "driver")
    return [ListedDevice(handle=None, **{name: device[name] for name in names}) for device in connection.devices]


def _packed(global_size: int, local_size: int, arguments: tuple[Any, ...]) -> list[Any]:
    """Pack a launch for ``romou.opencl.source_kernel``.

    It has a letter for the type of every argument, sizes, and the arguments as plain numbers or tensors.
    """
    types = "".join(_TYPES[a.dtype] if isinstance(a, np.generic) else "m" for a in arguments)
    return [types, global_size, local_size, *(a.item() if isinstance(a, np.generic) else a for a in arguments)]


def _connect(address: str, kind: str = "opencl", patience_s: float = 20.0) -> Connection:
    from romou.base import errors
    from romou.runtime import rpc

    try:
        return rpc.connect(rpc.Address.parse(address), kind=kind, patience_s=patience_s)
    except errors.UsageError as error:
        raise UsageError(str(error), **error.fields) from error
    except errors.RomouError as error:
        raise DeviceError(str(error), **error.fields) from error


def _facts(kind: str, reported: dict[str, Any]) -> Facts:
    # The runtime uses the same names for most facts. These have another name or form.
    features = ("shaderFloat16",) if reported.get("has_fp16_arithmetic") else ()
    ours = {
        "api": kind,
        "is_cpu": reported["type"] == "cpu",
        "constant_bytes": reported.get("constant_mem_bytes", 0),
        "max_buffer_bytes": reported["max_alloc_bytes"],
        "timer_step_ns": reported.get("timer_resolution_ns") or max(1, round(reported.get("timestamp_period_ns", 1))),
        "extensions": (*reported["extensions"].split(), *features),
        # Vulkan's `source_kernel` takes buffers only.
        "has_images": reported["has_images"] and kind == "opencl",
        "is_remote": True,
    }
    alike = {field.name for field in dataclasses.fields(Facts)} & set(reported) - set(ours)
    return Facts(
        **ours,
        **{name: reported[name].strip() if isinstance(reported[name], str) else reported[name] for name in alike},
    )
