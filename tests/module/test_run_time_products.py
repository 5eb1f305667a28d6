"""Products with packed weights and rows at run time: a kernel for one row, few rows and more, of one weight."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from click.testing import CliRunner

import romou
from romou.base.limits import Limits
from romou.base.space import Config
from romou.cli import main
from romou.compiler.compilation import import_model
from romou.compiler.operators.families.quantized_product import QuantizedTemplate
from romou.compiler.operators.kernels.quantized.row_classes import last_sizes
from romou.devices.targets import Target
from support.models.open_networks import wrong_points
from support.models.quantized import QuantizedCase, quantized_task
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import exhaustive

HOST = "opencl -device=host"
MOST = 200
SIZES = (1, 2, 3, 8, 9, 64, 65, MOST)
WIDTH, INNER = 96, 75


def block(*rows: int | str, width: int = WIDTH, inner: int = INNER, has_rms: bool = False) -> onnx.ModelProto:
    """Return a decoder's feed-forward block with a residual, quantized to 4 bits."""
    g = NetworkBuilder({"x": (*(rows or ("rows",)), width)})
    weights = [g.weight(width, positive=True), *([] if has_rms else [g.weight(width)])]
    normal = g.add("RMSNormalization" if has_rms else "LayerNormalization", "x", *weights, axis=-1)
    gate, up = (g.add("MatMul", normal, g.weight(width, inner)) for _ in range(2))
    inside = g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), up)
    down = g.add("Add", g.add("MatMul", inside, g.weight(inner, width)), g.weight(width))
    model = g.model(g.add("Add", down, "x"))
    if has_rms:
        model.opset_import[0].version = 23
    return romou.quantize(model, bits=4, block=32).model


def product(dtype: str = "float32", n: int = 43, zero: str = "uint8") -> onnx.ModelProto:
    """Return one product with zero points, negative scales, an odd N and a K that is no multiple of the block."""
    model, _, _ = QuantizedCase(m=1, k=176, n=n, zero=zero, has_bias=True, dtype=dtype).model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    return model


def normalized() -> onnx.ModelProto:
    """Return a block whose first products normalize a single row."""
    return block(has_rms=True)


NETS = {"block": (block, WIDTH), "product": (product, 176), "normalized": (normalized, WIDTH)}


def rows_of(count: int, width: int = WIDTH) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(count).standard_normal((count, width)).astype("float32")}


def made(net: str = "block", device: str = HOST) -> romou.MultiShapeModel:
    target, _, name = device.partition(":")
    dims = {"rows": range(1, MOST + 1)}
    model = romou.compile(NETS[net][0](), dims=dims, target=target, device=name or None, verify=False)
    assert isinstance(model, romou.MultiShapeModel)
    return model


def wrong_sizes(model: romou.TunedModel, net: str = "block", sizes: Sequence[int] = SIZES) -> list[tuple[int, ...]]:
    network, width = NETS[net]
    return wrong_points(model, network(), [(size,) for size in sizes], lambda size: rows_of(size, width))


@pytest.fixture(scope="module")
def model(opencl_device: tvm.runtime.Device) -> romou.MultiShapeModel:
    return made()


@pytest.mark.parametrize("net", list(NETS))
def test_each_class_is_right(net: str, model: romou.MultiShapeModel, tmp_path: Path) -> None:
    """NaN is left in all memory before each run."""
    each = model if net == "block" else made(net)
    assert wrong_sizes(each, net) == []
    loaded = romou.load(each.save(tmp_path / "m.romou"))
    assert isinstance(loaded, romou.MultiShapeModel)
    assert wrong_sizes(loaded, net, (MOST, 1, 8, 9)) == []


@pytest.mark.parametrize("memory_of_one_row", ["image", "buffer"])
def test_classes_choose_their_memory(
    memory_of_one_row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """On Adreno, kernels of all classes read one image by default. A constant may be in a buffer, too."""

    def default(template: QuantizedTemplate, limits: Limits) -> Config:
        config = default_config(template, limits)
        return config.replace(weight=memory_of_one_row) if template.workload.m == 1 else config

    def live_images() -> int:
        return int(json.loads(tvm.get_global_func("romou.opencl.statistics")())["live_images"])

    default_config, dims = QuantizedTemplate.default_config, {"rows": range(1, MOST + 1)}
    monkeypatch.setattr(QuantizedTemplate, "default_config", default)
    compiled = romou.compile(product(), dims=dims, target="opencl -device=adreno640", device=0, verify=False)
    sources = [source for source in compiled.sources().values() if "quantized_product" in source]
    assert sorted("read_imageui" in source for source in sources) == [memory_of_one_row == "image", True, True]
    packed = compiled.models[0].built.executable.stats().count("[6, 43, 4]")
    assert packed == (1 if memory_of_one_row == "image" else 2)
    assert wrong_sizes(compiled, "product") == []
    gc.collect()
    before = live_images()
    loaded = romou.load(compiled.save(tmp_path / "m.romou"))
    assert isinstance(loaded, romou.MultiShapeModel)
    assert wrong_sizes(loaded, "product", (MOST, 1, 8, 9)) == []
    assert live_images() == before + 1


@exhaustive
@pytest.mark.parametrize("net", list(NETS))
@pytest.mark.parametrize("device", ["opencl:intel", "vulkan -device=host"])
def test_each_class_is_right_on_other_devices(device: str, net: str) -> None:
    assert wrong_sizes(made(net, device), net, range(1, 70)) == []


def test_rows_choose_the_kernel(model: romou.MultiShapeModel) -> None:
    """One row, few rows and more have kernels of their own, which run."""
    functions = []
    for count, most in ((1, 1), (3, 8), (64, MOST)):
        profile = model.profile(rows_of(count), repeat=1)
        products = [call for call in profile.calls if call.layer.startswith("quantized_product")]
        assert len(products) == 3
        assert all(call.layer.startswith(f"quantized_product_{most}x") for call in products)
        functions.append({call.function for call in products})
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(functions, 2))
    bounds = [model.model_for({"x": (count, WIDTH)}).inputs["x"][0][0] for count in (1, 2, 3, 8, 9, MOST)]
    assert bounds == [1, 8, 8, 8, MOST, MOST]


def test_one_row_has_no_kernel_of_the_norm(opencl_device: tvm.runtime.Device) -> None:
    model = made("normalized")
    norms = [any("rms_norm" in row.name for row in one.summary().rows) for one in model.models]
    assert norms == [False, True, True]


def statistics() -> dict[str, int]:
    return dict(json.loads(str(tvm.get_global_func("romou.opencl.statistics")())))


def idle_bytes() -> int:
    """Return the bytes on the device that models hold, after unused memory is freed."""
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    return statistics()["live_bytes"]


def test_the_weight_is_on_the_device_once(model: romou.MultiShapeModel) -> None:
    memory, rows = model.summary().memory, [row.memory for row in model.summary().shapes]
    assert memory is not None
    assert {each.weights for each in rows if each is not None} == {memory.weights}
    model.release()
    before = idle_bytes()
    for count in (1, 3, MOST, 1):
        model.run(rows_of(count))
    held = statistics()["live_bytes"] - before
    model.release()
    assert held == memory.total
    assert memory.total < 2 * max(each.total for each in rows if each is not None)


@pytest.mark.parametrize(
    ("rows", "most", "expected"),
    [
        (("rows",), 512, [1, 8]),
        (("rows",), 9, [1, 8]),
        (("rows",), 8, [1]),
        ((2, "rows"), 512, [4]),
        ((5, "rows"), 512, [1]),
        ((9, "rows"), 512, []),
    ],
    ids=str,
)
def test_classes_follow_the_rows_of_the_product(rows: tuple[int | str, ...], most: int, expected: list[int]) -> None:
    assert last_sizes(import_model(block(*rows), {"x": (*rows[:-1], most, WIDTH)}).mod, most) == expected


def test_a_list_of_ranges_is_taken_as_it_is(opencl_device: tvm.runtime.Device) -> None:
    """So one range in a list is one class. Classes that are given may have one size."""
    whole = romou.compile(product(), dims={"rows": [range(1, 17)]}, target=HOST, verify=False)
    assert isinstance(whole, romou.RunTimeSizesModel)
    given = romou.compile(product(), dims={"rows": [range(1, 2), range(2, 3), range(3, 17)]}, target=HOST, verify=False)
    assert [shape["x"][0] for shape in given.shapes] == [1, 2, 16]  # type: ignore[attr-defined]
    assert wrong_sizes(given, "product", range(1, 17)) == []
    one = romou.compile(product(), dims={"rows": range(4, 5)}, target=HOST, verify=False)
    assert one.inputs["x"][0] == (4, 176)
    assert not isinstance(one, romou.RunTimeSizesModel)


def test_a_range_starts_above_one(opencl_device: tvm.runtime.Device) -> None:
    some = romou.compile(product(), dims={"rows": range(4, 17)}, target=HOST, verify=False)
    assert [row.sizes for row in some.summary().shapes] == ["rows 4 to 8", "rows 9 to 16"]
    assert wrong_sizes(some, "product", range(4, 17)) == []


def dense() -> onnx.ModelProto:
    """Return one product over a batch of sequences."""
    g = NetworkBuilder({"x": ("batch", "tokens", 40)})
    return romou.quantize(g.model(g.add("MatMul", "x", g.weight(40, 11))), bits=4, block=32).model


@pytest.mark.parametrize(
    ("batches", "bounds"),
    [
        ((2,), [(2, 4), (2, 20)]),
        pytest.param((1, 2), [(1, 1), (1, 8), (1, 20), (2, 4), (2, 20)], marks=exhaustive),
    ],
)
def test_other_dimensions_have_classes_of_their_own(
    batches: tuple[int, ...], bounds: list[tuple[int, int]], opencl_device: tvm.runtime.Device
) -> None:
    """Two sequences of four tokens are eight rows."""
    several = romou.compile(dense(), dims={"batch": batches, "tokens": range(1, 21)}, target=HOST, verify=False)
    assert [shape["x"][:2] for shape in several.shapes] == bounds  # type: ignore[attr-defined]
    points = list(itertools.product(batches, (1, 2, 4, 5, 8, 9, 20)))
    assert wrong_points(several, dense(), points, lambda *sizes: {"x": np.ones((*sizes, 40), "float32")}) == []


@exhaustive
def test_several_dimensions_with_ranges_are_one_class(opencl_device: tvm.runtime.Device) -> None:
    free = romou.compile(dense(), dims={"batch": range(1, 3), "tokens": range(1, 21)}, target=HOST, verify=False)
    assert isinstance(free, romou.RunTimeSizesModel)


def test_records_have_the_rows_of_the_class(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, opencl_device: tvm.runtime.Device
) -> None:
    """A class is tuned at its bound, and the name of its task has the number of rows."""
    caplog.set_level("INFO", logger="romou")
    records = tmp_path / "records"
    tuned = romou.tune(product(), dims={"rows": range(1, 21)}, target=HOST, trials=1, work_dir=records, verify=False)
    assert "rows has the classes 1, 2..8, 9..20" in caplog.text
    text = "".join(path.read_text() for path in records.rglob("*.jsonl"))
    for count in (1, 8, 20):
        assert f"quantized_product_{count}x176_43_int4_b32_uint8" in text
    assert wrong_sizes(tuned, "product", (1, 5, 8, 9, 20)) == []


def test_the_command_takes_one_size_among_classes(tmp_path: Path, opencl_device: tvm.runtime.Device) -> None:
    onnx.save(product(), tmp_path / "m.onnx")
    line = ["compile", str(tmp_path / "m.onnx"), "--dim", "rows=1,2..8,9..20", "--target", HOST]
    result = CliRunner().invoke(main, [*line, "-o", str(tmp_path / "m.romou")])
    assert result.exit_code == 0, result.output
    for count in (1, 2, 20):
        shown = CliRunner().invoke(
            main, ["run", str(tmp_path / "m.romou"), "--repeat", "1", "--json", "--shape", f"x={count},176"]
        )
        assert json.loads(shown.stdout)["outputs"][0]["shape"] == [count, 43]


@pytest.mark.parametrize("zero", ["none", "uint8", "float"])
def test_fp16_takes_rows_on_tensor_cores(zero: str) -> None:
    """Kernels on tensor cores hand buffers of fp16 to functions. They are compiled, not run."""
    dims = {"rows": range(1, 65)}
    compiled = romou.compile(product("float16", 48, zero), dims=dims, target="cuda -arch=sm_90", verify=False)
    assert [shape["x"][0] for shape in compiled.shapes] == [1, 8, 64]  # type: ignore[attr-defined]
    target = Target("cuda -arch=sm_90")
    for count in (1, 8, 64):
        task = quantized_task(QuantizedCase(m=count, k=176, n=48, zero=zero, dtype="float16"))
        assert (task.default_config(target)["tensor_cores"] != "none") == (zero != "float")
