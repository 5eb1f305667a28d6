"""CUDA functions of kernels in which four warps multiply matrices together (wgmma): products with quantized weights.

Offsets into local memory are in units of 16 bytes.
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


# Name -> definition.
WARP_GROUP_FUNCTIONS = {
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
}
