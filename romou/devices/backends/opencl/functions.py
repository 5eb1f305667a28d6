"""Functions in front of the kernels that call them, one for each number of lanes.

They are short forms without a branch, within the errors that OpenCL allows, and accesses of unaligned vectors.

exp    a polynomial of x less integer multiples of 2 log 2, times a power of two twice, which is always a normal number
sin    x less multiples of pi / 2, in three steps, two of them exact up to 8192. Beyond, the exponent selects 64 bits of
       2 / pi, which determine the quotient (Payne and Hanek). Near zeros the result is right to 2e-10, elsewhere to
       3 units in the last place, for x of any size
tanh   Eigen's rational function of the hyperbolic tangent, cut off at 1, which it exceeds from 10 to 10.5
erf    Eigen's rational function of the error function, cut off at 1, which it exceeds from 4.1 to 4.2
square_root, inverse_root
       pow(x, 0.5) and pow(x, -0.5), which differ from roots for -0 and -infinity
load_unaligned, store_unaligned
       a vector in a packed structure, which has the alignment of a scalar. For vload4, Mesa's compilers emit a load
       for each lane. 32-bit SPIR is clspv's: of a structure at a pointer that a loop moves it makes invalid SPIR-V
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_EXP = """TYPE exp_TYPE(TYPE x) {
  TYPE c = clamp(x, -104.0f, 89.0f), t = c * 0.72134752f + 1.2582912e7f, n = t - 1.2582912e7f;
  TYPE r = n * 4.2438888e-4f + (n * -1.38671875f + c), s = as_TYPE((as_INT(t) << 23) + 0x3F800000);
  TYPE p = ((((r * 1.96118024e-4f + 1.41043041e-3f) * r + 8.33609886e-3f) * r + 4.16612774e-2f) * r + 1.6666615e-1f) * r + 5.00000358e-1f;
  return select((p * (r * r) + r + 1.0f) * s * s, x, isnan(x));
}
"""  # noqa: E501
# The sine of x + quarters * pi / 2. Adding 1.5 * 2^23 rounds to an integer, whose lowest bits are then the lowest bits
# of the sum.
_SIN = """TYPE sin_TYPE(TYPE x, int quarters) {
  TYPE t = x * 0.63661977f + 1.2582912e7f, n = t - 1.2582912e7f;
  TYPE r = n * -7.5497899e-8f + (n * -4.8375129699707031e-4f + (n * -1.5703125f + x));
  INT k = as_INT(t), is_far = fabs(x) > 8192.0f;
  if (ANY(is_far)) {
    UINT bits = as_UINT(x), sign = bits & 0x80000000u, m = (bits & 0x7FFFFFu) | 0x800000u, at = (bits >> 23 & 255u) - 120u, by = at & 31u;
    INT above1 = at > 31u, above2 = at > 63u, above3 = at > 95u, above4 = at > 127u;
    UINT first = WORD0, second = WORD1, third = WORD2;
    UINT low = second << by | third >> 1 >> (31u - by), high = m * (first << by | second >> 1 >> (31u - by)) + mul_hi(m, low), whole = high + 0x20000000u;
    TYPE f = convert_TYPE(as_INT(high - (whole & 0xC0000000u))) * 1.4629180793e-9f + convert_TYPE(m * low) * 3.4061215800e-19f;
    r = select(r, as_TYPE(as_UINT(f) ^ sign), is_far);
    k = select(k, as_INT(select(whole >> 30, 0u - (whole >> 30), as_INT(sign))), is_far);
  }
  k += quarters;
  TYPE s = r * r;
  TYPE a = r * (((s * -1.9515296e-4f + 8.3321609e-3f) * s - 1.6666655e-1f) * s + 1.0f);
  TYPE b = ((s * 2.4433157e-5f - 1.3887316e-3f) * s + 4.1666646e-2f) * (s * s) + (s * -0.5f + 1.0f);
  TYPE v = select(a, b, k << 31);
  return select(x - x, as_TYPE(as_UINT(v) ^ as_UINT((k & 2) << 30)), isfinite(x));
}
"""  # noqa: E501
_TANH = """TYPE tanh_TYPE(TYPE x) {
  TYPE c = clamp(x, -10.5f, 10.5f), s = c * c;
  TYPE p = (((s * -2.7607685e-16f + 2.0001879e-13f) * s - 8.6046715e-11f) * s + 5.1222971e-08f) * s + 1.4857224e-05f;
  p = (p * s + 6.3726193e-04f) * s + 4.8935246e-03f;
  TYPE q = ((s * 1.1982584e-06f + 1.1853471e-04f) * s + 2.2684346e-03f) * s + 4.8935252e-03f;
  return select(clamp(c * (p / q), -1.0f, 1.0f), x, isnan(x));
}
"""
_ERF = """TYPE erf_TYPE(TYPE x) {
  TYPE c = clamp(x, -4.2f, 4.2f), s = c * c;
  TYPE p = ((s * -2.7261423e-10f + 2.7706814e-08f) * s - 2.1010240e-06f) * s - 5.6925064e-05f;
  TYPE q = ((s * -1.4566072e-05f - 2.1337406e-04f) * s - 1.6828270e-03f) * s - 7.3733293e-03f;
  p = ((p * s - 7.3499063e-04f) * s - 2.9545998e-03f) * s - 1.6096033e-02f;
  q = q * s - 1.4264739e-02f;
  return select(clamp(c * p / q, -1.0f, 1.0f), x, isnan(x));
}
"""
# As in pow: zeros of either sign are +0, and the sign of infinity is dropped.
_SQUARE_ROOT = "TYPE square_root_TYPE(TYPE x) { return select(sqrt(x + 0.0f), fabs(x), x == -INFINITY); }\n"
_INVERSE_ROOT = "TYPE inverse_root_TYPE(TYPE x) { return select(rsqrt(x + 0.0f), 1.0f / fabs(x), isinf(x)); }\n"
_LOAD = """#ifdef __SPIR32__
TYPE load_unaligned_TYPE(const __global NUMBER* at) { return vloadLANES(0, at); }
#else
TYPE load_unaligned_TYPE(const __global NUMBER* at) { struct __attribute__((packed, aligned(sizeof(NUMBER)))) packed { TYPE lanes; }; return ((const __global struct packed*)at)->lanes; }
#endif
"""  # noqa: E501
_STORE = """#ifdef __SPIR32__
void store_unaligned_TYPE(TYPE value, __global NUMBER* at) { vstoreLANES(value, 0, at); }
#else
void store_unaligned_TYPE(TYPE value, __global NUMBER* at) { struct __attribute__((packed, aligned(sizeof(NUMBER)))) packed { TYPE lanes; }; ((__global struct packed*)at)->lanes = value; }
#endif
"""  # noqa: E501
_DEFINITIONS = {
    "erf": _ERF,
    "exp": _EXP,
    "inverse_root": _INVERSE_ROOT,
    "load_unaligned": _LOAD,
    "sin": _SIN,
    "square_root": _SQUARE_ROOT,
    "store_unaligned": _STORE,
    "tanh": _TANH,
}
_CALLED = re.compile(rf"\b({'|'.join(_DEFINITIONS)})_((?:float|half|ushort)\d*)\(")
# 192 bits of 2 / pi, after a zero.
_WORDS = (0x0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041)


def function_name(name: str, lanes: int, number: str = "float") -> str:
    """Return the name of a function for vectors of `lanes` elements of a type."""
    return f"{name}_{number}{lanes if lanes > 1 else ''}"


def definitions(texts: list[str]) -> str:
    """Return the definitions of the functions that kernels call."""
    return "".join(
        _definition(name, kind) for name, kind in sorted({call for text in texts for call in _CALLED.findall(text)})
    )


def _definition(name: str, kind: str) -> str:
    number = kind.rstrip("0123456789")
    lanes = kind.removeprefix(number)
    text = _DEFINITIONS[name].replace("NUMBER", number).replace("ANY(is_far)", "any(is_far)" if lanes else "is_far")
    for index in range(3):
        text = text.replace(f"WORD{index}", _chosen(_WORDS[index : index + 5]))
    text = text.replace("LANES", lanes).replace("UINT", f"uint{lanes}").replace("INT", f"int{lanes}")
    return text.replace("TYPE", kind)


def _chosen(words: Sequence[int]) -> str:
    """Return an expression that selects a word by comparisons of a position with 32, 64, 96 and 128.

    Tables in constant memory crash Mesa's compiler for Mali.
    """
    chosen = f"(UINT)({words[0]:#x}u)"
    for index, word in enumerate(words[1:], 1):
        chosen = f"select({chosen}, (UINT)({word:#x}u), above{index})"
    return chosen
