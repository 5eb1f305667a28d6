"""Differences that TVM's simplifier would cancel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from tvm import tirx

import romou
from romou.compiler.passes.float_differences import keep_differences

ROUNDING = 1.5 * 2**23


@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640"])
def test_sums_lose_what_they_lose(target: str, opencl_device: tvm.runtime.Device) -> None:
    """A large constant rounds to an integer, and NaN and infinity stay."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]> g (float[7] x, float[7] b) => (float[7] rounded, float[7] y, float[7] zero)
        <float large = {{{ROUNDING}}}> {{
            high = Add(x, large)
            rounded = Sub(high, large)
            t = Log(x)
            sum = Add(t, b)
            y = Sub(sum, t)
            zero = Sub(t, t)
        }}"""  # noqa: E501
    )
    x, b = np.array([-1, 2.3, np.inf, 0.25, np.nan, 3.7, 0], "float32"), np.arange(7, dtype="float32")
    rounded, y, zero = romou.compile(model, target=target, device=0, verify=False).run({"x": x, "b": b})
    np.testing.assert_array_equal(rounded, np.rint(x))
    np.testing.assert_allclose(y, [np.nan, 1, np.nan, 3, np.nan, 5, np.nan], rtol=1e-6)
    np.testing.assert_array_equal(zero, [np.nan, 0, np.nan, 0, np.nan, 0, np.nan])


def test_other_differences_stay() -> None:
    x, y, i, j = (
        tirx.Var(name, dtype) for name, dtype in (("x", "float32"), ("y", "float32"), ("i", "int32"), ("j", "int32"))
    )
    for expr, is_kept in ((x - y, True), ((i + j) - i, True), ((x + y) - x, False), (x - (y + x), False)):
        func = tirx.PrimFunc([x, y, i, j], tirx.Evaluate(expr))
        changed = keep_differences(tvm.IRModule({"main": func}))["main"].body.value
        assert isinstance(changed, tirx.Sub) == is_kept
        assert str(tvm.sym.Analyzer().simplify(changed)) == str(changed) or is_kept


@pytest.mark.parametrize("target", ["opencl -device=adreno640", "vulkan"])
def test_nan_equals_nothing(target: str, opencl_device: tvm.runtime.Device, vulkan_device: tvm.runtime.Device) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> g (float[5] x, float[5] y) => (bool[5] e, bool[5] l, bool[5] g, bool[5] n, bool[5] greater, bool[5] less) {
            e = Equal(x, x)
            l = LessOrEqual(x, x)
            g = GreaterOrEqual(x, x)
            n = Not(e)
            at_most = LessOrEqual(x, y)
            greater = Not(at_most)
            above = Greater(x, y)
            less = Not(above)
        }"""  # noqa: E501
    )
    x, y = (np.array(row, "float32") for row in ([1, np.nan, np.inf, -0.0, 2], [2, 1, 1, np.nan, 2]))
    compiled = romou.compile(model, target=target, device=0, verify=False, strict=True)
    *equal, unequal, greater, less = compiled.run({"x": x, "y": y})
    for found in equal:
        np.testing.assert_array_equal(found, ~np.isnan(x))
    np.testing.assert_array_equal(unequal, np.isnan(x))
    np.testing.assert_array_equal(greater, ~(x <= y))
    np.testing.assert_array_equal(less, ~(x > y))
