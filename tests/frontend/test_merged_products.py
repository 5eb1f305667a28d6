"""Queries, keys and values of one attention are one product, in the forms that exporters write, and the outputs are
onnxruntime's.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import romou
from romou.compiler.frontend.merged_products import merge_products
from romou.compiler.importing import import_onnx

N, ROWS, HEADS, SIZE = 2, 7, 3, 8
WIDTH = HEADS * SIZE
# A product of rows of any number of axes, and one of a matrix.
FORMS = {
    "matmul": "{name}_sum = MatMul({x}, w{name}) {name}_all = Add({name}_sum, b{name})",
    "swapped sum": "{name}_sum = MatMul({x}, w{name}) {name}_all = Add(b{name}, {name}_sum)",
    "no bias": "{name}_all = MatMul({x}, w{name})",
    "gemm": "{name}_flat = Reshape({x}, flat) {name}_all = Gemm<transB=1>({name}_flat, wt{name}, b{name})",
}


def attention(
    form: str, *, source: str = "x", after: str = "", outputs: str = "", heads: int = HEADS
) -> onnx.ModelProto:
    """Return an attention.

    source: the input that keys and values are computed of.
    after: nodes behind the reshapes of q, which read `q4` and make `q_made`. outputs: a further output.
    """
    products = " ".join(
        FORMS[form].format(name=name, x="x" if name == "q" else source) + f" {name}4 = Reshape({name}_all, heads)"
        for name in "qkv"
    )
    text = f"""<ir_version: 10, opset_import: ["": 17]>
    attention (float[{N},{ROWS},{WIDTH}] x, float[{N},{ROWS},{WIDTH}] z) => (float[{N},{ROWS},{WIDTH}] y{outputs})
    <int64[4] heads = {{{N},{ROWS},{HEADS},{SIZE}}}, int64[2] flat = {{{N * ROWS},{WIDTH}}},
     int64[3] back = {{{N},{ROWS},{WIDTH}}}, float[1] s = {{0.6}}>
    {{ {products} {after or "q_made = Identity(q4)"}
      qt = Transpose<perm=[0,2,1,3]>(q_made) kt = Transpose<perm=[0,2,3,1]>(k4) vt = Transpose<perm=[0,2,1,3]>(v4)
      qs = Mul(qt, s) ks = Mul(kt, s) scores = MatMul(qs, ks) p = Softmax<axis=-1>(scores) mixed = MatMul(p, vt)
      turned = Transpose<perm=[0,2,1,3]>(mixed) y = Reshape(turned, back) }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    for name in "qkv":
        weight = (rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype("float32")
        for tensor, value in (
            (f"w{name}", weight),
            (f"wt{name}", np.ascontiguousarray(weight.T)),
            (f"b{name}", rng.standard_normal(WIDTH).astype("float32")),
        ):
            model.graph.initializer.append(numpy_helper.from_array(value, tensor))
    return model


def widths(model: onnx.ModelProto) -> list[int]:
    """Return the widths of the products with constant weights of a model, as it is imported."""
    folded = import_onnx(model).folded
    constants = {tensor.name: tensor.dims for tensor in folded.graph.initializer}
    products = [node for node in folded.graph.node if node.op_type in ("Gemm", "MatMul") and node.input[1] in constants]
    return sorted(constants[node.input[1]][-1] for node in products)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_one_product(form: str, precision: str) -> None:
    model = attention(form)
    assert widths(model) == [3 * WIDTH]
    summary = romou.compile(model, target="opencl", precision=precision).summary()
    assert summary.relative_l2_error is not None
    assert summary.relative_l2_error < (1e-6 if precision == "float32" else 1e-3)
    assert [str(row["layer"]).split("_")[0] for row in summary.table()].count("dense") == 1


@pytest.mark.parametrize("target", ["opencl -device=adreno640", "vulkan"])
def test_on_other_targets(target: str) -> None:
    error = romou.compile(attention("gemm"), target=target).summary().relative_l2_error
    assert error is not None
    assert error < 1e-6


def test_keys_and_values_of_another_tensor() -> None:
    model = attention("matmul", source="z")
    assert widths(model) == [WIDTH, 2 * WIDTH]
    assert romou.compile(model, target="opencl").summary().is_right


@pytest.mark.parametrize(
    ("after", "outputs"),
    [
        ("e = Exp(q4) q_made = Add(q4, e)", ""),
        ("e = Sqrt(x) r = Reshape(e, heads) q_made = Add(q4, r)", ""),
        ("q_made = Identity(q4)", f", float[{N},{ROWS},{HEADS},{SIZE}] q4"),
    ],
    ids=["read twice", "a sum", "an output"],
)
def test_a_part_that_others_read_stays(after: str, outputs: str) -> None:
    model = attention("matmul", after=after, outputs=outputs)
    assert widths(model) == [WIDTH, 2 * WIDTH]
    assert romou.compile(model, target="opencl").summary().is_right


def test_a_scale_behind_a_product_is_one_of_the_weight() -> None:
    """In fp16, a scale stands in front of the reshape."""
    text = """<ir_version: 10, opset_import: ["": 17]> two (float[4,6] x) => (float[2,4,4] y)
    <int64[3] heads = {4,2,3}, float half = {0.5}, float[6] b = {1,2,3,4,5,6}>
    { q0 = Gemm(x, wq, b) q1 = Mul(q0, half) q = Reshape(q1, heads) k0 = Gemm(x, wk, b) k = Reshape(k0, heads)
      qt = Transpose<perm=[1,0,2]>(q) kt = Transpose<perm=[1,2,0]>(k) y = MatMul(qt, kt) }"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name in ("wq", "wk"):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal((6, 6)).astype("float32"), name))
    merged = merge_products(onnx.shape_inference.infer_shapes(model))
    products = [node for node in merged.graph.node if node.op_type == "Gemm"]
    assert len(products) == 1
    weight, bias = (
        numpy_helper.to_array(tensor)
        for name in products[0].input[1:]
        for tensor in merged.graph.initializer
        if tensor.name == name
    )
    assert np.array_equal(weight[:, :6], numpy_helper.to_array(model.graph.initializer[-2]) * np.float32(0.5))
    assert bias.tolist() == [0.5, 1, 1.5, 2, 2.5, 3, 1, 2, 3, 4, 5, 6]
    assert romou.compile(model, target="opencl").summary().is_right
