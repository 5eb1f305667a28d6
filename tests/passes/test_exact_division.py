"""Divisions that decide a quantization step are marked for the device's compiler, and no others."""

from __future__ import annotations

import numpy as np
import pytest

import romou
from support.models.nodes import assert_as_onnxruntime, model_of

MARK = "/* correctly rounded */"
X = np.random.default_rng(0).standard_normal((5, 12), dtype=np.float32)
SCALE = np.float32(0.3)

KERNELS: dict[str, tuple[dict[str, tuple], bool]] = {
    "quantized": ({"y": ("QuantizeLinear", "x s zero")}, True),
    "quantized by a scale that the run tells": ({"y": ("QuantizeLinear", "x t zero")}, True),
    "rounded": ({"q": ("Div", "x s"), "y": ("Floor", "q")}, True),
    "one number": ({"m": ("ReduceMax", "x", {"keepdims": 0}), "y": ("Div", "m s")}, True),
    "softmax": ({"y": ("Softmax", "x")}, False),
    "divided": ({"y": ("Div", "x t")}, False),
    "rounded before": ({"r": ("Round", "x"), "y": ("Div", "r t")}, False),
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_rounded_is_divided_exactly(name: str) -> None:
    nodes, is_exact = KERNELS[name]
    model = model_of(nodes, {"x": X, "t": SCALE}, {"s": SCALE, "zero": np.uint8(128)})
    del model.graph.output[:-1]
    for device in ("host", "adreno640"):
        sources = "".join(kernel.source for kernel in romou.inspect(model, target=f"opencl -device={device}"))
        assert " / " in sources or "native_divide(" in sources
        assert (MARK in sources) == is_exact
    assert MARK not in "".join(kernel.source for kernel in romou.inspect(model, target="cuda -device=nvidia_h200"))


@pytest.mark.parametrize("name", ["quantized", "rounded"])
def test_vulkan_divides_vectors_by_scalars(name: str) -> None:
    """On Adreno, scalars have no broadcast by default, which a call in GLSL needs."""
    model = model_of(KERNELS[name][0], {"x": X}, {"s": SCALE, "zero": np.uint8(128)})
    del model.graph.output[:-1]
    compiled = romou.compile(model, target="vulkan -device=adreno640", verify=False)
    assert "vec4 quotient(vec4 a, vec4 b)" in "".join(compiled.sources().values())
    assert compiled.host_nodes == ()


def test_the_numbers_are_those_of_onnxruntime() -> None:
    """The inputs include quotients half-way between two steps."""
    ties = np.array([0, 2, -3, -2.5, 1.34, 0.5], np.float32)
    model = model_of(
        {"y": ("QuantizeLinear", "x s zero")}, {"x": ties}, {"s": np.float32(5 / 255), "zero": np.uint8(153)}
    )
    assert_as_onnxruntime(model, {"x": ties}, 0)
