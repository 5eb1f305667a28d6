"""Q, K and V of attention that one product computes are read in place, in the forms that exporters write."""

from __future__ import annotations

import onnx
import pytest

import romou
from support.models.attention_parts import attention_of_parts
from support.suite.exhaustive import few


def layers(model: onnx.ModelProto, target: str) -> list[str]:
    """Return the names of the kernels, after a comparison with onnxruntime on the device."""
    tuned = romou.compile(model, target=target)
    summary = tuned.summary()
    assert summary.is_right
    assert summary.relative_l2_error is not None
    assert summary.relative_l2_error < 1e-6
    return [str(row["layer"]) for row in summary.table()]


TARGETS = few(["opencl", "opencl -device=adreno640", "vulkan"], 0, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("order", "form"), few([("bnthd", "split"), ("bnthd", "gather"), ("bnthd", "slice")], 0, 1))
def test_parts_need_no_kernel(order: str, form: str, target: str) -> None:
    kinds = [name.rpartition("_")[0] for name in layers(attention_of_parts(order, form), target)]
    assert not [kind for kind in kinds if kind.startswith("elementwise")], kinds
    # Phones' estimate takes one kernel of both products and the softmax to be faster.
    products, count = ("attention", 1) if "adreno" in target else ("batch_matmul", 2)
    assert len([kind for kind in kinds if kind.startswith(("attention", "batch_matmul"))]) == count, kinds
    assert len([kind for kind in kinds if kind.startswith(products)]) == count, kinds


SIZES = [{"windows": 1, "rows": 5}, {"heads": 1}, {"depth": 5}, {"depth": 6, "rows": 4}]
COMBINATIONS = [(order, sizes) for order in ("bnthd", "bnhtd", "tbhnd") for sizes in SIZES]


@pytest.mark.parametrize(("order", "sizes"), few(COMBINATIONS, 2, 7, 8))
def test_any_order_and_size_is_right(order: str, sizes: dict[str, int]) -> None:
    """With t before d, a part is a range of the axis along which vectors are read."""
    layers(attention_of_parts(order, "gather", **sizes), "opencl -device=adreno640" if "depth" in sizes else "opencl")


SCALED = """<ir_version: 10, opset_import: ["": 17]> scaled (float[2,5,7,8] q, float[2,5,7,8] k) => (float[2,5,7,7] y)
<float[{axes}] s = {{0.375}}, float root = {{-1.5}}>
{{ turned = Transpose<perm=[0,1,3,2]>(k) a = Mul(q, s) b = Div(turned, root) y = MatMul(a, b) }}"""


@pytest.mark.parametrize("axes", few(["1", "1,1,1,1"], 0))
def test_a_scale_with_axes_needs_no_kernel(axes: str) -> None:
    """PyTorch's exporter scales queries and keys by constants of the shape (1,)."""
    assert len(layers(onnx.parser.parse_model(SCALED.format(axes=axes)), "opencl")) == 1


def test_a_scale_with_more_axes_than_its_operand_adds_them() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> scaled (float[5,8] q, float[8,7] k) => (float[1,5,7] y)
    <float[1,1,1] s = {0.375}> { a = Mul(q, s) y = MatMul(a, k) }"""
    layers(onnx.parser.parse_model(text), "opencl")
