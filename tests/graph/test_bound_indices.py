"""Indices out of range never leave their tensor, and negative indices count from the end."""

from __future__ import annotations

import numpy as np
import pytest

import romou
from romou.base.errors import ModelError
from support.models.nodes import assert_as_onnxruntime, model_of

X = np.linspace(-1, 2, 32, dtype=np.float32).reshape(4, 8)
UPDATES = {"row": np.full((1, 8), 7, np.float32), "rows": np.full((3, 8), 9, np.float32)}
NODES = {
    "taken": ("Gather", "x i"),
    "elements": ("GatherElements", "x grid", {"axis": 1}),
    "points": ("GatherND", "x pairs"),
    "set_elements": ("ScatterElements", "x columns row"),
    "set_rows": ("ScatterND", "x lines rows"),
}


def test_indices_from_the_end() -> None:
    indices = {
        "i": [0, 3, -1, -4],
        "grid": [[1, -1, 0, -8]] * 3,
        "pairs": [[1, -1], [-4, 0]],
        "columns": [[1, 2, -1, 0, 3, -2, 2, 1]],
        "lines": [[1], [0], [-1]],
    }
    inputs = {"x": X, **{name: np.asarray(value, np.int64) for name, value in indices.items()}, **UPDATES}
    assert_as_onnxruntime(model_of(NODES, inputs), inputs)


def test_an_index_out_of_range_takes_the_nearest_element() -> None:
    far = 10**12
    indices = {
        "i": [99, -99, far, 1],
        "grid": [[9, -99, far, 0]] * 3,
        "pairs": [[99, 0], [0, -far]],
        "columns": [[99] * 8],
        "lines": [[far], [0], [-99]],
    }
    inputs = {"x": X, **{name: np.asarray(value, np.int64) for name, value in indices.items()}, **UPDATES}
    found = romou.compile(model_of(NODES, inputs), target="opencl").run(inputs)
    np.testing.assert_array_equal(found["taken"], X[[3, 0, 3, 1]])
    np.testing.assert_array_equal(found["elements"], X[:3][:, [7, 0, 7, 0]])
    np.testing.assert_array_equal(found["points"], X[[3, 0], [0, 0]])
    np.testing.assert_array_equal(found["set_elements"][:3], X[:3])
    np.testing.assert_array_equal(found["set_rows"][1:3], X[1:3])


def test_a_constant_out_of_range_is_an_error_at_once() -> None:
    with pytest.raises(ModelError, match=r"take: the index 7 is outside a tensor of 4 elements"):
        romou.compile(model_of({"y": ("Gather", "x i")}, {"x": X}, {"i": np.array([0, 7])}), target="opencl")


def test_nobody_is_warned_of_indices_that_are_in_range(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM's text says "Fast mode segfaults when there are out-of-bounds indices"."""
    indices = np.array([[0, -1, 3], [2, 2, -4]])
    model = model_of({"y": ("Gather", "x i")}, {"x": X, "i": indices})
    found = romou.compile(model, target="opencl", verify=False).run({"x": X, "i": indices})
    np.testing.assert_array_equal(found["y"], X[indices])
    assert capfd.readouterr().err == ""
