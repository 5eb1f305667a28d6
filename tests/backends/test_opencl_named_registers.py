"""Private arrays that are only accessed at constant indices become variables; all others stay arrays."""

from __future__ import annotations

import numpy as np
import pytest

from romou.devices.backends.opencl.named_registers import named
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import conv, task_of

CONVERTED = {
    "vectors": (
        "  float4 acc_local_ptr[2];\n  acc_local_ptr[1] = mad(a, (acc_local_ptr[0]).s1, acc_local_ptr[1]);\n",
        "  float4 acc_local_0, acc_local_1;\n  acc_local_1 = mad(a, (acc_local_0).s1, acc_local_1);\n",
    ),
    "lanes of vectors": (
        "  half x_ptr[12];\n  vstore4((a + vload4(0, x_ptr + 0)), 0, x_ptr + 8);\n  x_ptr[6] = x_ptr[11];\n",
        "  half4 x_0, x_1, x_2;\n  x_2 = (a + x_0);\n  x_1.s2 = x_2.s3;\n",
    ),
    "sixteen lanes": (
        "  uchar x_ptr[16];\n  y = vload16(0, x_ptr + 0);\n  x_ptr[13] = 1;\n",
        "  uchar16 x_0;\n  y = x_0;\n  x_0.sd = 1;\n",
    ),
    "names of two arrays": (
        "  int x_ptr[1];\n  int x[1];\n  x_ptr[0] = x[0];\n",
        "  int x_0;\n  int x__0;\n  x_0 = x__0;\n",
    ),
    "no name": (
        "  int _ptr[2];\n  _ptr[0] = _ptr[1];\n",
        "  int _0, _1;\n  _0 = _1;\n",
    ),
    "a taken name": (
        "  int x_ptr[1];\n  int x_0 = 3;\n  x_ptr[0] = x_0;\n",
        "  int x__0;\n  int x_0 = 3;\n  x__0 = x_0;\n",
    ),
}
KEPT = {
    "a computed index": "  float x_ptr[4];\n  x_ptr[0] = x_ptr[i];\n",
    "a computed offset": "  float x_ptr[8];\n  y = vload4(0, x_ptr + at);\n",
    "an argument of a call": "  float x_ptr[4];\n  f(x_ptr, x_ptr[0]);\n",
    "an address": "  float x_ptr[4];\n  store_unaligned_float4(v, &(x_ptr[0]));\n",
    "a cast": "  uint x_ptr[4];\n  y = *(float4*)(x_ptr + 0);\n",
    "vectors of two widths": "  float x_ptr[8];\n  y = vload4(0, x_ptr + 4);\n  z = vload2(0, x_ptr + 0);\n",
    "vectors across two": "  float x_ptr[8];\n  y = vload4(0, x_ptr + 2);\n",
    "local memory": "  __local float x_ptr[4];\n  x_ptr[0] = 1;\n",
    "another alignment": "  float x_ptr[4] __attribute__((aligned(64)));\n  x_ptr[0] = 1;\n",
}


@pytest.mark.parametrize(("before", "after"), CONVERTED.values(), ids=CONVERTED)
def test_arrays_become_variables(before: str, after: str) -> None:
    assert named(before) == after


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_other_arrays_stay(body: str) -> None:
    assert named(body) == body


@pytest.mark.parametrize("device", ["adreno740", "mali_g710"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kernels_of_a_convolution_have_no_private_array(device: str, dtype: str) -> None:
    target = Target(f"opencl -device={device}")
    task = task_of(conv(16, (9, 11), 20, (3, 3), dtype)).with_free_images()
    configs = [task.default_config(target), *task.space(target).sample(np.random.default_rng(3), 4)]
    for config in configs:
        for kernel in inspect_function(task.schedule(config, target)["main"], target, config=config):
            lines = [line for line in kernel.source.splitlines() if line.endswith("];") and "__local" not in line]
            assert not [line for line in lines if " = " not in line], config
