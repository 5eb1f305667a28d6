"""Kernels written by hand, launched and timed through romou.opencl.source_kernel, and images of the kinds that such
kernels declare.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tvm

FILL = """
__kernel void fill(__global float *out, float scale, int offset, uint step) {
  out[get_global_id(0)] += scale * (offset + (int)(get_global_id(0) * step));
}
"""
SUM_OF_TEXELS = """
__constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;
__kernel void texels(__read_only image2d_t plane, __read_only image1d_t row, __global float *out) {
  const int i = get_global_id(0);
  out[i] = read_imagef(plane, nearest, (int2)(i % 3, i / 3)).w + read_imagei(row, nearest, i).x;
}
"""

TEXELS_OF_WORDS = """
__kernel void words(__read_only image2d_t plane, __global uint4 *out) {
  const int i = get_global_id(0);
  out[i] = read_imageui(plane, (int2)(i % 3, i / 3));
}
"""


def kernel(source: str, name: str) -> Any:
    return tvm.get_global_func("romou.opencl.source_kernel")(0, source, name)


# Counters of what has happened so far. All others count what is alive.
SO_FAR = {"launches": 0, "created": 0, "copies": 0}


def statistics() -> dict[str, int]:
    return dict(json.loads(str(tvm.get_global_func("romou.opencl.statistics")())))


def test_arguments_of_every_type_and_a_time(opencl_device: tvm.runtime.Device) -> None:
    before = statistics()
    fill = kernel(FILL, "fill")
    out = tvm.runtime.tensor(np.zeros(64, np.float32), opencl_device)
    assert fill["launch"]("mfiu", 64, 16, out, 0.5, -3, 2) > 0
    fill["enqueue"]("mfiu", 64, 16, out, 0.5, -3, 2)
    opencl_device.sync()
    np.testing.assert_array_equal(out.numpy(), -3 + 2 * np.arange(64, dtype=np.float32))
    assert fill["private_bytes"]() >= 0
    del fill, out
    assert statistics() | SO_FAR == before | SO_FAR


def test_images_of_floats_and_integers(opencl_device: tvm.runtime.Device) -> None:
    plane, row = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.arange(24, dtype=np.int32).reshape(6, 4)
    images = [
        tvm.runtime.tensor(data, opencl_device, mem_scope=f"global.image{data.ndim - 1}d") for data in (plane, row)
    ]
    out = tvm.runtime.tensor(np.zeros(6, np.float32), opencl_device)
    kernel(SUM_OF_TEXELS, "texels")["launch"]("mmm", 6, 6, *images, out)
    np.testing.assert_array_equal(out.numpy(), plane.reshape(6, 4)[:, 3] + row[:, 0])
    for data, image in zip((plane, row), images, strict=True):
        np.testing.assert_array_equal(image.numpy(), data)
    with pytest.raises(ValueError, match="a tensor in scope 'global.image2d' has 3 axes, not 2"):
        tvm.runtime.empty((6, 4), "int32", opencl_device, mem_scope="global.image2d")
    with pytest.raises(ValueError, match="only float32 and float16 can"):
        tvm.runtime.empty((1, 6, 4), "int32", opencl_device, mem_scope="global.texture")


@pytest.mark.parametrize("scope", ["global.image2d", "global.texture-2d"])
def test_words_in_an_image_keep_all_bits(scope: str, opencl_device: tvm.runtime.Device) -> None:
    """As floats, some of them would be NaN or subnormal."""
    words = (np.arange(24, dtype=np.uint32) * 178956971).reshape(2, 3, 4)
    image = tvm.runtime.tensor(words, opencl_device, mem_scope=scope)
    np.testing.assert_array_equal(image.numpy(), words)
    out = tvm.runtime.tensor(np.zeros((6, 4), np.uint32), opencl_device)
    kernel(TEXELS_OF_WORDS, "words")["launch"]("mm", 6, 6, image, out)
    np.testing.assert_array_equal(out.numpy(), words.reshape(6, 4))


def test_a_copy_is_timed(opencl_device: tvm.runtime.Device) -> None:
    copy = tvm.get_global_func("romou.opencl.timed_copy")
    source, to = (
        tvm.runtime.tensor(values, opencl_device)
        for values in (np.arange(64, dtype=np.float32), np.zeros(64, np.float32))
    )
    assert copy(source, to, 16) >= 0
    np.testing.assert_array_equal(to.numpy(), [0, 1, 2, 3] + [0] * 60)
    with pytest.raises(
        ValueError, match="cannot copy 257 bytes: needs two buffers of one device, of so many bytes at least"
    ):
        copy(source, to, 257)


def test_wrong_launches_say_what_is_wrong(opencl_device: tvm.runtime.Device) -> None:
    out = tvm.runtime.tensor(np.zeros(64, np.float32), opencl_device)
    fill = kernel(FILL, "fill")
    with pytest.raises(ValueError, match="an argument for every letter of types; got 6 values, types 'mfiu'"):
        fill["launch"]("mfiu", 64, 16, out, 1.0, 0)
    with pytest.raises(ValueError, match="argument 1 of kernel fill has the unknown type 'x'; known are m, i, u, f"):
        fill["launch"]("mxiu", 64, 16, out, 1.0, 0, 0)
    with pytest.raises(RuntimeError, match="kernel fill; .*the kernel allows a work group of"):
        fill["launch"]("mfiu", 64, 17, out, 1.0, 0, 0)
    with pytest.raises(RuntimeError, match=r"clBuildProgram failed: .*; kernel broken; .*\nbuild log:"):
        kernel("__kernel void broken( {", "broken")
