"""CUDA functions of kernels that are written out for tensor cores: products with quantized weights, and attention
(`tensor_core_kernel.py` in `operators/quantized` and `operators/attention`).

Offsets into local memory are in units of 16 bytes, unless a name says otherwise.
"""

from __future__ import annotations

from romou.devices.backends.dialect import WARP_GROUP_COLUMNS


def _warp_group_product(columns: int) -> str:
    """Return the function that multiplies 64 rows of weights with `columns` rows of activations, 16 deep.

    Activations are in local memory in rows of 128 bytes, whose units of 16 bytes are swizzled (PTX ISA, "Matrix
    Descriptor Format": SWIZZLE_128B, groups of eight rows are 1024 bytes apart).
    """
    count = columns // 2
    sums = ", ".join(f"%{number}" for number in range(count))
    weights = ", ".join(f"%{count + number}" for number in range(4))
    outputs = ", ".join(f'"+f"(sums[{number}])' for number in range(count))
    return f"""
__device__ __forceinline__ int warp_group_product_{columns}(int first, float* sums, int at, const unsigned int* weights, int offset, const void* staged) {{
  sums += first, weights += at;
  unsigned long long address = (unsigned long long)__cvta_generic_to_shared((const char*)staged + 16 * offset);
  unsigned long long matrix = (address & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
  asm volatile("{{\\n.reg .pred p;\\nsetp.eq.u32 p, 0, 0;\\nwgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{sums}}}, {{{weights}}}, %{count + 4}, p, 1, 1, 0;\\n}}"
      : {outputs}
      : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "l"(matrix));
  return 0;
}}
"""  # noqa: E501


def _load_matrices(name: str, comment: str, kind: str = "") -> str:
    """Return the function that loads four matrices of 8 x 8 fp16 numbers from local memory. kind: of `ldmatrix`."""
    return f"""
// {comment}
__device__ __forceinline__ int {name}(int offset, const void* staged, int first, unsigned int* into) {{
  into += first;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
      : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3]) : "l"(__cvta_generic_to_shared((const char*)staged + 16 * offset)) : "memory");
  return 0;
}}
"""  # noqa: E501


# Name -> definition.
QUANTIZED_FUNCTIONS = {
    **{f"warp_group_product_{columns}": _warp_group_product(columns) for columns in WARP_GROUP_COLUMNS},
    "begin_warp_group_products": (
        """
__device__ __forceinline__ int begin_warp_group_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  return 0;
}
"""
    ),
    "end_warp_group_products": (
        """
__device__ __forceinline__ int end_warp_group_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  return 0;
}
"""
    ),
    "wait_for_warp_group_products": (
        """
// No instruction may read the sums before. The empty ones read and write them behind the wait.
__device__ __forceinline__ int wait_for_warp_group_products(int count, float* sums) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i]) :: "memory");
  return 0;
}
"""
    ),
    "show_copies_to_warp_groups": (
        """
// Warp groups read local memory through the asynchronous proxy.
__device__ __forceinline__ int show_copies_to_warp_groups() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  return 0;
}
"""
    ),
    "copy_unit_async": (
        """
__device__ __forceinline__ int copy_unit_async(int into_offset, void* into, int offset, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      :: "l"(__cvta_generic_to_shared((char*)into + 16 * into_offset)), "l"((const char*)from + 16LL * offset), "r"(inside ? 16 : 0));
  return 0;
}
"""  # noqa: E501
    ),
    "end_group_of_copies": (
        """
__device__ __forceinline__ int end_group_of_copies() {
  asm volatile("cp.async.commit_group;");
  return 0;
}
"""
    ),
    "wait_for_copies": (
        """
// Waits until at most `in_flight` groups of copies are not complete.
__device__ __forceinline__ int wait_for_copies(int in_flight) {
  if (in_flight == 0) asm volatile("cp.async.wait_group 0;");
  else if (in_flight == 1) asm volatile("cp.async.wait_group 1;");
  else asm volatile("cp.async.wait_group 2;");
  return 0;
}
"""
    ),
    "load_codes": (
        """
// Two neighbouring words of a chunk of two rows, eight rows apart, with the work-item's first code in the lowest bits.
__device__ __forceinline__ int load_codes(int words_offset, const void* staged, int shift, int first, unsigned int* into) {
  uint2 upper = *(const uint2*)((const unsigned int*)staged + words_offset), lower = *(const uint2*)((const unsigned int*)staged + words_offset + 32);
  into += first;
  into[0] = upper.x >> shift, into[1] = upper.y >> shift, into[2] = lower.x >> shift, into[3] = lower.y >> shift;
  return 0;
}
"""  # noqa: E501
    ),
    "load_scale": (
        """
// Two copies of a scale in fp16.
__device__ __forceinline__ unsigned int load_scale(int scales_offset, const void* staged) {
  unsigned int scale = ((const unsigned short*)staged)[scales_offset];
  return scale * 0x10001u;
}
"""
    ),
    "load_zero": (
        """
// Two copies of 1024 + a zero point in fp16.
__device__ __forceinline__ unsigned int load_zero(int zeros_offset, const void* staged) {
  unsigned int zero = ((const unsigned char*)staged)[zeros_offset];
  return zero * 0x10001u + 0x64006400u;
}
"""
    ),
    "weights_of_codes": (
        """
// fp16 numbers (code - zero point) * scale of two codes. 1024 + code is a code in the lowest bits of an fp16 number.
__device__ __forceinline__ unsigned int weights_of_pair(unsigned int x, unsigned int y, int bit, unsigned int mask, unsigned int zero, unsigned int scale) {
  int byte = bit / 8;
  unsigned int pair = (__byte_perm(x >> bit % 8, y >> bit % 8, byte | byte << 4 | (byte + 4) << 8 | (byte + 4) << 12) & mask) | 0x64006400u;
  asm("sub.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(zero));
  asm("mul.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(scale));
  return pair;
}

// The weights of two rows in 16 depths. `bit`: position of the first code. `next`: bits to the code eight depths on.
__device__ __forceinline__ int weights_of_codes(int first, const unsigned int* codes, int bit, int next, unsigned int mask, int row, const unsigned int* zeros,
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
__device__ __forceinline__ unsigned int fp16_pair(float lower, float upper) {
  unsigned int pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
}
"""
    ),
    "multiply_weights": (
        """
// 16 rows of weights times eight rows of activations, 16 deep.
__device__ __forceinline__ int multiply_weights(int first, float* sums, int at, const unsigned int* weights, int number, const unsigned int* activations) {
  sums += first, weights += at, activations += number;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "r"(activations[0]), "r"(activations[1]));
  return 0;
}
"""  # noqa: E501
    ),
}
