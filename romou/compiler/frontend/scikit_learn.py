"""Operators of the domain ai.onnx.ml that scikit-learn's pipelines export, by their definition in standard operators.

    Scaler(x)  ->  Mul(Sub(x, offset), scale)

Trees, support vector machines and texts stay: they run on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from romou.compiler.frontend.onnx_graph import Graph, attributes_of, rule

DOMAIN = "ai.onnx.ml"
# The first opset with operators that the definitions need, and the first one where reductions read their axes.
_LEAST_OPSET, _AXES_ARE_INPUTS = 13, 18
_NORMS = {"L1": "ReduceL1", "L2": "ReduceL2", "MAX": "ReduceMax"}
_AFTER = {"NONE": "Identity", "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}


class _Body:
    """The nodes of a definition. Each call appends a node and returns the name of its result."""

    def __init__(self, node: onnx.NodeProto, graph: Graph) -> None:
        self.node, self.graph, self.opset, self.attributes = node, graph, graph.opset, attributes_of(node)
        self.nodes: list[onnx.NodeProto] = []

    def __call__(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or self.graph.free(f"{self.node.output[0]}/{operator}{len(self.nodes)}")
        self.nodes.append(helper.make_node(operator, inputs, [output], f"{output}/of", **attributes))
        return output

    def constant(self, role: str, value: np.ndarray | np.generic) -> str:
        return self.graph.constant(f"{self.node.output[0]}/{role}", np.asarray(value))

    def floats(self, name: str) -> np.ndarray:
        return np.array(self.attributes[name], np.float32)

    def data(self) -> str:
        """Append the cast of the input to floats."""
        return self("Cast", self.node.input[0], to=TensorProto.FLOAT)

    def reduced(self, operator: str, x: str) -> str:
        """Append a reduction over the features."""
        if self.opset < _AXES_ARE_INPUTS:
            return self(operator, x, axes=[-1], keepdims=1)
        return self(operator, x, self.constant("axes", np.array([-1], np.int64)), keepdims=1)

    def scores(self, columns: int) -> str:
        """Append the product of the features with the coefficients of each target or class."""
        weight = self.floats("coefficients").reshape(columns, -1)
        product = self("MatMul", self.data(), self.constant("weight", weight.T.copy()))
        if "intercepts" not in self.attributes:
            return product
        return self("Add", product, self.constant("intercepts", self.floats("intercepts")))


def _scaler(body: _Body) -> bool:
    offset = body("Sub", body.data(), body.constant("offset", body.floats("offset")))
    body("Mul", offset, body.constant("scale", body.floats("scale")), output=body.node.output[0])
    return True


def _normalizer(body: _Body) -> bool:
    """A row whose norm is 0 stays as it is."""
    norm = _NORMS.get(body.attributes.get("norm", b"MAX").decode())
    if norm is None:
        return False
    x = body.data()
    norms = body.reduced(norm, x)
    is_zero = body("Equal", norms, body.constant("zero", np.float32(0)))
    divisor = body("Where", is_zero, body.constant("one", np.float32(1)), norms)
    body("Div", x, divisor, output=body.node.output[0])
    return True


def _imputer(body: _Body) -> bool:
    if "imputed_value_floats" not in body.attributes:
        return False
    x, replaced = body.node.input[0], np.float32(body.attributes.get("replaced_value_float", 0.0))
    is_missing = body("IsNaN", x) if np.isnan(replaced) else body("Equal", x, body.constant("replaced", replaced))
    body(
        "Where", is_missing, body.constant("value", body.floats("imputed_value_floats")), x, output=body.node.output[0]
    )
    return True


def _regressor(body: _Body) -> bool:
    if body.attributes.get("post_transform", b"NONE") != b"NONE" or "coefficients" not in body.attributes:
        return False
    body("Identity", body.scores(body.attributes.get("targets", 1)), output=body.node.output[0])
    return True


def _classifier(body: _Body) -> bool:
    """Classes of integers, each with coefficients of its own."""
    labels = body.attributes.get("classlabels_ints", [])
    after = _AFTER.get(body.attributes.get("post_transform", b"NONE").decode())
    if after is None or len(labels) < 2 or len(body.attributes.get("intercepts", ())) != len(labels):
        return False
    scores = body.scores(len(labels))
    best = body("ArgMax", scores, axis=-1, keepdims=0)
    body("Gather", body.constant("labels", np.array(labels, np.int64)), best, output=body.node.output[0])
    if len(body.node.output) > 1 and body.node.output[1]:
        body(after, scores, output=body.node.output[1])
    return True


def _extractor(body: _Body) -> bool:
    body("Gather", *body.node.input, output=body.node.output[0], axis=-1)
    return True


_DEFINITIONS: dict[str, Callable[[_Body], bool]] = {
    "ArrayFeatureExtractor": _extractor,
    "Imputer": _imputer,
    "LinearClassifier": _classifier,
    "LinearRegressor": _regressor,
    "Normalizer": _normalizer,
    "Scaler": _scaler,
}


@rule(*_DEFINITIONS, domain=DOMAIN)
def with_standard_definitions(node: onnx.NodeProto, graph: Graph) -> None:
    """Replace operators of ai.onnx.ml by their definitions. Those of a form that has none here stay."""
    body = _Body(node, graph)
    if graph.opset >= _LEAST_OPSET and _DEFINITIONS[node.op_type](body):
        graph.replace(node, *body.nodes)
