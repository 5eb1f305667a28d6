"""Constants of more digits than TVM's code generators print."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx

import romou
from romou.compiler.passes.code_generator import keep_digits
from support.models.nodes import model_of


@pytest.mark.parametrize("target", ["opencl", "vulkan"])
def test_numbers_are_exact(target: str, opencl_device: tvm.runtime.Device) -> None:
    whole = np.array([0.0, 1.0, 2.0, -3.0], "float32")
    double = np.array([0.0, 1.0, -0.25, 3.0])
    third, large = np.float64(1) / 3, np.float32(16777215)
    nodes = {"a": ("Add", "x large"), "b": ("Add", "y third"), "c": ("Mul", "y large64"), "d": ("Mul", "x scale")}
    constants = {"large": large, "third": third, "large64": np.float64(123456789012345678), "scale": np.float32(1) / 3}
    model = model_of(nodes, {"x": whole, "y": double}, constants)
    found = romou.compile(model, target=target, verify=False, strict=True).run({"x": whole, "y": double})
    np.testing.assert_array_equal(found[0], whole + large)
    np.testing.assert_array_equal(found[1], double + third)
    np.testing.assert_array_equal(found[2], double * 123456789012345678)
    np.testing.assert_array_equal(found[3], whole * (np.float32(1) / 3))


def _constant(value: float, dtype: str, kind: str) -> tirx.Expr:
    y = tirx.decl_buffer((1,), dtype, name="y")
    func = tirx.PrimFunc([y], tirx.BufferStore(y, tirx.FloatImm(dtype, value), [0])).with_attr(
        "target", tvm.target.Target(kind)
    )
    return keep_digits(tvm.IRModule({"main": func}))["main"].body.value


def test_only_what_loses_digits_is_a_sum() -> None:
    short, long = (
        ((0.5, "float64"), (0.1, "float32"), (4096.0, "float32")),
        ((1 / 3, "float64"), (16777215.0, "float32"), (1 / 3, "float32")),
    )
    for value, dtype, is_sum in (*((*one, False) for one in short), *((*one, True) for one in long)):
        assert isinstance(_constant(value, dtype, "opencl"), tirx.Add) == is_sum, (value, dtype)
