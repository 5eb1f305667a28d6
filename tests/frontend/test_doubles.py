"""float64 that only an exporter made is computed in fp32, where the model's outputs agree, and is named."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import romou
from romou.compiler.importing import import_onnx
from romou.tools.report.table import device_lines
from support.models.nodes import model_of

DOUBLE, FLOAT, INT64 = TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.INT64
X = np.random.default_rng(0).standard_normal((3, 40), np.float32)
TO_DOUBLE, TO_FLOAT, TO_INT64 = ({"to": kind} for kind in (DOUBLE, FLOAT, INT64))


def returning(nodes: dict[str, tuple], inputs: dict[str, np.ndarray], **constants: object) -> onnx.ModelProto:
    """Return a model of the nodes that returns the last one only."""
    model = model_of(nodes, inputs, constants, opset=13)
    inner = [*model.graph.output[:-1]]
    del model.graph.output[:-1]
    model.graph.value_info.extend(inner)
    return model


def wide(offset: float = 0.5) -> onnx.ModelProto:
    """Return a model with a region from a cast to a cast: a product, a softmax, and what is added and subtracted."""
    nodes = {
        "d": ("Cast", "x", TO_DOUBLE),
        "e": ("MatMul", "d w"),
        "f": ("Softmax", "e"),
        "g": ("Add", "f offset"),
        "h": ("Sub", "g offset"),
        "y": ("Cast", "h", TO_FLOAT),
    }
    weight = np.random.default_rng(1).standard_normal((40, 24))
    return returning(nodes, {"x": X}, w=weight, offset=np.float64(offset))


def types(model: onnx.ModelProto) -> set[int]:
    """Return the element types of the constants and of all tensors between nodes."""
    graph = import_onnx(model).folded.graph
    kinds = {value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    return kinds | {tensor.data_type for tensor in graph.initializer}


@pytest.mark.parametrize("target", ["opencl", "opencl -device=adreno640", "vulkan"])
def test_a_region_between_casts_is_fp32(target: str) -> None:
    compiled = romou.compile(wide(), target=target)
    summary = compiled.summary()
    assert (compiled.host_nodes, summary.by_tvm) == ((), ())
    assert summary.relative_l2_error is not None
    assert summary.relative_l2_error < 1e-5
    assert [name.split(" ")[0] for name in summary.narrowed] == ["Cast", "MatMul", "Softmax", "Add", "Sub", "Cast"]
    assert f"In fp32 in place of float64: {', '.join(summary.narrowed)}." in device_lines(summary)


def test_no_tensor_of_a_region_is_left() -> None:
    assert types(wide()) == {FLOAT}


def test_float64_stays_where_fp32_loses_digits(caplog: pytest.LogCaptureFixture) -> None:
    """1e8 + x - 1e8 is 0 in fp32."""
    with caplog.at_level(logging.INFO, "romou"):
        imported = import_onnx(wide(1e8))
    assert imported.narrowed == ()
    assert "float64 stays: in fp32, output y differs by" in caplog.text
    assert DOUBLE in types(wide(1e8))


STAYS = {
    "an input": (lambda: returning({"y": ("Mul", "d two")}, {"d": X.astype("float64")}, two=np.float64(2)), DOUBLE),
    "an output": (
        lambda: returning({"d": ("Cast", "x", TO_DOUBLE), "y": ("Mul", "d two")}, {"x": X}, two=np.float64(2)),
        DOUBLE,
    ),
    "integers of integers": (
        lambda: returning(
            {"d": ("Cast", "i", TO_DOUBLE), "e": ("Mul", "d half"), "y": ("Cast", "e", TO_INT64)},
            {"i": np.arange(7)},
            half=np.float64(0.5),
        ),
        DOUBLE,
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_the_caller_or_integers_need_stays(name: str) -> None:
    build, kind = STAYS[name]
    assert kind in types(build())
    assert import_onnx(build()).narrowed == ()


def test_a_schedule_of_tvms_is_named() -> None:
    """Products of float64 that stays have TVM's schedule, and the summary says so."""
    summary = romou.compile(wide(1e8), target="opencl", verify=False).summary()
    assert "By a schedule of TVM's: MatMul (e)." in device_lines(summary)
