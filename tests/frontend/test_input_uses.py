"""Inputs of a check are drawn from the range that the model uses, so that the check notices errors there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import romou
from romou.base.inputs import Draw, random_inputs
from romou.compiler.frontend import fp16 as conversion
from romou.compiler.frontend import wide_nodes as rules
from romou.compiler.frontend.input_uses import draws_of
from romou.compiler.importing import import_onnx
from support.models.small_networks import NetworkBuilder, rotary, timestep

INDEX = TensorProto.INT64


def graph_of(name: str = "i", shape: tuple[int, ...] = (2, 5), element: int = INDEX) -> NetworkBuilder:
    g = NetworkBuilder({})
    g.inputs = [helper.make_tensor_value_info(name, element, shape)]
    return g


def tables() -> onnx.ModelProto:
    """Return a model with ids that look up two tables. One of the ids is increased by two."""
    g = graph_of()
    moved = g.add("Add", g.add("Unsqueeze", "i", g.constant(np.array([0]))), g.constant(np.array(2)))
    return g.model(g.add("Gather", g.weight(100, 3), "i"), g.add("Gather", g.weight(90, 3), moved))


def elements() -> onnx.ModelProto:
    g = graph_of()
    return g.model(g.add("GatherElements", g.weight(2, 7), g.add("Cast", "i", to=INDEX), axis=1))


def tuples() -> onnx.ModelProto:
    g = graph_of(shape=(6, 2))
    return g.model(g.add("GatherND", g.weight(9, 4, 3), "i"))


def one_hot() -> onnx.ModelProto:
    g = graph_of()
    return g.model(g.add("OneHot", "i", g.constant(np.array(11)), g.constant(np.float32([0, 1]))))


def lengths() -> onnx.ModelProto:
    g = graph_of(shape=(3,))
    return g.model(g.add("ReverseSequence", g.weight(8, 3), "i"))


def mask() -> onnx.ModelProto:
    g = graph_of()
    return g.model(
        g.add(
            "Mul",
            g.add("Sub", g.constant(np.float32(1)), g.add("Cast", "i", to=TensorProto.FLOAT)),
            g.constant(np.float32(-1e9)),
        )
    )


def image() -> onnx.ModelProto:
    g = graph_of(element=TensorProto.UINT8)
    return g.model(g.add("Cast", "i", to=TensorProto.FLOAT))


def fraction() -> onnx.ModelProto:
    """Return a model that converts a time between 0 and 1 to a step."""
    g = NetworkBuilder({"i": (2, 1)})
    return g.model(
        g.add("Sin", g.add("Mul", g.add("Mul", "i", g.constant(np.float32(1000))), g.constant(np.float32([0.5, 0.1]))))
    )


def coordinates() -> onnx.ModelProto:
    g = NetworkBuilder({"i": (4, 3)})
    return g.model(g.add("Sin", g.add("MatMul", "i", g.weight(3, 8))))


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (tables, Draw(low=0, high=87)),
        (elements, Draw(low=0, high=6)),
        (tuples, Draw(low=0, high=3)),
        (one_hot, Draw(low=0, high=10)),
        (lengths, Draw(low=1, high=8)),
        (mask, None),
        (image, Draw(low=0, high=255)),
        (fraction, Draw(low=0, high=0.999, is_whole=False)),
        (coordinates, None),
    ],
)
def test_what_an_input_takes(make: Callable[[], onnx.ModelProto], draw: Draw | None) -> None:
    model = make()
    found = draws_of(import_onnx(model).folded).get("i")
    assert (found is None) == (draw is None)
    if found is not None and draw is not None:
        assert (found.low, found.is_whole) == (draw.low, draw.is_whole)
        assert found.high == pytest.approx(draw.high)
    assert romou.compile(model, target="opencl -device=host").summary().is_right


@pytest.mark.parametrize(("make", "name", "low"), [(rotary, "positions", 0), (timestep, "t", 500)])
def test_positions_and_timesteps(make: Callable[[], onnx.ModelProto], name: str, low: int) -> None:
    assert draws_of(import_onnx(make()).folded)[name] == Draw(low=low, high=999)


def test_tensors_that_are_read_twice_are_followed_once() -> None:
    """Paths from the input to the angle: a thousand million."""
    g = NetworkBuilder({"i": (2, 1)})
    doubled = "i"
    for _ in range(30):
        doubled = g.add("Add", doubled, doubled)
    draws = draws_of(g.model(g.add("Sin", g.add("Mul", doubled, g.constant(np.float32(1000))))))
    assert draws["i"].high == pytest.approx(0.999)


def test_a_timestep_is_known_by_its_name() -> None:
    names = ("timestep", "time_steps", "t", "unet.timesteps", "temperature", "text", "input")
    g = NetworkBuilder(dict.fromkeys(names, (1,)))
    g.inputs.append(helper.make_tensor_value_info("map_t", TensorProto.FLOAT, [1, 8]))
    found = draws_of(g.model(g.add("Sum", *names, "map_t")))
    assert set(found) == {"timestep", "time_steps", "t", "unet.timesteps"}


@pytest.mark.parametrize("make", [rotary, timestep])
def test_the_check_sees_angles_in_fp16(make: Callable[[], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule that keeps them in fp32, the model is refused."""
    monkeypatch.setattr(rules, "_angles", lambda graph: set())
    monkeypatch.setattr(rules, "_integers", lambda graph: set())
    assert conversion.wide_nodes is rules.wide_nodes
    with pytest.raises(romou.NumericError, match="fp16 is too coarse for it: rounding alone gives"):
        romou.compile(make(), target="opencl -device=host", precision="float16")
    mixed = romou.compile(make(), target="opencl -device=host", precision="mixed").summary()
    assert mixed.is_right
    assert mixed.fp32_layers


def test_draws_are_within_their_ends() -> None:
    signature = {"i": ((1000,), "int64"), "u": ((1000,), "float32"), "b": ((1000,), "bool")}
    found = random_inputs(signature, 0, {"i": Draw(low=3, high=5), "u": Draw(low=-1, high=2, is_whole=False)})
    assert set(found["i"]) == {3, 4, 5}
    assert -1 <= found["u"].min() < -0.9
    assert 1.9 < found["u"].max() <= 2
    assert set(found["b"]) == {False, True}
