"""Operations of nodes, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from romou.compiler.frontend.work import flops_by_node
from support.models.nodes import model_of
from support.models.small_networks import NetworkBuilder

X = {"x": np.zeros((2, 8, 6, 5), np.float32)}
ROWS = {"x": np.zeros((3, 7, 11), np.float32)}
CASES = {
    "a matrix product": (
        model_of({"y": ("MatMul", "x w")}, ROWS, {"w": np.zeros((11, 4), np.float32)}),
        2 * 3 * 7 * 4 * 11,
    ),
    "a transposed one": (
        model_of({"y": ("Gemm", "x w", {"transA": 1})}, {"x": ROWS["x"][0].T[:7]}, {"w": np.zeros((7, 4), np.float32)}),
        2 * 7 * 4 * 7,
    ),
    "an element-wise operator": (model_of({"y": ("Relu", "x")}, X), 2 * 8 * 6 * 5),
    "a pooling": (model_of({"y": ("MaxPool", "x", {"kernel_shape": [3, 2]})}, X), 2 * 8 * 4 * 4 * 6),
    "a reduction": (model_of({"y": ("ReduceSum", "x axes")}, X, {"axes": np.array([1, 2, 3])}), 2 * 8 * 6 * 5),
    "a view": (model_of({"y": ("Reshape", "x shape")}, X, {"shape": np.array([-1])}), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_node(name: str) -> None:
    model, expected = CASES[name]
    assert flops_by_node(model) == {"y": expected}


@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution(groups: int) -> None:
    g = NetworkBuilder({"x": (2, 8, 6, 5)})
    assert flops_by_node(g.model(g.conv("x", 8, 12, groups=groups))) == {"t0": 2 * (2 * 12 * 4 * 3) * (8 // groups) * 9}


def test_a_transposed_convolution_counts_what_each_input_is_multiplied_with() -> None:
    g = NetworkBuilder({"x": (2, 8, 6, 5)})
    assert flops_by_node(g.model(g.add("ConvTranspose", "x", g.weight(8, 3, 2, 2)))) == {
        "t0": 2 * (2 * 8 * 6 * 5) * 3 * 4
    }
