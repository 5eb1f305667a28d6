"""Implicit padding of nodes: kernels, onnxruntime and shapes agree on it, even if strides leave elements over and last
windows are empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import romou
from support.models.nodes import assert_as_onnxruntime
from support.suite.exhaustive import few, in_turn


def window_model(
    op: str,
    size: Sequence[int],
    weight: np.ndarray | None = None,
    result: Sequence[int] | None = None,
    **attributes: object,
) -> onnx.ModelProto:
    """Return a node over an image of one channel. result: the shape that the model declares."""
    node = helper.make_node(op, ["x"] if weight is None else ["x", "w"], ["y"], **attributes)
    output = helper.make_tensor_value_info("y", 1, result)
    weights = [] if weight is None else [numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, [1, 1, *size])], [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def windows_of(x: np.ndarray, kernel: int, stride: int, auto_pad: str, fill: float) -> np.ndarray:
    """Return (rows, columns, kernel, kernel): ceil(extent / stride) windows, with padding of at least zero."""
    pads = []
    for extent in x.shape:
        total = max(0, (-(-extent // stride) - 1) * stride + kernel - extent)
        pads.append((total // 2, total - total // 2) if auto_pad == "SAME_UPPER" else (total - total // 2, total // 2))
    padded = np.pad(x, pads, constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel))[::stride, ::stride]


@in_turn
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool", "LpPool"])
def test_same_padding_is_not_negative(op: str, auto_pad: str) -> None:
    rng = np.random.default_rng(0)
    for kernel, stride, size in ((3, 10, 17), (1, 2, 8), (1, 2, 7), (2, 3, 9), (3, 2, 8)):
        x = rng.random((size, size), np.float32)
        weight = rng.random((1, 1, kernel, kernel), np.float32) if op == "Conv" else None
        model = window_model(op, x.shape, weight, auto_pad=auto_pad, kernel_shape=[kernel] * 2, strides=[stride] * 2)
        # With the check of the outputs: onnxruntime lets windows start inside the input, and refuses to pool them.
        result = romou.compile(model, target="opencl", strict=True).run({"x": x[None, None]})["y"]
        windows, ones = (
            windows_of(a, kernel, stride, auto_pad, -np.inf if op == "MaxPool" else 0) for a in (x, np.ones_like(x))
        )
        expected = (
            windows.max((2, 3))
            if op == "MaxPool"
            else (windows if weight is None else windows * weight[0, 0]).sum((2, 3))
        )
        if op == "LpPool":
            expected = np.sqrt((windows**2).sum((2, 3)))
        elif op == "AveragePool":
            expected = expected / ones.sum((2, 3))
        np.testing.assert_allclose(result, expected[None, None], 1e-5, err_msg=f"{kernel} {stride} {size}")


@in_turn
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("is_declared", [False, True])
def test_a_last_window_behind_the_input_is_left_out(op: str, is_declared: bool) -> None:
    """ONNX's inference counts it, so that a model that declares the right shape contradicts it."""
    x = {"x": np.random.default_rng(1).random((1, 1, 8, 10), np.float32)}
    kinds = [
        # (kernel, strides, pads): left out on both axes, on one, on one while the other rounds up.
        ([2, 2], [3, 3], [1, 1, 1, 1], (3, 4)),
        ([2, 3], [3, 2], [1, 0, 1, 0], (3, 5)),
        ([3, 3], [3, 3], [0, 1, 2, 0], (3, 4)),
    ]
    for kernel, strides, pads, shape in kinds:
        declared = [1, 1, *shape] if is_declared else None
        model = window_model(op, (8, 10), result=declared, kernel_shape=kernel, strides=strides, pads=pads, ceil_mode=1)
        compiled = romou.compile(model, target="opencl", strict=True)
        assert compiled.run(x)["y"].shape == (1, 1, *shape)
        assert_as_onnxruntime(model, x)


@pytest.mark.parametrize("opset", [10, 18])
def test_counted_padding_that_no_pads_express_is_a_node_before(opset: int) -> None:
    """The last window is left out on the first axis, whose last row no window reads, and rounds up on the second."""
    x = {"x": np.random.default_rng(1).random((1, 1, 8, 10), np.float32)}
    model = window_model(
        "AveragePool", (8, 10), kernel_shape=[2, 3], strides=[3, 2], pads=[1, 0, 1, 0], ceil_mode=1, count_include_pad=1
    )
    model.opset_import[0].version = opset
    compiled = romou.compile(model, target="opencl", strict=True)
    padded = np.pad(x["x"][0, 0, :7], ((1, 0), (0, 0)))
    means = [[padded[i : i + 2, j : j + 3].mean() for j in range(0, 10, 2)] for i in (0, 3, 6)]
    np.testing.assert_allclose(compiled.run(x)["y"][0, 0], means, 1e-5)


@pytest.mark.parametrize("auto_pad", few(["SAME_UPPER", "SAME_LOWER"], 1))
def test_transposed_convolutions_are_padded_as_in_onnxruntime(auto_pad: str) -> None:
    rng = np.random.default_rng(2)
    x = {"x": rng.random((1, 1, 4, 5), np.float32)}
    for kernel, stride, more in ((1, 2, 0), (2, 3, 0), (2, 2, 1), (3, 2, 0), (2, 4, 1)):
        weight = rng.random((1, 2, kernel, kernel), np.float32)
        model = window_model(
            "ConvTranspose", (4, 5), weight, auto_pad=auto_pad, strides=[stride] * 2, output_padding=[more] * 2
        )
        assert romou.compile(model, target="opencl", strict=True).host_nodes == ()
        assert_as_onnxruntime(model, x)
