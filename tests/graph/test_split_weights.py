"""Tensors above the device's largest buffer: weights are split, algorithms are replaced, and everything else is one
error.
"""

from __future__ import annotations

import pytest
import tvm

import romou
from romou.base.errors import ModelError
from romou.compiler.graph.memory.memory import MemoryPlan
from romou.devices.targets import Target
from support.models.small_networks import NetworkBuilder

HOST = "opencl -device=host -max_buffer_bytes={}"


def largest(plan: MemoryPlan) -> int:
    return max(one.bytes for one in (*plan.tensors, *plan.weights))


@pytest.mark.parametrize(("most", "kernels"), [(37 * 32 * 4, 1), (37 * 16 * 4, 2), (37 * 9 * 4, 4)])
def test_a_dense_layer_of_several_weights(most: int, kernels: int, opencl_device: tvm.runtime.Device) -> None:
    """With a partial last texel of columns, a bias and a ReLU, outputs are right and no weight exceeds the limit."""
    g = NetworkBuilder({"x": (3, 37)})
    model = g.model(g.add("Relu", g.add("Gemm", "x", g.weight(37, 31), g.weight(31))))
    compiled = romou.compile(model, target=HOST.format(most))
    plan = romou.memory_plan(model, target=HOST.format(most))
    assert sum(weight.shape[0] == 37 for weight in plan.weights) == kernels
    assert largest(plan) <= most
    assert compiled.summary().relative_l2_error is not None


def test_a_convolution_of_several_weights(opencl_device: tvm.runtime.Device) -> None:
    g = NetworkBuilder({"x": (1, 24, 7, 5)})
    model = g.model(g.add("Relu", g.conv("x", 24, 22, pads=[1, 1, 1, 1])))
    most = 24 * 9 * 8 * 4
    assert romou.compile(model, target=HOST.format(most)).summary().relative_l2_error is not None
    weights = romou.memory_plan(model, target=HOST.format(most)).weights
    assert sum(weight.bytes > 1000 for weight in weights) == 3
    assert max(weight.bytes for weight in weights) <= most


def test_an_algorithm_whose_weights_are_too_large_gives_way() -> None:
    """Winograd's weights of a 3x3 convolution take up to four times the memory. The limit is between both sizes."""
    g = NetworkBuilder({"x": (1, 64, 56, 56)})
    model = g.model(g.conv("x", 64, 64, pads=[1, 1, 1, 1]))
    target = "opencl -device=adreno640"
    free = romou.memory_plan(model, target=target)
    most = max(64 * 56 * 56 * 4, 64 * 64 * 9 * 4)
    assert largest(free) > most
    found = romou.compile(model, target=f"{target} -max_buffer_bytes={most}", verify=False).summary().memory
    assert found is not None
    assert found.workspaces == 0 < free.use.workspaces


def test_a_tensor_that_nothing_makes_smaller_is_one_error() -> None:
    g = NetworkBuilder({"x": (1, 8, 20, 20)})
    model = g.model(g.add("Relu", g.conv("x", 8, 8, (1, 1))))
    with pytest.raises(
        ModelError,
        match=(
            "^a tensor of .*, 1x2x20x20x4 float32, takes 12800 bytes; the device allows 12000 bytes a buffer\n.*float16"
        ),
    ):
        romou.compile(model, target=HOST.format(12000), verify=False)
    with pytest.raises(ModelError, match="the device allows 12000 bytes a buffer"):
        romou.tune(model, target=HOST.format(12000), trials=1)


@pytest.mark.parametrize(
    ("device", "allowed"), [("adreno730", 1 << 30), ("adreno840", 1376_000_000), ("adreno640", None)]
)
def test_a_device_file_says_how_large_a_buffer_may_be(device: str, allowed: int | None) -> None:
    """No tensor of that size is allocated: the model is refused by its shapes, and the memory plan only has numbers."""
    target = f"opencl -device={device}"
    assert Target(target).limits.max_buffer_bytes == allowed
    g = NetworkBuilder({"x": (1, 4, 9300, 9300)})
    model = g.model(g.add("Relu", "x"))
    if allowed is None:
        assert largest(romou.memory_plan(model, target=target)) == 4 * 9300 * 9300 * 4
    else:
        with pytest.raises(
            ModelError, match=f"1x.*9300x9300.* takes 1383840000 bytes; the device allows {allowed} bytes a buffer"
        ):
            romou.compile(model, target=target, verify=False)


def test_the_device_narrows_what_a_target_allows() -> None:
    facts = {
        "max_work_group_size": 256,
        "local_mem_bytes": 32768,
        "max_image_width": 16384,
        "max_image_height": 16384,
        "max_image_layers": 2048,
    }
    facts |= {
        "has_images": True,
        "extensions": "cl_khr_fp16",
        "platform": "",
        "name": "",
        "driver": "",
        "version": "",
        "max_alloc_bytes": 1 << 20,
    }
    named = Target("opencl -device=adreno640 -max_buffer_bytes=4194304")
    assert named.limits.max_buffer_bytes == 4194304
    assert named.limited_to(facts).limits.max_buffer_bytes == 1 << 20
    assert named.limited_to(facts | {"max_alloc_bytes": 1 << 40}).limits.max_buffer_bytes == 4194304
    assert (
        Target("opencl -device=adreno640").limited_to(facts | {"max_alloc_bytes": 1 << 40}).limits.max_buffer_bytes
        is None
    )
