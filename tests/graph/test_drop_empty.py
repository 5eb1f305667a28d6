"""Tensors without elements: results computed from them equal onnxruntime's, and no kernel is launched for them."""

from __future__ import annotations

import numpy as np

from support.models.nodes import assert_as_onnxruntime, model_of

INPUTS = {"x": np.linspace(-1, 2, 32, dtype=np.float32).reshape(4, 8)}
NO_ROWS = {
    "two": np.array([2]),
    "first": np.array([0]),
    "pads": np.array([1, 0, 1, 0]),
    "none": np.zeros((0,), np.int64),
}
EMPTY = {"rows": ("Slice", "x two two first")}


def test_empty_tensors_inside_a_model_and_out_of_it() -> None:
    nodes = {
        **EMPTY,
        "relu": ("Relu", "rows"),
        "joined": ("Concat", "x relu x", {"axis": 0}),
        "only": ("Concat", "rows x", {"axis": 0}),
        "sum": ("ReduceSum", "rows first", {"keepdims": 0}),
        "largest": ("ReduceMax", "rows first", {"keepdims": 0}),
        "columns": ("Transpose", "rows"),
        "product": ("MatMul", "columns rows"),
        "padded": ("Pad", "rows pads"),
        "taken": ("Gather", "x none"),
    }
    assert_as_onnxruntime(model_of(nodes, INPUTS, NO_ROWS), INPUTS)


def test_outputs_without_elements_of_an_input_without_elements() -> None:
    empty = {"e": np.zeros((3, 0, 5), np.float32)}
    assert_as_onnxruntime(model_of({"y": ("Relu", "e")}, empty), empty)
    assert_as_onnxruntime(model_of({"y": ("Relu", "e"), "z": ("Transpose", "y")}, empty), empty)
