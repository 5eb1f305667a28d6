"""glslang as a library in this process. It reads the declarations of GLSL's functions once.

A process of glslang takes 0.1 s for them, and a millisecond for a shader.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

# The release with the structures below. Later ones may have others.
_RELEASE = 13
_LIBRARIES = ("libglslang", "libSPIRV", "libglslang-default-resource-limits")
# Values of glslang's enumerations: GLSL for Vulkan 1.1, to SPIR-V 1.3.
_GLSL, _COMPUTE, _VULKAN, _VULKAN_1_1, _SPIRV, _SPIRV_1_3 = 1, 5, 1, 1 << 22 | 1 << 12, 1, 1 << 16 | 3 << 8
_SPIRV_RULES, _VULKAN_RULES = 1 << 3, 1 << 4
_RULES = _SPIRV_RULES | _VULKAN_RULES
_DEFAULT_VERSION, _NO_PROFILE = 100, 1


class _Input(ctypes.Structure):
    """`glslang_input_t`"""

    _fields_ = (
        ("language", ctypes.c_int),
        ("stage", ctypes.c_int),
        ("client", ctypes.c_int),
        ("client_version", ctypes.c_int),
        ("target_language", ctypes.c_int),
        ("target_language_version", ctypes.c_int),
        ("code", ctypes.c_char_p),
        ("default_version", ctypes.c_int),
        ("default_profile", ctypes.c_int),
        ("force_default_version_and_profile", ctypes.c_int),
        ("forward_compatible", ctypes.c_int),
        ("messages", ctypes.c_int),
        ("resource", ctypes.c_void_p),
        ("callbacks", ctypes.c_void_p * 3),
        ("callbacks_ctx", ctypes.c_void_p),
    )


class _Options(ctypes.Structure):
    """`glslang_spv_options_t`"""

    _fields_ = (
        ("generate_debug_info", ctypes.c_bool),
        ("strip_debug_info", ctypes.c_bool),
        ("disable_optimizer", ctypes.c_bool),
        ("optimize_size", ctypes.c_bool),
        ("disassemble", ctypes.c_bool),
        ("validate", ctypes.c_bool),
        ("emit_nonsemantic_shader_debug_info", ctypes.c_bool),
        ("emit_nonsemantic_shader_debug_source", ctypes.c_bool),
    )


class Library:
    """The compiler's functions. Several threads may compile at the same time."""

    def __init__(self, paths: list[Path]) -> None:
        # In the order in which they need each other.
        self._glslang, self._spirv, limits = (ctypes.CDLL(str(path)) for path in paths)
        for function in (
            self._glslang.glslang_shader_create,
            self._glslang.glslang_program_create,
            limits.glslang_default_resource,
        ):
            function.restype = ctypes.c_void_p
        for function in (self._glslang.glslang_shader_get_info_log, self._glslang.glslang_program_get_info_log):
            function.restype = ctypes.c_char_p
        self._spirv.glslang_program_SPIRV_get_size.restype = ctypes.c_size_t
        self._limits = limits.glslang_default_resource()
        self._glslang.glslang_initialize_process()

    def compile(self, source: str) -> tuple[bytes | None, str]:
        """Return (the SPIR-V of a compute shader, ""), or (None, the log of a refused one)."""
        given = _Input(
            language=_GLSL,
            stage=_COMPUTE,
            client=_VULKAN,
            client_version=_VULKAN_1_1,
            target_language=_SPIRV,
            target_language_version=_SPIRV_1_3,
            code=source.encode(),
            default_version=_DEFAULT_VERSION,
            default_profile=_NO_PROFILE,
            messages=_RULES,
            resource=self._limits,
        )
        shader = ctypes.c_void_p(self._glslang.glslang_shader_create(ctypes.byref(given)))
        program = ctypes.c_void_p(self._glslang.glslang_program_create())
        try:
            for step in (self._glslang.glslang_shader_preprocess, self._glslang.glslang_shader_parse):
                if not step(shader, ctypes.byref(given)):
                    return None, _readable(self._glslang.glslang_shader_get_info_log(shader))
            self._glslang.glslang_program_add_shader(program, shader)
            if not self._glslang.glslang_program_link(program, _RULES):
                return None, _readable(self._glslang.glslang_program_get_info_log(program))
            return self._code_of(program), ""
        finally:
            # A program holds its shaders.
            self._glslang.glslang_program_delete(program)
            self._glslang.glslang_shader_delete(shader)

    def _code_of(self, program: ctypes.c_void_p) -> bytes:
        options = _Options(disable_optimizer=True)
        self._spirv.glslang_program_SPIRV_generate_with_options(program, _COMPUTE, ctypes.byref(options))
        words: Any = (ctypes.c_uint32 * self._spirv.glslang_program_SPIRV_get_size(program))()
        self._spirv.glslang_program_SPIRV_get(program, words)
        return bytes(words)


def library_in(folder: Path) -> Library | None:
    """Return the library in a folder. None if there is none of the known release."""
    paths = [folder / f"{name}.so.{_RELEASE}" for name in _LIBRARIES]
    try:
        return Library(paths) if all(path.exists() for path in paths) else None
    except (OSError, AttributeError):  # libraries of another machine, or without a function
        return None


def _readable(log: bytes) -> str:
    """Return a log with the kernel in place of the number of the text."""
    return re.sub(r"^(\w+: )0:", r"\1kernel:", log.decode(errors="replace"), flags=re.MULTILINE)
