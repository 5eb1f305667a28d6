"""CUDA C++ to machine code by NVRTC, without a toolkit and without a GPU.

TVM passes the text of a module to the packed function `tvm_callback_cuda_compile`. TVM's own function needs a whole
toolkit, guesses its path, and enables approximate mathematics. `install` replaces it, and puts the functions that
Romou's passes call in front of the text.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from romou.base.errors import BuildError, CompatError, DeviceError
from romou.devices.backends.cuda.overlapped_launches import KERNEL, with_waits
from romou.devices.backends.launch import dimension_comment
from romou.devices.backends.programs import is_keeping, kept

INSTALL = (
    "pip install 'romou[cuda]' (cuda-bindings, nvidia-cuda-nvrtc and nvidia-cuda-runtime of one major version); a CUDA"
    " toolkit's NVRTC does as well."
)

# TVM's preamble includes these from the C++ library, which only a toolkit has. A dozen lines replace it, and parse
# faster.
_INTEGERS = {"int8_t": "signed char", "int16_t": "short", "int32_t": "int", "int64_t": "long long"}
_HEADERS = {
    "cuda/std/cstdint": (
        "#pragma once\nnamespace cuda { namespace std {\n"
        + "".join(
            f"typedef {c} {name};\ntypedef unsigned {c.removeprefix('signed ')} u{name};\n"
            for name, c in _INTEGERS.items()
        )
        + "} }\n"
    ),
    "cuda/std/type_traits": (
        """#pragma once
namespace cuda { namespace std {
template <bool B> struct truth { static constexpr bool value = B; };
template <class A, class B> struct is_same : truth<false> {};
template <class A> struct is_same<A, A> : truth<true> {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <class A> struct is_floating_point : truth<is_same_v<A, float> || is_same_v<A, double>> {};
template <class A, class... B> constexpr bool is_any_of = (is_same_v<A, B> || ...);
template <class A> struct is_integral : truth<is_any_of<A, bool, char, signed char, unsigned char, short, unsigned short, int, unsigned int, long,
  unsigned long, long long, unsigned long long>> {};
template <class A> struct is_signed : truth<(A(-1) < A(0))> {};
template <class A> struct is_unsigned : truth<!is_signed<A>::value> {};
template <bool B, class A = void> struct enable_if {};
template <class A> struct enable_if<true, A> { typedef A type; };
template <bool C, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
} }
"""  # noqa: E501
    ),
}


def compile_cuda(source: str, arch: str) -> bytes:
    """Return machine code (cubin) for an architecture such as "sm_90a".

    Raises
    ------
    CompatError
        There is no NVRTC on this machine. The message says what to install.
    BuildError
        NVRTC refused the source or does not support the architecture. The text is its log.
    """
    nvrtc, options = _nvrtc(), _options(arch)
    names, texts = ([text.encode() for text in part] for part in (_HEADERS, _HEADERS.values()))
    program = _value(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"romou.cu", len(names), texts, names))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_value(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
            nvrtc.nvrtcGetProgramLog(program, log)
            text = log.rstrip(b"\0\n").decode(errors="replace") or str(status)
            raise BuildError(
                f"NVRTC {version()} refused a kernel for {arch}: {text}", arch=arch, log=text, source=source
            )
        code = bytearray(_value(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
        _value(nvrtc, nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _options(arch: str) -> list[str]:
    return [
        f"--gpu-architecture={arch}",
        "--std=c++17",
        "--device-int128",
        *(f"--include-path={folder}" for folder in _include_folders()),
    ]


def kept_cuda(source: str, arch: str) -> bytes:
    """Return the result of `compile_cuda`, or its copy on disk.

    The copy is found by source, options, architecture, NVRTC's version, and headers. Errors are the same.
    """
    headers = [(folder, os.stat(folder).st_mtime_ns) for folder in _include_folders()]
    depends = [source, _options(arch), version(), _HEADERS, headers]
    return kept("NVRTC", depends, f"a CUDA module for {arch}", lambda: compile_cuda(source, arch))


def version() -> str:
    """Return the version of NVRTC, "13.0". CompatError if there is none."""
    nvrtc = _nvrtc()
    status, major, minor = nvrtc.nvrtcVersion()
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    return f"{major}.{minor}"


@functools.cache
def install() -> None:
    """Make TVM compile CUDA with `compile_cuda`.

    With a CUDA runtime in the process, modules are compiled when they are built. Without one they stay text, and are
    compiled when they are loaded.
    """
    # TVM registers its own functions at import, and would not if there were others.
    import tvm  # noqa: F401
    import tvm_ffi

    from romou.devices.backends.cuda.dialect import complete
    from tvm_patches import cuda_runtime

    # It registers some, too, also if it is loaded later.
    cuda_runtime.load()
    generate: Any = tvm_ffi.get_global_func("target.build.cuda", allow_missing=True)

    def build(mod: Any, target: Any) -> Any:
        _building.comments = {
            str(func.attrs["global_symbol"]): dimension_comment(func) for _, func in mod.functions_items()
        }
        return generate(mod, target)

    def with_functions(source: str, target: Any) -> str:
        # The compiler is called next, without the target.
        _building.arch = str(target.attrs["arch"])
        return _with_comments(complete(with_waits(str(source))), _building.comments)

    def compile_text(source: str) -> bytes:
        from romou.devices.backends.cuda import BACKEND

        arch, _building.arch = _building.arch, None
        return (kept_cuda if is_keeping() else compile_cuda)(str(source), arch or BACKEND.architecture({}))

    for error in (BuildError, CompatError, DeviceError):
        # These errors keep their type when they pass through TVM.
        tvm_ffi.register_error(error.__name__, error)
    if generate is not None:
        tvm_ffi.register_global_func("target.build.cuda", build, override=True)
    tvm_ffi.register_global_func("tvm_callback_cuda_postproc", with_functions, override=True)
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compile_text, override=True)


def _with_comments(source: str, comments: Mapping[str, str]) -> str:
    """Return CUDA text with a comment above the definition of each kernel."""

    def commented(head: re.Match[str]) -> str:
        return comments.get(head["name"], "") * (head["end"] == "{") + head[0]

    return KERNEL.sub(commented, source)


class _Building(threading.local):
    """The module that this thread builds.

    arch: architecture of the module that this thread completed last.
    comments: kernel -> the comment above its definition.
    """

    arch: str | None = None
    comments: Mapping[str, str] = MappingProxyType({})


_building = _Building()


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        # The first call opens the library.
        nvrtc.nvrtcVersion()
    except ImportError as error:
        raise CompatError(
            "compiling for CUDA needs NVIDIA's NVRTC: the Python package cuda-bindings is not installed", hint=INSTALL
        ) from error
    except RuntimeError as error:
        raise CompatError(
            f"compiling for CUDA needs NVIDIA's NVRTC, which cuda-bindings does not find: {str(error).splitlines()[0]}",
            hint=INSTALL,
        ) from error
    return nvrtc


@functools.cache
def _include_folders() -> tuple[str, ...]:
    """Return the folders of CUDA's headers.

    TVM's kernels with fp16 or bfloat16 arithmetic include them. Romou's kernels do not.
    """
    from cuda import pathfinder

    # Before 1.3, it finds only libraries.
    find = getattr(pathfinder, "find_nvidia_header_directory", None)
    folder = find("cudart") if find is not None else None
    return (folder,) if folder and Path(folder).is_dir() else ()


def _value(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"NVRTC failed: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if values else None
