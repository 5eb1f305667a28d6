"""Arithmetic of Adreno's instructions: mnemonic -> function of NumPy arrays.

The meanings are those of Mesa's description of the instruction set (src/freedreno/isa, ir3_compiler_nir.c). Where a
rounding of the hardware is not documented, the function rounds once to the result's type: tests compare with a
tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"
Function: TypeAlias = "Callable[..., Array]"

# Type of an instruction's operands -> type of their elements. `u8` is stored in 16 bits.
TYPES: Mapping[str, type[np.generic]] = {
    "f32": np.float32,
    "f16": np.float16,
    "u32": np.uint32,
    "u16": np.uint16,
    "s32": np.int32,
    "s16": np.int16,
    "u8": np.uint16,
    "u8_32": np.uint32,
}
# fp16 -> the type that NumPy computes in. Its fp16 arithmetic rounds in the same way, and takes ten times longer.
COMPUTED: Mapping[np.dtype[Any], np.dtype[Any]] = {np.dtype(np.float16): np.dtype(np.float32)}


@dataclass(frozen=True)
class Operation:
    """What an instruction computes.

    function: of the sources. A truth is written as 1 or 0.
    kind: of the sources, "f" (float), "s" (signed) or "u" (unsigned and bits), each with its operand's 32 or 16 bits.
    """

    function: Function
    kind: str


def _shift(shift: Function) -> Function:
    """Shift by the count modulo the bits, as NIR's shifts do."""

    def shifted(value: Array, count: Array) -> Array:
        bits = value.dtype.type(8 * value.dtype.itemsize - 1)
        moved: Array = shift(value, count.astype(value.dtype) & bits)
        return moved

    return shifted


def _low(bits: int) -> Function:
    return lambda value: value & np.uint32((1 << bits) - 1)


def _signed_24(value: Array) -> Array:
    signed: Array = (value.astype(np.int32) << np.int32(8)) >> np.int32(8)
    return signed


def _low_times_high(a: Array, b: Array, c: Array) -> Array:
    """Add the product of the lower half of a and the upper half of b, moved up by 16 bits."""
    product: Array = _low(16)(a) * (b >> np.uint32(16))
    return (product << np.uint32(16)) + c


def _leading_zeros(value: Array) -> Array:
    """Return the number of leading zeros, -1 for zero, as Mesa's search for the highest bit expects."""
    bits: Array = 8 * value.dtype.itemsize - np.frexp(value.astype(np.float64))[1]
    return np.where(value == 0, -1, bits).astype(np.int32)


def _dot4(signed: bool) -> Function:
    """Return the sum of products of four bytes. With `signed`, those of the first factor are signed."""

    def dot(a: Array, b: Array, c: Array) -> Array:
        total = c
        for byte in range(4):
            low, up = np.uint32(24 - 8 * byte), np.uint32(24)
            first = ((a << low).astype(np.int32) >> np.int32(24)).astype(np.uint32) if signed else (a << low) >> up
            total = total + first * ((b << low) >> up)
        return total

    return dot


_AND, _OR = np.bitwise_and, np.bitwise_or
_LEFT, _RIGHT = _shift(np.left_shift), _shift(np.right_shift)
_COMPARISONS: Mapping[str, Function] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def _select(chosen: Array, condition: Array, other: Array) -> Array:
    return np.where(condition != 0, chosen, other)


OPERATIONS: Mapping[str, Operation] = {
    # Category 2: one or two sources.
    "add.f": Operation(np.add, "f"),
    "mul.f": Operation(np.multiply, "f"),
    "min.f": Operation(np.fmin, "f"),
    "max.f": Operation(np.fmax, "f"),
    "sign.f": Operation(np.sign, "f"),
    "absneg.f": Operation(np.positive, "f"),
    "floor.f": Operation(np.floor, "f"),
    "ceil.f": Operation(np.ceil, "f"),
    "rndne.f": Operation(np.rint, "f"),
    "trunc.f": Operation(np.trunc, "f"),
    "add.u": Operation(np.add, "u"),
    "add.s": Operation(np.add, "s"),
    "sub.u": Operation(np.subtract, "u"),
    "sub.s": Operation(np.subtract, "s"),
    "min.u": Operation(np.minimum, "u"),
    "min.s": Operation(np.minimum, "s"),
    "max.u": Operation(np.maximum, "u"),
    "max.s": Operation(np.maximum, "s"),
    "absneg.s": Operation(np.positive, "s"),
    "and.b": Operation(_AND, "u"),
    "or.b": Operation(_OR, "u"),
    "xor.b": Operation(np.bitwise_xor, "u"),
    "not.b": Operation(np.invert, "u"),
    "shl.b": Operation(_LEFT, "u"),
    "shr.b": Operation(_RIGHT, "u"),
    "ashr.b": Operation(_RIGHT, "s"),
    "mull.u": Operation(lambda a, b: _low(16)(a) * _low(16)(b), "u"),
    "mul.u24": Operation(lambda a, b: _low(24)(a) * _low(24)(b), "u"),
    "mul.s24": Operation(lambda a, b: _signed_24(a) * _signed_24(b), "s"),
    "clz.b": Operation(_leading_zeros, "u"),
    "cbits.b": Operation(lambda a: np.bitwise_count(a).astype(a.dtype), "u"),
    **{
        f"cmps.{kind}.{condition}": Operation(function, kind)
        for kind in "fsu"
        for condition, function in _COMPARISONS.items()
    },
    # Category 3: three sources.
    "mad.f32": Operation(lambda a, b, c: a * b + c, "f"),
    "mad.f16": Operation(lambda a, b, c: a * b + c, "f"),
    "mad.u16": Operation(lambda a, b, c: a * b + c, "u"),
    "mad.s16": Operation(lambda a, b, c: a * b + c, "s"),
    "mad.u24": Operation(lambda a, b, c: _low(24)(a) * _low(24)(b) + c, "u"),
    "mad.s24": Operation(lambda a, b, c: _signed_24(a) * _signed_24(b) + c, "s"),
    "madsh.m16": Operation(_low_times_high, "u"),
    "sel.b32": Operation(_select, "u"),
    "sel.b16": Operation(_select, "u"),
    # Mesa's sum of three integers (NIR's iadd3), whatever the name says.
    "sad.s32": Operation(lambda a, b, c: a + b + c, "s"),
    "sad.s16": Operation(lambda a, b, c: a + b + c, "s"),
    "shrm": Operation(lambda a, b, c: _RIGHT(b, a) & c, "u"),
    "shlm": Operation(lambda a, b, c: _LEFT(b, a) & c, "u"),
    "shrg": Operation(lambda a, b, c: _RIGHT(b, a) | c, "u"),
    "shlg": Operation(lambda a, b, c: _LEFT(b, a) | c, "u"),
    "andg": Operation(lambda a, b, c: (b & a) | c, "u"),
    "dp4acc.unsigned": Operation(_dot4(signed=False), "u"),
    "dp4acc.mixed": Operation(_dot4(signed=True), "u"),
    # Category 4: special functions.
    "rcp": Operation(np.reciprocal, "f"),
    "rsq": Operation(lambda a: np.reciprocal(np.sqrt(a)), "f"),
    "sqrt": Operation(np.sqrt, "f"),
    "log2": Operation(np.log2, "f"),
    "exp2": Operation(np.exp2, "f"),
    "sin": Operation(np.sin, "f"),
    "cos": Operation(np.cos, "f"),
    "hrsq": Operation(lambda a: np.reciprocal(np.sqrt(a)), "f"),
    "hlog2": Operation(np.log2, "f"),
    "hexp2": Operation(np.exp2, "f"),
}


def bits_of(values: Array, size: int) -> Array:
    """Return elements as unsigned integers of `size` bytes. Floats are rounded, integers keep their lower bits."""
    unsigned = np.dtype(f"u{size}")
    if values.dtype.kind == "b":
        return values.astype(unsigned)
    if values.dtype.itemsize != size:
        values = values.astype(np.dtype(f"{values.dtype.kind}{size}"))
    return values.view(unsigned)


def convert(values: Array, source: str, to: str, rounding: str) -> Array:
    """Return `cov.{source}{to}` of values. rounding: "even", "pos_infinity", "neg_infinity", or "" towards zero.

    Floats outside of an integer's range become its nearest end, NaN becomes 0. Wider integers lose their upper bits.
    """
    kind = np.dtype(TYPES[to])
    if source == "u8":
        # Mesa extends signed values by it, and masks unsigned ones.
        values = values.astype(np.uint8).view(np.int8)
    if kind.kind == "f":
        return _rounded(values, kind, rounding)
    if values.dtype.kind == "f":
        whole = {"even": np.rint, "pos_infinity": np.ceil, "neg_infinity": np.floor, "": np.trunc}[rounding]
        limits = np.iinfo(np.uint8 if to.startswith("u8") else kind)
        values = np.clip(np.nan_to_num(whole(values.astype(np.float64)), nan=0.0), limits.min, limits.max)
        values = values.astype(np.int64)
    values = values.astype(kind)
    return values & kind.type(255) if to.startswith("u8") else values


def _rounded(values: Array, kind: np.dtype[Any], rounding: str) -> Array:
    if rounding == "even" or (values.dtype.kind == "f" and values.dtype.itemsize <= kind.itemsize):
        return values.astype(kind)
    if rounding:
        raise NotImplementedError(f"rounding of floats towards {rounding}")
    exact = values.astype(np.float64)
    nearest = exact.astype(kind)
    return np.where(np.abs(nearest.astype(np.float64)) > np.abs(exact), np.nextafter(nearest, kind.type(0)), nearest)
