"""Reshapes are moved out of epilogues: fewer kernels, the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

import romou
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import count_calls
from romou.compiler.graph.sink_reshapes import sink_reshapes
from romou.compiler.importing import import_onnx
from romou.compiler.pipeline import fuse_operators
from romou.compiler.tir.calls import op_name
from romou.devices.targets import Target
from support.models.small_networks import NetworkBuilder, random_inputs

TARGET = Target("opencl -device=adreno640")


def fused(model: onnx.ModelProto) -> dict[str, int]:
    """Return calls by name, without functions that are only a reshape."""
    mod = fuse_operators(pack_channels(import_onnx(model).mod), TARGET)
    return {
        name: count
        for name, count in count_calls(relax.transform.RewriteDataflowReshape()(mod)).items()
        if not name.startswith("reshape")
    }


def calls_of(mod: tvm.IRModule) -> list[relax.Call]:
    return [
        binding.value
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]


def check(model: onnx.ModelProto) -> None:
    """Compare the graph with onnxruntime. Each of its functions runs as defined, without a schedule."""
    inputs = random_inputs(model, seed=3)
    reference = run_onnxruntime(model, inputs)
    assert reference is not None
    for found, expected in zip(romou.compile(model, target="null").run(inputs), reference, strict=True):
        assert found.shape == expected.shape
        assert relative_l2_error(found, expected) < 1e-4


def feed_forward(
    rows: tuple[int, ...] = (2, 7), width: int = 12, hidden: int = 20, *, is_shared: bool = False
) -> onnx.ModelProto:
    """Return dense, bias, gelu, dense, bias, with the input added. Leading axes are rows of the products, so there are
    reshapes around both.
    """
    g = NetworkBuilder({"x": (*rows, width)})
    h = g.add(
        "Add",
        g.add("MatMul", "x", g.constant(g.rng.standard_normal((width, hidden)).astype("float32"))),
        g.weight(hidden),
    )
    gelu = g.add(
        "Mul",
        g.add(
            "Mul",
            h,
            g.add("Add", g.add("Erf", g.add("Div", h, g.constant(np.float32(2**0.5)))), g.constant(np.float32(1))),
        ),
        g.constant(np.float32(0.5)),
    )
    y = g.add(
        "Add",
        g.add("MatMul", gelu, g.constant(g.rng.standard_normal((hidden, width)).astype("float32"))),
        g.weight(width),
    )
    outputs = [g.add("Add", y, "x")]
    if is_shared:
        outputs.append(g.add("Transpose", h, perm=[1, 0, 2]))
    return g.model(*outputs)


def test_a_transformers_feed_forward_is_two_kernels() -> None:
    model = feed_forward()
    calls = fused(model)
    assert sum(calls.values()) == 2, calls
    assert all(name.startswith("fused_dense") for name in calls), calls
    check(model)


@pytest.mark.parametrize("rows", [(1, 5), (3, 2, 3)])
def test_more_leading_axes(rows: tuple[int, ...]) -> None:
    model = feed_forward(rows, width=11, hidden=13)
    assert sum(fused(model).values()) == 2
    check(model)


def test_what_others_need_keeps_its_shape() -> None:
    """An activation that is transposed as well is there in both shapes."""
    check(feed_forward(is_shared=True))


def test_operands_that_have_no_such_shape_stay_outside() -> None:
    g = NetworkBuilder({"x": (3, 5, 8), "scale": (3, 1, 1)})
    y = g.add("MatMul", "x", g.constant(g.rng.standard_normal((8, 6)).astype("float32")))
    y = g.add("Mul", g.add("Relu", y), "scale")
    model = g.model(g.add("Add", y, g.constant(g.rng.standard_normal((5, 6)).astype("float32"))))
    calls = fused(model)
    assert any(name.startswith("fused_dense_relu") for name in calls), calls
    check(model)


def test_every_form_of_operand_that_moves() -> None:
    """Bounds that are no tensors, an operand used twice, constants of one number, of a row and of the whole shape, and
    another tensor on the left all move.
    """
    g = NetworkBuilder({"x": (3, 5, 8), "other": (3, 5, 6)})
    y = g.add("MatMul", "x", g.constant(g.rng.standard_normal((8, 6)).astype("float32")))
    y = g.add("Clip", y, g.constant(np.float32(-0.5)), g.constant(np.float32(0.5)))
    y = g.add("Mul", y, y)
    for shape in ((1,), (1, 1, 1), (6,), (1, 6), (3, 5, 6)):
        y = g.add("Sub", y, g.constant(g.rng.standard_normal(shape).astype("float32")))
    model = g.model(g.add("Sub", "other", g.add("Sigmoid", y)))
    calls = fused(model)
    assert sum(calls.values()) == 1, calls
    check(model)


def test_a_graph_without_such_reshapes_stays() -> None:
    g = NetworkBuilder({"image": (1, 4, 9, 9)})
    packed = pack_channels(import_onnx(g.model(g.add("Relu", g.conv("image", 4, 8)))).mod)
    assert [op_name(call) for call in calls_of(sink_reshapes(packed))] == [op_name(call) for call in calls_of(packed)]


@pytest.mark.parametrize(("channels", "unpacked"), [(8, 0), (10, 1)])
def test_a_flattened_image_goes_into_a_dense_layer_as_it_is(channels: int, unpacked: int) -> None:
    """A flattened image goes into a dense layer packed, unless lanes are padded. A reader that needs it plain gets it
    plain.
    """
    for is_shared in (False, True):
        g = NetworkBuilder({"image": (2, 3, 6, 5)})
        flat = g.add("Flatten", g.add("Relu", g.conv("image", 3, channels, (3, 2))))
        outputs = [g.add("Gemm", flat, g.weight(7, channels * 16), g.weight(7), transB=1)]
        model = g.model(*outputs, *([g.add("Softmax", flat)] if is_shared else []))
        calls = fused(model)
        assert sum("unpack" in name for name in calls) == (1 if is_shared else unpacked), calls
        check(model)
