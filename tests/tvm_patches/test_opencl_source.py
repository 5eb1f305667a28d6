"""Handwritten OpenCL C through the door that TVM's code generator uses, ffi.Module.create.opencl."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest
import tvm

# Texels are floats inside the kernel in any image type: every device converts, not every one computes in fp16.
DOUBLE_TEXELS = """
__constant sampler_t plain = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
__kernel void double_texels(__read_only image2d_array_t source, __write_only image2d_array_t result) {
  int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
  write_imagef(result, at, 2.0f * read_imagef(source, plain, at));
}
"""

# Each kernel after its marker is compiled separately. The text before the first marker belongs to all of them.
TWO_PARTS = """#define FACTOR 3.0f
// Function: grow
__kernel void grow(__global float* values) { values[get_global_id(0)] *= FACTOR; }
// Function: shift
__kernel void shift(__global float* values, float by, int times) { values[get_global_id(0)] += FACTOR * by * times; }
"""


def module_of(source: str, **kernels: tuple[list[str], list[str]]) -> tvm.runtime.Module:
    """Return a module of kernels. `kernels`: name -> argument types, launch parameters."""
    facts = {
        name: {"name": name, "arg_types": types, "launch_param_tags": tags, "arg_extra_tags": []}
        for name, (types, tags) in kernels.items()
    }
    functions = tvm.get_global_func("runtime.LoadMetaDataFromJSON")(json.dumps({"func_info": facts}))
    return tvm.get_global_func("ffi.Module.create.opencl")(source.encode(), "cl", functions, {"cl": source})


def data_of(tensor: tvm.runtime.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("scope", "shape", "extent"),
    [
        ("global.texture", (2, 3, 5, 7, 4), (7, 5, 6)),
        ("global.texture-weight", (3, 5, 2, 2, 4), (20, 3, 1)),
        ("global.texture-nhwc", (2, 3, 5, 7, 4), (35, 3, 2)),
    ],
)
def test_a_kernel_finds_the_texels_of_every_scope(
    opencl_device: tvm.runtime.Device, dtype: str, scope: str, shape: tuple[int, ...], extent: tuple[int, int, int]
) -> None:
    """Run over exactly the width, height and layers that the scope promises: a wrong extent leaves zeros or texels out."""  # noqa: E501
    tags = ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x"]
    kernel = module_of(DOUBLE_TEXELS, double_texels=(["handle", "handle"], tags))["double_texels"]
    array = np.random.default_rng(4).standard_normal(shape).astype(dtype)
    source = tvm.runtime.empty(shape, dtype, opencl_device, mem_scope=scope).copyfrom(array)
    result = tvm.runtime.empty(shape, dtype, opencl_device, mem_scope=scope).copyfrom(np.zeros(shape, dtype))
    kernel(data_of(source), data_of(result), *extent, 1)
    np.testing.assert_array_equal(result.numpy(), 2 * array)


def two_parts() -> tvm.runtime.Module:
    tags = ["blockIdx.x", "threadIdx.x"]
    return module_of(TWO_PARTS, grow=(["handle"], tags), shift=(["handle", "float32", "int32"], tags))


@pytest.mark.parametrize("is_loaded", [False, True])
def test_kernels_share_what_stands_before_them(
    opencl_device: tvm.runtime.Device, is_loaded: bool, tmp_path: Path
) -> None:
    module = two_parts()
    if is_loaded:
        host = tvm.IRModule({})
        library = tvm.tirx.build(host, target="llvm")
        library.import_module(module)
        library.export_library(str(tmp_path / "parts.so"))
        (module,) = tvm.runtime.load_module(str(tmp_path / "parts.so")).imports
    assert module.inspect_source() == TWO_PARTS
    values = tvm.runtime.tensor(np.arange(32, dtype="float32"), opencl_device)
    module["grow"](data_of(values), 4, 8)
    module["shift"](data_of(values), 0.5, 2, 4, 8)
    np.testing.assert_array_equal(values.numpy(), np.arange(32) * 3 + 3)


def test_a_kernel_that_is_not_in_the_source(opencl_device: tvm.runtime.Device) -> None:
    module = module_of(
        "__kernel void here(__global float* values) {}", elsewhere=(["handle"], ["blockIdx.x", "threadIdx.x"])
    )
    values = tvm.runtime.empty((1,), "float32", opencl_device)
    with pytest.raises(
        RuntimeError, match=r"clCreateKernel failed: CL_INVALID_KERNEL_NAME \(-46\); kernel elsewhere; device opencl:0"
    ):
        module["elsewhere"](data_of(values), 1, 1)


def test_images_are_read_through_a_sampler_on_every_version_of_opencl() -> None:
    """The code generator's own version drops the sampler on devices of other versions than 2.0 and 3.0. Reads outside
    the image are undefined then.
    """
    header = """#ifdef __OPENCL_VERSION__
#if __OPENCL_VERSION__ == CL_VERSION_2_0 || __OPENCL_VERSION__ == CL_VERSION_3_0 
#define READ_IMAGEH(image, sampler, coord) read_imageh(image, sampler, coord)
#define READ_IMAGEF(image, sampler, coord) read_imagef(image, sampler, coord)
#else
#define READ_IMAGEH(image, sampler, coord) read_imageh(image, coord)
#define READ_IMAGEF(image, sampler, coord) read_imagef(image, coord)
#endif
#endif
"""  # noqa: W291
    source = f"// Function: a\n{header}__kernel void a() {{}}\n// Function: b\n{header}__kernel void b() {{}}\n"
    text = module_of(source, a=([], []), b=([], [])).inspect_source()
    assert text.count("read_imagef(image, sampler, coord)") == text.count("read_imageh(image, sampler, coord)") == 2
    assert "OPENCL_VERSION" not in text
    assert "read_imagef(image, coord)" not in text
