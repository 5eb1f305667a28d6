"""Networks of one and three spatial axes: packed as images from their first operator to their last one, and right on
every target.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
import tvm

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import pack_channels, place_images
from romou.compiler.graph.extract import count_calls, extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.compiler.scheduling.blocks import is_view
from romou.compiler.tir.images import as_images
from romou.devices.targets import Target
from support.models.small_networks import NetworkBuilder, random_inputs
from support.suite.exhaustive import exhaustive, few, in_turn

PHONE = Target("opencl -device=adreno640")


def rows(dtype: str = "float32") -> onnx.ModelProto:
    """Return causal dilated convolutions with a residual, a depthwise one, one of odd groups, a strided one, pools, a
    gate, a concatenation, and a transposed one.
    """
    g = NetworkBuilder({"x": (2, 5, 37)}, dtype=dtype)
    x = g.add("Relu", g.norm(g.conv("x", 5, 12, (3,), pads=[2, 0]), 12))
    y = g.add("LeakyRelu", g.conv(x, 12, 12, (3,), pads=[4, 0], dilations=[2]))
    x = g.add("Relu", g.add("Add", y, x))
    x = g.add("Sigmoid", g.conv(x, 12, 12, (5,), 12, pads=[2, 2]))
    a = g.conv(x, 12, 6, (2,), 3, strides=[2])
    b = g.add("MaxPool", g.conv(x, 12, 4, (1,)), kernel_shape=[3], strides=[2], pads=[0, 1])
    x = g.add("Concat", b, a, axis=1)
    s = g.add("Sigmoid", g.conv(g.add("Relu", g.conv(g.add("GlobalAveragePool", x), 10, 3, (1,))), 3, 10, (1,)))
    x = g.add("Mul", x, s)
    x = g.add("ConvTranspose", x, g.weight(10, 7, 4), g.weight(7), strides=[2], pads=[1, 1])
    return g.model(g.add("Relu", x))


def volumes(dtype: str = "float32") -> onnx.ModelProto:
    """Return convolutions of frames, along the depth, of both and strided, a residual, groups, depthwise, a constant
    for each pixel, and means of all.
    """
    g = NetworkBuilder({"x": (1, 3, 6, 9, 11)}, dtype=dtype)
    x = g.add("Relu", g.norm(g.conv("x", 3, 10, (3, 3, 3), pads=[1] * 6, strides=[1, 2, 2]), 10))
    y = g.add("LeakyRelu", g.conv(x, 10, 12, (1, 3, 3), pads=[0, 1, 1] * 2), alpha=0.1)
    y = g.conv(y, 12, 10, (3, 1, 1), pads=[1, 0, 0] * 2)
    x = g.add("Relu", g.add("Add", g.add("Add", x, y), g.weight(1, 1, 6, 5, 6)))
    x = g.add("Relu", g.conv(x, 10, 10, (3, 3, 3), 10, pads=[1] * 6))
    x = g.conv(x, 10, 15, (2, 2, 2), 5, dilations=[2, 1, 1], strides=[2, 1, 1])
    s = g.add("Sigmoid", g.conv(g.add("GlobalAveragePool", x), 15, 15, (1, 1, 1)))
    return g.model(g.add("Mul", x, s))


def two_volumes() -> onnx.ModelProto:
    """Return a batch of two volumes: frames of one are not frames of the next, and a number for each volume cannot be
    an image.
    """
    g = NetworkBuilder({"x": (2, 4, 5, 6, 7)})
    x = g.add("Relu", g.conv("x", 4, 8, (3, 3, 3), pads=[1] * 6))
    x = g.add("Mul", x, g.weight(2, 8, 1, 1, 1))
    return g.model(g.conv(g.add("Add", x, g.weight(8, 1, 1, 1)), 8, 6, (2, 3, 1), strides=[2, 1, 1]))


NETWORKS = {"rows": rows, "volumes": volumes, "two volumes": two_volumes}
each_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def assert_right(model: onnx.ModelProto, target: str, limit: float = 1e-5) -> None:
    inputs = random_inputs(model, seed=3)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    compiled = romou.compile(model, target=target, device=0, verify=False)
    assert not compiled.host_nodes
    for found, wanted in zip(compiled.run(inputs), expected, strict=True):
        assert found.shape == wanted.shape
        assert relative_l2_error(found, wanted) < limit


@in_turn
@each_network
@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640", "opencl -device=mali_g76"])
def test_they_agree_with_onnxruntime(
    network: Callable[..., onnx.ModelProto], target: str, opencl_device: tvm.runtime.Device
) -> None:
    assert_right(network(), target)


@pytest.mark.parametrize("network", [rows, volumes])
@pytest.mark.parametrize(
    "target", ["opencl -device=adreno640", pytest.param("opencl -device=mali_g76", marks=exhaustive)]
)
def test_they_agree_in_fp16(
    network: Callable[..., onnx.ModelProto], target: str, opencl_device: tvm.runtime.Device
) -> None:
    model, inputs = network("float16"), random_inputs(network("float32"), seed=3)
    expected = run_onnxruntime(network("float32"), inputs)
    assert expected is not None
    found = romou.compile(model, target=target, device=0, verify=False).run(
        {name: array.astype("float16") for name, array in inputs.items()}
    )
    assert relative_l2_error(found[0].astype("float32"), expected[0]) < 1e-2


@each_network
def test_they_agree_on_vulkan(network: Callable[..., onnx.ModelProto], vulkan_device: tvm.runtime.Device) -> None:
    assert_right(network(), "vulkan -device=adreno640")


@each_network
def test_kernels_compile_for_cuda_only(network: Callable[..., onnx.ModelProto]) -> None:
    compiled = romou.compile(network(), target="cuda -device=nvidia_h200")
    assert compiled.summary().target.startswith("cuda")
    assert all("__global__" in source for source in compiled.sources().values())


@each_network
def test_every_kernel_has_a_family(network: Callable[..., onnx.ModelProto]) -> None:
    fused = fuse_operators(pack_channels(import_onnx(network()).mod), PHONE)
    _, of = extract_tasks(fused)
    assert {name for name in count_calls(fused) if not is_view(fused[name])} == set(of)


def test_they_are_packed_once() -> None:
    """Between the first operator and the last one nothing gets its plain layout back."""
    for network in (rows, volumes):
        calls = count_calls(pack_channels(import_onnx(network()).mod))
        assert [(name.rstrip("0123456789"), count) for name, count in calls.items() if "pack" in name] == [
            ("pack", 1),
            ("unpack", 1),
        ]


def test_a_convolution_of_one_frame_is_one_of_images() -> None:
    g = NetworkBuilder({"x": (2, 8, 5, 9, 7)})
    fused = fuse_operators(
        pack_channels(import_onnx(g.model(g.conv("x", 8, 12, (1, 3, 3), pads=[0, 1, 1] * 2))).mod), PHONE
    )
    tasks, _ = extract_tasks(fused)
    assert [task.name for task in tasks if task.template.sums_products] == ["conv2d_10x8x9x7_12_3x3_s1"]
    assert "winograd2" in next(task for task in tasks if task.family == "conv2d").space(PHONE).knobs["algorithm"]


@pytest.mark.parametrize(("shape", "kernel"), [((1, 6, 19), (3,)), ((1, 6, 4, 7, 5), (2, 3, 3))])
def test_a_weight_that_is_computed(
    shape: tuple[int, ...], kernel: tuple[int, ...], opencl_device: tvm.runtime.Device
) -> None:
    g = NetworkBuilder({"x": shape, "w": (7, 6, *kernel)})
    model = g.model(g.add("Relu", g.add("Conv", "x", g.add("Tanh", "w"), kernel_shape=kernel)))
    _, of = extract_tasks(fuse_operators(pack_channels(import_onnx(model).mod), PHONE))
    assert any(name.startswith("fused_conv") for name in of)
    assert_right(model, "opencl")


def test_images_of_rows_and_frames() -> None:
    """Tensors between convolutions of rows, or of volumes, are images, as between convolutions of images."""
    for network, kernels in ((rows, 6), (volumes, 6)):
        placed = place_images(fuse_operators(pack_channels(import_onnx(network()).mod), PHONE), PHONE)
        tasks, _ = extract_tasks(placed)
        assert sum(bool(task.template.images) for task in tasks) >= kernels


@pytest.mark.parametrize(
    ("shape", "images"), [((2, 3, 7), (2, 3, 1, 7)), ((2, 3, 5, 7), (2, 3, 5, 7)), ((2, 3, 4, 5, 7), (8, 3, 5, 7))]
)
def test_shapes_as_images(shape: tuple[int, ...], images: tuple[int, ...]) -> None:
    assert as_images(shape) == images


@pytest.mark.parametrize(
    ("shape", "weight", "settings"),
    few(
        [
            ((2, 5, 3, 4, 6), (5, 6, 2, 2, 2), {"strides": [2, 2, 2]}),
            ((1, 5, 3, 4, 6), (5, 6, 3, 3, 3), {"strides": [2, 2, 2], "pads": [1] * 6, "output_padding": [1, 1, 1]}),
            ((2, 8, 3, 4, 6), (8, 6, 4, 4, 4), {"strides": [2, 2, 2], "pads": [1] * 6}),
            ((2, 4, 4, 3, 2), (4, 3, 3, 2, 2), {"dilations": [2, 1, 1], "pads": [1, 0, 0, 2, 0, 0]}),
            (
                (1, 3, 4, 3, 2),
                (3, 5, 2, 2, 2),
                {"strides": [3, 1, 1], "dilations": [2, 1, 1], "pads": [1, 0, 0, 0, 0, 0]},
            ),
            ((1, 8, 3, 4, 6), (8, 12, 1, 3, 3), {"strides": [1, 2, 2], "pads": [0, 1, 1] * 2}),
        ],
        0,
        1,
        3,
    ),
)
def test_transposed_convolutions_of_volumes(
    shape: tuple[int, ...], weight: tuple[int, ...], settings: dict[str, list[int]], opencl_device: tvm.runtime.Device
) -> None:
    """Frames of the output are output channels of a transposed convolution of images."""
    g = NetworkBuilder({"x": shape})
    model = g.model(g.add("Relu", g.add("ConvTranspose", "x", g.weight(*weight), g.weight(weight[1]), **settings)))
    fused = fuse_operators(pack_channels(import_onnx(model).mod), PHONE)
    tasks, of = extract_tasks(fused)
    assert [task.family for task in tasks if task.template.sums_products] == ["conv2d_transpose"]
    assert {name for name in count_calls(fused) if not is_view(fused[name])} == set(of)
    assert_right(model, "opencl")
