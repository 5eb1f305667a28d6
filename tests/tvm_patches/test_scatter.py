"""Scattered updates of fewer elements than the data, on any axis and with every reduction, and gathers."""

from __future__ import annotations

import numpy as np
import pytest

import romou
from support.models.nodes import assert_as_onnxruntime, model_of
from support.suite.exhaustive import few

SHAPE = (3, 4, 5, 2)


@pytest.mark.parametrize("reduction", few(["none", "add", "mul", "max", "min"], 0, 3))
def test_updates_may_be_smaller_than_the_data(reduction: str) -> None:
    """TVM's operator flattens the places of updates, which is right on the first axis only."""
    rng = np.random.default_rng(0)
    nodes, constants = {}, {}
    for number, (axis, updates) in enumerate(
        [
            (0, (2, 3, 5, 2)),
            (1, (3, 2, 4, 1)),
            (-1, (1, 4, 3, 2)),
            (2, (2, 4, 4, 2)),
            (2, (3, 4, 3, 2)),
            (3, (3, 4, 5, 1)),
        ]
    ):
        # Which of two updates of one element is the last is not said; a reduction takes all of them.
        places = np.argsort(
            rng.random([SHAPE[axis] if a == axis % 4 else extent for a, extent in enumerate(updates)]), axis
        )
        places = (
            np.take(places, range(updates[axis]), axis)
            if reduction == "none"
            else rng.integers(-SHAPE[axis], SHAPE[axis], updates)
        )
        constants |= {f"i{number}": places, f"u{number}": rng.standard_normal(updates, np.float32)}
        nodes[f"y{number}"] = ("ScatterElements", f"x i{number} u{number}", {"axis": axis, "reduction": reduction})
        nodes[f"g{number}"] = ("GatherElements", f"x i{number}", {"axis": axis})
    inputs = {"x": rng.standard_normal(SHAPE, np.float32)}
    model = model_of(nodes, inputs, constants)
    assert romou.compile(model, target="opencl", strict=True, verify=False).host_nodes == ()
    assert_as_onnxruntime(model, inputs)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_slices_are_scattered(reduction: str) -> None:
    rng = np.random.default_rng(1)
    places = np.array([[0, 3], [-1, 0], [2, -2]]) if reduction == "none" else np.array([[0, 3], [-3, 3], [2, -2]])
    constants = {"i": places, "u": rng.standard_normal((3, *SHAPE[2:]), np.float32)}
    inputs = {"x": rng.standard_normal(SHAPE, np.float32)}
    model = model_of({"y": ("ScatterND", "x i u", {"reduction": reduction})}, inputs, constants)
    assert romou.compile(model, target="opencl", verify=False).summary().by_tvm == ()
    assert_as_onnxruntime(model, inputs)


@pytest.mark.parametrize("updates", [(2, 3, 4, 5, 2), (7, 5, 2), (2, 2)])
def test_an_index_has_coordinates_of_one_axis_to_all(updates: tuple[int, ...]) -> None:
    """Several updates of an element are added, whether the index is of one axis, of two, or of all four."""
    rng, depth = np.random.default_rng(2), {5: 1, 3: 2, 2: 4}[len(updates)]
    places = rng.integers([-e for e in SHAPE[:depth]], SHAPE[:depth], (*updates[: len(updates) - 4 + depth], depth))
    inputs = {"x": rng.standard_normal(SHAPE, np.float32), "i": places, "u": rng.standard_normal(updates, np.float32)}
    assert_as_onnxruntime(model_of({"y": ("ScatterND", "x i u", {"reduction": "add"})}, inputs), inputs)
