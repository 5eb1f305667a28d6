"""Rounding to whole numbers in OpenCL C is NumPy's, for numbers and vectors, with the text in front of kernels."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from romou.devices.backends.opencl import rounding

NUMBERS = np.array(
    [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, -0.0, 8388607.5, -8388609.0, 3e38, np.inf, -np.inf, np.nan, 1e-40, 7],
    np.float32,
)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_rounding(lanes: int, opencl_device: tvm.runtime.Device) -> None:
    number = f"float{lanes if lanes > 1 else ''}"
    kernel = rounding.renamed(f"""__kernel void rounded(__global {number}* x, __global {number}* y) {{
  y[get_global_id(0)] = rint(x[get_global_id(0)]);
}}
""")
    assert "round_even(x[" in kernel
    text = rounding.definitions([kernel])
    x = tvm.runtime.tensor(NUMBERS, opencl_device)
    y = tvm.runtime.tensor(np.zeros_like(NUMBERS), opencl_device)
    launch = tvm.get_global_func("romou.opencl.source_kernel")(0, text + kernel, "rounded")["launch"]
    launch("mm", len(NUMBERS) // lanes, 1, x, y)
    np.testing.assert_array_equal(y.numpy(), np.rint(NUMBERS))
    np.testing.assert_array_equal(np.signbit(y.numpy()), np.signbit(np.rint(NUMBERS)))


@pytest.mark.parametrize("number", ["double", "half4"])
def test_other_types_keep_the_languages_function(number: str) -> None:
    kernel = f"__kernel void rounded(__global {number}* x) {{ x[0] = rint(x[0]); }}"
    assert rounding.renamed(kernel) == kernel
    assert rounding.definitions([kernel]) == ""


def test_other_functions_keep_their_names() -> None:
    kernel = "__kernel void sprint(__global float* x) { x[0] = floor(x[0]); }"
    assert rounding.renamed(kernel) == kernel
    assert rounding.definitions([kernel]) == ""
