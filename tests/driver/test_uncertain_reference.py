"""Outputs are judged by the uncertainty of the reference: right kernels pass, and planted faults of 1e-3 are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

import romou
from romou.compiler.frontend.reference import reference_outputs, uncertainties, with_rounding_errors
from romou.driver.check import verify
from romou.driver.check.verify import OutputCheck
from support.models.small_networks import NetworkBuilder, residual_net

TARGET = "opencl -device=host"
LIMIT = verify.TOLERANCE["float32"]
FAULT = 1e-3


def picture_net() -> onnx.ModelProto:
    """Return a net from a picture to a map of probabilities."""
    g = NetworkBuilder({"x": (1, 3, 24, 32)})
    x = g.add("Relu", g.conv("x", 3, 16, pads=[1, 1, 1, 1]))
    x = g.add("Relu", g.conv(x, 16, 16, groups=16, pads=[1, 1, 1, 1]))
    return g.model(g.add("Sigmoid", g.conv(x, 16, 1, (1, 1))))


def attention_net() -> onnx.ModelProto:
    """Return a head of attention with a norm of rows behind it."""
    g = NetworkBuilder({"x": (1, 24, 32)})
    q, k, v = (g.add("MatMul", "x", g.weight(32, 32, scale=0.2)) for _ in range(3))
    scores = g.add("Softmax", g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 1])), axis=-1)
    x = g.add("Add", "x", g.add("MatMul", scores, v))
    return g.model(g.add("LayerNormalization", x, g.weight(32, positive=True), g.weight(32), axis=-1))


def flow_net() -> onnx.ModelProto:
    """Return a picture sampled where coordinates cancel, times a mask: as optical flow and frame interpolation do."""
    g = NetworkBuilder({"x": (1, 3, 24, 32)})
    flow = g.conv("x", 3, 2, pads=[1, 1, 1, 1])
    large = g.add("Add", g.add("Mul", flow, g.constant(np.float32(0.05))), g.constant(np.float32(1e3)))
    grid = g.add("Transpose", g.add("Sub", large, g.constant(np.float32(1e3))), perm=[0, 2, 3, 1])
    sampled = g.add("GridSample", "x", grid, padding_mode="border")
    mask = g.add("Sigmoid", g.conv("x", 3, 1, pads=[1, 1, 1, 1]))
    return g.model(g.add("Mul", sampled, mask))


def tail_net() -> onnx.ModelProto:
    """Return probabilities of 1e-6 behind a difference of large numbers, as a text detector gives without text."""
    g = NetworkBuilder({"x": (1, 3, 24, 32)})
    x = g.conv(g.add("Relu", g.conv("x", 3, 16, pads=[1, 1, 1, 1])), 16, 1, (1, 1))
    x = g.add("Add", x, g.constant(np.float32(1e4)))
    x = g.add("Sub", x, g.add("ReduceMax", x, keepdims=1))
    return g.model(g.add("Sigmoid", g.add("Sub", x, g.constant(np.float32(10)))))


def with_factors(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a factor, an input, behind each node: y = Op(x) -> y = Op(x) * y/factor."""
    result, nodes = onnx.ModelProto(), []
    result.CopyFrom(model)
    infos = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    for node in model.graph.node:
        changed, (name,) = onnx.NodeProto(), node.output
        changed.CopyFrom(node)
        changed.output[0] = f"{name}/right"
        shape = [dim.dim_value for dim in infos[name].type.tensor_type.shape.dim]
        result.graph.input.append(helper.make_tensor_value_info(f"{name}/factor", 1, shape))
        nodes += [changed, helper.make_node("Mul", [f"{name}/right", f"{name}/factor"], [name])]
    del result.graph.node[:], result.graph.value_info[:]
    result.graph.node.extend(nodes)
    return onnx.shape_inference.infer_shapes(result)


def factors_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    inputs = with_factors(model).graph.input
    return {
        v.name: np.ones([d.dim_value for d in v.type.tensor_type.shape.dim], "float32") for v in inputs if "/" in v.name
    }


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        value.name: rng.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype("float32")
        for value in model.graph.input
    }


def judged(outputs: list[np.ndarray], model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> OutputCheck:
    return verify._compared(outputs, reference_outputs(model, inputs), LIMIT, model, inputs)


def planted(factor: np.ndarray, where: str, rng: np.random.Generator, right: np.ndarray) -> None:
    """Make a factor wrong by 1e-3: of all elements, of a quarter of two axes, or of one of at least the mean size.

    right: the output.
    """
    if where == "node":
        factor *= 1 + FAULT
    elif where == "tile":
        axes = sorted(range(factor.ndim), key=lambda axis: -factor.shape[axis])[:2]
        starts = {axis: int(rng.integers(0, factor.shape[axis] // 2 + 1)) for axis in axes}
        tile = [
            slice(starts[a], starts[a] + max(1, factor.shape[a] // 2)) if a in axes else slice(None)
            for a in range(factor.ndim)
        ]
        factor[tuple(tile)] *= 1 + FAULT
    else:
        factor.flat[rng.choice(np.flatnonzero(np.abs(right) >= np.sqrt(np.mean(right**2))))] *= 1 + FAULT


# A net, and for each fault the nodes from the end and its size. A fault of one element is in the output: hidden ones
# are averaged out by what reads them.
PLACES = {
    residual_net: [("node", 1), ("tile", 1), ("element", 1), ("node", 4), ("node", 9), ("tile", 4), ("node", 3)],
    picture_net: [("node", 1), ("tile", 1), ("element", 1), ("node", 2), ("tile", 2), ("node", 4), ("tile", 4)],
    attention_net: [("node", 1), ("tile", 1), ("element", 1), ("tile", 3), ("node", 3), ("node", 5)],
}


def test_twenty_faults_are_planted() -> None:
    assert sum(map(len, PLACES.values())) == 20


@pytest.mark.parametrize("net", PLACES, ids=lambda net: net.__name__)
def test_a_planted_fault_is_found(net: Callable[[], onnx.ModelProto]) -> None:
    """Kernels of the whole net run with one factor off by 1e-3. Without a fault they are right."""
    model, rng = net(), np.random.default_rng(7)
    compiled = romou.compile(with_factors(model), target=TARGET, verify=False)
    inputs, names = inputs_of(model), [node.output[0] for node in model.graph.node]
    assert not judged(compiled.run(inputs | factors_of(model)), model, inputs).is_wrong
    (right,) = reference_outputs(model, inputs)
    for where, from_end in PLACES[net]:
        factors = factors_of(model)
        planted(factors[f"{names[-from_end]}/factor"], where, rng, right)
        check = judged(compiled.run(inputs | factors), model, inputs)
        assert check.is_wrong, (where, names[-from_end], check)


@pytest.mark.parametrize("net", [tail_net, flow_net], ids=lambda net: net.__name__)
def test_a_right_kernel_is_right_where_the_reference_is_uncertain(
    net: Callable[[], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is above the plain limit, and below the one that the reference's own uncertainty allows."""
    model = net()
    monkeypatch.setattr(verify, "wrong_outputs", lambda *a, **k: pytest.fail("no search for a wrong node"))
    summary = romou.compile(model, target=TARGET).summary()
    assert summary.is_right
    assert not summary.moved
    inputs = inputs_of(model)
    right = reference_outputs(model, inputs)
    (moved,) = reference_outputs(with_rounding_errors(model), inputs, is_optimized=False)
    check = verify._compared([moved], right, LIMIT, model, inputs)
    assert (
        check.is_wrong,
        check.error is not None and check.limit is not None and LIMIT < check.error < check.limit,
    ) == (False, True)
    # Wrong by more than that everywhere, or in one row
    spread = uncertainties(model, inputs, right)[0]
    assert spread is not None
    scale = float(np.median(spread / np.abs(right[0])))
    assert judged([right[0] * np.float32(1 + 40 * scale + 2 * LIMIT)], model, inputs).is_wrong
    row = right[0].copy()
    row[:, :, 5] *= 1.5
    assert judged([row], model, inputs).is_wrong


def test_elements_that_cancel_out_are_right_and_a_wrong_one_beside_them_is_not() -> None:
    g = NetworkBuilder({"x": (40, 50)})
    large = g.add("Mul", "x", g.constant(np.float32(7)))
    both = g.add("Sub", g.add("Mul", g.add("Exp", large), g.constant(np.float32(1.1))), g.add("Exp", large))
    model, inputs = g.model(both), inputs_of(g.model(both))
    assert not judged(romou.compile(model, target=TARGET, verify=False).run(inputs), model, inputs).is_wrong
    (right,) = reference_outputs(model, inputs)
    wrong = right.copy()
    wrong.flat[int(np.argmax(right))] *= 1 + FAULT
    assert judged([wrong], model, inputs).is_wrong


def test_small_elements_have_the_rounding_errors_of_large_ones() -> None:
    """Winograd's sums of large numbers leave the same error in each element, however small."""
    g = NetworkBuilder({"x": (40, 50)})
    model = g.model(g.add("Relu", "x"))
    inputs = inputs_of(model)
    (right,) = reference_outputs(model, inputs)
    smallest = np.flatnonzero(right == right[right > 0].min())
    for error, is_wrong in ((1.3e-4, False), (2e-4, True)):
        output = right.copy()
        output.flat[smallest] += error * np.sqrt(np.mean(right**2))
        assert judged([output], model, inputs).is_wrong == is_wrong


def test_integers_shapes_and_what_only_moves_have_no_rounding_error() -> None:
    g = NetworkBuilder({"x": (2, 3, 4)})
    flat = g.add("Reshape", g.add("Relu", "x"), g.constant(np.int64([2, 12])))
    size = g.add("Cast", g.add("Shape", "x"), to=1)
    model = g.model(g.add("Tanh", flat), g.add("Mul", size, size))
    assert [node.op_type for node in with_rounding_errors(model).graph.node].count("RandomUniformLike") == 2
    inputs = inputs_of(model)
    tanh, sizes = uncertainties(model, inputs, reference_outputs(model, inputs))
    assert sizes is not None
    assert not sizes.any()
    assert tanh is not None
    assert 0 < np.median(tanh) < 1e-5
