"""OpenCL C through clspv, which phones without an OpenCL driver compile with: kernels pass, and networks are right."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest

import check_kernels
import clspv_kernels as clspv
import romou
from romou.compiler.frontend.precision import TOLERANCE
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.runtime.module import random_inputs
from romou.tools.inspection.kernels import inspect_function
from support.models.small_networks import attention_net, residual_net

pytestmark = pytest.mark.skipif(not clspv.is_installed(), reason=f"NOT TESTED: {clspv.NOT_INSTALLED}")

TYPES = """
__kernel void f(__global half* a, __read_only image2d_array_t b, float scale, __global float4* c, int n) {
  const sampler_t sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  int i = get_global_id(0);
  if (i < n) c[i] = scale * vload_half4(i, a) + read_imagef(b, sampler, (int4)(i - 1, 0, 0, 0));
}
"""


def test_a_refused_kernel_gives_the_compilers_words() -> None:
    assert "unknown type name 'flot'" in str(clspv.fault_of("__kernel void f(__global flot* a) { a[0] = 1; }"))
    with pytest.raises(clspv.ClspvError, match="End of input"):
        clspv.validate(clspv.compile_spirv(TYPES)[:-8])


def test_reflection_says_where_arguments_lie() -> None:
    spirv = clspv.compile_spirv(TYPES, clspv.RUN_OPTIONS)
    found = clspv.arguments_of(spirv)
    # A literal sampler takes the first set.
    assert found == clspv.Arguments({"a": (1, 0), "b": (1, 1), "c": (1, 2)}, {"scale": 0, "n": 4})
    bound = clspv.for_runtime(spirv, ["a", "b", "c"])
    clspv.validate(bound)
    assert clspv.arguments_of(bound) == clspv.Arguments()
    assert clspv.for_runtime(spirv, ["c", "b", "a"]) != bound


DRAW = functools.cache(check_kernels.drawer)


@pytest.mark.parametrize("number", range(0, 480, 67))
def test_drawn_configs_pass(number: int) -> None:
    """Of many operator families: default and random configs, fp32 and fp16, buffers and images.

    clspv crashes on other draws (7 and 34), or writes invalid SPIR-V (30, 32, 103). check_clspv.py prints them all.
    """
    drawn = DRAW(0, "", None)(number)
    scheduled = drawn.task.schedule(drawn.config, drawn.target)["main"]
    kernels = inspect_function(scheduled, drawn.target, config=drawn.config, without=drawn.without)
    assert kernels
    assert [clspv.fault_of(kernel.source) for kernel in kernels] == [None] * len(kernels), drawn.name


@pytest.mark.parametrize("device", ["adreno640", "mali_g76"])
@pytest.mark.parametrize(("model", "precision"), [(residual_net(), "float32"), (attention_net(), "float16")])
def test_a_network_of_clspvs_kernels_is_right(
    model: onnx.ModelProto, precision: str, device: str, vulkan_device: object
) -> None:
    kernels = romou.inspect(model, target=f"opencl -device={device}", precision=precision)
    with clspv.built_by_clspv(kernels) as (done, others):
        tuned = romou.compile(model, target=f"vulkan -device={device}", device=0, precision=precision, verify=False)
    assert len(done) > len(others)
    assert precision == "float16" or not others
    inputs = random_inputs(tuned.inputs, seed=0)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for got, wanted in zip(tuned.run(inputs), expected, strict=True):
        assert relative_l2_error(got, wanted) <= (1e-5 if precision == "float32" else TOLERANCE)
        assert np.isfinite(got).all()
