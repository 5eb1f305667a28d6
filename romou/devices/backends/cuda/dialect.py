"""CUDA C++: how passes write it, and the functions that their calls need in front of a module."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from romou.devices.backends.cuda.overlapped_launches import WAIT
from romou.devices.backends.cuda.warp_group_functions import WARP_GROUP_FUNCTIONS
from romou.devices.backends.dialect import Dialect
from romou.devices.backends.ptx import needed, ptx_functions


class CudaCpp(Dialect):
    """Vectors have no operators: TVM writes each lane, and fp16 is converted in registers, as bits.

    four copies of a scalar     make_float4(x, x, x, x), by TVM
    a * b + c                   fma(a, b, c) lane by lane. NVRTC makes the same of a sum of products
    read fp16 as fp32           float_of_half(p[i]) lane by lane
    write fp32 as fp16          p[i] = half_of_float(v) lane by lane

    An external call whose type is a vector is called once for each lane.
    """

    has_vector_arithmetic = False
    has_unroll_pragma = True
    has_images = False
    widens_truth_values = True
    takes_vectors_apart = True
    converts_fp16_in_memory = False

    def vector_of(self, scalars: Sequence[tirx.Expr], dtype: str) -> tirx.Expr:
        scalar = dtype.partition("x")[0]
        return tirx.Shuffle([tirx.Cast(scalar, value) for value in scalars], list(range(len(scalars))))

    def narrowed(self, value: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern(value.ty, f"({_NARROW[str(value.ty)]})", value)

    def fp32_of_fp16(self, bits: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern(str(bits.ty).replace("uint16", "float32"), "float_of_half", bits)

    def fp16_of_fp32(self, value: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern(str(value.ty).replace("float32", "uint16"), "half_of_float", value)


_NARROW = {"int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short"}
_WORDS = {
    "FUNCTION": "__device__ __forceinline__ int ",
    "LOCAL": "",
    "GLOBAL": "",
    "LOCAL_ADDRESS": "(unsigned int)__cvta_generic_to_shared",
}
# Name -> definition. In PTX, because no wheel that compiling needs has CUDA's fp16 header.
_FUNCTIONS = {
    "wait_for_kernels_before": WAIT,
    **WARP_GROUP_FUNCTIONS,
    **ptx_functions(_WORDS),
    "float_of_half": (
        """
__device__ __forceinline__ float float_of_half(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
"""
    ),
    "half_of_float": (
        """
__device__ __forceinline__ unsigned short half_of_float(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
"""
    ),
    # `SUB_GROUP_CALL`: warps are the sub-groups, which CUDA numbers along x first.
    "sub_group_shuffle_xor_of_32": (
        """
__device__ __forceinline__ float sub_group_shuffle_xor_of_32(float x, int lanes) {
  return __shfl_xor_sync(0xffffffffu, x, lanes);
}
"""
    ),
    # `DOT_CALL`: __dp4a multiplies bytes of equal signs only, PTX those of any.
    "dot_of_bytes_ss": (
        """
__device__ __forceinline__ int dot_of_bytes_ss(unsigned int a, unsigned int b, int c) {
  return __dp4a((int)a, (int)b, c);
}
"""
    ),
    "dot_of_bytes_us": (
        """
__device__ __forceinline__ int dot_of_bytes_us(unsigned int a, unsigned int b, int c) {
  int sum;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}
"""
    ),
    "load_texel": (
        """
__device__ __forceinline__ unsigned long long load_texel(int offset, const void* texels) {
  return ((const unsigned long long*)texels)[offset];
}
"""
    ),
    "load_texel_pair": (
        """
__device__ __forceinline__ int load_texel_pair(int offset, const void* texels, unsigned long long* into) {
  ulonglong2 both = ((const ulonglong2*)texels)[offset];
  into[0] = both.x;
  into[1] = both.y;
  return 0;
}
"""
    ),
    "tensor_core_fma": (
        """
// One lane of two texels.
__device__ __forceinline__ unsigned int lane_pair(unsigned long long x, unsigned long long y, int lane) {
  unsigned int a = (unsigned int)(lane < 2 ? x : x >> 32), b = (unsigned int)(lane < 2 ? y : y >> 32);
  return __byte_perm(a, b, lane % 2 ? 0x7632 : 0x5410);
}

__device__ __forceinline__ int tensor_core_fma(int first, float* acc, unsigned long long w0, unsigned long long w1, unsigned long long w2,
                                               unsigned long long w3, unsigned long long data) {
#pragma unroll
  for (int lane = 0; lane < 4; lane += 2) {
    float* c = acc + first + lane;
    // Volatile: no lane may leave the warp alone, be its sums stored or not.
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[4]), "+f"(c[1]), "+f"(c[5])
        : "r"(lane_pair(w0, w1, lane)), "r"(lane_pair(w0, w1, lane + 1)), "r"(lane_pair(w2, w3, lane)), "r"(lane_pair(w2, w3, lane + 1)),
          "r"((unsigned int)data), "r"((unsigned int)(data >> 32)));
  }
  return 0;
}
"""  # noqa: E501
    ),
    "copy_halfs_async": (
        """
__device__ __forceinline__ int copy_halfs_async(int offset, const void* texels, int into_offset, void* into, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
      :: "l"(__cvta_generic_to_shared((char*)into + 8 * into_offset)), "l"((const char*)texels + 8LL * offset), "r"(inside ? 8 : 0));
  return 0;
}
"""  # noqa: E501
    ),
    "copy_floats_async": (
        """
__device__ __forceinline__ int copy_floats_async(int offset, const void* texels, int into_offset, void* into, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
      :: "l"(__cvta_generic_to_shared((char*)into + 16 * into_offset)), "l"((const char*)texels + 16LL * offset), "r"(inside ? 16 : 0));
  return 0;
}
"""  # noqa: E501
    ),
    "tf32_of_float": (
        """
__device__ __forceinline__ float tf32_of_float(float value) {
  unsigned int bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}
"""
    ),
    "tensor_core_fma_tf32": (
        """
// Two lanes of two texels of the weight (w: input channel, output channel), two of one of the data.
__device__ __forceinline__ void mma_tf32(float* c, float w00, float w01, float w10, float w11, float x0, float x1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[4]), "+f"(c[1]), "+f"(c[5])
      : "r"(__float_as_uint(w00)), "r"(__float_as_uint(w01)), "r"(__float_as_uint(w10)), "r"(__float_as_uint(w11)),
        "r"(__float_as_uint(x0)), "r"(__float_as_uint(x1)));
}

__device__ __forceinline__ int tensor_core_fma_tf32(int first, float* acc, float4 w0, float4 w1, float4 w2, float4 w3, float4 data) {
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
__device__ __forceinline__ float rounded(float v) { return __uint_as_float((__float_as_uint(v) + 0x1000u) & 0xffffe000u); }
__device__ __forceinline__ float4 rounded(float4 v) { return make_float4(rounded(v.x), rounded(v.y), rounded(v.z), rounded(v.w)); }

__device__ __forceinline__ float cut_off(float v) { return __uint_as_float(__float_as_uint(v) & 0xffffe000u); }
__device__ __forceinline__ float4 cut_off(float4 v) { return make_float4(cut_off(v.x), cut_off(v.y), cut_off(v.z), cut_off(v.w)); }

__device__ __forceinline__ float4 rest_of(float4 v, float4 high) {
  return make_float4(v.x - high.x, v.y - high.y, v.z - high.z, v.w - high.w);
}

// The rest of an infinite number is not a number. Without it, and without products with the weight's rest, the sum is infinite.
__device__ __forceinline__ void drop_infinite(float& high, float& low) {
  bool is_finite = low == low;
  high = is_finite ? high : 0.0f;
  low = is_finite ? low : 0.0f;
}

__device__ __forceinline__ int tensor_core_fma_tf32x3(int first, float* acc, float4 w0, float4 w1, float4 w2, float4 w3, float4 data) {
  float4 h0 = rounded(w0), h1 = rounded(w1), h2 = rounded(w2), h3 = rounded(w3), high = cut_off(data);
  float4 l0 = rest_of(w0, h0), l1 = rest_of(w1, h1), l2 = rest_of(w2, h2), l3 = rest_of(w3, h3), low = rest_of(data, high);
  float4 finite = high;
  float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  drop_infinite(finite.x, low.x), drop_infinite(finite.y, low.y), drop_infinite(finite.z, low.z), drop_infinite(finite.w, low.w);
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


def complete(source: str) -> str:
    """Return CUDA text behind the functions above that it calls, and that these call."""
    return needed(_FUNCTIONS, source) + source
