"""Conditions behind a product, and by themselves: what is true is 1, in vectors too."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import TensorProto
from small_networks import Graph, random_inputs

import romou
from romou.frontend.reference import relative_l2_error, run_onnxruntime


def test_one_condition_for_a_vector(opencl_device: tvm.runtime.Device) -> None:
    g = Graph({"x": (5, 12)})
    is_negative = g.add("Less", g.add("ReduceMax", "x", axes=[1]), g.constant(np.float32(1.0)))
    model = g.model(g.add("Where", is_negative, g.constant(np.float32(0)), g.add("Softmax", "x")))
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    rows = np.count_nonzero((expected[0] == 0).all(axis=1))
    assert 0 < rows < 5
    assert relative_l2_error(romou.compile(model, target="opencl").run(inputs)[0], expected[0]) < 1e-5


@pytest.mark.parametrize("kind", ["conv", "dense", "elementwise"])
def test_conditions_of_vectors(kind: str, opencl_device: tvm.runtime.Device) -> None:
    g = Graph({"x": (5, 12) if kind == "dense" else (1, 8, 5, 7)})
    if kind == "conv":
        value = g.conv("x", 8, 8, pads=[1, 1, 1, 1])
    else:
        value = g.add("MatMul", "x", g.weight(12, 8)) if kind == "dense" else g.add("Sub", g.add("Mul", "x", "x"), g.constant(np.float32(1)))
    high, low, zero = (g.constant(np.float32(number)) for number in (0.5, -0.5, 0.0))
    is_between = g.add("And", g.add("Greater", value, low), g.add("Not", g.add("Greater", value, high)))
    is_negative = g.add("Cast", g.add("Less", value, zero), to=TensorProto.FLOAT)
    model = g.model(g.add("Where", is_between, g.add("Mul", is_negative, value), value))
    inputs = random_inputs(model)
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    assert relative_l2_error(romou.compile(model, target="opencl").run(inputs)[0], expected[0]) < 1e-5
