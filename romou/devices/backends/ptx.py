"""Functions in PTX for kernels that are written out for tensor cores: products with quantized weights, and attention
(`tensor_core_kernel.py` in `operators/quantized` and `operators/attention`). CUDA C++ and NVIDIA's OpenCL C take them.

Offsets into local memory are in units of 16 bytes, unless a name says otherwise. A language says what stands for

    FUNCTION          the beginning of a function that returns an int, and is written into its callers
    LOCAL, GLOBAL     the address space of a pointer
    LOCAL_ADDRESS(p)  the 32-bit address of a pointer to local memory, as PTX takes it
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# The first compute capability with these instructions, in tenths (PTX ISA).
PTX_PRODUCTS_FROM = 80


def _load_matrices(name: str, comment: str, kind: str = "") -> str:
    """Return the function that loads four matrices of 8 x 8 fp16 numbers from local memory. kind: of `ldmatrix`."""
    return f"""
// {comment}
FUNCTION {name}(int offset, LOCAL const void* staged, int first, unsigned int* into) {{
  into += first;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
      : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3]) : "r"(LOCAL_ADDRESS((LOCAL const char*)staged + 16 * offset)) : "memory");
  return 0;
}}
"""  # noqa: E501


# Name -> definition. A function calls earlier ones only.
_FUNCTIONS = {
    "copy_unit_async": (
        """
FUNCTION copy_unit_async(int into_offset, LOCAL void* into, int offset, GLOBAL const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      :: "r"(LOCAL_ADDRESS((LOCAL char*)into + 16 * into_offset)), "l"((GLOBAL const char*)from + 16 * (size_t)offset), "r"(inside ? 16 : 0) : "memory");
  return 0;
}
"""  # noqa: E501
    ),
    "end_group_of_copies": (
        """
FUNCTION end_group_of_copies() {
  asm volatile("cp.async.commit_group;");
  return 0;
}
"""
    ),
    "wait_for_copies": (
        """
// Waits until at most `in_flight` groups of copies are not complete.
FUNCTION wait_for_copies(int in_flight) {
  if (in_flight == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
  else if (in_flight == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
  else asm volatile("cp.async.wait_group 2;" ::: "memory");
  return 0;
}
"""
    ),
    "load_codes": (
        """
// Two neighbouring words of a chunk of two rows, eight rows apart, with the work-item's first code in the lowest bits.
FUNCTION load_codes(int words_offset, LOCAL const void* staged, int shift, int first, unsigned int* into) {
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
FUNCTION load_scale(int scales_offset, LOCAL const void* staged) {
  return ((LOCAL const unsigned short*)staged)[scales_offset] * 0x10001;
}
"""
    ),
    "load_zero": (
        """
// Two copies of 1024 + a zero point in fp16.
FUNCTION load_zero(int zeros_offset, LOCAL const void* staged) {
  return ((LOCAL const unsigned char*)staged)[zeros_offset] * 0x10001 + 0x64006400;
}
"""
    ),
    "weights_of_codes": (
        """
// fp16 numbers (code - zero point) * scale of two codes. 1024 + code is a code in the lowest bits of an fp16 number.
FUNCTION weights_of_pair(unsigned int x, unsigned int y, int bit, unsigned int mask, unsigned int zero, unsigned int scale) {
  int byte = bit / 8;
  unsigned int pair;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(pair) : "r"(x >> bit % 8), "r"(y >> bit % 8), "r"(byte | byte << 4 | (byte + 4) << 8 | (byte + 4) << 12));
  pair = (pair & mask) | 0x64006400u;
  asm("sub.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(zero));
  asm("mul.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(scale));
  return (int)pair;
}

// The weights of two rows in 16 depths. `bit`: position of the first code. `next`: bits to the code eight depths on.
FUNCTION weights_of_codes(int first, const unsigned int* codes, int bit, int next, unsigned int mask, int row, const unsigned int* zeros,
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
FUNCTION fp16_pair(float lower, float upper) {
  unsigned int pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return (int)pair;
}
"""
    ),
    "multiply_weights": (
        """
// 16 rows of weights times eight rows of activations, 16 deep.
FUNCTION multiply_weights(int first, float* sums, int at, const unsigned int* weights, int number, const unsigned int* activations) {
  sums += first, weights += at, activations += number;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "r"(activations[0]), "r"(activations[1]));
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
