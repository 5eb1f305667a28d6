"""OpenCL C through clspv, which phones without an OpenCL driver compile with: SPIR-V, checked and run by Vulkan.

Galaxy phones with newer Exynos run OpenCL through ANGLE, which calls clspv. The wheel pyclspv has it as a library
(clspv of 2025-09 with LLVM 22; a phone's revision was not tried). `check_clspv.py` runs this over networks and configs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import shutil
import struct
import subprocess
import tempfile
import unittest.mock
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

import check_kernels
from romou.base.inputs import random_inputs
from romou.compiler.assembly.build import Kept
from romou.compiler.compilation import Compilation
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.devices.backends.launch import thread_extents
from romou.devices.backends.vulkan import build as vulkan
from romou.devices.backends.vulkan.functions import DEFINITIONS
from romou.devices.backends.vulkan.glsl import write_kernel
from romou.devices.targets import Target
from romou.driver.lowering import lowered_model
from romou.driver.model import tuned_model
from romou.driver.options import ModelOptions, PrecisionName
from romou.driver.site import TimingSite
from romou.runtime.module import TunedModel
from romou.tools.inspection.kernels import InspectedKernel, inspect_function

if TYPE_CHECKING:
    import onnx
    import tvm
    from tvm import tirx

NOT_INSTALLED = "pyclspv is not installed: pip install pyclspv==0.0.1 (a wheel for Python 3.11 on x86-64 Linux only)"
# Part of what ANGLE passes (clspv_utils.cpp, ClspvGetCompilerOptions), for a device with fp16 and without fp64.
RUN_OPTIONS = "-arch=spir --spv-version=1.5 --long-vector --cl-kernel-arg-info --fp16 --fp64=0"
RUN_OPTIONS += " --rounding-mode-rte=32,16"
# The rest adds push constants that Romou's Vulkan runtime does not fill.
OPTIONS = f"{RUN_OPTIONS} --global-offset --enable-printf --std430-ubo-layout"
CRASH = "clspv crashed"

# Numbers of the SPIR-V specification.
_STRING, _EXT_IMPORT, _EXT, _ENTRY, _TYPE_SAMPLER, _CONSTANT, _LOAD, _DECORATE = 7, 11, 12, 15, 26, 43, 61, 71
_SAMPLED_IMAGE, _SAMPLE_LOD, _FETCH, _CONVERT_S_TO_F = 86, 88, 95, 111
_BINDING, _SET, _LOD = 33, 34, 2
_REFLECTION = "NonSemantic.ClspvReflection"
# Its instructions: an argument's name, and arguments that are buffers or images, and push constants.
_NAME, _BOUND, _PUSHED = 2, (3, 8, 9), 7
# Kernels, sizes of groups, literal samplers, local memory: nothing that a launch has to pass.
_KNOWN = frozenset({1, 11, 12, 23, 24, 42})


# GLSL lacks these. Of Vulkan's text, only the arguments and the launch count here.
_NATIVE = {
    "native_exp": "float native_exp(float x) { return exp(x); }",
    "native_recip": "float native_recip(float x) { return 1.0 / x; }",
    "native_divide": "float native_divide(float x, float y) { return x / y; }",
}


class ClspvError(Exception):
    """clspv or spirv-val refuses a kernel. The text is its message."""


@functools.cache
def _library() -> ctypes.CDLL:
    found = importlib.util.find_spec("pyclspv")
    assert found is not None, NOT_INSTALLED
    assert found.origin is not None, NOT_INSTALLED
    # The module's own functions need Python's, clspv's C interface in the same file does not.
    return ctypes.CDLL(found.origin)


def is_installed() -> bool:
    return importlib.util.find_spec("pyclspv") is not None


def compile_spirv(source: str, options: str = OPTIONS) -> bytes:
    """Compile OpenCL C to SPIR-V, in a fork of this process. ClspvError has the compiler's errors, or its crash."""
    try:
        spirv, said = check_kernels.alone(lambda: _compiled(source, options))
    except EOFError:
        raise ClspvError(CRASH) from None
    if not spirv:
        raise ClspvError("\n".join(line for line in said.splitlines() if "error" in line) or said)
    return bytes(spirv)


def _compiled(source: str, options: str) -> tuple[bytes, str]:
    """Return clspv's SPIR-V, which is empty if it refuses the source, and its messages."""
    text = source.encode()
    length, start = ctypes.c_size_t(len(text)), ctypes.c_char_p(text)
    made, size, log = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
    code = _library().clspvCompileFromSourcesString(
        ctypes.c_size_t(1),
        ctypes.byref(length),
        ctypes.byref(start),
        ctypes.c_char_p(options.encode()),
        ctypes.byref(made),
        ctypes.byref(size),
        ctypes.byref(log),
    )
    said = ctypes.string_at(log).decode(errors="replace") if log else ""
    return ctypes.string_at(made, size.value) if size.value and not code else b"", said or f"clspv returned {code}"


def validate(spirv: bytes) -> None:
    """Check SPIR-V against Vulkan 1.3's rules by spirv-val. ClspvError has its message."""
    tool = shutil.which("spirv-val")
    assert tool is not None, "no spirv-val: apt-get install spirv-tools"
    with tempfile.NamedTemporaryFile(suffix=".spv") as file:
        file.write(spirv)
        file.flush()
        command = [tool, "--uniform-buffer-standard-layout", "--target-env", "vulkan1.3", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClspvError(done.stdout + done.stderr)


def fault_of(source: str) -> str | None:
    """Return why a kernel does not pass clspv and spirv-val. None if it does."""
    try:
        validate(compile_spirv(source))
    except ClspvError as error:
        return str(error)
    return None


def _instructions(words: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield (operation, operands) of a module without its head."""
    at = 5
    while at < len(words):
        yield words[at] & 0xFFFF, words[at + 1 : at + (words[at] >> 16)]
        at += words[at] >> 16


def _text(words: Sequence[int]) -> str:
    return struct.pack(f"<{len(words)}I", *words).partition(b"\0")[0].decode()


@dataclass(frozen=True)
class Arguments:
    """The place of a kernel's arguments by name, as clspv's reflection has it.

    bound: (descriptor set, binding) of buffers and images.
    pushed: offset of scalars in the push constants, in bytes.
    """

    bound: dict[str, tuple[int, int]] = field(default_factory=dict)
    pushed: dict[str, int] = field(default_factory=dict)


def arguments_of(spirv: bytes) -> Arguments:
    """Read the reflection of a module with one kernel. ClspvError for arguments of another kind."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    strings: dict[int, str] = {}
    constants: dict[int, int] = {}
    names: dict[int, str] = {}
    found, reflection = Arguments(), -1
    for operation, operands in _instructions(words):
        if operation == _STRING:
            strings[operands[0]] = _text(operands[1:])
        elif operation == _CONSTANT:
            constants[operands[1]] = operands[2]
        elif operation == _EXT_IMPORT and _text(operands[1:]).startswith(_REFLECTION):
            reflection = operands[0]
        elif operation == _EXT and operands[2] == reflection:
            kind, rest = operands[3], operands[4:]
            if kind == _NAME:
                names[operands[1]] = strings[rest[0]]
            elif kind in _BOUND:
                found.bound[names[rest[4]]] = constants[rest[2]], constants[rest[3]]
            elif kind == _PUSHED:
                found.pushed[names[rest[4]]] = constants[rest[2]]
            elif kind not in _KNOWN:
                raise ClspvError(f"reflection {kind} is none that Romou's Vulkan runtime can fill")
    return found


def for_runtime(spirv: bytes, order: Sequence[str]) -> bytes:
    """Return SPIR-V that Romou's Vulkan runtime can launch.

    The entry point is "main", buffers and images are bound in `order`, and the reflection is gone. The runtime binds no
    samplers, so a read with one becomes a fetch, which gives zeros outside as well where the device has robust image
    accesses:

    coord = ConvertSToF(place); Sample(SampledImage(image, sampler), coord)  ->  Fetch(image, place)
    """
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    bound = arguments_of(spirv).bound
    bindings = {bound[name]: binding for binding, name in enumerate(order) if name in bound}
    sets = {o[0]: o[2] for op, o in _instructions(words) if op == _DECORATE and o[1] == _SET}
    made = {o[1]: o for op, o in _instructions(words) if op in (_SAMPLED_IMAGE, _CONVERT_S_TO_F)}
    samplers = {o[0] for op, o in _instructions(words) if op == _TYPE_SAMPLER}
    reflections = {o[0] for op, o in _instructions(words) if op == _EXT_IMPORT and _text(o[1:]).startswith(_REFLECTION)}
    zero = next(o[1] for op, o in _instructions(words) if op == _CONSTANT and o[2] == 0)
    written = list(words[:5])
    for operation, operands in _instructions(words):
        kept = list(operands)
        if (
            operation == _SAMPLED_IMAGE
            or (operation == _LOAD and operands[0] in samplers)
            or (operation == _EXT and operands[2] in reflections)
        ):
            continue
        if operation == _ENTRY:
            name_words = len(_text(operands[2:])) // 4 + 1
            kept[2 : 2 + name_words] = struct.unpack("<2I", b"main\0\0\0\0")
        elif operation == _DECORATE and operands[1] == _SET:
            kept[2] = 0
        elif operation == _DECORATE and operands[1] == _BINDING:
            # A sampler, which nothing reads now, keeps a place that the layout lacks.
            kept[2] = bindings.get((sets[operands[0]], operands[2]), len(order) + operands[2])
        elif operation == _SAMPLE_LOD:
            operation, kept = _FETCH, [*operands[:2], made[operands[2]][2], made[operands[3]][2], _LOD, zero]
        written += [len(kept) + 1 << 16 | operation, *kept]
    return struct.pack(f"<{len(written)}I", *written)


def opencl_kernels(
    model: onnx.ModelProto, device: str, precision: PrecisionName
) -> tuple[Compilation, list[InspectedKernel]]:
    """Compile a model for a phone's OpenCL. Return it with its kernels."""
    compilation = lowered_model(model, ModelOptions(target=f"opencl -device={device}", precision=precision))
    return compilation, [
        kernel
        for function in compilation.scheduled_functions()
        for kernel in inspect_function(function.func, compilation.target, name=function.name)
    ]


def vulkan_model(compilation: Compilation, kernels: Sequence[InspectedKernel]) -> TunedModel:
    """Return a model that runs these kernels by Vulkan, compiled by clspv. ClspvError for one that clspv refuses.

    Its graph, its configs and its launches are those of `compilation`, which is for OpenCL.
    """
    target = Target(f"vulkan -device={compilation.target.device_name}")
    configs = {task.key: task.default_config(compilation.target) for task in compilation.tasks}
    # A tuple with the target at its end. Vulkan has fewer knobs, so it schedules nothing anew.
    scheduled: dict[Hashable, tirx.PrimFunc] = {}
    for key, kernel in compilation.kernels.scheduled.items():
        assert isinstance(key, tuple)
        scheduled[(*key[:-1], str(target))] = kernel
    other = replace(compilation.with_configs(configs).for_target(target), kernels=Kept(scheduled=scheduled))
    with _built_by_clspv({kernel.name: kernel for kernel in kernels}):
        return tuned_model(other, TimingSite(named=target, target=target))


def run_error(model: onnx.ModelProto, tuned: TunedModel) -> float:
    """Return the largest relative L2 error of the outputs on random inputs, against onnxruntime. NaN for one."""
    inputs = random_inputs(tuned.inputs, seed=0)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None, "onnxruntime does not run the model"
    return float(
        np.max([relative_l2_error(got, wanted) for got, wanted in zip(tuned.run(inputs), expected, strict=True)])
    )


@contextlib.contextmanager
def _built_by_clspv(kernels: Mapping[str, InspectedKernel]) -> Iterator[None]:
    """Inside, TVM builds each Vulkan kernel from the OpenCL C of the same name."""
    vulkan.install()
    own = tvm_ffi.get_global_func("target.build.vulkan")

    def build(mod: tvm.IRModule, _target: tvm.target.Target) -> Any:
        entries: dict[str, Mapping[str, Any]] = {}
        for _, func in mod.functions_items():
            with unittest.mock.patch.dict(DEFINITIONS, _NATIVE):
                kernel, names = write_kernel(func), [str(parameter.name) for parameter in func.params]
            same = kernels[kernel.name]
            assert names == [str(parameter.name) for parameter in same.lowered.params], kernel.name
            # The host launches Vulkan's kernel. With fewer groups, a part of the output would stay unwritten.
            assert thread_extents(func) == thread_extents(same.lowered), f"{kernel.name} is for another launch"
            spirv = compile_spirv(same.source, RUN_OPTIONS)
            is_scalar = [argument.startswith("scalar") for argument in kernel.arguments]
            order = [name for name, scalar in zip(names, is_scalar, strict=True) if not scalar]
            pushed = arguments_of(spirv).pushed
            entries[kernel.name] = {
                **vulkan._entry(kernel, for_runtime(spirv, order)),
                "push_offsets": [pushed[name] for name, scalar in zip(names, is_scalar, strict=True) if scalar],
            }
        return tvm_ffi.get_global_func("romou.vulkan.module")(entries, "// OpenCL C by clspv")

    tvm_ffi.register_global_func("target.build.vulkan", build, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func("target.build.vulkan", own, override=True)
