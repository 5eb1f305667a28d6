"""Converters that replace the wheel's: the simple form, the same numbers, and a sign for when to drop them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from romou.tvm_patches.onnx_converters import patched_converters
from small_networks import Graph
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm_ffi.structural import structural_walk


def operators(model: onnx.ModelProto, *, patched: bool) -> list[str]:
    found: list[str] = []
    if patched:
        with patched_converters():
            mod = from_onnx(model, keep_params_in_input=False)
    else:
        mod = from_onnx(model, keep_params_in_input=False)
    structural_walk(mod["main"].body, (relax.Call, lambda call: found.append(getattr(call.op, "name", "?"))))
    return found


def clip_model(low: float | None = 0.0, high: float | None = 6.0) -> onnx.ModelProto:
    g = Graph({"x": (2, 3)})
    bounds = ["" if bound is None else g.constant(np.float32(bound)) for bound in (low, high)]
    return g.model(g.add("Clip", "x", *bounds))


def max_model() -> onnx.ModelProto:
    g = Graph({"x": (2, 3)})
    return g.model(g.add("Max", "x", g.weight(2, 3), g.weight(1, 3)))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (clip_model(), ["relax.maximum", "relax.minimum"]),
        (clip_model(low=None), ["relax.minimum"]),
        (clip_model(high=None), ["relax.maximum"]),
        (max_model(), ["relax.maximum", "relax.maximum"]),
    ],
)
def test_the_simple_form(model: onnx.ModelProto, expected: list[str]) -> None:
    assert sorted(operators(model, patched=True)) == expected


@pytest.mark.parametrize("model", [clip_model(), max_model()])
def test_the_wheel_still_needs_it(model: onnx.ModelProto) -> None:
    """When this fails, the wheel emits the simple form: drop the converter."""
    assert len(operators(model, patched=False)) > len(operators(model, patched=True))


def test_the_wheels_converters_come_back() -> None:
    before = operators(clip_model(), patched=False)
    operators(clip_model(), patched=True)
    assert operators(clip_model(), patched=False) == before
