"""Functions in the place of those that mobile GPUs' compilers write at length: right numbers at every size, and only where they are allowed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from nodes import model_of

import romou

TARGETS = ("opencl -device=host", "opencl -device=adreno640")
EDGES = np.array([0, -0.0, 1e-38, -3e-20, 3.9, 3.925, 4, -4, 9, 80, -1e30, np.inf, -np.inf, np.nan], np.float32)


def source_of(nodes: dict[str, tuple], inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray], target: str) -> str:
    return "".join(kernel.source for kernel in romou.inspect(model_of(nodes, inputs, constants), target=target))


@pytest.mark.parametrize("size", [1, 13, 16, 998])
def test_erf_is_within_what_opencl_allows(size: int, opencl_device: tvm.runtime.Device) -> None:
    """At every number of lanes; OpenCL allows 16 units in the last place."""
    x = np.random.default_rng(size).uniform(-4.5, 4.5, size).astype(np.float32)
    x[: len(EDGES)] = EDGES[:size]
    (found,) = romou.compile(model_of({"y": ("Erf", "x")}, {"x": x}, {}), target=TARGETS[0], verify=False).run({"x": x})
    expected = np.array([math.erf(value) for value in x.astype(np.float64)])
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    kept = ~np.isnan(expected)
    assert np.max(np.abs(found - expected)[kept] / np.spacing(np.abs(expected[kept]).astype(np.float32) + np.float32(1e-37))) <= 16


@pytest.mark.parametrize("target", TARGETS)
def test_erf_has_one_definition_for_its_lanes(target: str) -> None:
    x = np.ones((3, 64), np.float32)
    source = source_of({"e": ("Erf", "x"), "f": ("Erf", "e"), "y": ("Add", "e f")}, {"x": x}, {}, target)
    assert source.count("float4 erf_float4(float4 x) {") == 1
    assert " erf(" not in source
    assert "erff(" in source_of({"y": ("Erf", "x")}, {"x": x}, {}, "cuda -device=nvidia_h200")


@pytest.mark.parametrize(
    ("nodes", "is_short"),
    [
        ({"y": ("Div", "x s")}, True),
        ({"y": ("Div", "s x")}, False),
        ({"y": ("Div", "x huge")}, False),
        ({"q": ("Div", "x s"), "y": ("Floor", "q")}, False),
    ],
    ids=["by a constant", "of a constant", "by a constant without a reciprocal", "rounded"],
)
def test_divisions(nodes: dict[str, tuple], is_short: bool, opencl_device: tvm.runtime.Device) -> None:
    x = np.random.default_rng(1).uniform(0.5, 3e3, (5, 12)).astype(np.float32)
    constants = {"s": np.float32(0.3), "huge": np.float32(3e38)}
    used = {name: value for name, value in constants.items() if any(name in inputs[1].split() for inputs in nodes.values())}
    model = model_of(nodes, {"x": x}, used)
    del model.graph.output[:-1]
    for target in TARGETS:
        source = "".join(kernel.source for kernel in romou.inspect(model, target=target))
        assert ("(1.000000e+00f / " in source) == is_short
    (found,) = romou.compile(model, target=TARGETS[0], verify=False).run({"x": x})
    a, b = (x if name == "x" else constants[name] for name in next(iter(nodes.values()))[1].split())
    expected = a / b if len(nodes) == 1 else np.floor(a / b)
    assert np.allclose(found, expected, rtol=3e-7, atol=1e-38)
