"""Convolutions of a picture's patches are products of the flattened patches, on the device, by every API."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import romou
from romou.compiler.frontend.reference import run_onnxruntime

# Tasks are called conv2d_1x3x224x224_384_16x16_s16.
_WINDOW = re.compile(r"conv2d_.*_(?P<h>\d+)x(?P<w>\d+)_s")
RNG = np.random.default_rng(17)


def model_of(shape: tuple[int, ...], outputs: int, window: tuple[int, int], **attributes: object) -> onnx.ModelProto:
    """Return a convolution with a bias and a ReLU, whose stride is the window unless `attributes` has another."""
    weight = RNG.standard_normal((outputs, shape[1] // int(str(attributes.get("group", 1))), *window), np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["v"], **{"strides": window, **attributes}),
            helper.make_node("Relu", ["v"], ["y"]),
        ],
        "patches",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(RNG.standard_normal(outputs, np.float32), "b"),
        ],
    )
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    )


def windows_of(model: onnx.ModelProto, target: str) -> list[tuple[int, int]]:
    """Compile the model, compare its output with onnxruntime's, and return the windows of its convolutions."""
    compiled = romou.compile(model, target=target, verify=False)
    assert compiled.host_nodes == ()
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    inputs = {"x": RNG.standard_normal(shape, np.float32)}
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    output = np.asarray(compiled.run(inputs)[0])
    assert np.linalg.norm(output - expected[0]) <= 1e-5 * np.linalg.norm(expected[0])
    names = [row.name for row in compiled.summary().rows]
    return [(int(size["h"]), int(size["w"])) for size in map(_WINDOW.search, names) if size is not None]


@pytest.mark.parametrize("target", ["opencl", "vulkan"])
@pytest.mark.parametrize(
    ("shape", "outputs", "window"),
    [((1, 3, 48, 64), 20, (16, 16)), ((2, 3, 24, 33), 7, (8, 11)), ((1, 1, 27, 18), 5, (9, 9))],
)
def test_patches_are_rows_of_a_product(
    target: str, shape: tuple[int, ...], outputs: int, window: tuple[int, int]
) -> None:
    assert windows_of(model_of(shape, outputs, window), target) == [(1, 1)]


@pytest.mark.parametrize(
    ("shape", "window", "attributes"),
    [
        ((1, 3, 49, 64), (16, 16), {}),
        ((1, 3, 48, 48), (16, 16), {"strides": (8, 8)}),
        ((1, 3, 62, 62), (16, 16), {"pads": (1, 1, 1, 1)}),
        ((1, 8, 32, 32), (8, 8), {}),
        ((1, 3, 32, 32), (4, 4), {}),
        ((1, 3, 32, 32), (8, 8), {"group": 3}),
    ],
    ids=["odd size", "overlap", "padding", "channels", "small", "groups"],
)
def test_other_convolutions_keep_their_window(
    shape: tuple[int, ...], window: tuple[int, int], attributes: dict[str, object]
) -> None:
    assert windows_of(model_of(shape, 6, window, **attributes), "opencl") == [window]
