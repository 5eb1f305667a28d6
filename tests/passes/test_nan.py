"""Maxima and minima that keep NaN: the form, and that a long chain of them stays a short text."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import te, tirx
from tvm_ffi.structural import structural_walk

import romou.compiler.pipeline as pipeline
from romou.compiler.passes.nan import keep_nan
from romou.compiler.tir.primitives import ignore_nan
from romou.devices.targets import Target
from support.models.nodes import assert_as_onnxruntime, model_of


def kinds_in(func: tirx.PrimFunc) -> dict[str, int]:
    found: dict[str, int] = {}

    def count(expr: object) -> None:
        found[type(expr).__name__] = found.get(type(expr).__name__, 0) + 1

    structural_walk(func.body, ((tirx.Max, tirx.Min, tirx.Select, tirx.Let), count))
    return found


def kept(value_of: object, dtype: str = "float32", *, is_ignored: bool = False) -> tirx.PrimFunc:
    a, b = (te.placeholder((4,), dtype, name) for name in "ab")
    func = te.create_prim_func([a, b, te.compute((4,), lambda i: value_of(a[i], b[i]))])  # type: ignore[operator]
    func = func.with_body(ignore_nan(func.body)) if is_ignored else func
    return keep_nan(tvm.IRModule({"main": func}))["main"]


def test_a_constant_takes_one_comparison_and_two_operands_take_two() -> None:
    assert kinds_in(kept(lambda a, b: tirx.max(a, tirx.const(0.0, "float32")))) == {"Select": 1, "Let": 1}
    assert kinds_in(kept(lambda a, b: tirx.min(a, b))) == {"Select": 2, "Let": 2}


def test_integers_and_what_is_marked_stay() -> None:
    assert kinds_in(kept(tirx.max, "int32")) == {"Max": 1}
    assert kinds_in(kept(tirx.max, is_ignored=True)) == {"Max": 1}


def test_a_chain_of_maxima_does_not_double_its_text() -> None:
    def chain(a: tirx.Expr, _b: tirx.Expr) -> tirx.Expr:
        for step in range(20):
            a = tirx.max(a - tirx.const(1.0, "float32"), tirx.const(float(-step), "float32"))
        return a

    assert kinds_in(kept(chain)) == {"Select": 20, "Let": 20}


def test_the_numbers_are_those_of_numpy() -> None:
    values = np.array([np.nan, -1, 0, 1, np.inf, -np.inf], "float32")
    left, right = (grid.reshape(-1).copy() for grid in np.meshgrid(values, values))
    a, b = (te.placeholder((36,), "float32", name) for name in "ab")
    outputs = [
        te.compute((36,), lambda i: tirx.max(a[i], b[i]), "largest"),
        te.compute((36,), lambda i: tirx.min(a[i], b[i]), "smallest"),
    ]
    for output, expected in zip(outputs, (np.maximum, np.minimum), strict=True):
        sch = tvm.s_tir.Schedule(te.create_prim_func([a, b, output]))
        (loop,) = sch.get_loops(sch.get_sblock(output.op.name))
        sch.bind(loop, "threadIdx.x")
        with tvm.transform.PassContext():
            module = tvm.tirx.build(sch.mod, target=Target("opencl").tvm_target, pipeline=pipeline.NAME)
        device = tvm.runtime.device("opencl", 0)
        arrays = [tvm.runtime.tensor(array, device) for array in (left, right, np.zeros(36, "float32"))]
        module["main"](*arrays)
        np.testing.assert_array_equal(arrays[-1].numpy(), expected(left, right))


def test_doubles_through_vulkan(vulkan_device: tvm.runtime.Device) -> None:
    """GLSL's maximum drops NaN, and its functions of floats take no doubles."""
    x = np.random.default_rng(7).standard_normal((5, 12))
    x[1, 3] = x[4, 0] = np.nan
    x[2, 5], x[3, 7] = np.inf, -np.inf
    nodes = {"high": ("Max", "x zero"), "low": ("Min", "x zero"), "over": ("Relu", "x")}
    assert_as_onnxruntime(model_of(nodes, {"x": x}, {"zero": np.float64(0)}), {"x": x}, 1e-12, "vulkan")
