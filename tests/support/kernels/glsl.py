"""Kernels written by hand in GLSL, as modules of Romou's Vulkan runtime."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm

from romou.devices.backends.vulkan import glslang
from support.servers import forked

HEAD = "#version 450\n#extension GL_EXT_samplerless_texture_functions : require\n"


@functools.cache
def spirv(source: str) -> bytes:
    """Compile a compute shader to SPIR-V by glslang."""
    with tempfile.TemporaryDirectory() as folder:
        text, binary = Path(folder) / "kernel.comp", Path(folder) / "kernel.spv"
        text.write_text(HEAD + source)
        done = glslang._run(glslang.glslang(), "-V", "--target-env", "vulkan1.1", str(text), "-o", str(binary))
        assert done.returncode == 0, done.stdout + source
        return binary.read_bytes()


def entry(source: str, args: Sequence[str], **fields: Any) -> dict[str, Any]:
    """Return the entry of a kernel for `romou.vulkan.module`. Its last argument is the number of work groups."""
    size = re.search(r"local_size_x *= *(\d+)", source)
    scalars = [arg.split(":")[1] for arg in args if arg.startswith("scalar:")]
    return {
        "spirv": spirv(source),
        "args": list(args),
        "types": [arg.split(":")[1] if arg.startswith("scalar:") else "handle" for arg in args],
        "launch": ["blockIdx.x", "threadIdx.x"],
        "push_offsets": [4 * i for i in range(len(scalars))],
        "local_size": [int(size[1]) if size else 1, 1, 1],
        "shared_bytes": 0,
        **fields,
    }


def module(**kernels: dict[str, Any]) -> tvm.runtime.Module:
    return tvm.get_global_func("romou.vulkan.module")(kernels, "// GLSL by hand")


def pointer(tensor: tvm.runtime.Tensor) -> ctypes.c_void_p:
    """Return the pointer that TVM's host code passes to a kernel for a tensor."""
    return ctypes.c_void_p(tensor.data_ptr())


def launch(function: Any, *values: Any) -> None:
    """Call a kernel with its arguments, the number of work groups, and the work-items of a group."""
    function(*(pointer(value) if isinstance(value, tvm.runtime.Tensor) else value for value in values))


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return forked.run("-c", code, env={**os.environ, **variables}, timeout=120)


# b = a * factor + 1, for 64 numbers a work group
SCALE = """
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float a[]; };
layout(std430, binding = 1) writeonly buffer B { float b[]; };
layout(push_constant) uniform P { float factor; };
void main() { uint i = gl_GlobalInvocationID.x; b[i] = a[i] * factor + 1.0; }
"""
SCALE_ARGS = ("buffer:r", "buffer:w", "scalar:float32")
