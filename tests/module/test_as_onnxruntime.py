"""Small models, each of one kind of node, give onnxruntime's outputs: scalars, functions of floats, NaN, integers
of every width.
"""

from __future__ import annotations

import numpy as np
import pytest

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from support.models.nodes import assert_as_onnxruntime, model_of
from support.suite.exhaustive import few

NAN, INF = np.float32("nan"), np.float32("inf")


def test_scalars_go_in_and_out() -> None:
    inputs = {
        "s": np.asarray(1.5, np.float32),
        "x": np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4),
        "i": np.asarray(2, np.int64),
    }
    nodes = {
        "neg": ("Neg", "s"),
        "sum": ("Add", "x s"),
        "clipped": ("Clip", "x low s"),
        "mean": ("ReduceMean", "x", {"keepdims": 0}),
        "largest": ("ReduceMax", "sum", {"keepdims": 0}),
        "norm": ("ReduceL2", "x", {"keepdims": 0}),
        "row": ("Gather", "x i"),
        "product": ("MatMul", "row row"),
        "all": ("Mul", "mean product"),
        "wide": ("Expand", "s shape"),
    }
    nodes["row"] = ("Gather", "x one", {"axis": 0})
    assert_as_onnxruntime(
        model_of(nodes, inputs, {"low": np.float32(-0.5), "one": np.asarray(1), "shape": np.array([2, 3])}), inputs
    )


def test_vectors_multiply_to_a_scalar() -> None:
    rng = np.random.default_rng(0)
    inputs = {"a": rng.standard_normal(1031, dtype=np.float32), "b": rng.standard_normal(1031, dtype=np.float32)}
    assert_as_onnxruntime(model_of({"y": ("MatMul", "a b")}, inputs), inputs)


# In fp16 the same functions compute in fp32 between two conversions, unless the device has fp16.
@pytest.mark.parametrize("dtype", few(["float32", "float16"], 0))
def test_every_function_of_floats_has_a_name_on_the_device(dtype: str) -> None:
    inputs = {
        "x": np.linspace(-0.9, 0.9, 36).astype(dtype).reshape(4, 9),
        "big": np.linspace(1.1, 3, 36).astype(dtype).reshape(4, 9),
    }
    inputs["x"][0, :6] = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]
    of_x = (
        "Asinh",
        "Atan",
        "Tan",
        "Sin",
        "Cos",
        "Sinh",
        "Cosh",
        "Exp",
        "Erf",
        "Floor",
        "Ceil",
        "Round",
        "Sign",
        "Abs",
        "Softplus",
        "IsNaN",
    )
    nodes = {op: (op, "x") for op in of_x} | {op: (op, "big") for op in ("Acosh", "Log", "Sqrt", "Reciprocal")}
    nodes |= {
        "small": ("Mul", "x third"),
        "Acos": ("Acos", "small"),
        "Asin": ("Asin", "small"),
        "Atanh": ("Atanh", "small"),
        "Pow": ("Pow", "big x"),
    }
    assert_as_onnxruntime(
        model_of(nodes, inputs, {"third": np.asarray(0.3, dtype)}), inputs, 1e-4 if dtype == "float32" else 1e-2
    )


@pytest.mark.parametrize("dtype", few(["float32", "float16"], 1))
def test_nan_is_kept_where_onnxruntime_keeps_it(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = np.array([[NAN, -1, 2, INF, -INF, 0, 1, NAN], [1, NAN, 3, 4, -2, NAN, 7, 8]], dtype)
    image = rng.standard_normal((1, 5, 6, 6)).astype(dtype)
    image[0, 0, 0, 0] = image[0, 2, 3, 3] = image[0, 4, 5, 5] = NAN
    inputs = {"x": x, "z": x[:, ::-1].copy(), "image": image, "cold": np.full((1, 2, 4, 4), -INF, dtype)}
    nodes = {
        "relu": ("Relu", "x"),
        "clip": ("Clip", "x low high"),
        "max": ("Max", "x z"),
        "min": ("Min", "x z"),
        "max3": ("Max", "x low z"),
        "softmax": ("Softmax", "x"),
        "row_max": ("ReduceMax", "x first", {"keepdims": 0}),
        "conv": ("Conv", "image weight", {"pads": [1] * 4}),
        "conv_relu": ("Relu", "conv"),
        "conv_clip": ("Clip", "conv low high"),
        "pool": ("MaxPool", "cold", {"kernel_shape": [2, 2]}),
    }
    constants = {
        "low": np.asarray(-1, dtype),
        "high": np.asarray(3, dtype),
        "weight": rng.standard_normal((7, 5, 3, 3)).astype(dtype) / 7,
    }
    model = model_of(nodes, inputs, {**constants, "first": np.array([0])})
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    # If the second of two numbers is NaN, onnxruntime's ReduceMax drops it. NumPy and Romou keep it.
    expected[list(nodes).index("row_max")] = x.max(0)
    found = romou.compile(model, target="opencl").run(inputs)
    for name, a, b in zip(found.names, found, expected, strict=True):
        np.testing.assert_allclose(a, b, 2e-2, 2e-2, err_msg=name)


def test_casts_to_integers_stay_on_the_device() -> None:
    """TVM casts a float to int32 by way of int64, which no index has."""
    x = np.array([[70001, -3.5, 2.5, -2147483648, 2147483520]], np.float32)
    model = model_of({"y": ("Cast", "x", {"to": 6}), "z": ("Cast", "y", {"to": 1})}, {"x": x})
    found = romou.compile(model, target="opencl", strict=True).run({"x": x})
    np.testing.assert_array_equal(found["y"], x.astype(np.int32))
    np.testing.assert_array_equal(found["z"], x.astype(np.int32).astype(np.float32))
