"""Products with weights whose codes stand for the numbers of a table: NF4 and FP4 (MatMulBnb4)."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import helper

import romou
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend.reference import relative_l2_error
from romou.compiler.operators.kernels.quantized.kernel import LOCAL, TABLE
from romou.devices.targets import Target
from romou.tuner.measure.verify import poison
from support.kernels.operators import assert_agrees
from support.models.quantized import QuantizedCase, model_of, quantized_task
from support.suite.exhaustive import exhaustive
from tvm_patches.quantized_matrix import QuantizedMatrix

# The numbers of onnxruntime's documentation, by quant_type.
NUMBERS = {
    0: [0, 0.0052083333, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25],
    1: [
        *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
    ],
}
NUMBERS[0] += [-number for number in NUMBERS[0]]


def bnb4(
    m: int, k: int, n: int, block: int, quant_type: int, dtype: str
) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """Return a model of one MatMulBnb4, an input and the result by the definition, in double precision."""
    rng = np.random.default_rng(k + block)
    codes = rng.integers(0, 16, n * k + n * k % 2).astype(np.uint8)
    scales = rng.uniform(0.5, 1.5, -(-n * k // block)).astype(dtype)
    data = rng.standard_normal((m, k)).astype(dtype)
    numbers = np.array(NUMBERS[quant_type])[codes[: n * k]] * np.repeat(scales.astype(np.float64), block)[: n * k]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    attributes = {"K": k, "N": n, "block_size": block, "quant_type": quant_type}
    model = model_of(
        [helper.make_node("MatMulBnb4", ["x", "codes", "scales"], ["y"], domain="com.microsoft", **attributes)],
        [helper.make_tensor_value_info("x", element, [m, k])],
        [helper.make_tensor_value_info("y", element, [m, n])],
        {"codes": codes[::2] << np.uint8(4) | codes[1::2], "scales": scales},
    )
    return model, data, data.astype(np.float64) @ numbers.reshape(n, k).T


def check(target: str, device: str | None, *case: int | str) -> None:
    """Assert that the result is that of the definition, and of onnxruntime's kernel."""
    model, data, expected = bnb4(*case)  # type: ignore[arg-type]
    compiled = romou.compile(model, target=target, device=device, verify=False)
    assert compiled.host_nodes == ()
    (result,) = compiled.run({"x": data})
    limit = 1e-5 if case[-1] == "float32" else 1e-3
    assert relative_l2_error(result, expected) < limit, case
    (other,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": data})
    assert relative_l2_error(result, other) < limit, case


@pytest.mark.parametrize(
    "case",
    [
        (1, 256, 37, 64, 1, "float32"),
        (3, 80, 7, 32, 0, "float16"),
        *(
            pytest.param(case, marks=exhaustive)
            for case in [(2, 84, 9, 128, 1, "float32"), (5, 81, 7, 16, 0, "float32")]
        ),
    ],
    ids=str,
)
def test_a_product(case: tuple[int | str, ...], opencl_device: tvm.runtime.Device) -> None:
    check("opencl", None, *case)


@exhaustive
@pytest.mark.parametrize("device", ["opencl", "opencl:intel", "vulkan"])
@pytest.mark.parametrize("m", [1, 3, 64])
def test_all_forms(m: int, device: str) -> None:
    """An odd N, and K that are multiples of a block or of parts of it. Every other form is fp16."""
    name, _, chosen = device.partition(":")
    forms = itertools.product((16, 32, 64, 128), (128, 208, 100), (0, 1))
    for (block, k, quant_type), dtype in zip(
        forms, itertools.cycle(("float32", "float16", "float16", "float32")), strict=False
    ):
        check(name, chosen or None, m, k, 37, block, quant_type, dtype)


def test_a_weight_stays_packed() -> None:
    """Blocks that do not end with the rows become shorter ones. Two bytes a code would be more than a block of four."""
    for k, packed in ((256, True), (80, True), (84, True), (81, False)):
        model, *_ = bnb4(1, k, 7, 64, 1, "float32")
        lowered = Compilation.of(import_model(model, None), Target("opencl -device=host")).lowered()
        assert (lowered.tasks[0].family == "quantized_product") == packed, k


@pytest.mark.parametrize("choice", [TABLE, LOCAL])
@pytest.mark.parametrize("parts", [2, *(pytest.param(parts, marks=exhaustive) for parts in (1,))])
def test_lookups_are_exact(choice: str, parts: int, opencl_device: tvm.runtime.Device) -> None:
    """Tables of integers: each code of each place of a word has its own number. Eight work-items copy 16 numbers."""
    target, case = Target("opencl"), QuantizedCase(m=2, k=520, n=8, zero="table")
    task, drawn, rng = quantized_task(case), case.draw(), np.random.default_rng(0)
    data = rng.integers(-8, 9, (case.m, case.k)).astype(np.float32)
    numbers = rng.permutation(16).astype(np.float32)
    whole = type(drawn)(**{**vars(drawn), "data": data, "scales": np.sign(drawn.scales), "table": numbers})
    config = task.default_config(target).replace(unpack=choice, group_rows=4, group_parts=parts)
    assert task.space(target).is_valid(config)
    arrays = [data, *case.matrix(whole).arrays, poison((case.m, case.n), "float32")]
    assert_agrees(target, task, config, arrays, whole.result, 1e-12)


def test_tables_have_choices_of_their_own() -> None:
    for zero, choices in (("table", {TABLE, LOCAL}), ("none", {"shift", "mask", "bytes", "exponent"})):
        task = quantized_task(QuantizedCase(m=1, k=256, n=64, zero=zero))
        assert set(task.space(Target("opencl -device=adreno640")).knobs["unpack"]) == choices


def test_a_table_that_does_not_fit_is_refused() -> None:
    codes, scales = np.zeros((2, 32), np.uint8), np.ones((2, 1), np.float32)
    with pytest.raises(ValueError, match="a table of 8 numbers for codes of 4 bits"):
        QuantizedMatrix.pack(codes, scales, table=np.zeros(8, np.float32), bits=4, block=32)
