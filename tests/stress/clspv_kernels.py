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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import check_kernels

if TYPE_CHECKING:
    import tvm

    from romou.tools.inspection.kernels import InspectedKernel

NOT_INSTALLED = "pyclspv is not installed: pip install pyclspv==0.0.1 (a wheel for Python 3.11 on x86-64 Linux only)"
# Part of what ANGLE passes (clspv_utils.cpp, ClspvGetCompilerOptions), for a device with fp16 and without fp64.
RUN_OPTIONS = "-arch=spir --spv-version=1.5 --long-vector --cl-kernel-arg-info --fp16 --fp64=0"
RUN_OPTIONS += " --rounding-mode-rte=32,16"
# The rest adds push constants that Romou's Vulkan runtime does not fill.
OPTIONS = f"{RUN_OPTIONS} --global-offset --enable-printf --std430-ubo-layout"

# Numbers of the SPIR-V specification.
_STRING, _EXT_IMPORT, _EXT, _ENTRY, _TYPE_SAMPLER, _CONSTANT, _LOAD, _DECORATE = 7, 11, 12, 15, 26, 43, 61, 71
_SAMPLED_IMAGE, _SAMPLE_LOD, _FETCH, _CONVERT_S_TO_F = 86, 88, 95, 111
_BINDING, _SET, _LOD = 33, 34, 2
_REFLECTION = "NonSemantic.ClspvReflection"
# Its instructions: an argument's name, and arguments that are buffers or images, and push constants.
_NAME, _BOUND, _PUSHED = 2, (3, 8, 9), 7
# Kernels, sizes of groups, literal samplers, local memory: nothing that a launch has to pass.
_KNOWN = frozenset({1, 11, 12, 23, 24, 42})


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
        raise ClspvError("clspv crashed") from None
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


@contextlib.contextmanager
def built_by_clspv(kernels: Sequence[InspectedKernel]) -> Iterator[tuple[list[str], list[str]]]:
    """Inside, TVM builds Vulkan kernels from their OpenCL C by clspv, where `kernels` has one of the same name.

    The two lists grow with each build: names of kernels that clspv compiled, and of those that stay GLSL, because the
    graph's functions of fp16 differ.
    """
    import tvm_ffi

    from romou.devices.backends.vulkan import build as vulkan
    from romou.devices.backends.vulkan.glsl import write_kernel

    vulkan.install()
    own, by_name = tvm_ffi.get_global_func("target.build.vulkan"), {kernel.name: kernel for kernel in kernels}
    done: list[str] = []
    others: list[str] = []

    def build(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
        entries: dict[str, Mapping[str, Any]] = {}
        for _, func in mod.functions_items():
            kernel, names = write_kernel(func), [str(parameter.name) for parameter in func.params]
            same = by_name.get(kernel.name)
            if (
                same is None
                or same.work_group != kernel.local_size
                or names != [str(parameter.name) for parameter in same.lowered.params]
            ):
                others.extend(str(f.attrs["global_symbol"]) for _, f in mod.functions_items())
                return own(mod, target)
            spirv = compile_spirv(same.source, RUN_OPTIONS)
            is_scalar = [argument.startswith("scalar") for argument in kernel.arguments]
            order = [name for name, scalar in zip(names, is_scalar, strict=True) if not scalar]
            pushed = arguments_of(spirv).pushed
            entries[kernel.name] = {
                **vulkan._entry(kernel, for_runtime(spirv, order)),
                "push_offsets": [pushed[name] for name, scalar in zip(names, is_scalar, strict=True) if scalar],
            }
        done.extend(entries)
        return tvm_ffi.get_global_func("romou.vulkan.module")(entries, "// OpenCL C by clspv")

    tvm_ffi.register_global_func("target.build.vulkan", build, override=True)
    try:
        yield done, others
    finally:
        tvm_ffi.register_global_func("target.build.vulkan", own, override=True)
