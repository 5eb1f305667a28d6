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
    assert len([kind for kind in kinds if kind.startswith("batch_matmul")]) == 2, kinds


SIZES = [{"windows": 1, "rows": 5}, {"heads": 1}, {"depth": 5}, {"depth": 6, "rows": 4}]
COMBINATIONS = [(order, sizes) for order in ("bnthd", "bnhtd", "tbhnd") for sizes in SIZES]


@pytest.mark.parametrize(("order", "sizes"), few(COMBINATIONS, 2, 7, 8))
def test_any_order_and_size_is_right(order: str, sizes: dict[str, int]) -> None:
    """With t before d, a part is a range of the axis along which vectors are read."""
    layers(attention_of_parts(order, "gather", **sizes), "opencl -device=adreno640" if "depth" in sizes else "opencl")
