"""A size at run time: one set of kernels is right at every size up to the bound, and launches what the size needs."""

from __future__ import annotations

import json
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
from romou.compiler.frontend.onnxruntime_session import cpu_session
from support.models.open_networks import wrong_points
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import exhaustive

HOST = "opencl -device=host"
MOST = 96
IS = ("rows is 1 to 16", f"rows is 17 to {MOST}")


def dense_net(width: int = 24, inner: int = 40) -> onnx.ModelProto:
    """Return products, a normalisation, a softmax and element-wise operators over `rows`, behind a batch of 1."""
    g = NetworkBuilder({"x": (1, "rows", width), "y": (1, "rows", inner)})
    h = g.add("Relu", g.add("Add", g.add("MatMul", "x", g.weight(width, inner)), g.weight(inner)))
    h = g.add("LayerNormalization", g.add("Add", h, "y"), g.weight(inner, positive=True), g.weight(inner), axis=-1)
    scores = g.add("Softmax", g.add("Tanh", h), axis=-1)
    return g.model(g.add("Sigmoid", g.add("MatMul", scores, g.weight(inner, width))), g.add("Exp", h))


def inputs_of(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {name: rng.standard_normal((1, rows, width)).astype("float32") for name, width in (("x", 24), ("y", 40))}


def wrong_sizes(model: romou.TunedModel, sizes: list[int]) -> list[tuple[int, ...]]:
    return wrong_points(model, dense_net(), [(rows,) for rows in sizes], inputs_of)


@pytest.fixture(scope="module")
def model(opencl_device: tvm.runtime.Device) -> romou.TunedModel:
    return romou.compile(dense_net(), dims={"rows": range(1, MOST + 1)}, target=HOST)


def test_arrays_of_any_size_are_not_bound(model: romou.TunedModel) -> None:
    with pytest.raises(UsageError, match="rows has a size at run time, and bound arrays have one size"):
        model.bind()


def fifty(most: int) -> list[int]:
    return [most, 1, 2, *map(int, np.random.default_rng(0).integers(1, most + 1, 47))]


def test_it_is_right_at_fifty_random_sizes(model: romou.TunedModel, tmp_path: Path) -> None:
    assert wrong_sizes(model, fifty(MOST)) == []
    loaded = romou.load(model.save(tmp_path / "m.romou"))
    assert isinstance(loaded, romou.RunTimeSizesModel)
    assert wrong_sizes(loaded, [7, MOST, 33]) == []
    assert loaded.summary().run_time == f"rows is 1 to {MOST} at run time, in every kernel."
    assert loaded.time(repeat=1) > 0
    assert all(call.ms > 0 for rows in (1, MOST) for call in loaded.profile(inputs_of(rows), repeat=1).calls)


def kept_outputs(model: romou.TunedModel, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return a list that has the outputs of the last run, with the elements behind the size."""
    raw: list[np.ndarray] = []
    machine = type(model._machine())
    run = machine.run

    def kept(self: Any, arrays: list[np.ndarray], rows: int | None = None) -> list[np.ndarray]:
        raw[:] = run(self, arrays, rows)
        return list(raw)

    monkeypatch.setattr(machine, "run", kept)
    return raw


def test_groups_behind_the_size_are_not_launched(model: romou.TunedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs behind the size are zero, so rows computed there would be equal. Those of runs before are not."""
    raw = kept_outputs(model, monkeypatch)
    for _ in range(3):
        model.run(inputs_of(MOST))
    model.run(inputs_of(1))
    for output in raw:
        assert not np.allclose(output[:, MOST - 1], output[:, MOST - 2])


@pytest.mark.parametrize("kind", ["opencl", pytest.param("vulkan", marks=exhaustive)])
def test_groups_that_are_no_multiple_of_rows_follow_the_size(
    kind: str, monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """Groups of a convolution have pixels of two images."""
    g = NetworkBuilder({"x": ("batch", 4, 9, 9)})
    proto = g.model(g.add("Relu", g.conv("x", 4, 8, pads=[1, 1, 1, 1])))
    made = romou.compile(proto, dims={"batch": range(1, MOST + 1)}, target=f"{kind} -device=host", verify=False)
    assert made.summary().run_time == f"batch is 1 to {MOST} at run time, in every kernel."
    x = np.random.default_rng(0).standard_normal((MOST, 4, 9, 9)).astype("float32")
    (expected,) = cpu_session(proto).run(None, {"x": x})
    for batch in (1, 7, 8, 9, 33, MOST):
        made.run({"x": np.full_like(x, np.nan)})
        np.testing.assert_allclose(made.run({"x": x[:batch]})[0], expected[:batch], rtol=1e-3, atol=1e-4)
    raw = kept_outputs(made, monkeypatch)
    for _ in range(3):
        made.run({"x": np.full_like(x, np.nan)})
    made.run({"x": x[:1]})
    assert np.isnan(raw[0][MOST - 1]).all()


@pytest.fixture(scope="module")
def classes(opencl_device: tvm.runtime.Device) -> romou.MultiShapeModel:
    dims = {"rows": [range(1, 17), range(17, MOST + 1)]}
    model = romou.compile(dense_net(), dims=dims, target=HOST, verify=False)
    assert isinstance(model, romou.MultiShapeModel)
    return model


def test_classes_of_sizes_are_right_and_share_weights(classes: romou.MultiShapeModel, tmp_path: Path) -> None:
    assert wrong_sizes(classes, fifty(MOST)) == []
    loaded = romou.load(classes.save(tmp_path / "m.romou"))
    assert isinstance(loaded, romou.MultiShapeModel)
    assert wrong_sizes(loaded, [7, MOST, 17, 16]) == []
    for model in (classes, loaded):
        sizes = [row.sizes for row in model.summary().shapes]
        assert sizes == ["rows 1 to 16", f"rows 17 to {MOST}"]
        assert model.summary().run_time == " ".join(f"{each} at run time, in every kernel." for each in IS)
    memory, rows = classes.summary().memory, classes.summary().shapes
    small, large = (row.memory for row in rows)
    assert memory is not None
    assert small is not None
    assert large is not None
    assert small.weights == large.weights == memory.weights
    # Two outputs of each class take a page each, at least.
    assert large.tensors <= memory.tensors <= large.tensors + 4 * 4096


def test_the_smallest_class_runs(classes: romou.MultiShapeModel) -> None:
    """A run of few rows leaves the last rows of a smaller buffer."""
    for rows, most in ((1, 16), (16, 16), (17, MOST), (MOST, MOST)):
        taken = classes.model_for({name: array.shape for name, array in inputs_of(rows).items()})
        assert isinstance(taken, romou.RunTimeSizesModel)
        assert taken.sizes.dims["rows"][1] == most
        called = {call.function for call in classes.profile(inputs_of(rows), repeat=1).calls}
        assert called <= {call.function for call in taken.summary().calls}
    assert classes.time(repeat=1) > 0
    assert classes.signature_for({"x": (1, 5, 24)})["y"] == ((1, 5, 40), "float32")
    text = rf"no shape of the model takes x 1x{MOST + 1}x24.*\(rows 1 to 16\); .* \(rows 17 to {MOST}\)"
    with pytest.raises(UsageError, match=text) as raised:
        classes.run(inputs_of(MOST + 1))
    assert "larger bound" in str(raised.value.hint)
    with pytest.raises(UsageError, match="no shape of the model takes"):
        classes.run({"x": inputs_of(3)["x"], "y": inputs_of(5)["y"]})


def test_wrong_sizes_are_refused(model: romou.TunedModel) -> None:
    with pytest.raises(UsageError, match=f"rows is {MOST + 1} in the inputs; expected one size from 1 to {MOST}"):
        model.run(inputs_of(MOST + 1))
    with pytest.raises(UsageError, match="rows is 3, 5 in the inputs"):
        model.run({"x": inputs_of(3)["x"], "y": inputs_of(5)["y"]})
    with pytest.raises(UsageError, match="input 'y' .* is missing"):
        model.run({"x": inputs_of(3)["x"]})


def test_what_takes_no_size_is_named() -> None:
    g = NetworkBuilder({"x": ("rows", 8)})
    count = g.add("Cast", g.add("Gather", g.add("Shape", "x"), g.constant(np.array(0))), to=onnx.TensorProto.FLOAT)
    means = g.model(g.add("Div", g.add("ReduceSum", "x", g.constant(np.array([0]))), g.add("Sqrt", count)))
    with pytest.raises(ModelError, match=r"the kernel \w+ takes no size at run time: a number is \((?s:.*)Give sizes"):
        romou.compile(means, dims={"rows": range(1, 9)}, target=HOST, verify=False)
    gap, empty = [range(1, 5), range(6, 9)], [range(1, 5), range(5, 5)]
    for wrong in (range(9), range(1, 9, 2), gap, empty):
        with pytest.raises(UsageError, match="a size at run time is from 1 or more to a bound, and classes follow"):
            romou.compile(means, dims={"rows": wrong}, target=HOST)
    with pytest.raises(UsageError, match="a size at run time is for tune and compile"):
        romou.memory_plan(means, dims={"rows": range(1, 9)}, target=HOST)


def test_a_kernel_without_the_size_launches_all_groups(opencl_device: tvm.runtime.Device) -> None:
    """Its tensor has as many rows as the bound."""
    g = NetworkBuilder({"x": ("rows", 8), "y": (64, 8)})
    model = romou.compile(
        g.model(g.add("Relu", "x"), g.add("Exp", "y")), dims={"rows": range(1, 65)}, target=HOST, verify=False
    )
    assert model.summary().run_time == "rows is 1 to 64 at run time, in every kernel."
    x, y = (np.random.default_rng(0).standard_normal((rows, 8)).astype("float32") for rows in (2, 64))
    model.run({"x": np.zeros((64, 8), "float32"), "y": y * 0})
    np.testing.assert_allclose(model.run({"x": x, "y": y})[1], np.exp(y), rtol=1e-5)


@pytest.mark.parametrize("is_share", [False, True])
def test_numbers_that_depend_on_the_size_are_found(is_share: bool) -> None:
    """Positions of fewer rows are the first ones of more, but shares of the size are not."""
    g = NetworkBuilder({"x": ("rows", 8)})
    count = g.add("Gather", g.add("Shape", "x"), g.constant(np.array(0)))
    places = g.add("Range", g.constant(np.array(0)), count, g.constant(np.array(1)))
    column = g.add("Cast", g.add("Unsqueeze", places, g.constant(np.array([1]))), to=onnx.TensorProto.FLOAT)
    share = g.add("Div", column, g.add("Cast", count, to=onnx.TensorProto.FLOAT)) if is_share else column
    proto = g.model(g.add("Mul", "x", share))
    if is_share:
        with pytest.raises(ModelError, match="a constant of the model depends on the size"):
            romou.compile(proto, dims={"rows": range(1, 33)}, target=HOST, verify=False)
        return
    model = romou.compile(proto, dims={"rows": range(1, 33)}, target=HOST, verify=False)
    x = np.random.default_rng(0).standard_normal((7, 8)).astype("float32")
    np.testing.assert_allclose(model.run({"x": x})[0], cpu_session(proto).run(None, {"x": x})[0], rtol=1e-5)


def test_the_command(tmp_path: Path, opencl_device: tvm.runtime.Device) -> None:
    g = NetworkBuilder({"x": ("rows", 8)})
    onnx.save(g.model(g.add("Relu", g.add("MatMul", "x", g.weight(8, 12)))), tmp_path / "m.onnx")
    saved = str(tmp_path / "m.romou")
    line = ["compile", str(tmp_path / "m.onnx"), "--dim", "rows=1..64", "--target", HOST, "-o", saved]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 0, result.output
    assert "rows is 1 to 64 at run time, in every kernel." in " ".join(result.stdout.split())
    np.save(tmp_path / "x.npy", np.ones((5, 8), "float32"))
    for words, rows in ((["--input", f"x={tmp_path / 'x.npy'}"], 5), (["--shape", "x=9,8"], 9), ([], 64)):
        shown = CliRunner().invoke(main, ["run", saved, "--repeat", "1", "--json", *words])
        assert json.loads(shown.stdout)["outputs"][0]["shape"] == [rows, 12]


TUNE = ["tune", "--trials", "1", "--work-dir", "records"]


@pytest.mark.parametrize(("words", "batches"), [(["compile"], "1"), pytest.param(TUNE, "1,2", marks=exhaustive)])
def test_the_command_with_classes(
    words: list[str], batches: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: tvm.runtime.Device
) -> None:
    """Each size of another dimension has classes of its own, which are checked. Rows of a batch of 2 are no prefix."""
    batch = batches[-1]
    monkeypatch.chdir(tmp_path)
    g = NetworkBuilder({"x": ("batch", "rows", 8)})
    onnx.save(g.model(g.add("Relu", g.add("MatMul", "x", g.weight(8, 12)))), "m.onnx")
    dims = ["--dim", f"batch={batches}", "--dim", "rows=1..9,10..64"]
    result = CliRunner().invoke(main, [*words, "m.onnx", *dims, "--target", HOST, "-o", "m.romou"])
    assert result.exit_code == 0, result.output
    assert f"x {batch}x9x8 (rows 1 to 9)" in result.stdout
    assert "rows is 10 to 64 at run time, in every kernel." in " ".join(result.stdout.split())
    assert f"All {len(batches) + 1 & ~1} shapes together" in result.stdout
    for options, shape in (
        (["--shape", f"x={batch},9,8", "--profile"], [int(batch), 9, 12]),
        ([], [int(batch), 64, 12]),
    ):
        shown = CliRunner().invoke(main, ["run", "m.romou", "--repeat", "1", "--json", *options])
        assert json.loads(shown.stdout)["outputs"][0]["shape"] == shape
    page = CliRunner().invoke(main, ["report", "m.romou", "-o", "report.html"])
    assert page.exit_code == 0, page.output
    assert f"x {batch}x64x8 (rows 10 to 64): " in Path("report.html").read_text()


@exhaustive
@pytest.mark.parametrize("device", ["opencl:intel", "vulkan -device=host"])
def test_other_devices_are_right_at_fifty_sizes(device: str) -> None:
    target, _, name = device.partition(":")
    other = romou.compile(dense_net(), dims={"rows": range(1, 513)}, target=target, device=name or None, verify=False)
    assert wrong_sizes(other, fifty(512)) == []
