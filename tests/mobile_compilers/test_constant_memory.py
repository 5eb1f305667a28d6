"""scripts/bench_constant_memory.py: how it moves a weight."""

from __future__ import annotations

import bench_constant_memory
import pytest

KERNEL = """__kernel void k(__global float4* restrict out, __global float4* restrict w_ptr) {
  const __global float4* at = w_ptr + 1;
  out[0] = at[0] + w_ptr[0];
}
"""


def test_a_constant_argument_and_its_pointers() -> None:
    text = bench_constant_memory.moved(KERNEL, "w_ptr", "__constant", 8)
    assert text == KERNEL.replace("__global float4* restrict w_ptr", "__constant float4* restrict w_ptr").replace(
        "const __global", "const __constant"
    )


def test_a_weight_by_value() -> None:
    text = bench_constant_memory.moved(KERNEL, "w_ptr", "by value", 7)
    for part in ("float4 all[2];", "const Weights weights)", "const float4* at"):
        assert part in text


def test_no_such_weight_is_an_error() -> None:
    with pytest.raises(ValueError, match="v_ptr is no buffer"):
        bench_constant_memory.moved(KERNEL, "v_ptr", "__constant", 8)
