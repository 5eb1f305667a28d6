"""Activations are epilogues of the convolution before them, for any decomposition, with onnxruntime's numbers, NaN and
infinities included.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest

import romou
from support.models.nodes import assert_as_onnxruntime, model_of
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import in_turn

NAN, INF = np.float32("nan"), np.float32("inf")
SPECIAL = np.array([NAN, INF, -INF, 0, -0.0, 1, -1, 0.5, -0.5, 20, -20, 88.5, -104, 1e-30, -3, 3.5], "float32").reshape(
    1, 1, 4, 4
)
ACTIVATIONS = {
    "LeakyRelu": {"alpha": 0.1},
    "PRelu": {},
    "Elu": {"alpha": 1.5},
    "Selu": {},
    "Celu": {"alpha": 0.7},
    "ThresholdedRelu": {"alpha": 0.4},
    "Mish": {},
    "Softplus": {},
    "Shrink": {"lambd": 0.5, "bias": 0.1},
}
TARGETS = ["opencl", "opencl -device=adreno640"]


def calls(model: onnx.ModelProto, target: str) -> int:
    compiled = romou.compile(model, target=target, strict=True, verify=False)
    return sum(row.calls for row in compiled.summary().rows)


def between_convolutions(op: str, channels: int, **attributes: object) -> onnx.ModelProto:
    g = NetworkBuilder({"x": (1, channels, 9, 7)})
    x = g.conv("x", channels, channels, pads=[1] * 4)
    x = g.add(op, x, *([g.weight(channels, 1, 1)] if op == "PRelu" else []), **attributes)
    model = g.model(g.conv(x, channels, channels, pads=[1] * 4))
    model.opset_import[0].version = 18
    return model


@functools.cache
def calls_with_relu(channels: int, target: str) -> int:
    return calls(between_convolutions("Relu", channels), target)


@in_turn
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_an_activation_is_no_kernel_of_its_own(op: str, target: str) -> None:
    for channels in (8, 6):
        assert calls(between_convolutions(op, channels, **ACTIVATIONS[op]), target) == calls_with_relu(channels, target)


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_are_those_of_onnxruntime(target: str) -> None:
    weight = np.linspace(0.5, 1.5, 6, dtype=np.float32).reshape(6, 1, 1, 1)
    nodes = {
        "c": ("Conv", "x w"),
        **{op: (op, "c slope" if op == "PRelu" else "c", attributes) for op, attributes in ACTIVATIONS.items()},
    }
    model = model_of(nodes, {"x": SPECIAL}, {"w": weight, "slope": weight.reshape(6, 1, 1)})
    assert_as_onnxruntime(model, {"x": SPECIAL}, 1e-4, target=target)


@pytest.mark.parametrize("op", ["Mish", "Softplus"])
def test_values_far_below_zero_are_right_to_the_last_digits(op: str) -> None:
    """1 + exp(x) is 1 there."""
    x = np.linspace(-40, 10, 512, dtype=np.float32)
    (found,) = romou.compile(model_of({"y": (op, "x")}, {"x": x}), target="opencl", verify=False).run({"x": x})
    smooth = np.log1p(np.exp(x.astype(np.float64)))
    np.testing.assert_allclose(found, x * np.tanh(smooth) if op == "Mish" else smooth, 2e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_a_condition_with_other_readers_is_stored_once_and_plain(target: str) -> None:
    """No kernel stores texels of booleans, because OpenCL has no such type."""
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((1, 3, 9, 7), np.float32)}
    nodes = {
        "c": ("Conv", "x w"),
        "is_low": ("Less", "c limit"),
        "p": ("Where", "is_low limit c"),
        "q": ("Conv", "p v"),
        "y": ("Where", "is_low c q"),
        "is_high": ("Not", "is_low"),
    }
    constants = {
        "w": rng.standard_normal((6, 3, 1, 1), np.float32),
        "v": rng.standard_normal((6, 6, 1, 1), np.float32),
        "limit": np.float32(0.1),
    }
    assert_as_onnxruntime(model_of(nodes, inputs, constants), inputs, 1e-3, target=target)


def test_functions_that_zero_makes_infinite_stay_packed_in_full_texels() -> None:
    """The lanes that pad a texel would become infinite, and infinity times a weight of zero is NaN."""

    def model(channels: int) -> onnx.ModelProto:
        g = NetworkBuilder({"x": (1, channels, 5, 5)})
        x = g.add("Log", g.add("Abs", g.conv("x", channels, channels, (1, 1))))
        return g.model(g.conv(x, channels, channels, (1, 1)))

    full, padded = (calls(model(channels), "opencl -device=adreno640") for channels in (8, 6))
    assert full == padded - 1
    x = {"x": np.random.default_rng(1).standard_normal((1, 6, 5, 5), np.float32)}
    assert_as_onnxruntime(model(6), x, 1e-3, target="opencl -device=adreno640")
