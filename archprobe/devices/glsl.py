"""Translates the probes' OpenCL C to a GLSL compute shader, which glslang compiles to SPIR-V.

    __kernel void add(__global float *out, float a)
        ->  layout(binding = 0) buffer Memory0 { float out_[]; };  layout(push_constant) ... float a

This is no general compiler: it supports only the constructs of the probes, in their exact form.
Pointers inside a kernel, bytes, and vectors of more than four components have no counterpart. A kernel with them does
not compile, and its probe says so.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from archprobe.errors import BuildError, DeviceError

_HEAD = """#version 450
layout(local_size_x_id = 1, local_size_y = 1, local_size_z = 1) in;
#extension GL_EXT_samplerless_texture_functions : require
#define float2 vec2
#define float4 vec4
#define int2 ivec2
#define read_imagef(image, sampler, at) texelFetch(image, at, 0)
#define read_imagei(image, sampler, at) texelFetch(image, at, 0)
#define write_imagef(image, at, value) imageStore(image, at, value)
#define get_local_id(d) int(gl_LocalInvocationID.x)
#define get_group_id(d) int(gl_WorkGroupID.x)
#define get_local_size(d) int(gl_WorkGroupSize.x)
#define get_global_size(d) int(gl_NumWorkGroups.x * gl_WorkGroupSize.x)
#define get_global_id(d) int(gl_GlobalInvocationID.x)
"""
_HALF_HEAD = """#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define half float16_t
#define half2 f16vec2
#define half4 f16vec4
"""
# Expanded before the kernel is taken apart.
_PRELUDE = """#version 450
#define FLOAT4(a, b, c, d) (float4)(a, b, c, d)
#define TOTAL4(v) ((v).x + (v).y + (v).z + (v).w)
#define ONE_WORK_ITEM
"""
_KERNEL = re.compile(r"__kernel\s+void\s+(\w+)\s*\(([^)]*)\)\s*\{")
_CAST = re.compile(r"\(\s*(float[24]?|half[24]?|int2?|uint)\s*\)\s*(?:\(|(-?[\w.]+(?:\([^()]*\)|\[[^\]]*\]|\.\w+)*))")
_RESERVED = ("out", "in", "sample", "buffer", "shared")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shader:
    """The SPIR-V of one kernel and the types of its arguments in order.

    A type is "m" for memory, "r" for an image that is read, "w" for an image that is written (bindings 0, 1, …), else
    the type of a push constant.
    """

    name: str
    spirv: bytes
    types: tuple[str, ...]


def compile_kernel(source: str, name: str, device_name: str) -> Shader:
    """Compile the kernel `name` of `source` to a shader.

    BuildError with both texts if that fails, DeviceError without glslang.
    """
    tool = shutil.which("glslangValidator")
    if tool is None:
        raise DeviceError("Vulkan needs glslangValidator; on Debian: apt-get install glslang-tools")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.comp"

        def run(text: str, *options: str) -> str:
            path.write_text(text)
            done = subprocess.run(
                [tool, "-S", "comp", *options, str(path)], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                log = "\n".join(line for line in done.stdout.splitlines() if "ERROR" in line) or done.stderr
                raise BuildError(f"{device_name}: glslangValidator refused a kernel: {log[:800]}", source=text, log=log)
            return done.stdout

        plain = re.sub(r'_Pragma\("unroll"\)|#pragma.*', "", source)
        text, types = translate(run(_PRELUDE + plain, "-E"), name)
        run(text, "-V", "-o", f"{folder}/kernel.spv")
        return Shader(name=name, spirv=(Path(folder) / "kernel.spv").read_bytes(), types=types)


def translate(source: str, name: str) -> tuple[str, tuple[str, ...]]:
    """Translate the kernel `name` of preprocessed text to (shader, types of the arguments).

    BuildError if there is no such kernel.
    """
    kernel_head = next((match for match in _KERNEL.finditer(source) if match[1] == name), None)
    if kernel_head is None:
        raise BuildError(f"the source holds no kernel {name}", source=source, log="")
    body = source[kernel_head.end() : _end_of_block(source, kernel_head.end())]
    bound: list[str] = []
    constants: list[str] = []
    types: list[str] = []
    for text in kernel_head[2].split(","):
        words = re.findall(r"\w+|\*", text)
        kind, argument = words[-3] if "*" in words else words[-2], words[-1]
        is_int = f"read_imagei({argument}," in body
        argument = f"{argument}_" if argument in _RESERVED else argument
        binding = f"binding = {len(bound)}"
        if "*" in words:
            bound.append(f"layout(std430, {binding}) buffer Memory{len(bound)} {{ {kind} {argument}[]; }};")
            types.append("m")
        elif "__read_only" in words:
            bound.append(f"layout({binding}) uniform {'i' if is_int else ''}texture{kind[5]}D {argument};")
            types.append("r")
        elif "__write_only" in words:
            bound.append(f"layout({binding}, rgba32f) writeonly uniform image{kind[5]}D {argument};")
            types.append("w")
        else:
            constants.append(f"{kind} {argument};")
            types.append(kind)
    for word in _RESERVED:
        body = re.sub(rf"\b{word}\b", f"{word}_", body)
    shared = re.findall(r"__local\s+([^;]*;)", body)
    body = re.sub(r"__local\s+[^;]*;", "", body)
    body = re.sub(r"atomic_add\s*\(\s*&", "atomicAdd(", body)
    body = re.sub(r"barrier\s*\(\s*CLK_LOCAL_MEM_FENCE\s*\)", "memoryBarrierShared(); barrier()", body)
    while (plain := _CAST.sub(lambda m: f"{m[1]}(" if m[2] is None else f"{m[1]}({m[2]})", body)) != body:
        body = plain
    pushed = [f"layout(push_constant) uniform Constants {{ {' '.join(constants)} }};"] if constants else []
    lines = [
        *([_HALF_HEAD] if re.search(r"\bhalf\b", body) else []),
        *bound,
        *pushed,
        *(f"shared {declaration}" for declaration in shared),
        f"void main() {{ {body} }}",
    ]
    return _HEAD + "\n".join(lines) + "\n", tuple(types)


def _end_of_block(text: str, start: int) -> int:
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)
