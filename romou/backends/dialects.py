"""How OpenCL C and CUDA C++ spell what TIR has no word for: the one place for text that passes put into kernels.

                                OpenCL                          CUDA
    four copies of a scalar     (float4)(x)                     make_float4(x, x, x, x), by TVM
    a scalar times a vector     x * v                           lane by lane, by TVM: CUDA's vectors know no arithmetic
    a * b + c                   mad(a, b, c), fma(a, b, c)      fma(a, b, c) lane by lane; its compiler makes the same of a sum of products
    read halfs as floats        vload_half4(i, (half*)p)        float_of_half(p[i]) lane by lane
    write floats as halfs       vstore_half4(v, i, (half*)p)    p[i] = half_of_float(v) lane by lane

An external call with a vector as its type is called once in OpenCL, and once for each lane in CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

OPENCL, CUDA = "opencl", "cuda"
_NAMES = {"float32": "float", "float16": "half"}


def dialect_of(func: tirx.PrimFunc) -> str:
    """The language that a function bound to a target is going to be written in; OpenCL where none is bound."""
    target = func.attrs.get("target", None) if func.attrs else None
    return CUDA if target is not None and str(target.kind.name) == CUDA else OPENCL


def broadcast(scalar: tirx.Expr, dtype: str) -> tirx.Expr:
    """A vector of copies (OpenCL)."""
    base, _, lanes = dtype.partition("x")
    return tirx.call_pure_extern(dtype, f"({_NAMES[base]}{lanes})", scalar)


def bare_scalar(scalar: tirx.Expr, dtype: str) -> tirx.Expr:
    """A scalar in the place of a vector (OpenCL): a call of a function without a name prints its argument in parentheses."""
    return tirx.call_pure_extern(dtype, "", scalar)


def half_pointer(start: tirx.Expr, scope: str) -> tirx.Expr:
    """A pointer to halfs that are declared as anything else (OpenCL)."""
    # Declared to return a number: the code generator would cast a pointer to void*, which has no address space.
    return tirx.call_pure_extern("int32", f"(__{scope} half*)", start)


def load_halfs(offset: tirx.Expr, pointer: tirx.Expr, lanes: int) -> tirx.Expr:
    """As many halfs from pointer[lanes * offset] on, as floats (OpenCL)."""
    suffix = "" if lanes == 1 else str(lanes)
    return tirx.call_pure_extern(_vector("float32", lanes), f"vload_half{suffix}", offset, pointer)


def store_halfs(value: tirx.Expr, offset: tirx.Expr, pointer: tirx.Expr, lanes: int) -> tirx.Stmt:
    """Write floats as halfs from pointer[lanes * offset] on (OpenCL)."""
    suffix = "" if lanes == 1 else str(lanes)
    return tirx.Evaluate(tirx.call_extern("int32", f"vstore_half{suffix}", value, offset, pointer))


def floats_of_halfs(bits: tirx.Expr) -> tirx.Expr:
    """The bits of halfs, as unsigned integers, as floats (CUDA)."""
    return tirx.call_pure_extern(str(bits.ty).replace("uint16", "float32"), "float_of_half", bits)


def halfs_of_floats(value: tirx.Expr) -> tirx.Expr:
    """The bits of floats rounded to halfs, as unsigned integers (CUDA)."""
    return tirx.call_pure_extern(str(value.ty).replace("float32", "uint16"), "half_of_float", value)


def load_texel(offset: tirx.Expr, buffer: tirx.Var) -> tirx.Expr:
    """Four halfs from buffer[4 * offset] on, as they lie in memory: 64 bits (CUDA)."""
    return tirx.call_pure_extern("uint64", "load_texel", offset, buffer.data)


def load_texel_pair(offset: tirx.Expr, buffer: tirx.Var, into: tirx.Var) -> tirx.Stmt:
    """Read the eight halfs from buffer[8 * offset] on, as they lie in memory, into two numbers of 64 bits (CUDA)."""
    return tirx.Evaluate(tirx.call_extern("int32", "load_texel_pair", offset, buffer.data, into.data))


def copy_texel_async(offset: tirx.Expr, buffer: tirx.Var, into_offset: tirx.Expr, into: tirx.Var, inside: tirx.Expr) -> tirx.Stmt:
    """Begin to copy the texel buffer[4 * offset] and on to into[4 * into_offset] and on, in local memory; zeros where it is not `inside` (CUDA)."""
    name = "copy_floats_async" if str(buffer.dtype) == "float32" else "copy_halfs_async"
    return tirx.Evaluate(tirx.call_extern("int32", name, offset, buffer.data, into_offset, into.data, inside))


def tf32s_of_floats(value: tirx.Expr) -> tirx.Expr:
    """Floats rounded to TF32: to the nearest, and away from zero where two are equally near (CUDA)."""
    return tirx.call_pure_extern(str(value.ty), "tf32_of_float", value)


def tensor_core_fma(acc: tirx.Var, first: int, weight: Sequence[tirx.Expr], data: tirx.Expr) -> tirx.Stmt:
    """Add what a warp's tensor cores make of its texels to acc[first + 4 * pixel + lane], for two pixels and four lanes (CUDA).

    weight: four output channels for each of four input channels.   data: four input channels.   Both are bits of halfs, or floats rounded to TF32.
    """
    name = "tensor_core_fma_tf32" if "float32" in str(data.ty) else "tensor_core_fma"
    return tirx.Evaluate(tirx.call_extern("int32", name, first, acc.data, *weight, data))


def _vector(base: str, lanes: int) -> str:
    return base if lanes == 1 else f"{base}x{lanes}"


# Name -> definition. In PTX, since CUDA's header of halfs is in no wheel that compiling needs.
_CUDA_FUNCTIONS = {
    "float_of_half": """
__device__ __forceinline__ float float_of_half(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
""",
    "half_of_float": """
__device__ __forceinline__ unsigned short half_of_float(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
""",
    "load_texel": """
__device__ __forceinline__ unsigned long long load_texel(int offset, const void* texels) {
  return ((const unsigned long long*)texels)[offset];
}
""",
    "load_texel_pair": """
__device__ __forceinline__ int load_texel_pair(int offset, const void* texels, unsigned long long* into) {
  ulonglong2 both = ((const ulonglong2*)texels)[offset];
  into[0] = both.x;
  into[1] = both.y;
  return 0;
}
""",
    "tensor_core_fma": """
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
""",
    "copy_halfs_async": """
__device__ __forceinline__ int copy_halfs_async(int offset, const void* texels, int into_offset, void* into, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
      :: "l"(__cvta_generic_to_shared((char*)into + 8 * into_offset)), "l"((const char*)texels + 8LL * offset), "r"(inside ? 8 : 0));
  return 0;
}
""",
    "copy_floats_async": """
__device__ __forceinline__ int copy_floats_async(int offset, const void* texels, int into_offset, void* into, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
      :: "l"(__cvta_generic_to_shared((char*)into + 16 * into_offset)), "l"((const char*)texels + 16LL * offset), "r"(inside ? 16 : 0));
  return 0;
}
""",
    "tf32_of_float": """
__device__ __forceinline__ float tf32_of_float(float value) {
  unsigned int bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}
""",
    "tensor_core_fma_tf32": """
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
""",
}


def complete_cuda(source: str) -> str:
    """CUDA text with the functions above that it calls in front of it."""
    return "".join(text for name, text in _CUDA_FUNCTIONS.items() if f"{name}(" in source) + source
