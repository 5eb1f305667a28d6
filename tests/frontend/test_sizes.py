"""Tensors that are too large, and windows larger than their input, are errors before anything is computed."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from romou.base.errors import ModelError
from romou.compiler.importing import import_onnx


def model_of(
    op: str, inputs: dict[str, list[int | str]], constants: dict[str, np.ndarray], **attributes: object
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    nodes = [
        helper.make_node(op, [*inputs, *constants], ["t"], **attributes),
        helper.make_node("Identity", ["t"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", given, [helper.make_empty_tensor_value_info("y")], weights)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            model_of("Conv", {"x": [1, 4, 30000, 30000]}, {"w": np.zeros((4, 4, 1, 1), "float32")}),
            r"1x4x30000x30000, 3.6e\+09 elements \(14.4 GB\)",
        ),
        (model_of("Expand", {"x": [1, 4]}, {"s": np.array([2**40, 4])}), r"\(Expand\) has the shape 1099511627776x4"),
        (
            model_of("Range", {}, {name: np.asarray(value) for name, value in (("a", 0), ("b", 2**34), ("c", 1))}),
            r"\(Range\) .* 1.718e\+10 elements",
        ),
    ],
    ids=["input", "expand", "range"],
)
def test_a_tensor_that_kernels_cannot_count_is_an_error(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_onnx(model)


@pytest.mark.parametrize("op", ["Conv", "MaxPool"])
def test_a_window_larger_than_its_input_is_an_error(op: str) -> None:
    weight = {"w": np.zeros((4, 4, 5, 5), "float32")} if op == "Conv" else {}
    model = model_of(op, {"x": [1, 4, "h", "w_"]}, weight, kernel_shape=[5, 5])
    with pytest.raises(ModelError, match="smaller than its window|shapes do not fit"):
        import_onnx(model, {"x": (1, 4, 3, 3)})


def test_a_large_range_is_refused_before_it_is_computed() -> None:
    """Inference would compute all of its elements."""
    bounds = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in (("start", 0), ("limit", 2**34), ("step", 1))
    ]
    nodes = [
        helper.make_node("Range", ["start", "limit", "step"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=1),
        helper.make_node("Relu", ["x"], ["z"]),
    ]
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [4]), ("y", None), ("z", [4]))]
    for is_node in (False, True):
        made = [helper.make_node("Constant", [], [bound.name], value=bound) for bound in bounds] if is_node else []
        graph = helper.make_graph([*made, *nodes], "g", values[:1], values[1:], [] if is_node else bounds)
        started = time.monotonic()
        with pytest.raises(ModelError, match=r"\(Range\) has the shape 17179869184, 1.718e\+10 elements"):
            import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
        assert time.monotonic() - started < 20
