"""A model of several shapes: right at each and between, with the weights on the device once, in one saved folder."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from click.testing import CliRunner

import romou
from romou.base.errors import UsageError
from romou.cli import main
from romou.compiler.frontend.onnxruntime_session import cpu_session
from romou.compiler.frontend.padding import padding_of
from romou.tools.regression import Bench
from support.docs.documents import blocks, commands
from support.models.open_networks import encoder, recogniser
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import exhaustive

HOST = "opencl -device=host"
IN_IMAGES = "opencl -device=adreno640"


def statistics() -> dict[str, int]:
    return dict(json.loads(str(tvm.get_global_func("romou.opencl.statistics")())))


def idle_bytes() -> int:
    """Return the bytes on the device that models hold, after unused memory is freed."""
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    return statistics()["live_bytes"]


def onnxruntimes(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.asarray(cpu_session(model).run(None, dict(inputs))[0])


def line(width: int, height: int = 8) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(width).standard_normal((1, 1, height, width)).astype("float32")}


def tokens(count: int, words: int = 50) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(count).integers(1, words, (1, count))
    return {"ids": ids, "mask": np.ones((1, count), "int64")}


@pytest.fixture(scope="module")
def lines(opencl_device: tvm.runtime.Device) -> romou.MultiShapeModel:
    model = romou.compile(
        recogniser(), dims={"batch": 1, "width": (16, 40)}, pad={"image": 0}, target=HOST, verify=False
    )
    assert isinstance(model, romou.MultiShapeModel)
    return model


@pytest.fixture(scope="module")
def sentences(opencl_device: tvm.runtime.Device) -> romou.MultiShapeModel:
    shapes = [{"ids": (1, count), "mask": (1, count)} for count in (4, 6)]
    model = romou.compile(encoder(), shapes=shapes, pad={"ids": 0, "mask": 0}, target=HOST, verify=False)
    assert isinstance(model, romou.MultiShapeModel)
    return model


def padded_line(width: int, buckets: tuple[int, ...]) -> np.ndarray:
    """Return onnxruntime's classes of a line that is padded to the next width, without those of the padding."""
    bucket = min(each for each in buckets if each >= width)
    image = np.pad(line(width)["image"], ((0, 0), (0, 0), (0, 0), (0, bucket - width)))
    return onnxruntimes(recogniser(), {"image": image})[:, : -(-width // 4)]


def test_a_recogniser_is_right_at_each_width_and_between(lines: romou.MultiShapeModel, tmp_path: Path) -> None:
    loaded = romou.load(lines.save(tmp_path / "lines.romou"))
    for width in (16, 40, 17, 18, 19, 39, 3):
        expected = padded_line(width, (16, 40))
        for model in (lines, loaded):
            np.testing.assert_allclose(model.run(line(width))[0], expected, rtol=1e-4, atol=1e-6)


def test_a_transformer_is_right_at_each_length_and_between(sentences: romou.MultiShapeModel) -> None:
    """The mask hides the padding, so a shorter sentence has the result that it has by itself."""
    for count in (6, 4, 1, 3, 5):
        (output,) = sentences.run(tokens(count))
        np.testing.assert_allclose(output, onnxruntimes(encoder(), tokens(count)), rtol=1e-3, atol=1e-5)
    assert "ids with 0, mask with 0" in sentences.summary().padding


def test_another_shape_is_no_reason_to_compile(lines: romou.MultiShapeModel) -> None:
    lines.run(line(16))
    programs = statistics()["live_programs"]
    report = lines.programs
    for width in (40, 16, 30):
        lines.run(line(width))
    assert statistics()["live_programs"] == programs
    assert lines.programs == report


def held_by_runs(model: romou.MultiShapeModel, widths: tuple[int, ...]) -> int:
    """Return the bytes on the device that a model holds after runs of all shapes in turn."""
    model.release()
    before = idle_bytes()
    for _ in range(2):
        for width in widths:
            model.run(line(width))
    held = statistics()["live_bytes"] - before
    model.release()
    assert idle_bytes() == before
    return held


def test_weights_are_on_the_device_once(lines: romou.MultiShapeModel) -> None:
    """Two shapes take one set of weights, what the larger one has between kernels, and inputs and outputs of both."""
    memory, rows = lines.summary().memory, lines.summary().shapes
    assert held_by_runs(lines, (16, 40)) == memory.total  # type: ignore[union-attr]
    small, large = (row.memory for row in rows)
    assert small is not None
    assert large is not None
    assert memory is not None
    assert small.weights == large.weights == memory.weights
    assert small.tensors < large.tensors
    assert memory.inputs == small.inputs + large.inputs
    # Two outputs of each shape, of 4 and 10 columns, take a page each.
    assert memory.tensors <= large.tensors + 2 * 4096


def test_images_of_the_larger_shape_only(opencl_device: tvm.runtime.Device) -> None:
    g = NetworkBuilder({"image": (1, 1, 8, "width")})
    x = g.add("Relu", g.conv("image", 1, 8, pads=[1, 1, 1, 1]))
    proto = g.model(g.conv(x, 8, 8, (1, 1)))
    model = romou.compile(proto, dims={"width": (16, 40)}, target=IN_IMAGES, verify=False)
    assert isinstance(model, romou.MultiShapeModel)
    memory = model.summary().memory
    small, large = (row.memory for row in model.summary().shapes)
    assert small is not None
    assert large is not None
    assert memory is not None
    assert held_by_runs(model, (16, 40)) == memory.total
    assert small.weights == memory.weights == large.weights
    assert memory.tensors < small.tensors + large.tensors


def test_weights_of_other_bytes_are_not_shared(sentences: romou.MultiShapeModel) -> None:
    """The positions of 4 and of 6 tokens are different constants."""
    memory = sentences.summary().memory
    alone = [row.memory.weights for row in sentences.summary().shapes if row.memory is not None]
    assert memory is not None
    assert max(alone) < memory.weights < sum(alone)


def test_an_unknown_shape_is_one_clear_error(lines: romou.MultiShapeModel, sentences: romou.MultiShapeModel) -> None:
    text = "no shape of the model takes image 1x1x8x41; it was compiled for image 1x1x8x16; image 1x1x8x40"
    with pytest.raises(UsageError, match=text):
        lines.run(line(41))
    with pytest.raises(UsageError, match="no shape of the model takes image 2x1x8x16"):
        lines.run({"image": np.zeros((2, 1, 8, 16), "float32")})
    with pytest.raises(UsageError, match="Axes that change together need one size"):
        sentences.run({"ids": np.zeros((1, 5), "int64"), "mask": np.ones((1, 6), "int64")})
    with pytest.raises(UsageError, match="input 'image' .* is missing"):
        lines.run({})
    without = romou.MultiShapeModel(lines.models, memory=lines.summary().memory)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Compile it for this shape, too"):
        without.run(line(17))


def test_the_largest_shape_stands_for_all(lines: romou.MultiShapeModel) -> None:
    assert lines.inputs == {"image": ((1, 1, 8, 40), "float32")}
    assert lines.shapes == tuple({"image": (1, 1, 8, width)} for width in (16, 40))
    assert [row.text for row in lines.summary().shapes] == ["image 1x1x8x16", "image 1x1x8x40"]
    assert "image 1x1x8x16; image 1x1x8x40" in repr(lines)
    assert lines.time(repeat=1) > 0
    assert all(call.nodes for call in lines.profile(repeat=1).calls)


def test_bound_inputs_choose_the_shape(lines: romou.MultiShapeModel) -> None:
    for width in (16, 40):
        bound = lines.bind(line(width))
        assert bound.run()[0].tobytes() == lines.run(line(width))[0].tobytes()
    assert lines.bind().inputs["image"].shape == (1, 1, 8, 40)
    with pytest.raises(UsageError, match=r"input 'image' is float32 \(1, 1, 8, 24\); the model was compiled for"):
        lines.bind(line(24))


def test_a_single_shape_of_a_set_is_saved_by_itself(lines: romou.MultiShapeModel, tmp_path: Path) -> None:
    second = romou.load(lines.models[1].save(tmp_path / "one.romou"))
    assert not isinstance(second, romou.MultiShapeModel)
    np.testing.assert_array_equal(second.run(line(40))[0], lines.run(line(40))[0])
    with pytest.raises(UsageError, match="one shape of a model of several cannot be exported"):
        lines.models[1].export_android(tmp_path / "app", host="x86_64-linux-gnu")


def sum_of_tokens() -> onnx.ModelProto:
    """Return a product of the sum of tokens' vectors, which is the same kernel for any number of tokens."""
    g = NetworkBuilder({"ids": (), "mask": ()})
    for value in g.inputs:
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.INT64, ["batch", "tokens"]))
    vectors = g.add("Gather", g.weight(50, 8), "ids")
    mask = g.add("Unsqueeze", g.add("Cast", "mask", to=onnx.TensorProto.FLOAT), g.constant(np.array([2])))
    total = g.add("ReduceSum", g.add("Mul", vectors, mask), g.constant(np.array([1])), keepdims=0)
    return g.model(g.add("Gemm", total, g.weight(300, 8), g.weight(300), transB=1))


def test_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """Shapes are tuned into one folder, and share the records of kernels that they have in common."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROMOU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ROMOU_PROGRAM_CACHE_MB", "64")
    onnx.save(sum_of_tokens(), "encoder.onnx")
    (block,) = (b.text for b in blocks("sh") if b.path.name == "shapes.md" and "--pad" in b.text)
    tune, *others = ([*words[1:]] for words in commands(block))
    results = []
    for words in ([*tune, "--target", HOST, "--trials", "1", "--work-dir", "records"], *others):
        results.append(CliRunner().invoke(main, words))
        assert results[-1].exit_code == 0, results[-1].output
    assert re.search(r"ids 1x32, mask 1x32 .*\n.*ids 1x128, mask 1x128 ", results[0].stdout)
    assert "All 2 shapes together" in results[0].stdout
    measured = [json.loads(text) for text in Path("records/records.jsonl").read_text().splitlines()]
    assert len({(record["task_key"], str(record["config"])) for record in measured}) == 1
    assert "ids 1x128, mask 1x128: " in Path("report.html").read_text()
    loaded = romou.load("encoder.romou")
    assert isinstance(loaded, romou.MultiShapeModel)
    assert [each.summary().outcomes for each in loaded.models] == 2 * [{"ok": 1}]
    assert all(row.tuned_ms is not None for row in loaded.summary().shapes)
    for count in (32, 128, 100):
        expected = onnxruntimes(sum_of_tokens(), tokens(count))
        np.testing.assert_allclose(loaded.run(tokens(count))[0], expected, rtol=1e-4, atol=1e-4)


def test_each_shape_has_a_bench(tmp_path: Path) -> None:
    onnx.save(sum_of_tokens(), tmp_path / "m.onnx")
    options = ["--dim", "batch=1", "--dim", "tokens=3,5", "--no-times", "--target", HOST]
    line = ["bench", str(tmp_path / "m.onnx"), "--save", str(tmp_path / "b.json"), *options]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 0, result.output
    shapes = ("--shape ids=1,3 --shape mask=1,3", "--shape ids=1,5 --shape mask=1,5")
    for number, shape in enumerate(shapes, 1):
        bench = Bench.load(tmp_path / f"b-{number}.json")
        assert bench.operators
        # A line may end at a blank, or within a long path.
        said = f"romou compare {tmp_path / f'b-{number}.json'} {tmp_path / 'm.onnx'} {shape}"
        assert "".join(said.split()) in "".join(result.stdout.split())


@exhaustive
@pytest.mark.parametrize("target", [HOST, IN_IMAGES])
def test_many_widths(target: str, opencl_device: tvm.runtime.Device) -> None:
    widths = (64, 128, 192, 256, 384, 512, 768, 1024)
    dims = {"batch": 1, "width": widths}
    model = romou.compile(recogniser(), dims=dims, pad={"image": 0}, target=target, verify=False)
    for width in (*widths, *np.random.default_rng(0).integers(1, 1024, 20)):
        expected = padded_line(int(width), widths)
        np.testing.assert_allclose(model.run(line(int(width)))[0], expected, rtol=1e-4, atol=1e-6)


@exhaustive
def test_many_lengths(opencl_device: tvm.runtime.Device) -> None:
    lengths = (32, 64, 128, 256, 512)
    dims = {"batch": 1, "tokens": lengths}
    model = romou.compile(encoder(layers=2), dims=dims, pad={"ids": 0, "mask": 0}, target=HOST, verify=False)
    for count in (*lengths, *np.random.default_rng(0).integers(1, 512, 20)):
        expected = onnxruntimes(encoder(layers=2), tokens(int(count)))
        np.testing.assert_allclose(model.run(tokens(int(count)))[0], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("value", ["q", None, float("nan")])
def test_a_value_to_pad_with_is_a_number(value: Any) -> None:
    with pytest.raises(UsageError, match="pad=.*: the value of x must be a number"):
        padding_of([], [{"x": (1,)}, {"x": (2,)}], [], {"x": value})
