"""Several sizes at run time: kernels of two free dimensions are right at every combination of sizes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from click.testing import CliRunner

import romou
from romou.base.errors import ModelError, UsageError
from romou.cli import main
from romou.compiler.operators.families.attention import AttentionTemplate
from support.models.open_networks import encoder, recogniser, wrong_points
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import exhaustive

HOST = "opencl -device=host"
DEVICES = [HOST, "opencl:intel", "vulkan -device=host"]
Inputs = Mapping[str, np.ndarray]


def images(*sides: str | int, channels: int = 4) -> onnx.ModelProto:
    """Return a convolution that halves images, and a pooling that halves them again."""
    g = NetworkBuilder({"x": sides})
    y = g.add("Relu", g.conv("x", channels, 8, strides=[2, 2], pads=[1, 1, 1, 1]))
    return g.model(g.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1]))


def rows(width: int = 12) -> onnx.ModelProto:
    """Return a product of tokens, joined with their batch, each token's share of its text, and the mean of tokens."""
    g = NetworkBuilder({"x": ("batch", "tokens", width)})
    flat = g.add("Reshape", "x", g.constant(np.array([-1, width])))
    shares = g.add("Softmax", g.add("MatMul", "x", g.weight(width, 5)), axis=1)
    joined = g.add("Reshape", shares, g.constant(np.array([-1])))
    mean = g.add("ReduceMean", "x", axes=[1], keepdims=0)
    return g.model(g.add("Relu", g.add("MatMul", flat, g.weight(width, 8))), joined, mean)


def pooled() -> onnx.ModelProto:
    """Return a convolution, the mean over images of a free width, and a product."""
    g = NetworkBuilder({"x": ("batch", 4, 6, "width")})
    y = g.add("Relu", g.conv("x", 4, 8, strides=[2, 2], pads=[1, 1, 1, 1]))
    means = g.add("Flatten", g.add("GlobalAveragePool", y), axis=1)
    return g.model(g.add("MatMul", means, g.weight(8, 5)))


def deep(*sides: str | int) -> onnx.ModelProto:
    """Return convolutions that halve images five times, their mean, and a product."""
    g = NetworkBuilder({"x": sides})
    y = "x"
    for before, after in itertools.pairwise((4, 8, 4, 8, 4, 8)):
        y = g.add("Relu", g.conv(y, before, after, strides=[2, 2], pads=[1, 1, 1, 1]))
    return g.model(g.add("MatMul", g.add("ReduceMean", y, axes=[2, 3], keepdims=0), g.weight(8, 5)))


def enlarged(*sides: str | int) -> onnx.ModelProto:
    """Return an image with a border of two columns, twice as large. A texel's index is divided by a size."""
    g = NetworkBuilder({"x": sides})
    bordered = g.add("Pad", "x", g.constant(np.array([0, 0, 0, 1, 0, 0, 1, 1])), mode="edge")
    return g.model(g.add("Resize", bordered, "", g.constant(np.float32([1, 1, 2, 2])), mode="nearest"))


def masked(width: int = 8) -> onnx.ModelProto:
    """Return causal attention. The mask is made from the number of tokens, and the lower triangle of the scores is
    kept.
    """
    g = NetworkBuilder({"x": ("batch", "tokens", width)})
    one = g.constant(np.array([1]))
    tokens = g.add("Slice", g.add("Shape", "x"), one, g.constant(np.array([2])))
    full = onnx.numpy_helper.from_array(np.float32([-1e9]))
    whole = g.add("ConstantOfShape", g.add("Concat", tokens, tokens, axis=0), value=full)
    mask = g.add("Trilu", whole, g.add("Reshape", one, g.constant(np.array([], "int64"))), upper=1)
    queries, keys, values = (g.add("MatMul", "x", g.weight(width, width)) for _ in range(3))
    scores = g.add("MatMul", queries, g.add("Transpose", keys, perm=[0, 2, 1]))
    mixed = g.add("MatMul", g.add("Softmax", g.add("Add", scores, mask), axis=-1), values)
    return g.model(
        mixed,
        g.add("MatMul", g.add("Tanh", g.add("Trilu", scores, upper=0)), values),
        g.add("MatMul", g.add("Exp", mask), "x"),
    )


def texts_of(batch: int, tokens: int) -> Inputs:
    mask = np.ones((batch, tokens), "int64")
    mask[-1, tokens // 2 + 1 :] = 0
    return {"ids": np.random.default_rng((batch, tokens)).integers(0, 20, (batch, tokens)), "mask": mask}


def numbers_of(*shape: int, name: str = "x") -> Inputs:
    return {name: np.random.default_rng(shape).standard_normal(shape).astype("float32")}


# Network, least and most of each free dimension, inputs at sizes
NETS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, tuple[int, int]], Callable[..., Inputs]]] = {
    "rows": (rows, {"batch": (1, 4), "tokens": (1, 128)}, lambda b, t: numbers_of(b, t, 12)),
    "encoder": (encoder, {"batch": (1, 4), "tokens": (1, 128)}, texts_of),
    "lines": (recogniser, {"batch": (1, 2), "width": (32, 320)}, lambda b, w: numbers_of(b, 1, 8, w, name="image")),
    "masked": (masked, {"batch": (1, 2), "tokens": (1, 39)}, lambda b, t: numbers_of(b, t, 8)),
    "pooled": (pooled, {"batch": (1, 4), "width": (1, 100)}, lambda b, w: numbers_of(b, 4, 6, w)),
    "deep": (
        lambda: deep("batch", 4, 32, "width"),
        {"batch": (1, 2), "width": (32, 320)},
        lambda b, w: numbers_of(b, 4, 32, w),
    ),
    "heights": (
        lambda: images("batch", 4, "height", 12),
        {"batch": (1, 9), "height": (1, 70)},
        lambda b, h: numbers_of(b, 4, h, 12),
    ),
    "sides": (
        lambda: images(2, 4, "height", "width"),
        {"height": (1, 40), "width": (1, 60)},
        lambda h, w: numbers_of(2, 4, h, w),
    ),
    "enlarged": (
        lambda: enlarged(1, 8, "height", "width"),
        {"height": (1, 13), "width": (1, 13)},
        lambda h, w: numbers_of(1, 8, h, w),
    ),
    "all": (
        lambda: images("batch", 4, "height", "width"),
        {"batch": (1, 3), "height": (1, 40), "width": (1, 60)},
        lambda b, h, w: numbers_of(b, 4, h, w),
    ),
}


def made(net: str, *, device: str = HOST, verify: bool = False, cuts: Sequence[int] = ()) -> romou.TunedModel:
    """Return the model of a network. cuts: ends of the classes of the last dimension, but for its bound."""
    target, _, name = device.partition(":")
    network, bounds, _ = NETS[net]
    dims: dict[str, Any] = {each: range(least, most + 1) for each, (least, most) in bounds.items()}
    free, (least, most) = list(bounds.items())[-1]
    dims[free] = [range(low, high) for low, high in itertools.pairwise((least, *(cut + 1 for cut in cuts), most + 1))]
    return romou.compile(network(), dims=dims, target=target, device=name or None, verify=verify)


def combinations(net: str, most: int = 8) -> list[tuple[int, ...]]:
    """Return combinations of bounds, small sizes and primes."""
    sizes = []
    for least, largest in NETS[net][1].values():
        wanted = (least, largest, least + 1, largest - 1, least + 2, 7, 31, 37, 64, 97, 127, 311)
        sizes.append(list(dict.fromkeys(size for size in wanted if least <= size <= largest))[:most])
    return list(itertools.product(*sizes))


def wrong_sizes(model: romou.TunedModel, net: str, points: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    network, _, inputs_of = NETS[net]
    return wrong_points(model, network(), points, inputs_of)


@pytest.mark.parametrize("net", ["rows", "heights"])
def test_it_is_right_at_all_combinations(net: str, tmp_path: Path, opencl_device: tvm.runtime.Device) -> None:
    model = made(net, verify=net == "rows")
    (_, (_, batch)), (free, (least, most)) = NETS[net][1].items()
    assert model.summary().run_time.startswith(
        f"batch is 1 to {batch}, {free} is {least} to {most} at run time, in every kernel."
    )
    points = combinations(net)
    assert len(points) >= 32
    assert wrong_sizes(model, net, points) == []
    loaded = romou.load(model.save(tmp_path / "m.romou"))
    assert isinstance(loaded, romou.RunTimeSizesModel)
    assert wrong_sizes(loaded, net, points[:3]) == []
    assert loaded.time(repeat=1) > 0
    small, large = (
        sum(call.ms for call in loaded.profile(NETS[net][2](*point), repeat=5).calls) for point in ((1, 1), points[9])
    )
    assert points[9][0] == batch
    assert min(small, large) > 0
    with pytest.raises(UsageError, match=f"batch and {free} have sizes at run time, and bound arrays have one size"):
        loaded.bind()
    with pytest.raises(UsageError, match=f"{free} is {most + 1} in the inputs; expected one size from 1 to {most}"):
        loaded.run(NETS[net][2](batch, most + 1))
    with pytest.raises(UsageError, match=f"batch is {batch + 1} in the inputs; expected one size from 1 to {batch}"):
        loaded.run(NETS[net][2](batch + 1, most))
    assert min(loaded.times(repeat=2, sizes={free: 1})) > 0
    for wrong, text in (({"batches": 1}, "batches"), ({"batch": batch + 1}, f"batch is at most {batch}")):
        with pytest.raises(UsageError, match=text):
            loaded.times(sizes=wrong)


@pytest.mark.parametrize("device", [HOST, "opencl -device=adreno640", "vulkan -device=mali_g715"])
def test_constants_of_smaller_sizes_are_corners_of_the_largest(
    device: str, opencl_device: tvm.runtime.Device, vulkan_device: tvm.runtime.Device
) -> None:
    assert wrong_sizes(made("masked", device=device), "masked", combinations("masked", most=6)) == []


@pytest.mark.parametrize("device", [HOST, "vulkan -device=host"])
def test_whole_texels_are_divided_by_a_size(
    device: str, opencl_device: tvm.runtime.Device, vulkan_device: tvm.runtime.Device
) -> None:
    assert wrong_sizes(made("enlarged", device=device), "enlarged", combinations("enlarged")[::7]) == []


@exhaustive
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("net", "is_joined"), [*((net, False) for net in NETS), ("encoder", True)])
def test_all_are_right_on_all_devices(
    net: str, device: str, is_joined: bool, monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """is_joined: an attention is one kernel, or three."""
    monkeypatch.setattr(AttentionTemplate, "is_faster", lambda *_: is_joined)
    assert wrong_sizes(made(net, device=device), net, combinations(net)) == []


@exhaustive
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("net", "cut"), [("encoder", 32), ("lines", 64), ("sides", 8)])
def test_classes_are_right_on_all_devices(net: str, cut: int, device: str, opencl_device: tvm.runtime.Device) -> None:
    model = made(net, device=device, cuts=[cut])
    assert isinstance(model, romou.MultiShapeModel)
    assert wrong_sizes(model, net, combinations(net)) == []
    (first, (least, most)), (free, (low, high)) = NETS[net][1].items()
    sizes = [row.sizes for row in model.summary().shapes]
    assert sizes == [f"{first} {least} to {most}, {free} {a} to {b}" for a, b in ((low, cut), (cut + 1, high))]


@exhaustive
@pytest.mark.parametrize("net", ["encoder", "lines", "heights"])
def test_random_sizes_are_right(net: str, opencl_device: tvm.runtime.Device) -> None:
    rng = np.random.default_rng(0)
    bounds = NETS[net][1].values()
    points = [tuple(int(rng.integers(least, most + 1)) for least, most in bounds) for _ in range(200)]
    assert wrong_sizes(made(net), net, points) == []


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device) -> None:
    """Classes of one dimension, and a range of another from a least size."""
    monkeypatch.chdir(tmp_path)
    g = NetworkBuilder({"x": ("batch", "width", 8)})
    onnx.save(g.model(g.add("Relu", g.add("MatMul", "x", g.weight(8, 12)))), "m.onnx")
    dims = ["--dim", "batch=1..2", "--dim", "width=16..20,21..64"]
    result = CliRunner().invoke(main, ["compile", "m.onnx", *dims, "--target", HOST, "-o", "m.romou"])
    assert result.exit_code == 0, result.output
    assert "x 2x20x8 (batch 1 to 2, width 16 to 20)" in " ".join(result.stdout.split())
    for shape in ((1, 17, 8), (2, 64, 8)):
        words = ["run", "m.romou", "--repeat", "1", "--json", "--profile", "--shape", f"x={','.join(map(str, shape))}"]
        shown = CliRunner().invoke(main, words)
        assert json.loads(shown.stdout)["outputs"][0]["shape"] == [*shape[:2], 12]
    few = CliRunner().invoke(main, ["run", "m.romou", "--shape", "x=1,15,8"])
    assert few.exit_code != 0


def test_what_takes_no_sizes_is_named() -> None:
    """A sum of two sizes and their product is no product."""
    g = NetworkBuilder({"x": ("batch", "tokens"), "y": ("batch",), "z": ("tokens",)})
    joined = g.add("Concat", g.add("Reshape", "x", g.constant(np.array([-1]))), "y", "z", axis=0)
    dims = {"batch": range(1, 9), "tokens": range(1, 9)}
    with pytest.raises(ModelError, match="the shape of 't1' takes no size at run time: axis 0 is no product"):
        romou.compile(g.model(joined), dims=dims, target=HOST, verify=False)


def test_a_constant_that_is_no_corner_is_refused() -> None:
    """A token is told how many follow."""
    g = NetworkBuilder({"x": ("tokens",)})
    zero = g.constant(np.array(0))
    tokens = g.add("Gather", g.add("Shape", "x"), zero)
    left = g.add("Cast", g.add("Range", tokens, zero, g.constant(np.array(-1))), to=onnx.TensorProto.FLOAT)
    with pytest.raises(ModelError, match="a constant of the model depends on the size: it is another one with tokens="):
        romou.compile(g.model(g.add("Add", "x", left)), dims={"tokens": range(1, 9)}, target=HOST, verify=False)
