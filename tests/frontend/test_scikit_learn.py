"""Operators of scikit-learn's pipelines have kernels: none runs on the host, and outputs are onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import romou
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.importing import import_onnx

ROWS, FEATURES, CLASSES = 7, 5, 4
RNG = np.random.default_rng(11)


def numbers(*shape: int) -> list[float]:
    return [float(value) for value in RNG.standard_normal(shape).astype(np.float32).ravel()]


def model_of(operator: str, kind: int = TensorProto.FLOAT, opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node. A classifier has labels and scores."""
    outputs = {"labels": TensorProto.INT64} if operator == "LinearClassifier" else {}
    outputs["y"] = TensorProto.FLOAT
    inputs = ["x", "at"] if operator == "ArrayFeatureExtractor" else ["x"]
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, list(outputs), domain="ai.onnx.ml", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", kind, [ROWS, FEATURES])],
        [helper.make_tensor_value_info(name, element, None) for name, element in outputs.items()],
        [numpy_helper.from_array(np.array([3, 1]), "at")][: len(inputs) - 1],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


SCALED = {"offset": numbers(FEATURES), "scale": numbers(FEATURES)}
CLASSIFIED = {
    "coefficients": numbers(CLASSES, FEATURES),
    "intercepts": numbers(CLASSES),
    "classlabels_ints": [3, 5, 7, 9],
}
MODELS = {
    "Scaler": model_of("Scaler", **SCALED),
    "Scaler of integers": model_of("Scaler", TensorProto.INT64, **SCALED),
    "Scaler with one number": model_of("Scaler", offset=[0.5], scale=[2.0]),
    **{
        f"Normalizer, {norm}, opset {opset}": model_of("Normalizer", opset=opset, norm=norm)
        for norm in ("L1", "L2", "MAX")
        for opset in (13, 18)
    },
    "Imputer of NaN": model_of("Imputer", imputed_value_floats=numbers(FEATURES), replaced_value_float=np.nan),
    "Imputer of a number": model_of("Imputer", imputed_value_floats=[9.0], replaced_value_float=1.0),
    "LinearRegressor": model_of("LinearRegressor", coefficients=numbers(3, FEATURES), intercepts=numbers(3), targets=3),
    **{
        f"LinearClassifier, {after}": model_of("LinearClassifier", post_transform=after, **CLASSIFIED)
        for after in ("NONE", "SOFTMAX", "LOGISTIC")
    },
    "ArrayFeatureExtractor": model_of("ArrayFeatureExtractor"),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_onnxruntime(name: str) -> None:
    model = MODELS[name]
    x = np.random.default_rng(1).standard_normal((ROWS, FEATURES)).astype(np.float32)
    x[2], x[3, 1] = 0, 1
    if name == "Imputer of NaN":
        x[1, 1] = x[4, 3] = np.nan
    if "integers" in name:
        x = (10 * x).astype(np.int64)
    expected = run_onnxruntime(model, {"x": x})
    assert expected is not None
    compiled = romou.compile(model, target="opencl", verify=False)
    assert compiled.host_nodes == ()
    for output, wanted in zip(compiled.run({"x": x}), expected, strict=True):
        assert (output.shape, output.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("LinearRegressor", {"coefficients": numbers(FEATURES), "post_transform": "PROBIT"}),
        ("LinearClassifier", {**CLASSIFIED, "classlabels_ints": [3]}),
        ("Binarizer", {"threshold": 0.5}),
    ],
)
def test_other_forms_stay(operator: str, attributes: dict[str, Any]) -> None:
    assert import_onnx(model_of(operator, **attributes)).host_groups != ()
