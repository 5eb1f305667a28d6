"""TVM's code generator of the kind, `target.build.vulkan`: lowered device functions to a module that TVM runs."""

from __future__ import annotations

import functools
from typing import Any

import tvm
import tvm_ffi

from romou.base.errors import BuildError, DeviceError
from romou.devices.backends.vulkan.glsl import Kernel, write_kernel
from romou.devices.backends.vulkan.glslang import compile_shaders, join


def build(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Return a module with a kernel for each device function.

    BuildError for functions that GLSL cannot express or the target's limits exclude.
    """
    kernels = [write_kernel(func) for _, func in mod.functions_items()]
    for kernel in kernels:
        _check_buffers(kernel, target)
    codes = compile_shaders([kernel.text for kernel in kernels])
    entries = {kernel.name: _entry(kernel, code) for kernel, code in zip(kernels, codes, strict=True)}
    return tvm_ffi.get_global_func("romou.vulkan.module")(
        entries, join({kernel.name: kernel.text for kernel in kernels})
    )


@functools.cache
def install() -> None:
    """Make TVM build kernels of this kind with `build`."""
    for error in (BuildError, DeviceError):
        # These errors keep their type when they pass through TVM.
        tvm_ffi.register_error(error.__name__, error)
    tvm_ffi.register_global_func("target.build.vulkan", build, override=True)


def _entry(kernel: Kernel, code: bytes) -> dict[str, Any]:
    """Return a kernel's entry for the runtime (`tvm_patches/vulkan_runtime`)."""
    return {
        "spirv": code,
        "args": list(kernel.arguments),
        "types": list(kernel.types),
        "launch": list(kernel.launch),
        "push_offsets": list(kernel.push_offsets),
        "shared_bytes": kernel.shared_bytes,
        "local_size": list(kernel.local_size),
        "needs": list(kernel.needs),
    }


def _check_buffers(kernel: Kernel, target: tvm.target.Target) -> None:
    count = sum(argument.startswith("buffer") for argument in kernel.arguments)
    limit = target.attrs.get("max_per_stage_descriptor_storage_buffer", None)
    if limit is not None and count > int(limit):
        hint = "Put data in images, or raise -max_per_stage_descriptor_storage_buffer where the device takes more."
        raise BuildError(
            f"kernel {kernel.name} takes {count} buffers; the device binds {limit} at most",
            hint=hint,
            kernel=kernel.name,
            limit=int(limit),
        )
