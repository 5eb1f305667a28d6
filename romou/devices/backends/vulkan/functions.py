"""GLSL names and definitions of the functions that kernels call.

Functions that GLSL lacks or computes too roughly are defined here.

Vulkan allows sin and cos an error of 2^-11, atan 4096 units in the last place, and tanh the error of its formula near
zero. The definitions here are as exact as OpenCL requires, by the polynomials of Cephes (sin, cos, asin, atan) and
Eigen (tanh, erf). Each definition is for a scalar. Vectors call it for each lane.

Without further extensions Vulkan need not keep NaN: a comparison of a float with itself may be folded to true, and a
maximum made of comparisons to a maximum that drops NaN. So NaN is detected by its bits.
"""

from __future__ import annotations

import re

# TVM's operator -> GLSL's function, whose error is a few units in the last place.
BUILT_IN = {
    "ceil": "ceil", "clz": "clz", "exp": "exp", "exp2": "exp2", "fabs": "abs", "floor": "floor", "log2": "log2",
    "nearbyint": "roundEven", "popcount": "bitCount", "rsqrt": "inversesqrt", "sqrt": "sqrt", "trunc": "trunc",
}  # fmt: skip

# TVM's operator -> function of DEFINITIONS.
OWN = {
    "acos": "acos_of", "acosh": "acosh_of", "asin": "asin_of", "asinh": "asinh_of", "atan": "atan_of", "atan2": "atan2_of", "atanh": "atanh_of",  # noqa: E501
    "copysign": "copysign", "cos": "cos_of", "cosh": "cosh_of", "erf": "erf", "exp10": "exp10", "fmod": "fmod", "hypot": "hypot", "isnan": "is_nan",  # noqa: E501
    "ldexp": "ldexp_of", "log": "log_of", "log10": "log10", "log1p": "log1p", "nextafter": "nextafter", "pow": "power", "round": "round_away", "sin": "sin_of",  # noqa: E501
    "sinh": "sinh_of", "tan": "tan_of", "tanh": "tanh_of",
}  # fmt: skip

_DOT = 'spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = {id})'
DEFINITIONS = {
    # `DOT_CALL` of the dialect. GLSL has no name for these instructions of SPIR-V. 0: four bytes in a word.
    "dot_of_bytes_ss": (
        f"{_DOT.format(id=4450)} int signed_dot(uint a, uint b, spirv_literal int format);\n"
        "int dot_of_bytes_ss(uint a, uint b, int c) { return c + signed_dot(a, b, 0); }"
    ),
    "dot_of_bytes_us": (
        f"{_DOT.format(id=4452)} int mixed_dot(uint a, uint b, spirv_literal int format);\n"
        "int dot_of_bytes_us(uint a, uint b, int c) { return c + mixed_dot(b, a, 0); }"
    ),
    "is_nan": "bool is_nan(float x) { return (floatBitsToUint(x) & 0x7FFFFFFFu) > 0x7F800000u; }",
    # Selections between values: a conditional expression would be a branch for each lane.
    "max_with_nan": "float max_with_nan(float a, float b) { return mix(mix(max(a, b), b, is_nan(b)), a, is_nan(a)); }",
    "min_with_nan": "float min_with_nan(float a, float b) { return mix(mix(min(a, b), b, is_nan(b)), a, is_nan(a)); }",
    "is_nan_of_double": (
        """bool is_nan_of_double(double x) {
  uvec2 bits = unpackDouble2x32(x);
  uint high = bits.y & 0x7FFFFFFFu;
  return high > 0x7FF00000u || (high == 0x7FF00000u && bits.x != 0u);
}"""
    ),
    "max_with_nan_of_double": (
        """double max_with_nan_of_double(double a, double b) {
  return mix(mix(max(a, b), b, is_nan_of_double(b)), a, is_nan_of_double(a));
}"""
    ),
    "min_with_nan_of_double": (
        """double min_with_nan_of_double(double a, double b) {
  return mix(mix(min(a, b), b, is_nan_of_double(b)), a, is_nan_of_double(a));
}"""
    ),
    "quotient": (
        """float quotient(float a, float b) {
  // A division by the device, and what it leaves of a, which the products of halves of 12 bits give exactly: fma may be none.
  precise float q = a / b, p = q * b;
  float q1 = uintBitsToFloat(floatBitsToUint(q) & 0xFFFFF000u), b1 = uintBitsToFloat(floatBitsToUint(b) & 0xFFFFF000u);
  precise float q2 = q - q1, b2 = b - b1;
  precise float e = q1 * b1 - p + q1 * b2 + q2 * b1 + q2 * b2, better = q + (a - p - e) / b;
  return abs(a) > 1e-20 && abs(a) < 1e37 && abs(q) < 1e30 ? better : q;
}"""  # noqa: E501
    ),
    # Drivers fold (x + c) - c to x unless the sum is precise.
    "rounded_sum": "float rounded_sum(float a, float b) { precise float s = a + b; return s; }",
    "rem": "int rem(int a, int b) { return a - a / b * b; }",
    # In integers, eight bits at a time: the quotient may have 277 bits.
    "fmod": (
        """float fmod(float a, float b) {
  uint x = floatBitsToUint(a) & 0x7FFFFFFFu, y = floatBitsToUint(b) & 0x7FFFFFFFu;
  if (x >= 0x7F800000u || y > 0x7F800000u || y == 0u) return uintBitsToFloat(0x7FC00000u);
  if (x < y) return a;
  int i = max(int(x >> 23), 1), j = max(int(y >> 23), 1);
  uint m = x >> 23 == 0u ? x : x & 0x7FFFFFu | 0x800000u, n = y >> 23 == 0u ? y : y & 0x7FFFFFu | 0x800000u;
  for (; i > j; i -= min(i - j, 8)) m = m % n << min(i - j, 8);
  return copysign(ldexp(float(m % n), j - 150), a);
}"""
    ),
    "clz": "int clz(int x) { return 31 - findMSB(uint(x)); }",
    "exp10": "float exp10(float x) { return exp2(x * 3.3219281); }",
    "log10": "float log10(float x) { return log_of(x) * 0.4342945; }",
    # Near 1 Vulkan bounds the absolute error, not the relative one.
    "log_of": (
        "float log_of(float x) { return x < 0.0 ? uintBitsToFloat(0x7FC00000u) : abs(x - 1.0) < 0.3 ? log1p(x - 1.0) :"
        " log(x); }"
    ),
    "hypot": (
        """float hypot(float a, float b) {
  float m = max(abs(a), abs(b)), n = min(abs(a), abs(b)) / m;
  return is_nan(a) ? a : m == 0.0 || isinf(m) ? m : m * sqrt(1.0 + n * n);
}"""
    ),
    "ldexp_of": "float ldexp_of(float x, float e) { return ldexp(x, int(e)); }",
    "copysign": (
        "float copysign(float x, float s) { return uintBitsToFloat(floatBitsToUint(x) & 0x7FFFFFFFu |"
        " floatBitsToUint(s) & 0x80000000u); }"
    ),
    "round_away": "float round_away(float x) { float t = trunc(x); return abs(x - t) >= 0.5 ? t + sign(x) : t; }",
    "nextafter": (
        """float nextafter(float x, float y) {
  if (is_nan(x) || is_nan(y)) return x + y;
  if (x == y) return y;
  if (x == 0.0) return copysign(uintBitsToFloat(1u), y);
  return intBitsToFloat(floatBitsToInt(x) + ((x < y) == (x > 0.0) ? 1 : -1));
}"""
    ),
    "power": (
        """float power(float x, float y) {
  if (y == 0.0 || x == 1.0) return 1.0;
  if (is_nan(x) || is_nan(y)) return is_nan(x) ? x : y;
  float a = abs(x), r = a == 0.0 ? (y < 0.0 ? uintBitsToFloat(0x7F800000u) : 0.0) : a == 1.0 ? 1.0 : pow(a, y);
  if (floatBitsToInt(x) >= 0) return r;
  if (isinf(y) || floor(y) == y) return !isinf(y) && fract(y * 0.5) != 0.0 ? -r : r;
  return a == 0.0 || isinf(a) ? r : uintBitsToFloat(0x7FC00000u);
}"""
    ),
    "log1p": (
        """float log1p(float x) {
  float t = x / (2.0 + x), s = t * t;
  return x > -0.33 && x < 0.5 ? 2.0 * t * (1.0 + s * (0.33333333 + s * (0.2 + s * (0.14285714 + s * 0.11111111)))) : log(1.0 + x);
}"""  # noqa: E501
    ),
    "asinh_of": (
        """float asinh_of(float x) {
  float a = abs(x);
  return copysign(a > 1e18 ? log(a) + 0.6931472 : log1p(a + a * a / (1.0 + sqrt(a * a + 1.0))), x);
}"""
    ),
    "acosh_of": (
        """float acosh_of(float x) {
  float t = x - 1.0;
  return x < 1.0 ? uintBitsToFloat(0x7FC00000u) : x > 1e18 ? log(x) + 0.6931472 : log1p(t + sqrt(2.0 * t + t * t));
}"""
    ),
    "atanh_of": (
        """float atanh_of(float x) {
  float a = abs(x);
  return a > 1.0 ? uintBitsToFloat(0x7FC00000u) : copysign(0.5 * log1p(2.0 * a / (1.0 - a)), x);
}"""
    ),
    # h * h may overflow where half of it does not: drivers reorder a product that is not precise.
    "sinh_of": (
        """float sinh_of(float x) {
  float s = x * x, h = exp(abs(x) * 0.5);
  precise float y = 0.5 * h * h - 0.5 / h / h;
  return abs(x) < 1.0 ? x * (1.0 + s / 6.0 * (1.0 + s / 20.0 * (1.0 + s / 42.0 * (1.0 + s / 72.0)))) : copysign(y, x);
}"""
    ),
    "cosh_of": "float cosh_of(float x) { float h = exp(abs(x) * 0.5); precise float y = 0.5 * h * h + 0.5 / h / h; return y; }",  # noqa: E501
    "tanh_of": (
        """float tanh_of(float x) {
  float c = clamp(x, -10.5, 10.5), s = c * c;
  float p = ((((((-2.7607685e-16 * s + 2.0001879e-13) * s - 8.6046715e-11) * s + 5.1222971e-08) * s + 1.4857224e-05) * s + 6.3726193e-04) * s + 4.8935246e-03);
  float q = ((1.1982584e-06 * s + 1.1853471e-04) * s + 2.2684346e-03) * s + 4.8935252e-03;
  return is_nan(x) ? x : clamp(c * p / q, -1.0, 1.0);
}"""  # noqa: E501
    ),
    "erf": (
        """float erf(float x) {
  float c = clamp(x, -4.2, 4.2), s = c * c;
  float p = ((((((-2.7261423e-10 * s + 2.7706814e-08) * s - 2.1010240e-06) * s - 5.6925064e-05) * s - 7.3499063e-04) * s - 2.9545998e-03) * s - 1.6096033e-02);
  float q = (((-1.4566072e-05 * s - 2.1337406e-04) * s - 1.6828270e-03) * s - 7.3733293e-03) * s - 1.4264739e-02;
  return is_nan(x) ? x : clamp(c * p / q, -1.0, 1.0);
}"""  # noqa: E501
    ),
    # The sine of x + quarters * pi / 2: multiples are subtracted in three steps, two of them exact up to 8192. Beyond,
    # 64 bits of 2 / pi determine the quotient (`backends/opencl/functions.py`).
    "sin_from": (
        """float sin_from(float x, int quarters) {
  uint bits = floatBitsToUint(x);
  if ((bits & 0x7F800000u) == 0x7F800000u) return uintBitsToFloat(0x7FC00000u);
  precise float n = roundEven(x * 0.63661977);
  precise float r = x - n * 1.5703125;
  r = r - n * 4.8375129699707031e-4;
  r = r - n * 7.5497899e-8;
  int k = int(n);
  if (abs(x) > 8192.0) {
    uint m = bits & 0x7FFFFFu | 0x800000u, at = (bits >> 23 & 255u) - 120u, by = at & 31u, high, low;
    uint first = at > 127u ? 0xF534DDC0u : at > 95u ? 0xFC2757D1u : at > 63u ? 0x4E441529u : at > 31u ? 0xA2F9836Eu : 0u;
    uint second = at > 127u ? 0xDB629599u : at > 95u ? 0xF534DDC0u : at > 63u ? 0xFC2757D1u : at > 31u ? 0x4E441529u : 0xA2F9836Eu;
    uint third = at > 127u ? 0x3C439041u : at > 95u ? 0xDB629599u : at > 63u ? 0xF534DDC0u : at > 31u ? 0xFC2757D1u : 0x4E441529u;
    umulExtended(m, second << by | third >> 1 >> (31u - by), high, low);
    high += m * (first << by | second >> 1 >> (31u - by));
    uint whole = high + 0x20000000u;
    r = float(int(high - (whole & 0xC0000000u))) * 1.4629180793e-9 + float(low) * 3.4061215800e-19;
    r = x < 0.0 ? -r : r;
    k = x < 0.0 ? -int(whole >> 30) : int(whole >> 30);
  }
  k += quarters;
  float s = r * r;
  float a = r * (((-1.9515296e-4 * s + 8.3321609e-3) * s - 1.6666655e-1) * s + 1.0);
  float b = 1.0 - 0.5 * s + s * s * ((2.4433157e-5 * s - 1.3887316e-3) * s + 4.1666646e-2);
  float v = (k & 1) == 0 ? a : b;
  return (k & 2) == 0 ? v : -v;
}"""  # noqa: E501
    ),
    "sin_of": "float sin_of(float x) { return sin_from(x, 0); }",
    "cos_of": "float cos_of(float x) { return sin_from(x, 1); }",
    "tan_of": "float tan_of(float x) { return sin_from(x, 0) / sin_from(x, 1); }",
    "atan_of": (
        """float atan_of(float x) {
  float a = abs(x), start = a > 2.4142136 ? 1.5707963 : a > 0.41421356 ? 0.78539816 : 0.0;
  float t = a > 2.4142136 ? -1.0 / a : a > 0.41421356 ? (a - 1.0) / (a + 1.0) : a, s = t * t;
  return copysign(start + (t + t * s * (((8.05374449538e-2 * s - 1.38776856032e-1) * s + 1.99777106478e-1) * s - 3.33329491539e-1)), x);
}"""  # noqa: E501
    ),
    "atan2_of": (
        """float atan2_of(float y, float x) {
  if (x == 0.0 && y == 0.0) return copysign(floatBitsToInt(x) < 0 ? 3.1415927 : 0.0, y);
  bool is_steep = abs(y) > abs(x);
  float a = is_steep ? 1.5707963 - atan_of(abs(x) / abs(y)) : atan_of(abs(y) / abs(x));
  return copysign(x < 0.0 ? 3.1415927 - a : a, y);
}"""
    ),
    "asin_of": (
        """float asin_of(float x) {
  float a = abs(x);
  bool is_large = a > 0.5;
  float s = is_large ? 0.5 * (1.0 - a) : a * a, t = is_large ? sqrt(s) : a;
  float r = t + t * s * ((((4.2163199048e-2 * s + 2.4181311049e-2) * s + 4.5470025998e-2) * s + 7.4953002686e-2) * s + 1.6666752422e-1);
  return a > 1.0 ? uintBitsToFloat(0x7FC00000u) : copysign(is_large ? 1.5707963 - 2.0 * r : r, x);
}"""  # noqa: E501
    ),
    "acos_of": (
        """float acos_of(float x) {
  float h = 2.0 * asin_of(sqrt(0.5 * (1.0 - min(abs(x), 1.0))));
  return !(abs(x) <= 1.0) ? uintBitsToFloat(0x7FC00000u) : abs(x) <= 0.5 ? 1.5707963 - asin_of(x) : x < 0.0 ? 3.1415927 - h : h;
}"""  # noqa: E501
    ),
    # fp16 in memory, as words of two values.
    "half_of": "float half_of(uint pair, int i) { return unpackHalf2x16(pair >> ((i & 1) * 16)).x; }",
    "half4_of": "vec4 half4_of(uvec2 pairs) { return vec4(unpackHalf2x16(pairs.x), unpackHalf2x16(pairs.y)); }",
    "bits_of_half4": "uvec2 bits_of_half4(vec4 v) { return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw)); }",
    # Zeros outside an image, by the device or by a comparison. The runtime decides when it creates the pipeline.
    "texel": (
        """layout(constant_id = 0) const bool HAS_ZEROS_OUTSIDE = false;
vec4 texel(texture2DArray image, ivec3 at) {
  return HAS_ZEROS_OUTSIDE || all(lessThan(uvec3(at), uvec3(textureSize(image, 0)))) ? texelFetch(image, at, 0) : vec4(0.0);
}"""  # noqa: E501
    ),
}
_CALL = re.compile(r"\b(\w+)\(")
_HEAD = re.compile(r"^(\w+) (\w+)\((.*?)\) \{", re.MULTILINE)
_OF_LANES = {"float": "vec", "double": "dvec", "int": "ivec", "bool": "bvec"}


def definitions(calls: set[tuple[str, int]]) -> str:
    """Return the definitions of the functions that a kernel calls, callees first.

    calls: (name, lanes of the arguments).
    """
    names: dict[str, None] = {}
    for name, _ in sorted(calls):
        _with_callees(name, names)
    texts = [DEFINITIONS[name] for name in names]
    texts += [
        _by_lane(name, lanes)
        for name, lanes in sorted(calls)
        if lanes > 1 and not name.startswith(("texel", "half", "bits"))
    ]
    return "".join(f"{text}\n" for text in texts)


def _with_callees(name: str, names: dict[str, None]) -> None:
    for callee in _CALL.findall(DEFINITIONS[name]):
        if callee in DEFINITIONS and callee != name:
            _with_callees(callee, names)
    names.setdefault(name)


def _by_lane(name: str, lanes: int) -> str:
    """Return the function for vectors. It calls the scalar function for each lane.

    For a vec2 x, f(x) is vec2(f(x.x), f(x.y)).
    """
    head = _HEAD.search(DEFINITIONS[name])
    assert head is not None
    parameters = [parameter.split() for parameter in head[3].split(", ")]
    result = f"{_OF_LANES[head[1]]}{lanes}"
    takes = ", ".join(f"{_OF_LANES[kind]}{lanes} {parameter}" for kind, parameter in parameters)
    calls = (f"{name}({', '.join(f'{parameter}.{lane}' for _, parameter in parameters)})" for lane in "xyzw"[:lanes])
    return f"{result} {name}({takes}) {{ return {result}({', '.join(calls)}); }}"
