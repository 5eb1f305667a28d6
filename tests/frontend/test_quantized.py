"""Quantized weights: imported packed, refused with one clear error, equal to the definition."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

from romou.base.errors import ModelError
from romou.compiler.frontend.precision import Precision
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.importing import import_onnx
from support.models.quantized import QuantizedCase, model_of
from support.suite.exhaustive import in_turn

CASE = QuantizedCase(m=2, k=70, n=9)


def on_the_host(model: onnx.ModelProto, data: np.ndarray) -> np.ndarray:
    """Return the result of the plain definition, and check that the graph holds no weight in floats."""
    imported = import_onnx(model)
    assert not imported.on_host
    executable = tvm.compile(imported.mod, target="llvm")
    result: np.ndarray = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()
    return result


@pytest.mark.parametrize(
    "case",
    [
        CASE,
        QuantizedCase(m=1, k=64, n=7, block=16, zero="uint8", has_bias=True),
        QuantizedCase(m=3, k=300, n=5, block=128, zero="float"),
        QuantizedCase(m=3, k=100, n=5, bits=8, zero="uint8"),
        QuantizedCase(m=1, k=100, n=5, bits=2, block=16, zero="uint8"),
        QuantizedCase(m=2, k=64, n=6, dtype="float16", has_bias=True),
    ],
    ids=str,
)
def test_the_definition(case: QuantizedCase) -> None:
    model, data, expected = case.model()
    assert relative_l2_error(on_the_host(model, data), expected) < (1e-6 if case.dtype == "float32" else 1e-3)


@pytest.mark.parametrize(
    ("attributes", "inputs", "message"),
    [
        ({"bits": 3}, {}, "bits=3; kernels exist for 2, 4, 8; quantize the model again"),
        ({"block_size": 24}, {}, "block_size=24 is no power of two from 16 on; quantize the model again"),
        ({"weight_prepacked": 1}, {}, "weight_prepacked: its weight has the layout of one CUDA kernel"),
        ({}, {"groups": np.zeros(70, np.int32)}, r"g_idx reorders the blocks; quantize the model without act-order"),
        ({}, {"scales": np.ones(26, np.float32)}, "scales: 26 elements, but N=9, K=70, block_size=32, bits=4 need 27"),
        ({"N": -1}, {}, "N=-1, K=70; both are at least 1"),
        ({"K": 96}, {}, "a row of activations has 70 elements, but K=96; export the model again"),
        ({}, {"packed": np.ones((9, 3, 16), np.float32)}, "the weight is float32; packed codes are uint8"),
        ({}, {"bias": np.ones(8, np.float32)}, "the bias: 8 elements, but N=9, K=70, block_size=32, bits=4 need 9"),
    ],
)
def test_refused_forms(attributes: dict[str, int], inputs: dict[str, np.ndarray], message: str) -> None:
    model, _, _ = CASE.model(**attributes)
    for name, array in inputs.items():
        kept = [tensor for tensor in model.graph.initializer if tensor.name != name]
        del model.graph.initializer[:]
        model.graph.initializer.extend([*kept, onnx.numpy_helper.from_array(array, name)])
        if name not in model.graph.node[0].input:
            place = {"groups": 4, "bias": 5}[name]
            model.graph.node[0].input.extend([*[""] * (place - len(model.graph.node[0].input)), name])
    with pytest.raises(ModelError, match=message):
        import_onnx(model)


def test_fp16_reaches_scales_and_zero_points() -> None:
    model, _, _ = QuantizedCase(m=2, k=512, n=64, zero="float", has_bias=True).model()
    folded = import_onnx(model, precision=Precision(kind="float16")).folded
    assert [node.op_type for node in folded.graph.node] == ["Cast", "MatMulNBits", "Cast"]
    kinds = sorted(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name for tensor in folded.graph.initializer)
    assert kinds == ["float16", "float16", "float16", "uint8"]


def test_the_reference_keeps_its_activations() -> None:
    """At accuracy level 4 onnxruntime would round activations to 8 bits, an error of half a percent."""
    model, data, expected = QuantizedCase(m=2, k=512, n=64).model(accuracy_level=4)
    reference = run_onnxruntime(model, {"x": data})
    assert reference is not None
    assert relative_l2_error(reference[0], expected) < 1e-5


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_the_reference_keeps_activations_of_dequantized_weights(kind: str) -> None:
    """Onnxruntime makes a product with packed weights of these nodes, by default with activations of 8 bits."""
    rng, size = np.random.default_rng(0), 256
    codes = rng.integers(-8, 8, (size, 40)).astype(getattr(ml_dtypes, kind, kind))
    scales = rng.uniform(0.5, 1, (size // 32 if kind == "int4" else 1, 40)).astype(np.float32)
    blocks = {"axis": 0, "block_size": 32} if kind == "int4" else {"axis": 1}
    arrays = {"q": codes, "s": scales if kind == "int4" else scales[0]}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], **blocks),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, 1, [3, count]) for name, count in (("x", size), ("y", 40))]
    data = rng.standard_normal((3, size)).astype(np.float32)
    reference = run_onnxruntime(model_of(nodes, ends[:1], ends[1:], arrays), {"x": data})
    assert reference is not None
    expected = data.astype(np.float64) @ (codes.astype(np.float64) * np.repeat(scales, size // len(scales), axis=0))
    assert relative_l2_error(reference[0], expected) < 1e-5


def test_activations_of_another_length_whose_shape_comes_late() -> None:
    """If the inferred graph lacks the shape, the conversion refuses it."""
    model, _, _ = CASE.model(K=96)
    model.graph.node[0].input[0] = "rows"
    model.graph.node.insert(0, helper.make_node("MyIdentity", ["x"], ["rows"], domain="mine"))
    body = [helper.make_node("Reshape", ["a", "shape"], ["b"])]
    body.insert(0, helper.make_node("Shape", ["a"], ["shape"]))
    opsets = [helper.make_opsetid("", 21)]
    model.functions.append(helper.make_function("mine", "MyIdentity", ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(ModelError, match="a row of activations has 70 elements, but K=96"):
        import_onnx(model)


@pytest.mark.parametrize("count", [70, 96])
def test_an_identical_g_idx_is_no_order(count: int) -> None:
    """The last block may be padded."""
    model, data, expected = CASE.model()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(count, dtype=np.int32) // 32, "groups"))
    model.graph.node[0].input.extend(["", "groups"])
    assert relative_l2_error(on_the_host(model, data), expected) < 1e-6


@in_turn
@pytest.mark.parametrize("kind", ["int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize("form", ["transposed", "columns", "gemm"])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_blocked_weights_stay_packed(kind: str, form: str, has_zeros: bool) -> None:
    """A blocked DequantizeLinear before a product is a MatMulNBits. Its weight is not folded to floats."""
    n, k, block, rng = 6, 64, 32, np.random.default_rng(0)
    info = ml_dtypes.iinfo(getattr(ml_dtypes, kind, kind))
    codes = rng.integers(info.min, info.max + 1, (n, k))
    scales = rng.uniform(-1, 1, (n, k // block)).astype(np.float32)
    zeros = rng.integers(info.min, info.max + 1, scales.shape) if has_zeros else np.zeros_like(scales)
    weight = (codes - np.repeat(zeros, block, axis=1)) * np.repeat(scales, block, axis=1)
    stored, bias = getattr(ml_dtypes, kind, kind), rng.standard_normal(n).astype(np.float32)
    is_rows = form != "columns"
    arrays = {name: array if is_rows else array.T for name, array in (("q", codes), ("s", scales), ("z", zeros))}
    arrays = {"q": arrays["q"].astype(stored), "s": arrays["s"], "z": arrays["z"].astype(stored), "bias": bias}
    names = ["q", "s", "z"] if has_zeros else ["q", "s"]
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], axis=1 if is_rows else 0, block_size=block)]
    if form == "transposed":
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
    if form == "gemm":
        nodes.append(helper.make_node("Gemm", ["x", "w", "bias"], ["y"], transB=1))
    else:
        nodes.append(helper.make_node("MatMul", ["x", "t" if form == "transposed" else "w"], ["y"]))
    ends = [helper.make_tensor_value_info(name, 1, [3, size]) for name, size in (("x", k), ("y", n))]
    model = model_of(nodes, ends[:1], ends[1:], arrays)
    imported = import_onnx(model)
    assert [node.op_type for node in imported.folded.graph.node] == ["MatMulNBits"]
    data = rng.standard_normal((3, k)).astype(np.float32)
    expected = data.astype(np.float64) @ weight.T + (bias if form == "gemm" else 0)
    assert relative_l2_error(on_the_host(model, data), expected) < 1e-6
