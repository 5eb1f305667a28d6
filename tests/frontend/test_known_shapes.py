"""Shapes of a graph's tensors that are known before it runs: behind operators that ONNX lacks, and if the model
declares others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import romou
from romou.base.errors import ModelError
from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.onnx_graph import shapes_of
from romou.compiler.frontend.reference import run_onnxruntime
from support.suite.exhaustive import in_turn

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("com.microsoft", 1)]
WEIGHT = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
FOREIGN = {
    "FeatureVectorizer": helper.make_node("FeatureVectorizer", ["x"], ["s"], domain="ai.onnx.ml", inputdimensions=[64]),
    "FusedMatMul": helper.make_node("FusedMatMul", ["x", "w"], ["s"], domain="com.microsoft", alpha=0.5),
}
DECLARED = {"no": [], "a type": [helper.make_tensor_value_info("s", TensorProto.FLOAT, None)]}
DECLARED["a shape"] = [helper.make_tensor_value_info("s", TensorProto.FLOAT, [8, 64])]


def model_of(
    nodes: Sequence[onnx.NodeProto], shape: Sequence[int | str] | None, infos: Sequence[onnx.ValueInfoProto] = ()
) -> onnx.ModelProto:
    """Return a model of float[8, 64] x that declares a shape for its output y."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph(
        nodes, "g", [given], [result], [numpy_helper.from_array(WEIGHT, "w")], value_info=list(infos)
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def behind(first: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [
        first,
        helper.make_node("MatMul", ["s", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"]),
    ]


@in_turn
@pytest.mark.parametrize("declared", list(DECLARED))
@pytest.mark.parametrize("operator", list(FOREIGN))
def test_what_follows_an_operator_that_onnx_lacks_has_kernels(operator: str, declared: str) -> None:
    model = model_of(behind(FOREIGN[operator]), None, DECLARED[declared])
    compiled = romou.compile(model, target="opencl -device=host")
    assert compiled.host_nodes == (f"{operator} (s)",)
    given = {"x": np.random.default_rng(1).standard_normal((8, 64)).astype("float32")}
    expected = run_onnxruntime(model, given)
    assert expected is not None
    np.testing.assert_allclose(compiled.run(given)[0], expected[0], atol=1e-5)


def test_a_chain_of_such_operators() -> None:
    nodes = [
        FOREIGN["FeatureVectorizer"],
        helper.make_node("FusedMatMul", ["s", "w"], ["t"], domain="com.microsoft"),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    assert [d.dim_value for d in infer(model_of(nodes, None)).graph.output[0].type.tensor_type.shape.dim] == [8, 64]


@pytest.mark.parametrize("operator", ["Unique", "NoSuchOperator"])
def test_shapes_that_depend_on_numbers_stay_unknown(operator: str) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "all"], ["r"]),
        helper.make_node(operator, ["r"], ["y", "at", "count"], domain="com.microsoft"),
    ]
    model = model_of(nodes, None)
    model.graph.initializer.append(numpy_helper.from_array(np.array([512]), "all"))
    assert not infer(model).graph.output[0].type.tensor_type.HasField("shape")


def test_shapes_that_do_not_fit_are_told_behind_such_an_operator() -> None:
    model = model_of(behind(FOREIGN["FeatureVectorizer"]), None)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(WEIGHT[:5], "w"))
    with pytest.raises(ModelError, match="shapes do not fit the graph"):
        romou.compile(model, target="opencl -device=host")


@pytest.mark.parametrize("declared", [[1, "n"], [1, 512], [8, 64, 1], [4, 128]], ids=str)
@pytest.mark.parametrize("is_computed", [False, True])
def test_an_output_has_the_shape_that_the_graph_makes(
    declared: list[int | str], is_computed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Onnxruntime warns of the other shape, and then uses it."""
    ends = [
        numpy_helper.from_array(np.array(value), name) for name, value in (("none", [0]), ("one", [1]), ("last", [-1]))
    ]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "none"], ["rows"]),
        helper.make_node("Concat", ["rows", "one", "last"], ["wanted"], axis=0),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "wanted"], ["y"]),
    ]
    model = model_of(nodes if is_computed else [helper.make_node("Unsqueeze", ["x", "one"], ["y"])], declared)
    model.graph.initializer.extend(ends)
    given = {"x": np.ones((8, 64), "float32")}
    with caplog.at_level(logging.WARNING, logger="romou"):
        compiled = romou.compile(model, target="opencl -device=host")
    assert compiled.run(given)[0].shape == (8, 1, 64)
    assert "the output 'y' is declared as" in caplog.text


def test_group_normalization_of_opset_21() -> None:
    """A function that depends on its inputs' types, through which ONNX's inference does not see."""
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    graph (float[2, 6, 5] x, float[6] s, float[6] b, float[5, 3] w) => (float[2, 6, 3] y) {
        n = GroupNormalization <num_groups = 3> (x, s, b)
        y = MatMul (n, w)
    }
    """
    compiled = romou.compile(onnx.parser.parse_model(text), target="opencl")
    assert not compiled.host_nodes
    assert compiled.summary().is_right


def test_a_folded_tensor_has_the_shape_of_its_constant() -> None:
    """Inference leaves a Range open until it is folded, and with it what is added to one element of another tensor."""
    names = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("r", ["n"]), ("y", None))
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "r"], ["y"])],
        "g",
        [given],
        names[1:],
        [numpy_helper.from_array(np.ones(3, "float32"), "r")],
        value_info=names[:1],
    )
    inferred = infer(helper.make_model(graph, opset_imports=OPSETS, ir_version=8))
    assert shapes_of(inferred.graph)["y"] == (3,)
