"""Functions in PTX for kernels on tensor cores. CUDA C++ and NVIDIA's OpenCL C take them.

`tensor_core_kernel.py` in the rooms of `operators/kernels` calls those at the top, and passes those at the bottom.

Offsets into local memory are in units of 16 bytes, unless a name says otherwise. A language says what stands for

    INLINE              the beginning of a function that is written into its callers
    LOCAL, GLOBAL       the address space of a pointer
    LOCAL_ADDRESS(p)    the 32-bit address of a pointer to local memory, as PTX takes it
    TEXEL               the type of four fp16 values, an integer of 64 bits
    FLOATS(x, y, z, w)  a vector of four fp32 values, of the type float4
    BITS_OF, FLOAT_OF   an fp32 number as an unsigned integer of the same bits, and back
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# The first compute capability with these instructions, in tenths (PTX ISA).
PTX_PRODUCTS_FROM = 80


def _load_matrices(name: str, comment: str, kind: str = "") -> str:
    """Return the function that loads four matrices of 8 x 8 fp16 values from local memory. kind: of `ldmatrix`."""
    return f"""
// {comment}
INLINE int {name}(int offset, LOCAL const void* staged, int first, unsigned int* into) {{
  into += first;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
      : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3]) : "r"(LOCAL_ADDRESS((LOCAL const char*)staged + 16 * offset)) : "memory");
  return 0;
}}
"""  # noqa: E501


_COPY = """
INLINE int {name}(int offset, GLOBAL const void* texels, int into_offset, LOCAL void* into, bool inside) {{
  asm volatile("cp.async.ca.shared.global [%0], [%1], {bytes}, %2;"
      :: "r"(LOCAL_ADDRESS((LOCAL char*)into + {bytes} * into_offset)), "l"((GLOBAL const char*)texels + {bytes} * (size_t)offset), "r"(inside ? {bytes} : 0));
  return 0;
}}
"""  # noqa: E501


# Name -> definition. A function calls earlier ones only.
_FUNCTIONS = {
    "copy_unit_async": (
        """
INLINE int copy_unit_async(int into_offset, LOCAL void* into, int offset, GLOBAL const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      :: "r"(LOCAL_ADDRESS((LOCAL char*)into + 16 * into_offset)), "l"((GLOBAL const char*)from + 16 * (size_t)offset), "r"(inside ? 16 : 0) : "memory");
  return 0;
}
"""  # noqa: E501
    ),
    "end_group_of_copies": (
        """
INLINE int end_group_of_copies() {
  asm volatile("cp.async.commit_group;");
  return 0;
}
"""
    ),
    "wait_for_copies": (
        """
// Waits until at most `in_flight` groups of copies are not complete, or sooner than is necessary.
INLINE int wait_for_copies(int in_flight) {
  if (in_flight == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
  else if (in_flight == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
  else if (in_flight == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
  else if (in_flight == 3) asm volatile("cp.async.wait_group 3;" ::: "memory");
  else asm volatile("cp.async.wait_group 4;" ::: "memory");
  return 0;
}
"""
    ),
    "load_codes": (
        """
// Two neighbouring words of a chunk of two rows, eight rows apart, with the work-item's first code in the lowest bits.
INLINE int load_codes(int words_offset, LOCAL const void* staged, int shift, int first, unsigned int* into) {
  uint2 upper = *(LOCAL const uint2*)((LOCAL const unsigned int*)staged + words_offset), lower = *(LOCAL const uint2*)((LOCAL const unsigned int*)staged + words_offset + 32);
  into += first;
  into[0] = upper.x >> shift, into[1] = upper.y >> shift, into[2] = lower.x >> shift, into[3] = lower.y >> shift;
  return 0;
}
"""  # noqa: E501
    ),
    "load_scale": (
        """
// Two copies of a scale in fp16.
INLINE int load_scale(int scales_offset, LOCAL const void* staged) {
  return ((LOCAL const unsigned short*)staged)[scales_offset] * 0x10001;
}
"""
    ),
    "load_zero": (
        """
// Two copies of 1024 + a zero point in fp16.
INLINE int load_zero(int zeros_offset, LOCAL const void* staged) {
  return ((LOCAL const unsigned char*)staged)[zeros_offset] * 0x10001 + 0x64006400;
}
"""
    ),
    "weights_of_codes": (
        """
// fp16 numbers (code - zero point) * scale of two codes. 1024 + code is a code in the lowest bits of an fp16 number.
INLINE int weights_of_pair(unsigned int x, unsigned int y, int bit, unsigned int mask, unsigned int zero, unsigned int scale) {
  int byte = bit / 8;
  unsigned int pair;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(pair) : "r"(x >> bit % 8), "r"(y >> bit % 8), "r"(byte | byte << 4 | (byte + 4) << 8 | (byte + 4) << 12));
  pair = (pair & mask) | 0x64006400u;
  asm("sub.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(zero));
  asm("mul.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(scale));
  return (int)pair;
}

// The weights of two rows in 16 depths. `bit`: position of the first code. `next`: bits to the code eight depths on.
INLINE int weights_of_codes(int first, const unsigned int* codes, int bit, int next, unsigned int mask, int row, const unsigned int* zeros,
                          const unsigned int* scales, int at, unsigned int* weights) {
  codes += first, weights += at;
  weights[0] = weights_of_pair(codes[0], codes[1], bit, mask, zeros[row], scales[row]);
  weights[1] = weights_of_pair(codes[2], codes[3], bit, mask, zeros[row + 1], scales[row + 1]);
  weights[2] = weights_of_pair(codes[0], codes[1], bit + next, mask, zeros[row], scales[row]);
  weights[3] = weights_of_pair(codes[2], codes[3], bit + next, mask, zeros[row + 1], scales[row + 1]);
  return 0;
}
"""  # noqa: E501
    ),
    "load_activations": _load_matrices(
        "load_activations",
        "16 depths of 16 rows of activations. Work-item l brings the address of row l % 8 of matrix l / 8.",
    ),
    "load_transposed": _load_matrices("load_transposed", "The same of the transposed matrices.", ".trans"),
    "fp16_pair": (
        """
// Two numbers in fp16, the first one in the lower bits.
INLINE int fp16_pair(float lower, float upper) {
  unsigned int pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return (int)pair;
}
"""
    ),
    "rough_exp": (
        """
// The device's own instruction finds powers of two.
INLINE float rough_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.4426950408889634f));
  return power;
}
"""
    ),
    "shuffle_of_warp": (
        """
// The number of the work-item at (own number xor `lanes`) in its warp.
INLINE float shuffle_of_warp(float x, int lanes) {
  float other;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(other) : "f"(x), "r"(lanes));
  return other;
}
"""
    ),
    "multiply_weights": (
        """
// 16 rows of weights times eight rows of activations, 16 deep.
INLINE int multiply_weights(int first, float* sums, int at, const unsigned int* weights, int number, const unsigned int* activations) {
  sums += first, weights += at, activations += number;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "r"(activations[0]), "r"(activations[1]));
  return 0;
}
"""  # noqa: E501
    ),
    "load_texel": (
        """
INLINE TEXEL load_texel(int offset, GLOBAL const void* texels) { return ((GLOBAL const TEXEL*)texels)[offset]; }
"""
    ),
    "load_staged_texel": (
        """
INLINE TEXEL load_staged_texel(int offset, LOCAL const void* texels) { return ((LOCAL const TEXEL*)texels)[offset]; }
"""
    ),
    "load_floats": (
        """
INLINE float4 load_floats(int offset, GLOBAL const void* texels) { return ((GLOBAL const float4*)texels)[offset]; }
"""
    ),
    "load_staged_floats": (
        """
INLINE float4 load_staged_floats(int offset, LOCAL const void* texels) { return ((LOCAL const float4*)texels)[offset]; }
"""
    ),
    "tensor_core_fma": (
        """
// One lane of two texels.
INLINE unsigned int lane_pair(TEXEL x, TEXEL y, int lane) {
  unsigned int a = (unsigned int)(lane < 2 ? x : x >> 32), b = (unsigned int)(lane < 2 ? y : y >> 32), pair;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(lane % 2 ? 0x7632 : 0x5410));
  return pair;
}

// Volatile: no lane may leave the warp alone, be its sums stored or not.
INLINE int fma_of_lanes(int lane, float* c, TEXEL w0, TEXEL w1, TEXEL w2, TEXEL w3, TEXEL data) {
  c += lane;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[4]), "+f"(c[1]), "+f"(c[5])
      : "r"(lane_pair(w0, w1, lane)), "r"(lane_pair(w0, w1, lane + 1)), "r"(lane_pair(w2, w3, lane)), "r"(lane_pair(w2, w3, lane + 1)),
        "r"((unsigned int)data), "r"((unsigned int)(data >> 32)));
  return 0;
}

INLINE int tensor_core_fma(int first, float* acc, TEXEL w0, TEXEL w1, TEXEL w2, TEXEL w3, TEXEL data) {
  fma_of_lanes(0, acc + first, w0, w1, w2, w3, data);
  fma_of_lanes(2, acc + first, w0, w1, w2, w3, data);
  return 0;
}
"""  # noqa: E501
    ),
    "copy_texel_async": _COPY.format(name="copy_texel_async", bytes=8),
    "copy_texel_pair_async": _COPY.format(name="copy_texel_pair_async", bytes=16),
    "copy_floats_async": _COPY.format(name="copy_floats_async", bytes=16),
    "tensor_core_fma_tf32": (
        """
// Two lanes of two texels of the weight (w: input channel, output channel), two of one of the data.
INLINE int mma_tf32(float* c, float w00, float w01, float w10, float w11, float x0, float x1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[4]), "+f"(c[1]), "+f"(c[5])
      : "r"(BITS_OF(w00)), "r"(BITS_OF(w01)), "r"(BITS_OF(w10)), "r"(BITS_OF(w11)), "r"(BITS_OF(x0)), "r"(BITS_OF(x1)));
  return 0;
}

INLINE int tensor_core_fma_tf32(int first, float* acc, float4 w0, float4 w1, float4 w2, float4 w3, float4 data) {
  float* c = acc + first;
  mma_tf32(c, w0.x, w0.y, w1.x, w1.y, data.x, data.y);
  mma_tf32(c + 2, w0.z, w0.w, w1.z, w1.w, data.x, data.y);
  mma_tf32(c, w2.x, w2.y, w3.x, w3.y, data.z, data.w);
  mma_tf32(c + 2, w2.z, w2.w, w3.z, w3.w, data.z, data.w);
  return 0;
}
"""  # noqa: E501
    ),
    # A float is `high`, a number of TF32, plus `low`, the rest, whose last bits tensor cores do not read. Products of
    # two rests are below 2^-21 of the whole product and left out. Weights are rounded, so that their rests have either
    # sign and errors do not add up. Data is cut off, which takes fewer instructions. PTX's rounding takes twice as
    # many. The small products are added first. Tensor cores round sums towards zero, which adds up in long sums. So
    # each call sums up from zero.
    "tensor_core_fma_tf32x3": (
        """
INLINE float rounded(float v) { return FLOAT_OF((BITS_OF(v) + 0x1000u) & 0xffffe000u); }
INLINE float4 rounded_texel(float4 v) { return FLOATS(rounded(v.x), rounded(v.y), rounded(v.z), rounded(v.w)); }

INLINE float cut_off(float v) { return FLOAT_OF(BITS_OF(v) & 0xffffe000u); }
INLINE float4 cut_off_texel(float4 v) { return FLOATS(cut_off(v.x), cut_off(v.y), cut_off(v.z), cut_off(v.w)); }

INLINE float4 rest_of(float4 v, float4 high) {
  return FLOATS(v.x - high.x, v.y - high.y, v.z - high.z, v.w - high.w);
}

// The rest of an infinite number is not a number. Without it, and without products with the weight's rest, the sum is infinite.
INLINE float if_finite(float v, float rest) { return rest == rest ? v : 0.0f; }
INLINE float4 if_finite_texel(float4 v, float4 rest) {
  return FLOATS(if_finite(v.x, rest.x), if_finite(v.y, rest.y), if_finite(v.z, rest.z), if_finite(v.w, rest.w));
}

INLINE int tensor_core_fma_tf32x3(int first, float* acc, float4 w0, float4 w1, float4 w2, float4 w3, float4 data) {
  float4 h0 = rounded_texel(w0), h1 = rounded_texel(w1), h2 = rounded_texel(w2), h3 = rounded_texel(w3), high = cut_off_texel(data);
  float4 l0 = rest_of(w0, h0), l1 = rest_of(w1, h1), l2 = rest_of(w2, h2), l3 = rest_of(w3, h3), rest = rest_of(data, high);
  float4 finite = if_finite_texel(high, rest), low = if_finite_texel(rest, rest);
  float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  tensor_core_fma_tf32(0, sums, l0, l1, l2, l3, finite);
  tensor_core_fma_tf32(0, sums, h0, h1, h2, h3, low);
  tensor_core_fma_tf32(0, sums, h0, h1, h2, h3, high);
  float* c = acc + first;
  c[0] += sums[0], c[1] += sums[1], c[2] += sums[2], c[3] += sums[3];
  c[4] += sums[4], c[5] += sums[5], c[6] += sums[6], c[7] += sums[7];
  return 0;
}
"""  # noqa: E501
    ),
}


def needed(functions: Mapping[str, str], source: str) -> str:
    """Return the definitions of all functions that a text needs. A function calls earlier ones only."""
    text = ""
    for name, definition in reversed(list(functions.items())):
        if f"{name}(" in source or f"{name}(" in text:
            text = definition + text
    return text


def ptx_functions(words: Mapping[str, str]) -> dict[str, str]:
    """Return name -> definition in a language. words: what it says for the words above, `LOCAL_ADDRESS` included."""
    pattern = re.compile(rf"\b({'|'.join(words)})\b ?")
    return {name: pattern.sub(lambda word: words[word[1]], text) for name, text in _FUNCTIONS.items()}
