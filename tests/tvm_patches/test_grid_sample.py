"""GridSample in every mode, inside of the input and far outside of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from support.models.nodes import assert_as_onnxruntime, model_of

PADDINGS = ("zeros", "border", "reflection")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_positions_outside_of_the_input(mode: str) -> None:
    """Up to two times the input's size away."""
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((1, 2, 5, 6)).astype("float32"),
        "grid": (rng.random((1, 9, 11, 2)) * 10 - 5).astype("float32"),
    }
    nodes = {
        f"{padding}{aligned}": (
            "GridSample",
            "x grid",
            {"mode": mode, "padding_mode": padding, "align_corners": aligned},
        )
        for padding, aligned in itertools.product(PADDINGS, (0, 1))
    }
    assert_as_onnxruntime(model_of(nodes, inputs, opset=20), inputs, 1e-4)


def test_three_axes() -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((2, 3, 4, 5, 6)).astype("float32"),
        "grid": (rng.random((2, 3, 2, 5, 3)) * 3 - 1.5).astype("float32"),
    }
    nodes = {padding: ("GridSample", "x grid", {"padding_mode": padding}) for padding in PADDINGS}
    assert_as_onnxruntime(model_of(nodes, inputs, opset=20), inputs, 1e-4)


def test_infinities_beside_a_position_do_not_reach_it() -> None:
    """Elements outside of the input are zeros, not products of a weight of zero."""
    x = np.full((1, 1, 3, 3), np.inf, "float32")
    inputs = {"x": x, "grid": np.full((1, 1, 1, 2), -3, "float32")}
    assert_as_onnxruntime(model_of({"y": ("GridSample", "x grid")}, inputs, opset=20), inputs)


def test_formulas_of_a_position_stand_once() -> None:
    """Not once for each of the 16 elements around it, which took 17 s to compile."""
    inputs = {"x": np.zeros((1, 3, 5, 6), "float32"), "grid": np.zeros((1, 9, 11, 2), "float32")}
    model = model_of({"y": ("GridSample", "x grid", {"mode": "cubic", "padding_mode": "reflection"})}, inputs, opset=20)
    kernels = romou.compile(model, target="opencl -device=adreno640", strict=True, verify=False).sources()
    assert ["floor(" in text for name, text in sorted(kernels.items())] == [True, True, False]


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_samples_of_a_grid_keep_their_type(mode: str) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((1, 2, 6, 7)).astype("float16"),
        "grid": (rng.random((1, 5, 4, 2)) * 2 - 1).astype("float16"),
    }
    model = model_of({"y": ("GridSample", "x grid", {"mode": mode})}, inputs)
    model.opset_import[0].version = 20
    found = romou.compile(model, target="opencl", strict=True, verify=False).run(inputs)["y"]
    wide = {name: array.astype("float32") for name, array in inputs.items()}
    model = model_of({"y": ("GridSample", "x grid", {"mode": mode})}, wide)
    model.opset_import[0].version = 20
    expected = run_onnxruntime(model, wide)
    assert expected is not None
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected[0], 2e-2, 2e-2)
