"""Conversions from and to short types, which kernels store as integers (`tvm_patches.short_types`): exact, by tables
and by arithmetic on bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import onnx
from tvm import relax, te, tirx

from tvm_patches.onnx_converters.node import Node, converter, type_name
from tvm_patches.short_types import STORAGE, info_of

op = relax.op
# Bits of fp32: of a fraction, of a magnitude, and of an infinity.
_FRACTION, _MAGNITUDE, _INFINITY = 23, 0x7FFFFFFF, 0x7F800000
_INTEGERS = ("int4", "int2", "uint4", "uint2")


@dataclass(frozen=True)
class _Minifloat:
    """The codes of a float of at most 8 bits.

    fraction, bias: bits of the fraction, and bias of the exponent.
    sign: the bit of the sign.
    largest, overflow, nan: codes of the largest number, of what is larger, and of NaN.
    has_negative_zero: whether a zero has a sign.
    """

    fraction: int
    bias: int
    sign: int
    largest: int
    overflow: int
    nan: int
    has_negative_zero: bool


@cache
def _minifloat(dtype: str) -> _Minifloat:
    kind = getattr(ml_dtypes, dtype)
    info = info_of(dtype)

    def code(number: float) -> int:
        return int(np.asarray(np.float32(number)).astype(kind).view(np.uint8))

    return _Minifloat(
        fraction=info.nmant,
        bias=1 - info.minexp,
        sign=info.bits - 1,
        largest=code(float(info.max)),
        overflow=code(np.inf),
        nan=code(np.nan),
        has_negative_zero=code(-0.0) != 0,
    )


@converter("Cast", "CastLike")
def cast(node: Node) -> relax.Expr:
    """Convert Cast, from and to short types by way of fp32 or int32."""
    source = node.kind(0)
    wanted = type_name(node.attributes["to"]) if node.operator == "Cast" else node.kind(1)
    if not {source, wanted} & set(STORAGE):
        return node.wheel(to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(wanted)))
    if source == wanted:
        return node.input(0)
    value = decoded(node, node.input(0), source)
    if wanted in STORAGE:
        is_saturated = bool(node.attributes.get("saturate", 1))
        return encoded(node, value, wanted, is_saturated=is_saturated, rounding=node.attributes.get("round_mode", "up"))
    return op.astype(value, wanted)


def decoded(node: Node, value: relax.Expr, dtype: str) -> relax.Expr:
    """Return a stored tensor of `dtype` as fp32. Integers, and types that are not short, stay as they are."""
    if dtype not in STORAGE or dtype in _INTEGERS:
        return value
    if dtype == "bfloat16":
        return node.compute(
            lambda x: te.compute(
                x.shape,
                lambda *i: tirx.reinterpret("float32", _uint(x[i]) << tirx.const(16, "uint32")),
                name="from_bfloat16",
            ),
            node.emit(value),
        )
    # A table of all numbers: 16 or 256.
    kind = getattr(ml_dtypes, dtype)
    numbers = np.arange(1 << info_of(dtype).bits, dtype=np.uint8).view(kind).astype(np.float32)
    return node.compute(
        lambda table, x: te.compute(
            x.shape, lambda *i: table[tirx.Cast("int64", x[i])], name=f"from_{dtype.split('_')[0]}"
        ),
        relax.const(numbers, "float32"),
        node.emit(value),
    )


def encoded(
    node: Node, value: relax.Expr, dtype: str, *, is_saturated: bool = True, rounding: str = "up"
) -> relax.Expr:
    """Return numbers as stored elements of `dtype`, rounded to the nearest, halves to even. Integers are cut off.

    is_saturated: whether too large numbers become the largest one.
    rounding: of a power of two: up, down or nearest.
    """
    value = node.emit(value)
    if str(value.ty.dtype) == "float64" and dtype not in _INTEGERS:
        raise ValueError(f"double precision would be rounded twice on the way to {dtype}")
    if dtype in _INTEGERS:
        return _low_bits(node, value, dtype)
    value = node.emit(op.astype(value, "float32"))

    def code(bits: tirx.Expr) -> tirx.Expr:
        if dtype == "bfloat16":
            return _bfloat16(bits)
        if dtype == "float8_e8m0fnu":
            return _power_of_two(bits, rounding, is_saturated=is_saturated)
        return _coded(bits, _minifloat(dtype), is_saturated=is_saturated)

    return node.compute(
        lambda x: te.compute(
            x.shape,
            lambda *i: tirx.Cast(STORAGE[dtype], code(tirx.reinterpret("uint32", x[i]))),
            name=f"to_{dtype.split('_')[0]}",
        ),
        value,
    )


def _uint(value: tirx.Expr | int) -> tirx.Expr:
    return tirx.const(value, "uint32") if isinstance(value, int) else tirx.Cast("uint32", value)


def _rounded(number: tirx.Expr, shift: tirx.Expr) -> tirx.Expr:
    """Return number / 2**shift, rounded to the nearest integer, halves to even. shift: 1 to 26."""
    half, is_odd = (_uint(1) << (shift - _uint(1))) - _uint(1), (number >> shift) & _uint(1)
    return (number + half + is_odd) >> shift


def _coded(bits: tirx.Expr, to: _Minifloat, *, is_saturated: bool) -> tirx.Expr:
    """Return the code of an fp32 number, given by its bits."""
    magnitude = bits & _uint(_MAGNITUDE)
    exponent = magnitude >> _uint(_FRACTION)
    normal = _rounded(magnitude, _uint(_FRACTION - to.fraction)) - _uint((127 - to.bias) << to.fraction)
    # Below the least exponent, the fraction with its leading one moves right: at most to half of the least number.
    significand = (magnitude & _uint((1 << _FRACTION) - 1)) | _uint(1 << _FRACTION)
    distance = tirx.min(_uint(151 - to.bias - to.fraction) - exponent, _uint(_FRACTION + 3))
    small = _rounded(significand, tirx.max(distance, _uint(1)))
    size = tirx.Select(exponent < _uint(128 - to.bias), small, normal)
    limit = to.largest if is_saturated else to.overflow & ((1 << to.sign) - 1 if to.has_negative_zero else 0xFF)
    size = tirx.Select(size > _uint(to.largest), _uint(limit), size)
    sign = (bits >> _uint(31)) << _uint(to.sign)
    signed, nan = size | sign, _uint(to.nan) ^ sign
    if not to.has_negative_zero:
        # The code of a negative zero is that of NaN.
        signed = tirx.Select(tirx.any(tirx.EQ(size, _uint(0)), size > _uint(to.largest)), size, signed)
        nan = _uint(to.nan)
    return tirx.Select(magnitude > _uint(_INFINITY), nan, signed)


def _bfloat16(bits: tirx.Expr) -> tirx.Expr:
    is_nan = (bits & _uint(_MAGNITUDE)) > _uint(_INFINITY)
    return tirx.Select(is_nan, _uint(0x7FC0), _rounded(bits, _uint(16)))


def _power_of_two(bits: tirx.Expr, rounding: str, *, is_saturated: bool) -> tirx.Expr:
    """Return the exponent of an fp32 number, given by its bits. The sign is dropped, and 0xFF is NaN."""
    exponent, fraction = (bits >> _uint(_FRACTION)) & _uint(0xFF), bits & _uint((1 << _FRACTION) - 1)
    if rounding == "down":
        return exponent
    half = _uint(1 << (_FRACTION - 1))
    is_up = (
        fraction > _uint(0)
        if rounding == "up"
        else tirx.any(fraction > half, tirx.all(tirx.EQ(fraction, half), exponent > _uint(0)))
    )
    is_up = tirx.all(is_up, exponent < _uint(0xFE if is_saturated else 0xFF))
    return tirx.Select(is_up, exponent + _uint(1), exponent)


def _low_bits(node: Node, value: relax.Expr, dtype: str) -> relax.Expr:
    """Return the low bits of an integer, as in a conversion of wide integers. Floats are cut off first."""
    width, is_signed = int(dtype[-1]), not dtype.startswith("u")
    whole = node.emit(op.astype(value, "int32"))
    low = op.bitwise_and(whole, relax.const((1 << width) - 1, "int32"))
    if is_signed:
        sign = relax.const(1 << (width - 1), "int32")
        low = op.subtract(op.bitwise_xor(low, sign), sign)
    return op.astype(low, STORAGE[dtype])
