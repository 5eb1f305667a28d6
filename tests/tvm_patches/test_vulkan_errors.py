"""Errors of the Vulkan runtime for kernels that a device cannot run, for failing drivers, and for missing drivers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tvm

from support.kernels import glsl
from support.kernels.glsl import launch

BARE = (
    "layout(local_size_x = SIZE) in;\nlayout(std430, binding = 0) buffer B { float b[]; };\nDECLARATION void main() {"
    " STATEMENT }\n"
)


def bare(size: int = 1, declaration: str = "", statement: str = "b[gl_GlobalInvocationID.x] = 1.0;") -> str:
    return BARE.replace("SIZE", str(size)).replace("DECLARATION", declaration).replace("STATEMENT", statement)


@pytest.mark.parametrize(
    ("source", "args", "fields", "message"),
    [
        (
            bare(1024),
            ["buffer:w"],
            {"local_size": [1025, 1, 1]},
            r"needs 1025 work-items in a work group; .* allows \d+ \(maxComputeWorkGroupInvocations\)",
        ),
        (
            bare(),
            ["buffer:w"],
            {"shared_bytes": 1 << 30},
            r"needs 1073741824 bytes of shared memory; .* \(maxComputeSharedMemorySize\)",
        ),
        (
            bare(),
            ["buffer:w", "scalar:int32"],
            {"push_offsets": [4096]},
            r"needs 4100 bytes of scalars; .* \(maxPushConstantsSize\)",
        ),
    ],
)
def test_a_limit_of_the_device_is_named(
    vulkan_device: tvm.runtime.Device, source: str, args: list[str], fields: dict[str, Any], message: str
) -> None:
    module = glsl.module(odd=glsl.entry(source, args, **fields))
    with pytest.raises(RuntimeError, match=f"kernel odd {message}"):
        tvm.get_global_func("romou.vulkan.compile")(module, vulkan_device.index)


def test_more_buffers_than_a_kernel_may_have(vulkan_device: tvm.runtime.Device) -> None:
    count = (
        json.loads(str(tvm.get_global_func("romou.vulkan.devices")()))[vulkan_device.index]["max_storage_buffers"] + 1
    )
    with pytest.raises(
        RuntimeError, match=rf"kernel odd needs {count} storage buffers; .* \(maxPerStageDescriptorStorageBuffers\)"
    ):
        tvm.get_global_func("romou.vulkan.compile")(
            glsl.module(odd=glsl.entry(bare(), ["buffer:w"] * count)), vulkan_device.index
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"args": ["buffer:x"]}, "kernel odd has an unknown argument 'buffer:x'; known are buffer:ACCESS"),
        ({"args": ["image:r:int8"]}, "unknown argument 'image:r:int8'"),
        (
            {"args": ["scalar:int32"], "push_offsets": [0]},
            "argument 0 of kernel odd is 'scalar:int32' and has the type handle",
        ),
        ({"push_offsets": [0]}, "kernel odd has 1 args of 1 types, 0 scalars at 1 push_offsets"),
        ({"spirv": b"no SPIR-V at all, but long"}, "kernel odd is no SPIR-V module"),
    ],
)
def test_a_wrong_entry_is_refused(vulkan_device: tvm.runtime.Device, fields: dict[str, Any], message: str) -> None:
    entry = {**glsl.entry(bare(), ["buffer:w"]), **fields}
    with pytest.raises(ValueError, match=message):
        glsl.module(odd=entry)
    entry.pop("spirv")
    with pytest.raises(ValueError, match="kernel odd has no field 'spirv'"):
        glsl.module(odd=entry)


def test_launches_that_do_not_fit(vulkan_device: tvm.runtime.Device) -> None:
    kernel = glsl.module(ones=glsl.entry(bare(4), ["buffer:w"]))["ones"]
    tensor = tvm.runtime.tensor(np.zeros(8, "float32"), vulkan_device)
    with pytest.raises(
        ValueError,
        match="kernel ones was compiled for 4 work-items in dimension 0 of a work group and is launched with 8",
    ):
        launch(kernel, tensor, 1, 8)
    # Some devices allow the same number in the first dimension.
    other = glsl.module(ones=glsl.entry(bare(4), ["buffer:w"], launch=["blockIdx.y", "threadIdx.x"]))["ones"]
    with pytest.raises(
        RuntimeError,
        match=r"kernel ones needs 2147483647 work groups in dimension 1; vulkan:0 .* \(maxComputeWorkGroupCount\)",
    ):
        launch(other, tensor, 2**31 - 1, 4)
    launch(kernel, tensor, 2, 4)
    np.testing.assert_array_equal(tensor.numpy(), np.ones(8))


def test_more_memory_than_there_is(vulkan_device: tvm.runtime.Device) -> None:
    with pytest.raises(
        RuntimeError, match=r"a buffer of 1099511627776 bytes is too large for vulkan:0 .*maxStorageBufferRange"
    ):
        tvm.runtime.empty((1 << 40,), "int8", vulkan_device)


def test_without_a_loader() -> None:
    code = """
import tvm
assert not tvm.device("vulkan", 0).exist
try:
    tvm.runtime.empty((1,), "float32", tvm.device("vulkan", 0))
except RuntimeError as error:
    print(error)
"""
    done = glsl.run_python(code, ROMOU_VULKAN_LIBRARY="/nonexistent/libvulkan.so")
    assert done.returncode == 0, done.stderr
    for part in (
        "Vulkan could not be opened",
        "/nonexistent/libvulkan.so",
        "apt-get install libvulkan1 mesa-vulkan-drivers",
    ):
        assert part in done.stdout


def test_a_device_is_chosen_by_name_or_number(vulkan_device: tvm.runtime.Device) -> None:
    name = vulkan_device.device_name
    code = "import tvm; print(tvm.device('vulkan', 0).device_name)"
    for wanted in (name[:6].upper(), "0"):
        assert glsl.run_python(code, ROMOU_VULKAN_DEVICE=wanted).stdout.strip() == name
    done = glsl.run_python(code, ROMOU_VULKAN_DEVICE="no such GPU")
    assert done.returncode != 0
    assert "ROMOU_VULKAN_DEVICE='no such GPU' matches no Vulkan device; found are" in done.stderr
    assert name in done.stderr
