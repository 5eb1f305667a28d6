"""Kernels as Vulkan shaders: the code generator's output for a function, without a device and without the runtime."""

from __future__ import annotations

import shutil
from pathlib import Path

import tvm
from tvm import tirx
from tvm.tirx.build import split_host_device_mods

import romou.compiler.pipeline as pipeline
from romou.devices.backends.vulkan import glslang
from romou.devices.backends.vulkan.glsl import Kernel, write_kernel
from romou.devices.backends.vulkan.glslang import compile_shader
from romou.devices.targets import Target
from support.suite.compiled import compiled


def shaders_of(mod: tvm.IRModule, target: Target) -> list[Kernel]:
    """Return the kernels of scheduled functions, lowered as in a build."""
    lower, _, finish = tirx.get_tir_pipeline(pipeline.NAME)
    _, devices = split_host_device_mods(lower(tirx.transform.BindTarget(target.tvm_target)(mod)))
    return [write_kernel(func) for device in devices.values() for _, func in finish()(device).functions_items()]


def validate(kernel: Kernel) -> bytes:
    """Compile a kernel, and check its SPIR-V against Vulkan's rules."""
    return validate_text(kernel.text)


def validate_text(text: str) -> bytes:
    """Compile and check a shader's text in the same way."""
    # The wheel with glslang includes a recent one.
    beside, installed = glslang.glslang().with_name("spirv-val"), shutil.which("spirv-val")
    assert beside.exists() or installed, "no spirv-val: apt-get install spirv-tools"
    by = glslang.version() + Path(glslang.__file__).read_text(encoding="utf-8")

    def check(path: Path) -> None:
        path.write_bytes(compile_shader(text))
        done = glslang._run(beside if beside.exists() else Path(str(installed)), "--target-env", "vulkan1.1", str(path))
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{text}"

    return compiled(".spv", text, by, by=check).read_bytes()
