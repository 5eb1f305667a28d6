"""Converters with other numbers than the wheel's: NaN and infinities, and types and rounding of interpolation."""

from __future__ import annotations

import numpy as np
import pytest

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from support.models.nodes import model_of

NAN, INF = np.float32("nan"), np.float32("inf")
SPECIAL = np.array([NAN, INF, -INF, 0, -0.0, 1, -1, 3e-3, -2e-2, 88], "float32")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_and_quotients_with_zero(dtype: str) -> None:
    """TVM folds x * 0 to 0, and fails for x / 0."""
    x = SPECIAL.astype(dtype)
    zero = np.zeros((), dtype)
    nodes = {
        "a": ("Mul", "x zero"),
        "b": ("Mul", "zero x"),
        "c": ("Mul", "x row"),
        "d": ("Div", "x zero"),
        "e": ("Div", "zero x"),
    }
    with np.errstate(all="ignore"):
        expected = {"a": x * zero, "b": x * zero, "c": x * zero, "d": x / zero, "e": zero / x}
        behind = {"y": x / -zero}
    # Simplification takes 0 and -0 of one model for one constant.
    for made, constants, right in (
        (nodes, {"zero": zero, "row": np.zeros(1, dtype)}, expected),
        ({"y": ("Div", "x minus")}, {"minus": -zero}, behind),
    ):
        found = romou.compile(model_of(made, {"x": x}, constants), target="opencl", strict=True, verify=False).run(
            {"x": x}
        )
        for name, values in right.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_the_tangent_near_zero() -> None:
    """PoCL's tangent of two numbers at a time is four times too large there."""
    x = np.concatenate([SPECIAL[3:], np.geomspace(1e-30, 1.5, 51, dtype=np.float32)])
    found = romou.compile(model_of({"y": ("Tan", "x")}, {"x": x}), target="opencl", strict=True, verify=False).run(
        {"x": x}
    )[0]
    np.testing.assert_allclose(found, np.tan(x.astype("float64")), 1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_interpolated_integers_are_cut_off(dtype: str) -> None:
    """Towards zero, once for all axes, as onnxruntime does it."""
    rng = np.random.default_rng(1)
    x = rng.integers(max(-100, np.iinfo(dtype).min), 120, (1, 2, 6, 7)).astype(dtype)
    for number, scales in enumerate(([1, 1, 2, 2], [1, 1, 1.5, 1.7], [1, 1, 0.5, 0.5])):
        model = model_of(
            {"y": ("Resize", "x none s", {"mode": "linear"})},
            {"x": x},
            {"none": np.zeros(0, "float32"), "s": np.array(scales, "float32")},
        )
        expected = run_onnxruntime(model, {"x": x})
        assert expected is not None
        found = romou.compile(model, target="opencl", strict=True, verify=False).run({"x": x})["y"]
        assert found.dtype == x.dtype
        # Rounding may put a whole value just below itself, so that it is truncated to the number below.
        assert np.abs(found.astype(int) - expected[0].astype(int)).max() <= 1, number
        assert (found == expected[0]).mean() > 0.9, number


def test_norms_beyond_the_integers_are_the_largest_one() -> None:
    """ONNX does not say what they are. A conversion out of range is another number on each device."""
    x = np.full((2, 9), [[2**30], [3]], "int32")
    model = model_of({"y": ("ReduceL2", "x axis", {"keepdims": 0})}, {"x": x}, {"axis": np.array([1])})
    found = romou.compile(model, target="opencl", strict=True, verify=False).run({"x": x})["y"]
    np.testing.assert_array_equal(found, np.array([2**31 - 1, 9], "int32"))
