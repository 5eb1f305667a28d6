"""Kernels scheduled once, with sizes as variables: which families have one, and that none is built at a sample size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
import tvm

import romou
from reverse_order import reverse_kernels
from romou.compiler.assembly.kernels import ModelKernels
from romou.compiler.assembly.unscheduled import shapes_in
from romou.compiler.operators.families.attention import AttentionTemplate
from romou.compiler.operators.families.depthwise_pointwise import DepthwisePointwiseTemplate
from romou.driver.sizes import run_time_sizes
from support.models.open_networks import wrong_points
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import exhaustive

HOST = "opencl -device=host"
Shape: TypeAlias = "tuple[int | str, ...]"
DIMS = {"n": range(1, 24), "b": range(1, 4)}


def conv(g: NetworkBuilder, op: str = "Conv", channels: int = 8, groups: int = 1, **attributes: Any) -> str:
    weights = g.weight(channels, channels // groups, 3, 3), g.weight(channels)
    return g.add(op, "x", *weights, kernel_shape=[3, 3], group=groups, pads=[1, 1, 1, 1], **attributes)


def attention(g: NetworkBuilder, data: str = "x", width: int = 8) -> str:
    queries, keys, values = (g.add("MatMul", data, g.weight(width, width, scale=1.0)) for _ in range(3))
    scores = g.add("MatMul", queries, g.add("Transpose", keys, perm=[0, 2, 1]))
    return g.add("MatMul", g.add("Softmax", g.add("Mul", scores, g.constant(np.float32(0.3))), axis=-1), values)


def recurrent(g: NetworkBuilder, kind: str = "LSTM", gates: int = 4, units: int = 6) -> str:
    weights = (g.weight(1, gates * units, size, scale=0.4) for size in (8, units))
    return g.add(kind, "x", *weights, hidden_size=units)


def top(g: NetworkBuilder) -> str:
    values = g.add("TopK", "x", g.constant(np.array([2])))
    g.nodes[-1].output.append("positions")
    return values


def scatter(g: NetworkBuilder) -> str:
    indices, updates = np.tile([[[0], [-1], [0]]], (2, 1, 9)), np.ones((2, 3, 9), "float32")
    return g.add("ScatterElements", "x", g.constant(indices), g.constant(updates), axis=1, reduction="add")


# Family -> shape of the input, and the operator
FAMILIES: dict[str, list[tuple[Shape, Callable[[NetworkBuilder], str]]]] = {
    "conv2d": [(("b", 8, "n", 9), lambda g: conv(g, strides=[2, 2])), ((1, 8, "n", 9), conv)],
    "depthwise": [((1, 8, "n", 9), lambda g: conv(g, groups=8))],
    "depthwise_pointwise": [
        (("b", 8, "n", 9), lambda g: g.conv(g.add("HardSwish", conv(g, groups=8, strides=[2, 1])), 8, 16, (1, 1)))
    ],
    "group_conv2d": [((1, 12, "n", 9), lambda g: conv(g, channels=12, groups=2))],
    "conv2d_transpose": [((1, 8, "n", 9), lambda g: conv(g, op="ConvTranspose", strides=[2, 2]))],
    "dense": [(("b", "n", 8), lambda g: g.add("MatMul", "x", g.weight(8, 12)))],
    "batch_matmul": [((2, "n", 8), lambda g: g.add("MatMul", g.add("Transpose", "x", perm=[0, 2, 1]), "x"))],
    "attention": [((2, "n", 8), attention), (("b", "n", 8), attention)],
    "row_reduction": [
        (("b", 3, "n"), lambda g: g.add("Softmax", "x", axis=-1)),
        ((2, "n", 8), lambda g: g.add("Softmax", "x", axis=1)),
        (("b", "n", 8), lambda g: g.add("LayerNormalization", "x", g.weight(8), g.weight(8), axis=-1)),
        ((2, "n", 8), lambda g: g.add("ReduceMax", "x", axes=[1], keepdims=1)),
        ((2, 4, "n", 9), lambda g: g.add("InstanceNormalization", "x", g.weight(4), g.weight(4))),
    ],
    "pool": [
        (("b", 4, "n", 9), lambda g: g.add("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
        ((2, 4, 9, "n"), lambda g: g.add("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
    ],
    "elementwise": [
        ((2, "n", 8), lambda g: g.add("Transpose", g.add("Exp", "x"), perm=[0, 2, 1])),
        (("b", "n", 9), lambda g: g.add("Concat", "x", g.add("Tanh", "x"), axis=1)),
        ((1, 4, "n", 9), lambda g: g.add("Resize", "x", "", g.constant(np.float32([1, 1, 2, 2])), mode="linear")),
    ],
    "cumulated_rows": [((2, "n", 9), lambda g: g.add("CumSum", "x", g.constant(np.array(1))))],
    "scattered_rows": [((2, "n", 9), scatter)],
    "sorted_rows": [(("b", "n", 3), top)],
}


def model_of(shape: Shape, operator: Callable[[NetworkBuilder], str]) -> onnx.ModelProto:
    g = NetworkBuilder({"x": shape})
    return g.model(operator(g))


def points_of(shape: Shape, count: int) -> list[tuple[int, ...]]:
    """Return the bounds of an input's free dimensions, the least sizes, and random ones."""
    free, rng = [side for side in shape if isinstance(side, str)], np.random.default_rng(0)
    drawn = [tuple(int(rng.choice(DIMS[name])) for name in free) for _ in range(count)]
    return [tuple(DIMS[name][-1] for name in free), tuple(1 for _ in free), *drawn]


def wrong(model: romou.TunedModel, network: onnx.ModelProto, shape: Shape, count: int) -> list[tuple[int, ...]]:
    free = [side for side in shape if isinstance(side, str)]

    def inputs_of(*point: int) -> dict[str, np.ndarray]:
        sides = [dict(zip(free, point, strict=True)).get(str(side), side) for side in shape]
        return {"x": np.random.default_rng(point).standard_normal(sides).astype("float32")}

    return wrong_points(model, network, points_of(shape, count), inputs_of)


def compiled(network: onnx.ModelProto, shape: Shape) -> romou.TunedModel:
    dims = {str(side): DIMS[str(side)] for side in shape if isinstance(side, str)}
    return romou.compile(network, dims=dims, target=HOST, verify=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_its_own_kernel_of_any_size(
    family: str, monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """Neither TVM's plain schedule nor the host computes it."""
    found: list[set[str]] = []

    def program(self: Any) -> Any:
        found.append({self.tasks[name].template.family for name in self.configs})
        return whole(self)

    whole = run_time_sizes._General.program
    monkeypatch.setattr(run_time_sizes._General, "program", program)
    for template in (AttentionTemplate, DepthwisePointwiseTemplate):
        monkeypatch.setattr(template, "is_faster", lambda *_: True)
    for shape, operator in FAMILIES[family]:
        network = model_of(shape, operator)
        model = compiled(network, shape)
        assert family in found.pop()
        assert not model.summary().host
        assert wrong(model, network, shape, 3) == []


NETS: dict[str, tuple[Shape, Callable[[NetworkBuilder], str]]] = {
    "steps": (("n", 2, 8), recurrent),
    "sequences": ((5, "n", 8), recurrent),
    "steps and sequences": (("n", "b", 8), recurrent),
    "strided": (("b", 8, "n", 9), lambda g: conv(g, strides=[2, 2])),
    "heads": (("b", "n", 8), attention),
}


@pytest.mark.parametrize("count", [pytest.param(5, id="five"), pytest.param(50, id="fifty", marks=exhaustive)])
@pytest.mark.parametrize("net", NETS)
def test_no_kernel_is_built_at_a_sample_size(
    net: str, count: int, monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """All that is scheduled has the bounds' extents, and random sizes are right."""
    scheduled: dict[str, set[str]] = {}
    schedule = ModelKernels.schedule

    def recorded(self: ModelKernels, mod: tvm.IRModule) -> tvm.IRModule:
        for var, func in mod.functions_items():
            if isinstance(func, tvm.tirx.PrimFunc):
                scheduled.setdefault(str(var.name_hint), set()).add(str(shapes_in(func)[: len(func.params)]))
        return schedule(self, mod)

    monkeypatch.setattr(ModelKernels, "schedule", recorded)
    shape, operator = NETS[net]
    network = model_of(shape, operator)
    model = compiled(network, shape)
    assert scheduled
    assert all(len(shapes) == 1 for shapes in scheduled.values())
    assert model.summary().run_time.endswith("at run time, in every kernel.")
    assert wrong(model, network, shape, count) == []


def test_the_least_size_lacks_the_chains_that_are_joined_at_the_bound() -> None:
    """Behind a window, two pixels are a single key, and attention over one key is no softmax."""
    g = NetworkBuilder({"x": (4, 8, "n")})
    pooled = g.add("MaxPool", "x", kernel_shape=[2], strides=[1])
    network = g.model(attention(g, g.add("Transpose", pooled, perm=[0, 2, 1])))
    model = romou.compile(network, dims={"n": range(1, 33)}, target="cuda -device=nvidia_h200", verify=False)
    assert model.sources()


@pytest.mark.parametrize("shape", [("n", 16, 8, 6), (1, 16, "n", 6)], ids=["batch", "height"])
def test_a_phones_activations_of_any_size_are_in_buffers(shape: Shape, opencl_device: tvm.runtime.Device) -> None:
    """Adreno prefers images, which have a fixed size, as weights do. Channels are packed in tiles across texels."""
    g = NetworkBuilder({"x": shape})
    network = g.model(g.add("Relu", g.conv("x", 16, 8, kernel=(3, 3), pads=[1, 1, 1, 1])))
    model = romou.compile(network, dims={"n": range(1, 20)}, device="adreno640", target="opencl", verify=False)
    images = [source.count("image2d") for source in model.sources().values()]
    assert sorted(images)[-2:] == [0, 1]
    assert not any("write_image" in source for source in model.sources().values())

    def inputs_of(n: int) -> dict[str, np.ndarray]:
        own = tuple(n if size == "n" else int(size) for size in shape)
        return {"x": np.random.default_rng(n).standard_normal(own).astype("float32")}

    assert wrong_points(model, network, [(1,), (7,), (19,)], inputs_of) == []


@pytest.mark.parametrize("device", ["adreno640", "mali_g76"])
@pytest.mark.parametrize("pads", [[0, 0, 1, 2], [1, 2, 1, 0]], ids=["width", "both"])
def test_no_element_depends_on_the_order_of_work_items(
    pads: list[int], device: str, monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """Vectors of four do not divide rows of 9 and of 11: the elements after the last whole vector are stored singly."""
    reverse_kernels(monkeypatch)
    g = NetworkBuilder({"x": ("b", "n", 9)})
    padded = g.add("Pad", "x", g.constant(np.array([0, *pads[:2], 0, *pads[2:]])))
    network = g.model(g.add("Sigmoid", padded), g.add("Transpose", g.add("Exp", "x"), perm=[1, 0, 2]))
    dims = {"b": range(1, 4), "n": range(1, 40)}
    model = romou.compile(network, dims=dims, device=device, target="opencl", verify=False)
    assert any("float4" in source for source in model.sources().values())

    def inputs_of(b: int, n: int) -> dict[str, np.ndarray]:
        return {"x": np.random.default_rng(n).standard_normal((b, n, 9)).astype("float32")}

    assert wrong_points(model, network, [(1, 1), (3, 38), (2, 39)], inputs_of) == []


def test_a_tensor_of_no_elements_has_free_sizes(opencl_device: tvm.runtime.Device) -> None:
    g = NetworkBuilder({"x": ("b", 4, "n")})
    nothing = g.add("Slice", "x", *(g.constant(np.array([number])) for number in (0, 0, 1)))
    network = g.model(g.add("Relu", "x"), g.add("Exp", nothing))
    model = romou.compile(network, dims={"b": range(1, 4), "n": range(1, 20)}, target=HOST, verify=False)
    assert [output.shape for output in model.run({"x": np.ones((2, 4, 7), np.float32)})] == [(2, 4, 7), (2, 0, 7)]


@exhaustive
def test_three_free_dimensions_are_right_at_fifty_sizes(opencl_device: tvm.runtime.Device) -> None:
    """A strided network over images of any batch, height and width."""
    g = NetworkBuilder({"x": ("batch", 4, "height", "width")})
    y = g.add("Relu", g.conv("x", 4, 8, strides=[2, 2], pads=[1, 1, 1, 1]))
    network = g.model(g.add("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))
    dims = {"batch": range(1, 4), "height": range(1, 20), "width": range(1, 24)}
    model = romou.compile(network, dims=dims, target=HOST, verify=False)
    rng = np.random.default_rng(1)
    points = [tuple(int(rng.choice(sizes)) for sizes in dims.values()) for _ in range(50)]

    def inputs_of(batch: int, height: int, width: int) -> dict[str, np.ndarray]:
        shape = batch, 4, height, width
        return {"x": np.random.default_rng(shape).standard_normal(shape).astype("float32")}

    assert wrong_points(model, network, points, inputs_of) == []
