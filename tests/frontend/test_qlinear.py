"""onnxruntime's quantized operators: their definitions by standard operators, against onnxruntime's kernels.

Products are compared with NumPy's in int32, because onnxruntime's saturate on processors with AVX2 and without VNNI.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from romou.compiler.frontend.onnxruntime_session import cpu_session
from romou.compiler.frontend.qlinear import with_standard_operators
from tvm_patches.domains import MICROSOFT

DATA = (2, 5, 7, 9)
SCALES = {"a": 0.05, "b": 0.03, "c": 0.07}
ZEROS = {"a": 120, "b": 131, "c": 117}


def model_of(
    operator: str, inputs: list[str], shapes: dict[str, tuple[int, ...]], *, version: int = 17, **given: object
) -> onnx.ModelProto:
    """Return a model of one operator. x_scale and x_zero are constants, except those of `shapes`."""
    constants = [numpy_helper.from_array(np.array(SCALES[n], np.float32), f"{n}_scale") for n in SCALES]
    constants += [numpy_helper.from_array(np.array(ZEROS[n], np.uint8), f"{n}_zero") for n in ZEROS]
    rng = np.random.default_rng(3)
    constants += [
        numpy_helper.from_array(rng.uniform(0.01, 0.02, 6).astype("float32"), "w_scale"),
        numpy_helper.from_array(rng.integers(-3, 4, 6).astype("int8"), "w_zero"),
        numpy_helper.from_array(rng.integers(-127, 128, (11, 6)).astype("int8"), "w"),
        numpy_helper.from_array(rng.integers(-500, 500, 6).astype("int32"), "sums"),
        numpy_helper.from_array(rng.standard_normal(6).astype("float32"), "bias"),
    ]
    node = helper.make_node(operator, inputs, ["y"], "node", domain=MICROSOFT, **given)
    kinds = {"f": TensorProto.FLOAT}
    values = [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.UINT8), s) for n, s in shapes.items()]
    graph = helper.make_graph([node], "one", values, [helper.make_empty_tensor_value_info("y")], constants)
    domains = [helper.make_opsetid("", version), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    return {
        value.name: rng.standard_normal(shape).astype("float32")
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
        else rng.integers(0, 256, shape).astype("uint8")
        for value in model.graph.input
        for shape in [[dim.dim_value for dim in value.type.tensor_type.shape.dim]]
    }


def results(model: onnx.ModelProto) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (result,) = session.run(None, inputs_of(model))
    return np.asarray(result)


def product(name: str) -> np.ndarray:
    """Return the result of a case of PRODUCTS, with sums in int32."""
    model = CASES[name]
    given = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | inputs_of(model)
    first, second = model.graph.input[0].name, "b" if name.endswith("transposed") else "w"
    if first == "f":
        low, high = min(0.0, given["f"].min()), max(0.0, given["f"].max())
        given["a_scale"] = np.float32((high - low) / 255)
        given["a_zero"] = np.round(-low / given["a_scale"]).astype("uint8")
        codes = np.clip(np.round(given["f"] / given["a_scale"]) + given["a_zero"], 0, 255)
        given["a"] = codes.astype("uint8")
    left, right = (given[x].astype("int32") - given[f"{x}_zero"].astype("int32") for x in ("a", second))
    sums = left @ (right.T if second == "b" else right) + (given["sums"] if name in ("gemm", "gemm to floats") else 0)
    scaled = sums * (given["a_scale"] * given[f"{second}_scale"]).astype("float64")
    if name in ("product", "dynamic"):
        scaled += given["bias"]
    if name != "gemm":
        return (0.5 * scaled if name == "gemm to floats" else scaled).astype("float32")
    return np.clip(np.round(scaled / SCALES["c"]) + ZEROS["c"], 0, 255).astype("uint8")


def q(*names: str) -> list[str]:
    """Return the names of tensors with their scales and zero points."""
    return [part for name in names for part in (name, f"{name}_scale", f"{name}_zero")]


RESULT = ["c_scale", "c_zero"]
POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
ROWS = {"a": (4, 11)}
CASES = {
    "add": model_of("QLinearAdd", q("a", "b") + RESULT, {"a": DATA, "b": (9,)}),
    "mul": model_of("QLinearMul", q("a", "b") + RESULT, {"a": DATA, "b": DATA}),
    "concat": model_of("QLinearConcat", [*RESULT, *q("a", "b")], {"a": DATA, "b": (2, 3, 7, 9)}, axis=1),
    "sigmoid": model_of("QLinearSigmoid", q("a") + RESULT, {"a": DATA}),
    "leaky": model_of("QLinearLeakyRelu", q("a") + RESULT, {"a": DATA}, alpha=0.2),
    "softmax": model_of("QLinearSoftmax", q("a") + RESULT, {"a": DATA}, opset=17, axis=-1),
    "pool": model_of("QLinearAveragePool", q("a") + RESULT, {"a": DATA}, **POOL),
    "global": model_of("QLinearGlobalAveragePool", q("a") + RESULT, {"a": DATA}),
    "old opset": model_of("QLinearGlobalAveragePool", q("a") + RESULT, {"a": DATA}, version=11),
    "gemm": model_of("QGemm", [*q("a", "w"), "sums", *RESULT], ROWS),
    "gemm to floats": model_of("QGemm", [*q("a", "w"), "sums"], ROWS, alpha=0.5),
    "gemm, transposed": model_of("QGemm", q("a", "b"), {"a": (4, 11), "b": (6, 11)}, transB=1),
    "product": model_of("MatMulIntegerToFloat", ["a", "w", "a_scale", "w_scale", "a_zero", "w_zero", "bias"], ROWS),
    "dynamic": model_of("DynamicQuantizeMatMul", ["f", "w", "w_scale", "w_zero", "bias"], {"f": (4, 11)}),
    "quantize": model_of("QuantizeLinear", ["f", *RESULT], {"f": DATA}),
    "dequantize": model_of("DequantizeLinear", q("a"), {"a": DATA}),
}


PRODUCTS = ("gemm", "gemm to floats", "gemm, transposed", "product", "dynamic")


@pytest.mark.parametrize("name", CASES)
def test_the_definition_is_what_onnxruntime_computes(name: str) -> None:
    defined = with_standard_operators(CASES[name])
    assert {node.domain for node in defined.graph.node} == {""}
    if name in PRODUCTS:
        (found,) = cpu_session(defined, is_optimized=False).run(None, inputs_of(defined))
        expected = product(name)
    else:
        found, expected = results(defined), results(CASES[name])
    assert found.dtype == expected.dtype
    if expected.dtype == np.float32:
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    else:
        # Tables and sums of integers round once more, or once less.
        assert np.abs(found.astype("int32") - expected).max() <= 1
        assert (found != expected).mean() < 0.05


@pytest.mark.parametrize(
    "model",
    [
        model_of("QLinearGlobalAveragePool", q("a") + RESULT, {"a": DATA}, channels_last=1),
        model_of("QLinearSoftmax", [*q("a"), *RESULT], {"a": DATA}),
        model_of("QGemm", q("a", "w"), ROWS, version=11),
    ],
    ids=["layout", "softmax of several axes", "columns"],
)
def test_other_forms_stay(model: onnx.ModelProto) -> None:
    assert [node.op_type for node in with_standard_operators(model).graph.node] == [model.graph.node[0].op_type]
