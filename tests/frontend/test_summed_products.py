"""The sums of a linear attention are sums in every form that exporters write, and the outputs are onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import numpy_helper

import romou
from romou.compiler.frontend.infer import infer
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.frontend.summed_products import sum_products

HEADS, TOKENS, SIZE = 3, 13, 6
CONSTANTS = {
    "one": np.float32(1),
    "two": np.float32(2),
    "eps": np.float32(1e-3),
    "columns": np.array([0, 0, 0, 0, 0, 1]),
    "rows": np.array([0, 0, 0, 0, 1, 0]),
    "first": np.array([0, 0, 1, 0, 0, 0]),
    "n_one": np.ones((HEADS, TOKENS, 1), "float32"),
    "at0": np.array([0]),
    "at2": np.array([2]),
    "last": np.array([-1]),
    "size": np.array([SIZE]),
    "end": np.array([2**63 - 1]),
    "axis1": np.array([1]),
    "axis2": np.array([-1]),
}
# q, k and v are (heads, tokens, size), and in the second form (heads, size, tokens).
PADDED = {"pad": "p = Pad(v, columns, one)", "concat": "p = Concat<axis=-1>(v, n_one)"}
COLUMNS = """a = Relu(q) b = Relu(k) {padded} bt = Transpose<perm=[0, 2, 1]>(b) kv = MatMul(bt, p) o = MatMul(a, kv)
    num = Slice(o, at0, last, axis2) den = Slice(o, size, end, axis2)"""
ROWS = """a = Relu(q) b = Relu(k) {padded} bt = Transpose<perm=[0, 2, 1]>(b) kv = MatMul(p, bt) o = MatMul(kv, a)
    num = Slice(o, at0, last, axis1) den = Slice(o, last, end, axis1)"""
RIGHT = {
    "columns": (COLUMNS.format(padded=PADDED["pad"]), (HEADS, TOKENS, SIZE)),
    "concat": (COLUMNS.format(padded=PADDED["concat"]), (HEADS, TOKENS, SIZE)),
    "rows": (ROWS.format(padded="p = Pad(v, rows, one)"), (HEADS, SIZE, TOKENS)),
}
OTHERS = {
    "twos": COLUMNS.format(padded="p = Pad(v, columns, two)"),
    "ones first": COLUMNS.format(padded="p = Pad(v, first, one)"),
    "another slice": RIGHT["columns"][0].replace("Slice(o, size", "Slice(o, at2"),
    "another reader": RIGHT["columns"][0] + " more = Relu(o)",
    "another reader of the first product": RIGHT["columns"][0] + " more = Relu(kv)",
}


def model_of(nodes: str, shape: tuple[int, ...], opset: int = 17) -> onnx.ModelProto:
    more = ", float[] more" if "more" in nodes else ""
    kind = f"float[{','.join(map(str, shape))}]"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> linear ({kind} q, {kind} k, {kind} v) => (float[] y{more})'
        f" {{ {nodes} d = Add(den, eps) y = Div(num, d) }}"
    )
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in CONSTANTS.items())
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return infer(model)


def operators(model: onnx.ModelProto) -> list[str]:
    return sorted(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("form", RIGHT)
def test_ones_become_sums(form: str, opset: int, opencl_device: tvm.runtime.Device) -> None:
    model = model_of(*RIGHT[form], opset=opset)
    rewritten = sum_products(model)
    assert operators(rewritten).count("ReduceSum") == operators(rewritten).count("MatMul") == 2
    assert "Slice" not in operators(rewritten)
    rng = np.random.default_rng(11)
    inputs = {name: rng.standard_normal(RIGHT[form][1]).astype("float32") for name in "qkv"}
    expected, found = run_onnxruntime(model, inputs), run_onnxruntime(rewritten, inputs)
    assert expected is not None
    assert found is not None
    np.testing.assert_allclose(found[0], expected[0], 1e-4, 1e-4)
    for target in ("opencl", "opencl -device=adreno640") if opset > 12 else ():
        compiled = romou.compile(model, target=target, strict=True, verify=False)
        np.testing.assert_allclose(compiled.run(inputs)["y"], expected[0], 1e-4, 1e-4)


@pytest.mark.parametrize("form", OTHERS)
def test_others_stay(form: str) -> None:
    model = model_of(OTHERS[form], (HEADS, TOKENS, SIZE))
    assert operators(sum_products(model)) == operators(model)
