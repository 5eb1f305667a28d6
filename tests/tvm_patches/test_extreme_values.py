"""Operators with a wrong kernel in the wheel, if all numbers are the type's least or NaN, or without a form for
unsigned numbers.
"""

from __future__ import annotations

import numpy as np
import pytest

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from support.models.nodes import assert_as_onnxruntime, model_of

INFINITE = np.array([[-np.inf] * 4, [-np.inf, -3e38, -np.inf, 2], [np.inf] * 4, [1, 7, 7, -1]], np.float32)
WHOLE = {
    "int32": np.array([[-(2**31)] * 4, [2**31 - 1] * 4, [5, 5, -3, -3], [0, 1, 2, 3]], np.int32),
    # A mask without a true value.
    "uint8": np.array([[0] * 4, [255] * 4, [0, 1, 1, 0], [3, 2, 1, 0]], np.uint8),
}


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("x", [INFINITE, *WHOLE.values()], ids=lambda x: str(x.dtype))
def test_an_index_is_inside_of_the_row(operator: str, x: np.ndarray) -> None:
    model = model_of(
        {"y": (operator, "x", {"axis": 1}), "z": (operator, "x", {"axis": -2, "keepdims": 0, "select_last_index": 1})},
        {"x": x},
    )
    compiled = romou.compile(model, verify=False)
    assert compiled.host_nodes == ()
    find = np.argmax if operator == "ArgMax" else np.argmin
    first, last = compiled.run({"x": x})
    np.testing.assert_array_equal(first, find(x, 1)[:, None])
    np.testing.assert_array_equal(last, x.shape[0] - 1 - find(x[::-1], 0))


@pytest.mark.parametrize(
    "x",
    [np.array([np.nan, -np.inf, -2, -0.0, 0, 1e-30, np.inf], np.float32), *WHOLE.values()],
    ids=lambda x: str(x.dtype),
)
def test_signs(x: np.ndarray) -> None:
    model = model_of({"y": ("Sign", "x")}, {"x": x})
    compiled = romou.compile(model, verify=False)
    assert compiled.host_nodes == ()
    expected = run_onnxruntime(model, {"x": x})
    assert expected is not None
    np.testing.assert_array_equal(compiled.run({"x": x})[0], expected[0])


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceL2", "ReduceLogSum"])
def test_results_of_integers_fit_even_if_their_sum_does_not(operator: str) -> None:
    x = np.array([[2**30, 2**30 + 3, 5], [2**21, 2**20, 2**22], [1, 2, 4]], np.int32)
    inputs = {"x": x, "wide": x.astype("int64") << 32}
    nodes = {f"{name}_{operator}": (operator, f"{name} axes") for name in inputs}
    assert_as_onnxruntime(model_of(nodes, inputs, {"axes": np.array([1])}), inputs, 0)
