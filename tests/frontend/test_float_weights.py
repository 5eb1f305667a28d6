"""Quantized weights that become floats at compile time are told by name, with their bytes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import romou
from romou.base.model_bytes import FloatWeight
from romou.compiler.frontend.precision import Precision
from romou.compiler.importing import import_onnx
from romou.runtime.module import Summary
from romou.tools.report.table import device_lines
from support.models.quantized import model_of

RNG = np.random.default_rng(0)


def convolution(name: str = "dq") -> onnx.ModelProto:
    """Return a convolution of floats whose weight is int8, with one scale for each output."""
    arrays = {
        "w": RNG.integers(-9, 9, (8, 4, 3, 3)).astype(np.int8),
        "s": RNG.uniform(0.1, 1, 8).astype(np.float32),
        "b": RNG.integers(-9, 9, (8, 1, 1)).astype(np.int8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["floats"], name=name, axis=0),
        helper.make_node("DequantizeLinear", ["b", "s"], ["shift"], name="bias", axis=0),
        helper.make_node("Conv", ["x", "floats"], ["c"], name="conv"),
        helper.make_node("Add", ["c", "shift"], ["y"], name="add"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 4, 8, 10]), ("y", None)))
    return model_of(nodes, [x], [y], arrays)


def product(rows: int) -> onnx.ModelProto:
    """Return a product of floats and an int8 matrix of 32 x 24, which is transposed behind its dequantization."""
    arrays = {"w": RNG.integers(-9, 9, (24, 32)).astype(np.int8), "s": np.array(0.5, np.float32)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["floats"]),
        helper.make_node("Transpose", ["floats"], ["columns"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "columns"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [rows, 32]), ("y", [rows, 24])))
    return model_of(nodes, [x], [y], arrays)


def of_bitsandbytes(k: int) -> onnx.ModelProto:
    arrays = {
        "w": RNG.integers(0, 256, -(-7 * k // 2)).astype(np.uint8),
        "s": np.ones(-(-7 * k // 16), np.float32),
    }
    attributes = {"K": k, "N": 7, "block_size": 16, "quant_type": 1}
    node = helper.make_node("MatMulBnb4", ["x", "w", "s"], ["y"], name="nf4", domain="com.microsoft", **attributes)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, k]), ("y", [2, 7])))
    return model_of([node], [x], [y], arrays)


@pytest.mark.parametrize(
    ("model", "precision", "expected"),
    [
        (convolution(), "float32", [("DequantizeLinear (dq)", 288, 1152)]),
        (convolution(), "float16", [("DequantizeLinear (dq)", 288, 576)]),
        (convolution(""), "float32", [("DequantizeLinear (floats)", 288, 1152)]),
        (product(9), "float32", [("DequantizeLinear (floats)", 768, 3072)]),
        (product(8), "float32", []),
        (of_bitsandbytes(81), "float32", [("MatMulBnb4 (nf4)", 284, 2268)]),
        (of_bitsandbytes(80), "float32", []),
    ],
    ids=["weight", "fp16", "no name", "many rows", "few rows", "odd K", "even K"],
)
def test_weights_and_bytes(model: onnx.ModelProto, precision: str, expected: list[tuple[str, int, int]]) -> None:
    """A vector is no weight. What stays packed is not told."""
    imported = import_onnx(model, precision=Precision(kind=precision))
    named = [FloatWeight(node=node, packed_bytes=packed, float_bytes=floats) for node, packed, floats in expected]
    assert list(imported.float_weights) == named


def test_a_layer_that_stays_fp32_has_floats_of_four_bytes() -> None:
    imported = import_onnx(convolution(), precision=Precision(kind="mixed", kept=frozenset({"c"})))
    assert [weight.float_bytes for weight in imported.float_weights] == [
        1152 if "c" in imported.precision.kept else 576
    ]


def test_a_compiled_model_tells_them() -> None:
    """In its summary, also of a saved one, and in the printed lines."""
    summary = romou.compile(product(9), target="opencl -device=host", verify=False).summary()
    row = FloatWeight(node="DequantizeLinear (floats)", packed_bytes=768, float_bytes=3072)
    assert summary.floats == (row,)
    assert Summary.from_dict(summary.to_dict()).floats == (row,)
    older = {name: value for name, value in summary.to_dict().items() if name != "floats"}
    assert Summary.from_dict(older).floats == ()
    lines = device_lines(summary)
    assert "Dequantized at compile time: weights of 1 nodes take 0.00 MiB as floats, 0.00 MiB packed." in lines


def test_a_check_tells_them() -> None:
    report = romou.check(product(9), target="opencl -device=adreno640")
    assert [row.node for row in report.floats] == ["DequantizeLinear (floats)"]
