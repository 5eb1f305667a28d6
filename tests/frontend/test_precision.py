"""Conversion of an fp32 model to fp16: the tensors in fp16, the tensors that stay in fp32, and
warnings about ranges.
"""

from __future__ import annotations

import logging
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import romou
from romou.base.errors import UsageError
from romou.compiler.frontend.fold import fold
from romou.compiler.frontend.precision import TOLERANCE, Precision
from romou.compiler.frontend.reference import reference_outputs
from romou.compiler.importing import import_onnx
from support.models.small_networks import NetworkBuilder, random_inputs

HOST = "opencl -device=host"


def cancelling_net() -> onnx.ModelProto:
    """Return three layers of usual numbers, and between them a sum with more digits than fp16 holds."""
    g = NetworkBuilder({"x": (2, 24)})
    x = g.add("Tanh", g.add("MatMul", "x", g.weight(24, 24)))
    x = g.add("Sub", g.add("Add", x, g.constant(np.float32([900.0]))), g.constant(np.float32([900.0])))
    return g.model(g.add("MatMul", g.add("Relu", x), g.weight(24, 24)))


def overflowing_net() -> onnx.ModelProto:
    """Return a product of 1e6 between two layers, which a later one divides out."""
    g = NetworkBuilder({"x": (2, 24)})
    x = g.add("MatMul", "x", g.weight(24, 24))
    x = g.add("MatMul", g.add("Mul", x, g.constant(np.float32([1e6]))), g.constant(np.float32(np.eye(24) * 1e-6)))
    return g.model(g.add("MatMul", x, g.weight(24, 24)))


def elements_of(model: onnx.ModelProto) -> dict[str, int]:
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    return {v.name: v.type.tensor_type.elem_type for v in values} | {
        t.name: t.data_type for t in model.graph.initializer
    }


def small_net() -> onnx.ModelProto:
    """Return a convolution and a dense layer."""
    g = NetworkBuilder({"image": (1, 5, 6, 6)})
    x = g.add("Flatten", g.add("Relu", g.conv("image", 5, 7)))
    return g.model(g.add("Gemm", x, g.weight(3, 112), g.weight(3), transB=1))


def test_weights_are_fp16_and_casts_stand_at_the_borders() -> None:
    folded = import_onnx(small_net(), None, Precision(kind="float16")).folded
    onnx.checker.check_model(folded, full_check=True)
    elements = elements_of(folded)
    assert {t.data_type for t in folded.graph.initializer} == {TensorProto.FLOAT16}
    casts = [node for node in folded.graph.node if node.op_type == "Cast"]
    assert [(cast.input[0], cast.output[0]) for cast in casts] == [
        ("image", "image_fp16"),
        (casts[1].input[0], folded.graph.output[0].name),
    ]
    inner = {
        name: kind
        for node in folded.graph.node
        for name in node.output
        if (kind := elements[name]) != TensorProto.FLOAT16
    }
    assert inner == {folded.graph.output[0].name: TensorProto.FLOAT}


@pytest.mark.parametrize("io", [None, "float16"])
def test_inputs_and_outputs_are_what_the_program_has(io: str | None) -> None:
    model = small_net()
    made = romou.compile(model, target=HOST, precision="float16", io_precision=io)
    summary = made.summary()
    assert made.inputs == {"image": ((1, 5, 6, 6), io or "float32")}
    assert summary.relative_l2_error is not None
    assert summary.tolerance == TOLERANCE
    assert 1e-6 < summary.relative_l2_error < 2e-3, "fp16 was expected"
    (found,) = made.run({name: x.astype(io or "float32") for name, x in random_inputs(model).items()})
    assert found.dtype == np.dtype(io or "float32")


def test_sums_of_rows_stay_fp32() -> None:
    """A layer norm written out, of rows so small that fp16 has no number for their variance."""
    g = NetworkBuilder({"x": (3, 40)})
    mean = g.add("ReduceMean", "x", axes=[-1])
    apart = g.add("Sub", "x", mean)
    variance = g.add("Add", g.add("ReduceMean", g.add("Mul", apart, apart), axes=[-1]), g.constant(np.float32([1e-12])))
    model = g.model(g.add("Div", apart, g.add("Sqrt", variance)))
    imported = import_onnx(model, None, Precision(kind="float16"))
    elements = elements_of(imported.folded)
    kinds = {node.op_type: elements[node.output[0]] for node in imported.folded.graph.node}
    assert (kinds["ReduceMean"], kinds["Sqrt"], kinds["Div"]) == (
        TensorProto.FLOAT,
        TensorProto.FLOAT,
        TensorProto.FLOAT,
    )


def test_constants_of_a_batch_norm_are_computed_before_they_are_rounded() -> None:
    g = NetworkBuilder({"x": (1, 5, 4, 4)})
    small = np.float32([1e-9, 1e-8, 1.0, 2.0, 3e-9])
    ones, mean = np.ones(5, np.float32), np.float32([1e-3, 0, 1, 2, 1e-3])
    x = g.add(
        "BatchNormalization",
        g.add("Relu", "x"),
        g.constant(ones),
        g.constant(ones),
        g.constant(mean),
        g.constant(small),
        epsilon=1e-9,
    )
    folded = import_onnx(g.model(g.add("Tanh", x)), None, Precision(kind="float16")).folded
    weights = [numpy_helper.to_array(t).ravel() for t in folded.graph.initializer]
    scale = 1 / np.sqrt(small.astype(np.float64) + 1e-9)
    assert any(w.shape == (5,) and np.allclose(w, scale, rtol=1e-3) for w in weights), weights


def test_sequences_hold_tensors_of_the_types_that_the_model_says() -> None:
    """Nodes that read or write sequences stay fp32, on the host too, because no type follows from a sequence's."""
    g = NetworkBuilder({"x": (2, 6)})
    parts = g.add("SplitToSequence", g.add("Relu", "x"), axis=1)
    both = g.add("ConcatFromSequence", g.add("SequenceInsert", parts, g.add("Exp", "x")), axis=1)
    one = g.add("SequenceAt", parts, g.constant(np.int64(1)))
    model, inputs = g.model(g.add("Tanh", one), g.add("Neg", both)), {"x": np.linspace(-1, 1, 12, dtype="f4")}
    inputs["x"] = inputs["x"].reshape(2, 6)
    for found, right in zip(
        romou.compile(model, target=HOST, precision="float16").run(inputs),
        reference_outputs(model, inputs),
        strict=True,
    ):
        np.testing.assert_allclose(found, right, atol=2e-3)


@pytest.mark.parametrize("precision", ["float16", "mixed"])
def test_overflow_is_named_and_stays_fp32(precision: str, caplog: pytest.LogCaptureFixture) -> None:
    """In one sentence, and without a search for a wrong node."""
    summary = romou.compile(overflowing_net(), target=HOST, precision=precision).summary()
    said = [record.getMessage() for record in caplog.records]
    if precision == "float16":
        (warning,) = said
        assert re.fullmatch(
            r"fp16 ends at 65504 and Mul \(t1\) reaches [2-4]\.\d\de\+06 on random inputs: 2 layers, .* stay fp32",
            warning,
        )
    assert summary.is_right
    assert {"t1", "t2"} <= set(summary.fp32_layers)
    assert not {"t0", "t3"} & set(summary.fp32_layers)


def test_masks_and_infinities_are_no_overflow(caplog: pytest.LogCaptureFixture) -> None:
    """A mask beyond the range is clamped to it, and fp16 has infinity."""
    for mask in (-3e38, -np.inf):
        g = NetworkBuilder({"x": (4, 4)})
        rows = np.where(np.tri(4, dtype=bool), np.float32(0), np.float32(mask))
        scores = g.add("Add", g.add("MatMul", "x", g.add("Transpose", "x")), g.constant(rows))
        model = g.model(g.add("MatMul", g.add("Softmax", scores), g.weight(4, 4)))
        import_onnx(model, None, Precision(kind="float16"))
        assert not caplog.records


def test_overflow_is_found_on_the_inputs_that_are_given(caplog: pytest.LogCaptureFixture) -> None:
    g = NetworkBuilder({"x": (2, 3)})
    model = g.model(
        g.add("Mul", g.add("Tanh", g.add("Mul", "x", g.constant(np.float32([10.0])))), g.constant(np.float32([0.5])))
    )
    usual, large = (np.full((2, 3), value, np.float32) for value in (1.0, 12345.0))
    with caplog.at_level(logging.WARNING):
        import_onnx(model, None, Precision.checked("float16", None, [{"x": usual}]))
        assert not caplog.records
        import_onnx(model, None, Precision.checked("float16", None, [{"x": usual}, {"x": large}]))
    assert "Mul (t0) reaches 1.23e+05 on the calibration inputs: 2 layers" in caplog.records[0].getMessage()


def test_mixed_keeps_what_rounding_spoils_and_no_more() -> None:
    model = cancelling_net()
    folded = fold(model)
    spoilt = romou.compile(model, target="null", precision="float16", verify=False)
    kept = set(romou.compile(model, target=HOST, precision="mixed").summary().fp32_layers)
    assert {"t2", "t3"} <= kept
    assert "t0" not in kept
    assert "t5" not in kept
    assert len(kept) < len(folded.graph.node)
    assert spoilt.summary().fp32_layers == ()


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"precision": "half"}, "unknown precision 'half'; known: float16, float32, mixed"),
        ({"io_precision": "float16"}, "io_precision='float16' is for precision='float16' or 'mixed'"),
        ({"precision": "float16", "io_precision": "double"}, "unknown io_precision 'double'"),
        ({"precision": "mixed", "calibration": {"x": np.zeros(3)}}, "calibration must be a list of inputs"),
        ({"precision": "mixed", "calibration": [{"y": np.zeros(3)}]}, "the model has no input 'y'"),
        ({"calibration": [{"y": np.zeros(3)}]}, "the model has no input 'y'"),
    ],
)
def test_wrong_arguments(how: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        romou.compile(cancelling_net(), target=HOST, **how)  # type: ignore[arg-type]
