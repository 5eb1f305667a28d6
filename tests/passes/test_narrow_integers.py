"""Work-item numbers, conditions and indices have 32 bits if their values fit. Larger values keep their 64 bits."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from support.models.nodes import model_of
from support.suite.exhaustive import in_turn

X = np.random.default_rng(0).standard_normal((5, 13), dtype=np.float32)
BIG = np.array([0, 4, 5, 2**31, 2**40, -(2**40), 2**32 + 4, -1], np.int64)
SMALL = np.arange(-20, 20, dtype=np.int32)


def top_k() -> onnx.ModelProto:
    nodes = [helper.make_node("TopK", ["x", "k"], ["values", "indices"], axis=1)]
    outputs = [
        helper.make_tensor_value_info(name, dtype, (5, 3))
        for name, dtype in (("values", onnx.TensorProto.FLOAT), ("indices", onnx.TensorProto.INT64))
    ]
    given = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, X.shape)]
    graph = helper.make_graph(nodes, "top", given, outputs, [numpy_helper.from_array(np.array([3]), "k")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def compared_casts() -> onnx.ModelProto:
    nodes: dict[str, tuple] = {"w": ("Cast", "x", {"to": 7}), "y": ("Less", "w five")}
    model = model_of(nodes, {"x": SMALL}, {"five": np.array(5)})
    del model.graph.output[0]
    return model


# TVM's own kernels with conditions on work-items of 64 bits, and comparisons of the model's numbers.
MODELS = {
    "TopK": (top_k(), {"x": X}),
    "ArgMax": (model_of({"y": ("ArgMax", "x", {"axis": 1})}, {"x": X}), {"x": X}),
    "ScatterElements": (
        model_of(
            {"y": ("ScatterElements", "x i u", {"axis": 1})},
            {"x": X},
            {"i": np.array([[12, 0], [3, 4]]), "u": np.ones((2, 2), np.float32)},
        ),
        {"x": X},
    ),
    "CumSum": (model_of({"y": ("CumSum", "x axis")}, {"x": X}, {"axis": np.array(1)}), {"x": X}),
    "numbers that become 64 bits": (compared_casts(), {"x": SMALL}),
    "numbers that need 64 bits": (
        model_of(
            {"y": ("Less", "x five"), "z": ("Greater", "x many"), "e": ("Equal", "x five")},
            {"x": BIG},
            {"five": np.array(5), "many": np.array(2**31)},
        ),
        {"x": BIG},
    ),
}


@in_turn
@pytest.mark.parametrize("target", ["opencl", "vulkan"])
@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_onnxruntime(name: str, target: str) -> None:
    model, inputs = MODELS[name]
    compiled = romou.compile(model, target=target, verify=False)
    assert compiled.host_nodes == ()
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for found, wanted in zip(compiled.run(inputs), expected, strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("name", ["TopK", "ArgMax", "numbers that become 64 bits"])
def test_conditions_are_of_32_bits(name: str) -> None:
    kernels = romou.inspect(MODELS[name][0], target="vulkan -device=adreno640")
    assert kernels
    for kernel in kernels:
        assert not re.search(r" ([<>]=?|[!=]=) -?\d+L|\d+L ([<>]=?|[!=]=) ", kernel.source), kernel.source


def test_64_bits_stay_where_they_are_needed() -> None:
    (kernel,) = romou.inspect(MODELS["numbers that need 64 bits"][0], target="vulkan -device=adreno640")[:1]
    assert "int64_t" in kernel.source
