"""Runs kernels with cooperative matrices on Vulkan devices without them. The text is unchanged except for replacements
of the matrices.

Every work-item has a whole factor, and 8 numbers of the sums. Which numbers of the sums a real device gives it is
unknown to a kernel as well. Work-items are numbered backwards, as subgroups may be numbered in any order, and a
subgroup waits for the whole group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm

from romou.base.space import Config
from romou.compiler.assembly.kernel import build_task
from romou.compiler.task import TunableTask
from romou.devices.backends import backend
from romou.devices.backends.vulkan import build, glslang
from romou.devices.targets import Target
from support.kernels.operators import device_tensor, error_of, random_arrays, reference

_SEED = 20

_PRELUDE = """
// Where a factor lies: it is read when it is multiplied.
struct Factor { uint start, stride; };
struct Sums { float at[8]; };
const Sums ZEROS = Sums(float[8](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0));
const uint ITEMS = gl_WorkGroupSize.x * gl_WorkGroupSize.y * gl_WorkGroupSize.z;
#define ITEM (ITEMS - 1 - gl_LocalInvocationIndex)
#define load_column_major(matrix, array, start, stride) matrix = Factor(start, stride)
// Number n of a matrix lies in column n / 16 and row n % 16; in memory four numbers are one element.
#define store_column_major(matrix, array, start, stride) \\
  [[unroll]] for (uint i = 0; i < 8; i++) { \\
    uint n = ITEM % 32 * 8 + i; \\
    array[start + n / 16 * stride + n % 16 / 4][n % 4] = matrix.at[i]; \\
  }
float number(Factor f, uint row, uint column) {
  uint pair = operands[f.start + column * f.stride + row / 4][row / 2 % 2];
  return unpackHalf2x16(pair >> row % 2 * 16).x;
}
Sums coopMatMulAdd(Factor a, Factor b, Sums c) {
  [[dont_unroll]] for (uint k = 0; k < 16; k++) {
    [[dont_unroll]] for (uint i = 0; i < 8; i++) {
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
    """Return a kernel's text with cooperative matrices replaced."""
    assert "coopMatMulAdd" in source
    for pattern, text in _REPLACED:
        source, count = re.subn(pattern, text, source)
        assert count, pattern
    return source


def emulated_error(task: TunableTask, config: Config, target: Target, change: Callable[[str], str] = str) -> float:
    """Return the relative L2 error of a config with its kernel compiled without cooperative matrices.

    `change` edits the kernel's text first, to make it wrong.
    """

    def compile_shaders(sources: Sequence[str]) -> list[bytes]:
        return glslang.compile_shaders([emulated(change(source)) for source in sources])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "compile_shaders", compile_shaders)
        module = build_task(task, config, target)
    return error_on_device(task, config, module)


def error_on_device(task: TunableTask, config: Config, module: tvm.runtime.Module) -> float:
    """Return the relative L2 error of a built config on the attached Vulkan device."""
    arrays = random_arrays(task, np.random.default_rng(_SEED))
    tensors = [device_tensor(array, backend("vulkan").device(), "global") for array in task.arguments(arrays, config)]
    module["main"](*tensors)
    return error_of(tensors[-1].numpy().astype(np.float64), reference(task, arrays))
