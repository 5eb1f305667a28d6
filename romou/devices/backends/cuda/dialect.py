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
    "INLINE": "__device__ __forceinline__ ",
    "LOCAL": "",
    "GLOBAL": "",
    "LOCAL_ADDRESS": "(unsigned int)__cvta_generic_to_shared",
    "TEXEL": "unsigned long long ",
    "FLOATS": "make_float4",
    "BITS_OF": "__float_as_uint",
    "FLOAT_OF": "__uint_as_float",
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
    # A state and its number in one word of 64 bits, which the other groups see at once (recurrent_groups.py).
    "publish_state": (
        """
__device__ __forceinline__ int publish_state(int at, float* states, float state, int number) {
  unsigned long long both = (unsigned long long)(unsigned int)number << 32 | __float_as_uint(state);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"((unsigned long long*)states + at), "l"(both));
  return 0;
}
"""
    ),
    "wait_for_state": (
        """
__device__ __forceinline__ float wait_for_state(int at, float* states, int number) {
  unsigned long long both;
  do asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(both) : "l"((unsigned long long*)states + at));
  while ((int)(both >> 32) != number);
  return __uint_as_float((unsigned int)both);
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
    "tf32_of_float": (
        """
__device__ __forceinline__ float tf32_of_float(float value) {
  unsigned int bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}
"""
    ),
}


def complete(source: str) -> str:
    """Return CUDA text after the functions above that it calls, and that these call."""
    return needed(_FUNCTIONS, source) + source
