"""Kernels with cooperative matrices run on Vulkan devices without them: the text as it is written, but for what stands for the matrices.

Every work-item has all of a factor, and 8 numbers of the sums: those that a real device gives it are unknown to a kernel as well. Work-items are numbered
backwards, as subgroups may be numbered in any order, and a subgroup waits for the whole group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from romou.backends.vulkan import build, compiler

_PRELUDE = """
// Where a factor lies: it is read when it is multiplied.
struct Factor { uint start, stride; };
struct Sums { float at[8]; };
const Sums ZEROS = Sums(float[8](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0));
const uint ITEMS = gl_WorkGroupSize.x * gl_WorkGroupSize.y * gl_WorkGroupSize.z;
#define ITEM (ITEMS - 1 - gl_LocalInvocationIndex)
#define load_column_major(matrix, array, start, stride) matrix = Factor(start, stride)
// Number n of a matrix lies in column n / 16 and row n % 16; in memory four fp16 numbers, or two floats, are one element.
#define store_column_major(matrix, array, start, stride) \\
  [[unroll]] for (uint i = 0; i < 8; i++) { \\
    uint n = ITEM % 32 * 8 + i; \\
    array[start + n / 16 * stride + n % 16 / 2][n % 2] = floatBitsToUint(matrix.at[i]); \\
  }
float number(Factor f, uint row, uint column) {
  uint pair = matrices[f.start + column * f.stride + row / 4][row / 2 % 2];
  return unpackHalf2x16(pair >> row % 2 * 16).x;
}
Sums coopMatMulAdd(Factor a, Factor b, Sums c) {
  [[dont_unroll]] for (uint k = 0; k < 16; k++) {
    [[unroll]] for (uint i = 0; i < 8; i++) {
      uint n = ITEM % 32 * 8 + i;
      c.at[i] += number(a, n % 16, k) * number(b, k, n / 16);
    }
  }
  return c;
}
"""
_REPLACED = (
    (r"#extension GL_KHR_(cooperative_matrix|memory_scope_semantics|shader_subgroup_basic) : require\n", ""),
    (r"coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>\(0\.0\)", "ZEROS"),
    (r"coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>", "Sums"),
    (r"coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUse[AB]>", "Factor"),
    (r"coopMatLoad\((.*), gl_CooperativeMatrixLayoutColumnMajor\);", r"load_column_major(\1);"),
    (r"coopMatStore\((.*), gl_CooperativeMatrixLayoutColumnMajor\);", r"store_column_major(\1);"),
    (r"gl_SubgroupID \* 32 \+ gl_SubgroupInvocationID", "ITEM"),
    (r"subgroupBarrier\(\);", "barrier();"),
    (r"void main", lambda _: f"{_PRELUDE}void main"),
    (r"#version 450\n", "#version 450\n#extension GL_EXT_control_flow_attributes : require\n"),
)


def emulated(source: str) -> str:
    """A kernel's text without cooperative matrices."""
    assert "coopMatMulAdd" in source
    for pattern, text in _REPLACED:
        source, count = re.subn(pattern, text, source)
        assert count, pattern
    return source


@contextmanager
def emulation(change: tuple[str, str] | None = None) -> Iterator[None]:
    """Compile kernels without cooperative matrices from here on; change: text and what is put in its place, for kernels that are to be wrong."""

    def compile_shaders(sources: Sequence[str]) -> list[bytes]:
        for source in sources:
            assert change is None or change[0] in source
        return compiler.compile_shaders([emulated(source.replace(*change) if change else source) for source in sources])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "compile_shaders", compile_shaders)
        yield
