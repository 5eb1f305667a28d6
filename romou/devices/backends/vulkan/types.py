"""TVM's types in GLSL. Numbers below 32 bits are widened in registers, but not in buffers."""

from __future__ import annotations

import functools
from typing import NamedTuple

import tvm

from romou.base.errors import BuildError

# Scalar in registers -> prefix of its vectors.
_VECTORS = {
    "float": "vec", "int": "ivec", "uint": "uvec", "bool": "bvec", "double": "dvec", "float16_t": "f16vec", "int64_t": "i64vec", "uint64_t": "u64vec",  # noqa: E501
    "int8_t": "i8vec", "uint8_t": "u8vec", "int16_t": "i16vec", "uint16_t": "u16vec",
}  # fmt: skip
_REGISTERS = {
    "float32": "float", "float16": "float16_t", "float64": "double", "bool": "bool", "int8": "int", "int16": "int", "int32": "int", "int64": "int64_t",  # noqa: E501
    "uint8": "uint", "uint16": "uint", "uint32": "uint", "uint64": "uint64_t",
}  # fmt: skip
_STORED = {"bool": "uint8_t", "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t", "uint16": "uint16_t"}
# Vulkan feature -> extension of GLSL. Types in registers and in buffers need them.
EXTENSIONS = {
    "cooperativeMatrix": "GL_KHR_cooperative_matrix",
    "shaderIntegerDotProduct": "GL_EXT_spirv_intrinsics",
    "shaderFloat16": "GL_EXT_shader_explicit_arithmetic_types_float16",
    "shaderFloat64": None,
    "shaderInt64": "GL_EXT_shader_explicit_arithmetic_types_int64",
    "storageBuffer16BitAccess": "GL_EXT_shader_16bit_storage",
    "storageBuffer8BitAccess": "GL_EXT_shader_8bit_storage",
}
_NEEDS = {"float16": "shaderFloat16", "float64": "shaderFloat64", "int64": "shaderInt64", "uint64": "shaderInt64"}
MOST_LANES = 4


class Type(NamedTuple):
    """A type of TVM: its base ("float32" of "float32x4") and lanes."""

    base: str
    lanes: int

    @property
    def register(self) -> str:
        """The type of a variable: "vec4"."""
        return _of_lanes(_REGISTERS[self.base], self.lanes)

    @property
    def stored(self) -> str:
        """The type of a buffer's elements: "uint8_t"."""
        return _of_lanes(_STORED.get(self.base, _REGISTERS[self.base]), self.lanes)

    @property
    def bits(self) -> int:
        """The number of bits of a lane in memory."""
        return 8 if self.base == "bool" else int(tvm.DataType(self.base).bits)

    @property
    def register_bytes(self) -> int:
        """The number of bytes of a variable."""
        return self.lanes * (self.bits if self.base == "float16" else max(self.bits, 32)) // 8

    @property
    def is_float(self) -> bool:
        """True for lanes of floats."""
        return self.base.startswith("float")

    @property
    def is_narrow(self) -> bool:
        """True for integers below 32 bits, which registers widen."""
        return "int" in self.base and self.bits < 32

    @property
    def scalar(self) -> Type:
        return Type(self.base, 1)

    def read(self, text: str) -> str:
        """Return an element of a buffer as a register's value."""
        if self.base == "bool":
            text = f"{Type('uint32', self.lanes).register}({text})"
        return text if self.stored == self.register else f"{self.register}({text})"

    def written(self, text: str) -> str:
        """Return a register's value as an element of a buffer."""
        if self.base == "bool":
            text = f"{Type('uint32', self.lanes).register}({text})"
        return text if self.stored == self.register else f"{self.stored}({text})"

    def needs(self, *, is_stored: bool = False) -> str | None:
        """Return the Vulkan feature that such a variable, or such an element of a buffer, needs. None for none."""
        if is_stored and self.bits < 32:
            return f"storageBuffer{self.bits}BitAccess"
        return _NEEDS.get(self.base)


def _of_lanes(scalar: str, lanes: int) -> str:
    return scalar if lanes == 1 else f"{_VECTORS[scalar]}{lanes}"


@functools.cache
def type_of(name: str) -> Type:
    """Return the type of TVM's name. BuildError for a type that GLSL lacks."""
    base, _, lanes = name.partition("x")
    if base not in _REGISTERS or (not lanes.isdigit() and lanes) or int(lanes or 1) > MOST_LANES:
        hint = "Choose another config, or another type in the model."
        raise BuildError(f"GLSL has no type {name}: vectors have {MOST_LANES} lanes at most", hint=hint, type=name)
    return Type(base, int(lanes or 1))
