"""Kernels that take a size at run time: attention, gathers, convolutions, sums over the size."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import romou
from romou.base.errors import DeviceError, ModelError, UsageError
from romou.compiler.frontend.size_rules import NeedsPointError, NotOneKernelError, SizeRules
from romou.compiler.operators.families.attention import AttentionTemplate
from romou.driver.check.verify import OutputCheck
from romou.driver.options import PrecisionName
from romou.driver.sizes import run_time_sizes
from support.models.open_networks import encoder, recogniser, recurrent, rolled, wrong_points
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import exhaustive, few

HOST = "opencl -device=host"


def attention(size: int = 8, words: int = 20) -> onnx.ModelProto:
    """Return the attention of embedded ids, and the mean distance of the outputs to the largest of all tokens."""
    g = NetworkBuilder({})
    shape = ["tokens"]
    g.inputs = [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, shape)]
    x = g.add("Gather", g.weight(words, size, scale=1.0), "ids")
    queries, keys, values = (g.add("MatMul", x, g.weight(size, size, scale=1.0)) for _ in range(3))
    scores = g.add("MatMul", queries, g.add("Transpose", keys, perm=[1, 0]))
    mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), values)
    return g.model(g.add("Sub", mixed, g.add("ReduceMax", mixed, axes=[0], keepdims=1)))


def image(channels: int = 4) -> onnx.ModelProto:
    """Return convolutions and a pooling over images of a free height, which is halved twice."""
    g = NetworkBuilder({"x": (1, channels, "height", 12)})
    y = g.add("Relu", g.conv("x", channels, 8, strides=[2, 2], pads=[1, 1, 1, 1]))
    y = g.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1])
    return g.model(g.conv(y, 8, channels, pads=[1, 1, 1, 1]))


def ids_of(size: int, batch: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    return {"ids": np.random.default_rng(size).integers(0, 20, (*batch, size))}


def tokens_of(size: int) -> dict[str, np.ndarray]:
    mask = np.ones((2, size), "int64")
    mask[1, size // 2 + 1 :] = 0
    return {**ids_of(size, (2,)), "mask": mask}


def images_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype("float32")


# Network, fixed dimensions, free dimension, inputs of a size
NETS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, int], str, Callable[[int], dict[str, np.ndarray]]]] = {
    "attention": (attention, {}, "tokens", ids_of),
    "image": (image, {}, "height", lambda size: {"x": images_of(1, 4, size, 12)}),
    "encoder": (encoder, {"batch": 2}, "tokens", tokens_of),
    "width": (recogniser, {"batch": 2}, "width", lambda size: {"image": images_of(2, 1, 8, size)}),
    "batch": (recogniser, {"width": 24}, "batch", lambda size: {"image": images_of(size, 1, 8, 24)}),
}


def made(net: str, *bounds: int, device: str = HOST) -> romou.TunedModel:
    """Return the model of a network with a class of sizes up to each bound."""
    target, _, name = device.partition(":")
    network, fixed, free, _ = NETS[net]
    dims = {**fixed, free: [range(low + 1, high + 1) for low, high in itertools.pairwise((0, *bounds))]}
    return romou.compile(network(), dims=dims, target=target, device=name or None, verify=False)


def wrong_sizes(model: romou.TunedModel, net: str, sizes: list[int]) -> list[tuple[int, ...]]:
    network, _, _, inputs_of = NETS[net]
    return wrong_points(model, network(), [(size,) for size in sizes], inputs_of)


def fifty(most: int) -> list[int]:
    return [most, 1, 2, 3, *map(int, np.random.default_rng(0).integers(1, most + 1, 46))]


@pytest.mark.parametrize("net", ["attention", "image"])
def test_it_is_right_at_fifty_random_sizes(net: str, opencl_device: tvm.runtime.Device) -> None:
    model = made(net, 200)
    assert "in every kernel." in model.summary().run_time
    assert wrong_sizes(model, net, fifty(200)) == []


@pytest.mark.parametrize("target", ["vulkan -device=host", pytest.param(HOST, marks=exhaustive)])
def test_fp16_takes_a_size(target: str, opencl_device: tvm.runtime.Device) -> None:
    """Shapes of fp16 buffers have casts of the size behind a gather. The outputs are checked at five sizes."""
    model = romou.compile(attention(), dims={"tokens": range(1, 41)}, target=target, precision="float16")
    assert model.summary().checked_on
    (row,) = model.run(ids_of(1))
    assert row.shape == (1, 8)


def test_fp16_attention_of_any_size_is_one_kernel(
    monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """The last block converts the outputs, which have the size, of tensors that have the bound."""
    monkeypatch.setattr(AttentionTemplate, "is_faster", lambda *_: True)
    text = """<ir_version: 10, opset_import: ["" : 17]>
        one (float[1, 2, n, 8] q, float[1, 2, 8, n] k, float[1, 2, n, 8] v) => (float[1, 2, n, 8] y) {
            scores = MatMul(q, k)
            weights = Softmax(scores)
            y = MatMul(weights, v)
        }"""
    network = onnx.parser.parse_model(text)
    model = romou.compile(network, dims={"n": range(3, 48)}, target=HOST, precision="float16")
    assert model.summary().checked_on
    assert model.summary().run_time == "n is 3 to 47 at run time, in every kernel."


@pytest.mark.parametrize(
    ("net", "precision"),
    [
        ("image", "float16"),
        *(
            pytest.param(*each, marks=exhaustive)
            for each in [("image", "float32"), ("attention", "float16"), ("attention", "float32")]
        ),
    ],
)
def test_cuda_has_kernels_for_a_size(net: str, precision: PrecisionName) -> None:
    """Products are on tensor cores. Loops over the size in a softmax are not unrolled. The programs are not run."""
    network, _, free, _ = NETS[net]
    model = romou.compile(
        network(), dims={free: range(1, 41)}, target="cuda -arch=sm_90", precision=precision, verify=False
    )
    assert "in every kernel." in model.summary().run_time
    assert any("  tensor_core_fma" in source for source in model.sources().values())


@pytest.mark.parametrize(
    ("net", "target"),
    few(
        itertools.product(NETS, ["opencl -device=adreno640", "opencl -device=mali_g76", "vulkan -device=adreno740"]),
        0,
    ),
)
def test_phones_have_kernels_for_a_size(net: str, target: str) -> None:
    """Scores of 40 tokens are whole vectors, those of 39 are not. The programs are not run."""
    network, fixed, free, _ = NETS[net]
    model = romou.compile(network(), dims={**fixed, free: range(1, 41)}, target=target, verify=False)
    assert model.summary().run_time.endswith(" to 40 at run time, in every kernel.")


@exhaustive
@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize("device", [HOST, "opencl:intel", "vulkan -device=host"])
@pytest.mark.parametrize("net", list(NETS))
def test_all_are_right_on_all_devices(
    net: str, device: str, is_joined: bool, monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """is_joined: an attention is one kernel, or three."""
    monkeypatch.setattr(AttentionTemplate, "is_faster", lambda *_: is_joined)
    assert wrong_sizes(made(net, 300, device=device), net, fifty(300)) == []


@exhaustive
@pytest.mark.parametrize("device", [HOST, "opencl:intel", "vulkan -device=host"])
@pytest.mark.parametrize("net", list(NETS))
def test_classes_are_right_on_all_devices(net: str, device: str, opencl_device: tvm.runtime.Device) -> None:
    """NaN is left in the memory of the largest class, which the smaller ones use, too."""
    model = made(net, 20, 100, 300, device=device)
    assert isinstance(model, romou.MultiShapeModel)
    assert wrong_sizes(model, net, fifty(300)) == []


@exhaustive
@pytest.mark.parametrize("net", ["width", "batch", "encoder"])
def test_each_size_is_right(net: str, opencl_device: tvm.runtime.Device) -> None:
    assert wrong_sizes(made(net, 260), net, list(range(260, 0, -1))) == []


@pytest.mark.parametrize(
    ("network", "sizes", "inputs"),
    [
        (recurrent("LSTM"), range(1, 15), lambda n: (n, 2, 4)),
        (recurrent("GRU"), range(1, 14), lambda n: (n, 2, 4)),
        (rolled(2), range(2, 17), lambda n: (n, 6)),
        (rolled(4), range(4, 23), lambda n: (n, 6)),
    ],
    ids=["LSTM", "GRU", "halves", "quarters"],
)
def test_odd_and_even_sizes_are_right(
    network: onnx.ModelProto,
    sizes: range,
    inputs: Callable[[int], tuple[int, ...]],
    opencl_device: tvm.runtime.Device,
) -> None:
    """The last state is in one of two slots in turn, and shares of a size depend on its remainder."""
    name = network.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    model = romou.compile(network, dims={name: sizes}, target=HOST, verify=False)
    points = [(size,) for size in sizes]
    assert wrong_points(model, network, points, lambda n: {"x": images_of(*inputs(n))}) == []


def test_a_share_that_is_none_at_small_sizes_is_refused() -> None:
    """One row at least: a rule of the larger sizes does not hold below four rows."""
    g = NetworkBuilder({"x": ("rows", 6)})
    first, one = g.constant(np.array([0])), g.constant(np.array([1]))
    share = g.add("Div", g.add("Slice", g.add("Shape", "x"), first, one), g.constant(np.array([4])))
    network = g.model(g.add("Slice", "x", first, g.add("Max", share, one), first))
    with pytest.raises(ModelError, match=r"the shape of 't4' takes no size at run time: an integer is \("):
        romou.compile(network, dims={"rows": range(1, 33)}, target=HOST, verify=False)


def test_a_graph_that_depends_on_the_remainder_is_refused() -> None:
    """Zero is added at every third size, and left out. Only these sizes have the graph of the bound."""
    g = NetworkBuilder({"x": ("rows", 6)})
    first, one = g.constant(np.array([0])), g.constant(np.array([1]))
    rest = g.add("Mod", g.add("Slice", g.add("Shape", "x"), first, one), g.constant(np.array([3])))
    moved = g.add("Add", "x", g.add("Cast", rest, to=onnx.TensorProto.FLOAT))
    network = g.model(g.add("Relu", g.add("MatMul", moved, g.weight(6, 8))))
    with pytest.raises(ModelError, match="with rows=23"):
        romou.compile(network, dims={"rows": range(12, 25)}, target=HOST, verify=False)


def test_kernels_may_be_one_at_a_size(opencl_device: tvm.runtime.Device) -> None:
    """Two kernels of eight rows are one kernel, and the third one is the second then."""
    g = NetworkBuilder({"x": ("rows", 6), "y": (8, 6), "z": (5, 6)})
    network = g.model(*(g.add("Mul", name, g.weight(6)) for name in "xyz"))
    model = romou.compile(network, dims={"rows": range(1, 10)}, target=HOST, verify=False)
    points = [(size,) for size in range(1, 10)]
    sides = {"y": images_of(8, 6), "z": images_of(5, 6)}
    assert wrong_points(model, network, points, lambda n: {"x": images_of(n, 6), **sides}) == []


def test_operators_may_be_one_at_a_size(opencl_device: tvm.runtime.Device) -> None:
    """The second exponential has the number of the first one at eight rows."""
    g = NetworkBuilder({"x": ("rows", 6), "y": (8, 6)})
    network = g.model(g.add("Exp", "x"), g.add("Tanh", g.add("Exp", "y")))
    model = romou.compile(network, dims={"rows": range(1, 10)}, target=HOST, verify=False)
    y = images_of(8, 6)
    assert wrong_points(model, network, [(1,), (8,), (9,)], lambda n: {"x": images_of(n, 6), "y": y}) == []


def test_kernels_that_are_one_at_the_bound_only_are_named() -> None:
    g = NetworkBuilder({"x": ("rows", 6), "y": (9, 6)})
    network = g.model(*(g.add("Mul", name, g.weight(6)) for name in "xy"))
    with pytest.raises(ModelError, match="the graph has other kernels with rows=8"):
        romou.compile(network, dims={"rows": range(1, 10)}, target=HOST, verify=False)


def test_few_and_many_rows_of_bytes_are_one_product(opencl_device: tvm.runtime.Device) -> None:
    """Without dot products, a phone has packed bytes for few rows only, and floats for more."""
    g = NetworkBuilder({"x": ("rows", 16)})
    scale, zero = g.constant(np.float32(0.05)), g.constant(np.uint8(128))
    weight = g.constant(g.rng.integers(-60, 60, (16, 12)).astype("int8"))
    rows = g.add("DequantizeLinear", g.add("QuantizeLinear", "x", scale, zero), scale, zero)
    network = g.model(g.add("MatMul", rows, g.add("DequantizeLinear", weight, scale, g.constant(np.int8(0)))))
    model = romou.compile(network, dims={"rows": range(1, 25)}, target="opencl -device=adreno640", verify=False)
    assert wrong_points(model, network, [(1,), (8,), (9,), (24,)], lambda n: {"x": images_of(n, 16)}) == []


@pytest.mark.parametrize("window", [2, 3])
def test_a_range_starts_at_the_first_whole_window(window: int, opencl_device: tvm.runtime.Device) -> None:
    """onnxruntime pads a smaller input up to one window, or takes the mean of nothing."""
    g = NetworkBuilder({"x": (2, 3, "tokens")})
    pool = g.add("MaxPool", "x", kernel_shape=[window], strides=[2])
    network = g.model(g.add("ReduceMean", pool, axes=[2]))
    model = romou.compile(network, dims={"tokens": range(1, 17)}, target=HOST, verify=False)
    assert model.summary().run_time.startswith(f"tokens is {window} to 16 at run time")
    points = [(size,) for size in range(window, 17)]
    assert wrong_points(model, network, points, lambda n: {"x": images_of(2, 3, n)}) == []
    with pytest.raises(UsageError, match=f"tokens is {window - 1} in the inputs; expected one size from {window} to"):
        model.run({"x": images_of(2, 3, window - 1)})


@pytest.mark.parametrize("pads", [(0, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("rounding", ["ceil", "floor"])
@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
def test_pools_take_odd_and_even_sizes(operator: str, rounding: str, pads: tuple[int, int], opencl_device: Any) -> None:
    g = NetworkBuilder({"x": (1, 4, "height", 11)})
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [pads[0], 0, pads[1], 0]}
    proto = g.model(g.add(operator, "x", **window, ceil_mode=int(rounding == "ceil")))
    model = romou.compile(proto, dims={"height": range(4, 25)}, target=HOST, verify=False)
    assert "without a schedule" not in model.summary().run_time
    points = [(size,) for size in range(4, 25)]
    assert wrong_points(model, proto, points, lambda n: {"x": images_of(1, 4, n, 11)}) == []


def test_a_size_of_a_node_on_the_host_is_refused() -> None:
    g = NetworkBuilder({"x": ("batch", 3, 3)})
    proto = g.model(g.add("Relu", g.add("Det", "x")))
    with pytest.raises(ModelError, match=r"would run on the host, where a size at run time is not known"):
        romou.compile(proto, dims={"batch": range(1, 9)}, target=HOST)


def test_positions_of_an_open_number_do_not_raise_the_least_size(opencl_device: tvm.runtime.Device) -> None:
    """Inference leaves the length of a Range open, which is no tensor without elements."""
    g = NetworkBuilder({"x": (1, "tokens")})
    zero, one = (g.constant(np.array(each)) for each in (0, 1))
    positions = g.add("Range", zero, g.add("Gather", g.add("Shape", "x"), one), one)
    network = g.model(g.add("Exp", g.add("Sub", "x", g.add("Cast", positions, to=onnx.TensorProto.FLOAT))))
    model = romou.compile(network, dims={"tokens": range(1, 17)}, target=HOST, verify=False)
    assert wrong_points(model, network, [(1,), (5,), (16,)], lambda n: {"x": images_of(1, n)}) == []


def test_the_host_takes_any_size() -> None:
    """The null backend runs unscheduled functions: a product of rows, and a sum over the size."""
    g = NetworkBuilder({"x": ("rows", 8)})
    y = g.add("Relu", g.add("MatMul", "x", g.weight(8, 12)))
    network = g.model(g.add("Sub", y, g.add("ReduceMean", y, axes=[0], keepdims=1)), g.add("Exp", "x"))
    model = romou.compile(network, dims={"rows": range(1, 17)}, target="null", verify=False)
    assert wrong_points(model, network, [(1,), (7,), (16,)], lambda n: {"x": images_of(n, 8)}) == []


def test_sizes_that_are_not_checked_are_named(
    monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    check = run_time_sizes.check_outputs

    def lacking(model: romou.TunedModel, imported: Any, *arguments: Any) -> OutputCheck:
        is_lacking = imported.inputs["x"][0][0] == 6
        return OutputCheck(unchecked="no memory") if is_lacking else check(model, imported, *arguments)

    monkeypatch.setattr(run_time_sizes, "check_outputs", lacking)
    g = NetworkBuilder({"x": ("rows", 8)})
    summary = romou.compile(g.model(g.add("Exp", "x")), dims={"rows": range(1, 17)}, target=HOST).summary()
    assert summary.unchecked == "with rows=6: no memory"
    assert ", with rows=1; " in summary.checked_on
    assert "rows=6" not in summary.checked_on


def test_a_lost_server_leaves_the_sizes_behind_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_model: object, point: tuple[int, ...], *_: object) -> OutputCheck:
        if point == (6,):
            raise DeviceError("the connection was lost")
        return OutputCheck(error=0.0, limit=1.0)

    monkeypatch.setattr(run_time_sizes, "check_outputs", lost)
    points = [(16,), (6,), (5,)]
    far, here = (SimpleNamespace(remote=remote, target=None) for remote in (object(), None))
    found = run_time_sizes._unchecked(far, lambda point: point, points)  # type: ignore[arg-type]
    assert found == {(16,): "", (6,): "the connection was lost", (5,): "the connection was lost"}
    with pytest.raises(DeviceError):
        run_time_sizes._unchecked(here, lambda point: point, points)  # type: ignore[arg-type]


def test_groups_cover_shares_of_a_pool(opencl_device: tvm.runtime.Device) -> None:
    """Half of the pooled rows and all of them have as many groups at all sizes that are compared."""
    g = NetworkBuilder({"x": (3, 4, "tokens")})
    zero, one, two, end = (g.constant(np.array([number])) for number in (0, 1, 2, 1 << 40))
    y = g.add("Transpose", g.add("MaxPool", "x", kernel_shape=[2], strides=[2]), perm=[0, 2, 1])
    share = g.add("Div", g.add("Slice", g.add("Shape", y), one, two), two)
    first, rest = g.add("Slice", y, zero, share, one), g.add("Slice", y, share, end, one)
    network = g.model(g.add("Concat", rest, first, axis=1))
    model = romou.compile(network, dims={"tokens": range(12, 65)}, target="vulkan -device=host", verify=False)
    assert wrong_points(model, network, [(22,), (23,), (64,)], lambda n: {"x": images_of(3, 4, n)}) == []


def test_a_config_of_other_workspaces_is_not_taken(opencl_device: tvm.runtime.Device) -> None:
    """The program's calls are those of the config of the largest size: one of Winograd's would lack two arguments."""
    g = NetworkBuilder({"x": (1, 4, "height", 16)})
    y = g.add("Relu", g.conv("x", 4, 8, pads=[1, 1, 1, 1]))
    network = g.model(g.add("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2]))
    model = romou.compile(network, dims={"height": range(12, 65)}, target=HOST, verify=False)
    assert wrong_points(model, network, [(64,), (13,), (12,)], lambda n: {"x": images_of(1, 4, n, 16)}) == []


def decided(integer: Callable[..., int], most: tuple[int, ...]) -> tuple[SizeRules, tuple[int, ...]]:
    """Return rules at points that decide on an integer, and its values there."""
    points = [most]
    for place, bound in enumerate(most):
        sizes = (bound - 1, bound - 2, bound - 3, bound // 2)
        points += [(*most[:place], size, *most[place + 1 :]) for size in sizes]
    points += [tuple(bound - 1 for bound in most)] if len(most) > 1 else []
    while True:
        rules = SizeRules(points=list(dict.fromkeys(points)), ranges=[range(1, bound + 1) for bound in most])
        values = tuple(integer(*point) for point in rules.points)
        try:
            rules.of(values)
            return rules, values
        except NeedsPointError as error:
            points.append(error.point)
            assert len(points) < 40


@pytest.mark.parametrize(
    "integer",
    [
        lambda n: n + 3,
        lambda n: n // 2,
        lambda n: n // 3 + 2,
        lambda n: n - n // 4,
        lambda n: n // 2 - n // 6,
        lambda n: 8 * -(-n // 8),
        lambda n: (n + 5) // 16,
        lambda n: (2 * n + 1) // 3,
        lambda n: 12 * n * n - 1,
        lambda n: 4 * n * (n // 2),
    ],
)
@pytest.mark.parametrize("most", [320, 301, 64])
def test_the_only_rule_that_fits_holds_at_all_sizes(integer: Callable[[int], int], most: int) -> None:
    rules, values = decided(integer, (most,))
    assert [rules.of(values)([n]) for n in range(1, most + 1)] == [integer(n) for n in range(1, most + 1)]


@pytest.mark.parametrize(
    "integer",
    [
        lambda n, m: n * m - 1,
        lambda n, m: 4 * (n + 2) * (m // 2),
        lambda n, m: n + m // 2,
        lambda n, m: n * m * m,
        lambda n, m: m // 4,
    ],
)
def test_rules_of_two_dimensions_hold_at_all_sizes(integer: Callable[[int, int], int]) -> None:
    rules, values = decided(integer, (4, 40))
    points = list(itertools.product(range(1, 5), range(1, 41)))
    assert [rules.of(values)(point) for point in points] == [integer(*point) for point in points]


@pytest.mark.parametrize("integer", [lambda n: n // 2 + n // 3, lambda n: n % 2, lambda n: max(n // 4, 12)])
def test_an_integer_without_a_rule_of_the_family_is_refused(integer: Callable[[int], int]) -> None:
    with pytest.raises(NotOneKernelError, match="an integer is"):
        decided(integer, (64,))
