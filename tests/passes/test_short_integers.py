"""Arithmetic with 8-bit and 16-bit scalars, which C computes in int."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

import romou

ROWS = 7
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "BitwiseNot": lambda x, _: ~x,
}


def compared(dtype: str) -> onnx.ModelProto:
    """Return a model that compares the result of each operator with an input, in the same kernel."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = []
    for op in OPERATORS:
        nodes.append(helper.make_node(op, ["x"] if op == "BitwiseNot" else ["x", "y"], [f"result {op}"]))
        nodes.append(helper.make_node("LessOrEqual", [f"result {op}", "y"], [op]))
    inputs = [helper.make_tensor_value_info(name, kind, (ROWS,)) for name in "xy"]
    outputs = [helper.make_tensor_value_info(op, onnx.TensorProto.BOOL, (ROWS,)) for op in OPERATORS]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_results_wrap_before_they_are_read(dtype: str, opencl_device: tvm.runtime.Device) -> None:
    rng, info = np.random.default_rng(0), np.iinfo(dtype)
    x, y = (rng.integers(info.min, info.max + 1, ROWS).astype(dtype) for _ in range(2))
    model = romou.compile(compared(dtype), target="opencl", device=0, verify=False, strict=True)
    with np.errstate(over="ignore"):
        for found, compute in zip(model.run({"x": x, "y": y}), OPERATORS.values(), strict=True):
            np.testing.assert_array_equal(found, compute(x, y) <= y)


def test_cuda_narrows_them_too() -> None:
    model = romou.compile(compared("uint8"), target="cuda -device=nvidia_h200", verify=False, strict=True)
    assert any(re.search(r"\(unsigned char\)\(.*~", source) for source in model.sources().values())
