"""onnxruntime as a reference: integer products whose sums are exact, and a Sigmoid with a right tail."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from romou.compiler.frontend.exact_operators import with_exact_operators
from romou.compiler.frontend.onnxruntime_session import cpu_session
from support.models.small_networks import NetworkBuilder
from tvm_patches.domains import MICROSOFT

ROWS, DEPTH, COLUMNS = 5, 24, 6
KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
LIMITS = {"uint8": (0, 256), "int8": (-128, 128)}
ZERO = {"uint8": 131, "int8": -3}


def integers(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return bytes with many largest ones, whose products saturate in pairs."""
    values = np.random.default_rng(5).integers(*LIMITS[dtype], shape).astype(dtype)
    values.flat[::2] = LIMITS[dtype][1] - 1
    return values


def product(operator: str, first: str, second: str, *, is_constant: bool, has_zero: bool) -> onnx.ModelProto:
    """Return a product of two factors `a` and `w`."""
    is_conv = operator.endswith("Conv") or operator == "ConvInteger"
    shapes = ((1, DEPTH, ROWS, 1), (COLUMNS, DEPTH, 1, 1)) if is_conv else ((ROWS, DEPTH), (DEPTH, COLUMNS))
    zeros = ["a_zero", "w_zero"] if has_zero else []
    scaled = ["a", "one", "a_zero", "w", "one", "w_zero"]
    inputs = {
        "MatMulIntegerToFloat": ["a", "w", "one", "one", *zeros],
        "QLinearMatMul": [*scaled, "large", "a_zero"],
        "QLinearConv": [*scaled, "large", "a_zero"],
        "QGemm": [*scaled, ""],
    }.get(operator, ["a", "w", *zeros])
    domain = MICROSOFT if operator in ("MatMulIntegerToFloat", "QGemm") else ""
    values = [helper.make_tensor_value_info("a", KINDS[first], shapes[0])]
    constants = {
        "one": np.float32(1),
        "large": np.float32(6e3),
        "a_zero": np.array(ZERO[first], first),
        "w_zero": np.array(ZERO[second], second),
    }
    if is_constant:
        constants["w"] = integers(second, shapes[1])
    else:
        values.append(helper.make_tensor_value_info("w", KINDS[second], shapes[1]))
    # The second product shares the weight and the zero point, as some tools leave them.
    nodes = [helper.make_node(operator, inputs, [name], domain=domain) for name in ("y", "z")]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items() if name in inputs]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "z")]
    graph = helper.make_graph(nodes, "products", values, outputs, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def truth(operator: str, first: str, second: str, *, has_zero: bool) -> np.ndarray:
    """Return the product in int32."""
    is_conv = operator.endswith("Conv") or operator == "ConvInteger"
    a = integers(first, (1, DEPTH, ROWS, 1) if is_conv else (ROWS, DEPTH)).astype("int32")
    w = integers(second, (COLUMNS, DEPTH, 1, 1) if is_conv else (DEPTH, COLUMNS)).astype("int32")
    if has_zero or operator.startswith("Q"):
        a, w = a - ZERO[first], w - ZERO[second]
    sums = np.einsum("nchw,ocij->nohw", a, w) if is_conv else a @ w
    if not operator.startswith("QLinear"):
        return sums.astype("float32") if operator in ("MatMulIntegerToFloat", "QGemm") else sums
    steps = np.round(sums.astype("float32") / np.float32(6e3)) + ZERO[first]
    return np.clip(steps, LIMITS[first][0], LIMITS[first][1] - 1).astype(first)


def of_both_signs(model: onnx.ModelProto) -> list[str]:
    """Return the operators of unsigned and signed bytes. Some of them saturate on processors without VNNI."""
    inferred = onnx.shape_inference.infer_shapes(model)
    element = {v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.value_info, *inferred.graph.input)}
    element |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    bytes_of = [
        [element.get(name) for name in node.input if element.get(name) in KINDS.values()] for node in model.graph.node
    ]
    return [node.op_type for node, kinds in zip(model.graph.node, bytes_of, strict=True) if len({*kinds}) > 1]


CASES = [
    (operator, first, second, is_constant, has_zero)
    for operator, first, second, is_constant, has_zero in itertools.product(
        ("MatMulInteger", "ConvInteger", "MatMulIntegerToFloat", "QLinearMatMul", "QLinearConv", "QGemm"),
        KINDS,
        KINDS,
        (True, False),
        (True, False),
    )
    # onnxruntime has no kernels for other types, and quantized operators have zero points.
    if first == "uint8" or operator in ("MatMulInteger", "ConvInteger")
    if has_zero or not operator.startswith("Q")
]


@pytest.mark.parametrize("is_optimized", [True, False])
def test_integer_products_are_those_of_numpy(is_optimized: bool) -> None:
    for operator, first, second, is_constant, has_zero in CASES:
        model = product(operator, first, second, is_constant=is_constant, has_zero=has_zero)
        exact = with_exact_operators(model)
        saturating = ("int8", "uint8") if operator == "ConvInteger" else ("uint8", "int8")
        assert (first, second) != saturating or (of_both_signs(exact) == [] and of_both_signs(model)), operator
        given = {"a": integers(first, tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim))}
        if not is_constant:
            shape = tuple(d.dim_value for d in model.graph.input[1].type.tensor_type.shape.dim)
            given["w"] = integers(second, shape)
        expected = truth(operator, first, second, has_zero=has_zero)
        for result in cpu_session(model, is_optimized=is_optimized).run(None, given):
            np.testing.assert_array_equal(result, expected, err_msg=f"{operator} {first} {second} {is_constant}")


def test_a_model_that_extended_optimizations_fail_at_runs_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where quantized weights are shared, on processors without VNNI."""
    levels, made = [], onnxruntime.InferenceSession

    def failing(model: bytes, options: Any, **rest: Any) -> Any:
        levels.append(options.graph_optimization_level)
        assert options.get_session_config_entry("session.x64quantprecision") == "1"
        if levels[-1] == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL:
            raise RuntimeError("Attempt to replace the existing tensor")
        return made(model, options, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", failing)
    model = product("MatMulInteger", "uint8", "int8", is_constant=True, has_zero=True)
    (result, _) = cpu_session(model).run(None, {"a": integers("uint8", (ROWS, DEPTH))})
    np.testing.assert_array_equal(result, truth("MatMulInteger", "uint8", "int8", has_zero=True))
    assert levels == [
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ]


def test_a_probability_of_almost_zero_is_right() -> None:
    """onnxruntime's own Sigmoid is off by 1e-7, which is four times this probability."""
    g = NetworkBuilder({"x": (1, 400)})
    model = g.model(g.add("Sigmoid", "x"))
    x = np.linspace(-60, 20, 400, dtype="float32").reshape(1, 400)
    x[0, :2] = -200, np.inf
    right = 1 / (1 + np.exp(-x.astype("float64")))
    (result,) = cpu_session(model).run(None, {"x": x})
    assert np.abs(result - right)[right > 1e-37].max() <= 1e-6
    assert (np.abs(result / right - 1)[right > 1e-37]).max() <= 1e-6
    assert result[0, 0] == 0
