"""Tunes ONNX models to modules that run on the OpenCL device. Errors on the way are clear."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from click.testing import CliRunner

import report_picture
import romou
from romou import models
from romou.base.errors import DeviceError, ModelError, UsageError
from romou.cli import main
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.tools.report.figures import FIGURES
from romou.tuner.records import FILE_NAME
from support.models.small_networks import NetworkBuilder, prime_net, random_inputs, residual_net, short_net
from support.servers import forked
from support.suite.exhaustive import exhaustive, few

TARGET = "opencl"
# Behaviour that does not depend on kernels is tested without them.
PLUMBING = "null"
LIMIT = 1e-4  # relative L2 against onnxruntime


def error_of(tuned: romou.TunedModel, model: onnx.ModelProto) -> float:
    inputs = (
        random_inputs(model, seed=5)
        if model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        else {}
    )
    for name, (shape, dtype) in tuned.inputs.items():
        inputs.setdefault(name, np.random.default_rng(5).integers(0, 2, shape).astype(dtype))
    reference = run_onnxruntime(model, inputs)
    assert reference is not None
    return max(relative_l2_error(a, b) for a, b in zip(tuned.run(inputs), reference, strict=True))


@exhaustive
def test_a_bundled_model_tuned_and_its_report(
    tmp_path: Path, opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SqueezeNet is tuned, and its records make a page. `test_small_networks` tunes depthwise convolutions and
    residuals.
    """
    model = models.load("squeezenet1_0")
    tuned = romou.tune(model, target=TARGET, trials=30, work_dir=tmp_path)
    assert_tuned(tuned, model, 30)
    # Kernels that are too small to gain anything have no trials.
    assert all("elementwise_reshape" in row.name for row in tuned.summary().rows if not row.trials)
    # Two kernels test the page as well as twelve, but faster.
    monkeypatch.setattr("romou.api.report._BROKEN_DOWN", 2)
    page = romou.write_report(tmp_path, output=tmp_path / "report.html", model=model, target=TARGET)
    assert report_picture.check(page, 1280)[0] == []
    # Only the device's curves are not known.
    assert page.read_text(encoding="utf-8").count('"unknown":""') == len(FIGURES) - 1


@pytest.mark.parametrize("target", [TARGET, "opencl -device=adreno640"])
def test_a_decoder_of_transposed_convolutions(target: str, opencl_device: tvm.runtime.Device) -> None:
    """Each stride and kernel doubles or triples the image, in buffers and in images that kernels pass on."""
    g = NetworkBuilder({"image": (1, 10, 3, 5)})
    x, channels = "image", 10
    for kernel, stride, pad, more in ((4, 2, 1, 0), (3, 2, 1, 1), (3, 3, 0, 0), (2, 1, 0, 0)):
        weight = g.weight(channels, 7, kernel, kernel, scale=(channels * kernel) ** -0.5)
        x = g.add(
            "ConvTranspose", x, weight, g.weight(7), strides=[stride] * 2, pads=[pad] * 4, output_padding=[more] * 2
        )
        x, channels = g.add("LeakyRelu", x), 7
    model = g.model(g.conv(x, 7, 3))
    compiled = romou.compile(model, target=target, device=0)
    assert sum(row.calls for row in compiled.summary().rows if row.name.startswith("conv2d_transpose")) == 4
    assert error_of(compiled, model) < LIMIT


# Inception has all that GoogLeNet does, the second MobileNet all that the first does; SqueezeNet is tuned above.
IN_BUFFERS = [name for name in models.names() if name not in ("googlenet", "mobilenetv1_100", "squeezenet1_0")]
# A CPU takes twenty seconds for every 10^9 products that it reads from images: depthwise convolutions and residuals,
# and matrices do. The small networks below have concatenations and pools.
IN_IMAGES = ["mobilenet_v2", "bert_2layer"]


WHOLE = [*((TARGET, name) for name in IN_BUFFERS), *(("opencl -device=adreno640", name) for name in IN_IMAGES)]


# Products of matrices in images: tests/operators/families/test_other_compilers.py, by another driver.
@pytest.mark.parametrize(("target", "name"), few(WHOLE, WHOLE.index((TARGET, "resnet18"))))
def test_bundled_models_with_default_schedules(name: str, target: str, opencl_device: tvm.runtime.Device) -> None:
    """The models run in buffers, and as for a phone, in images if they fit."""
    model = models.load(name)
    compiled = romou.compile(model, target=target, device=0)
    assert error_of(compiled, model) < LIMIT
    has_images = any("image2d_" in source for source in compiled.sources().values())
    assert has_images == (target != TARGET)


def four_layers(dtype: str = "float32") -> onnx.ModelProto:
    """Return a convolution, a depthwise one, a mean and a dense layer."""
    g = NetworkBuilder({"image": (1, 3, 11, 11)}, dtype=dtype)
    x = g.add("Relu", g.conv("image", 3, 10, strides=[2, 2], pads=[1, 1, 1, 1]))
    x = g.add("Relu", g.conv(x, 10, 10, groups=10, pads=[1, 1, 1, 1]))
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    return g.model(g.add("Softmax", g.add("Gemm", x, g.weight(7, 10), g.weight(7), transB=1)))


@pytest.mark.parametrize("make", few([four_layers, residual_net], 0))
def test_half_precision_model(make: Callable[..., onnx.ModelProto], opencl_device: tvm.runtime.Device) -> None:
    """Memory and images hold fp16 numbers on a device that cannot compute in fp16."""
    model, wide = make(dtype="float16"), make()
    inputs = random_inputs(model, seed=5)
    (expected,) = romou.compile(wide, target=TARGET).run(
        {name: value.astype("float32") for name, value in inputs.items()}
    )
    tuned = romou.tune(model, target="opencl -device=adreno640", trials=2)
    assert set(tuned.summary().outcomes) <= {"ok", "timeout"}
    for candidate in (romou.compile(model, target=TARGET), tuned):
        (output,) = candidate.run(inputs)
        assert output.dtype == np.float16
        assert relative_l2_error(output.astype("float64"), expected) < 2e-2


def assert_tuned(tuned: romou.TunedModel, model: onnx.ModelProto, trials: int) -> None:
    """Assert that a tuned model is right, every trial is reported, and each tuned kernel has its times."""
    summary = tuned.summary()
    assert summary.is_right
    assert summary.relative_l2_error is not None
    assert summary.relative_l2_error < LIMIT
    assert error_of(tuned, model) < LIMIT
    assert sum(summary.outcomes.values()) == trials
    # A busy machine may not finish a candidate in time; nothing else may happen to one.
    assert set(summary.outcomes) <= {"ok", "timeout"}, summary.outcomes
    assert summary.outcomes["ok"] >= 0.8 * trials, summary.outcomes
    measured = [row for row in summary.rows if row.trials]
    assert measured
    assert all(row.tuned_ms is not None and row.default_ms is not None for row in measured)


def test_compile_for_a_device_that_is_not_there(opencl_device: tvm.runtime.Device) -> None:
    with pytest.raises(DeviceError, match="there is no OpenCL device 7"):
        romou.compile(residual_net(), device=7)


# One for each task, and a few more.
TRIALS = 8


@pytest.fixture(scope="module")
def tuned_residual(opencl_device: tvm.runtime.Device) -> romou.TunedModel:
    return romou.tune(residual_net(), target=TARGET, trials=TRIALS)


def test_a_small_network(tuned_residual: romou.TunedModel) -> None:
    assert_tuned(tuned_residual, residual_net(), TRIALS)


@exhaustive
@pytest.mark.parametrize("make", [residual_net, prime_net])
def test_small_networks(make: Callable[[], onnx.ModelProto], opencl_device: tvm.runtime.Device) -> None:
    assert_tuned(romou.tune(make(), target=TARGET, trials=40), make(), 40)


def test_a_phones_target_runs_here_too(tmp_path: Path, opencl_device: tvm.runtime.Device) -> None:
    """A phone's limits bound the space. The kernels are measured on the attached device."""
    model = residual_net()
    tuned = romou.tune(model, target="opencl -device=adreno640", trials=4)
    assert error_of(tuned, model) < LIMIT
    assert tuned.summary().target == "opencl -device=adreno640"
    # Its weights are images, and the saved model keeps them.
    assert any(row.config["weight"] == "image" for row in tuned.summary().rows if "weight" in row.config)
    assert error_of(romou.load(tuned.save(tmp_path / "phone")), model) < LIMIT


def test_dynamic_batch_is_fixed_by_argument(opencl_device: tvm.runtime.Device) -> None:
    g = NetworkBuilder({"image": ("n", 5, 7, 7)})
    model = g.model(g.add("Relu", g.conv("image", 5, 6, pads=[1, 1, 1, 1])))
    tuned = romou.tune(model, target=TARGET, trials=1, shapes={"image": (3, 5, 7, 7)})
    assert tuned.inputs == {"image": ((3, 5, 7, 7), "float32")}
    image = np.random.default_rng(0).standard_normal((3, 5, 7, 7)).astype("float32")
    reference = run_onnxruntime(model, {"image": image})
    assert reference is not None
    assert relative_l2_error(tuned.run({"image": image})[0], reference[0]) < LIMIT


def test_a_model_of_small_kernels_has_no_trials(opencl_device: tvm.runtime.Device) -> None:
    g = NetworkBuilder({"x": (4, 9)})
    model = g.model(g.add("Softmax", g.add("Tanh", "x")))
    tuned = romou.tune(model, target=TARGET, trials=10)
    assert [row.trials for row in tuned.summary().rows] == [0, 0]
    assert tuned.summary().outcomes == {}
    assert error_of(tuned, model) < LIMIT


def test_several_inputs_and_outputs() -> None:
    g = NetworkBuilder({"a": (1, 6, 5, 5), "b": (1, 6, 5, 5)})
    x = g.add("Relu", g.add("Add", g.conv("a", 6, 6, pads=[1, 1, 1, 1]), "b"))
    model = g.model(x, g.add("GlobalAveragePool", x))
    tuned = romou.tune(model, target=PLUMBING, trials=2)
    assert list(tuned.inputs) == ["a", "b"]
    assert len(tuned.run(random_inputs(model))) == 2
    assert error_of(tuned, model) < LIMIT


def test_saved_and_loaded_in_another_process(tmp_path: Path, tuned_residual: romou.TunedModel) -> None:
    model, tuned = residual_net(), tuned_residual
    inputs = random_inputs(model)
    np.savez(tmp_path / "inputs.npz", **inputs)
    path = tuned.save(tmp_path / "small.romou")
    code = (
        "import sys, numpy as np, romou\n"
        "m = romou.load(sys.argv[1])\n"
        "np.save(sys.argv[3], m.run(dict(np.load(sys.argv[2])))[0])\n"
        "assert m.summary().relative_l2_error < 1e-4 and m.time(repeat=2) > 0\n"
    )
    done = forked.run("-c", code, path, tmp_path / "inputs.npz", tmp_path / "out.npy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), tuned.run(inputs)[0], rtol=1e-6)
    again = romou.load(path)
    assert again.summary() == tuned.summary()
    assert (again.inputs, again.outputs, again.target) == (tuned.inputs, tuned.outputs, tuned.target)


def test_two_models_saved_in_turn_under_one_name(tmp_path: Path, opencl_device: tvm.runtime.Device) -> None:
    """A process that still has the first one loaded gets the second one."""
    kept = []
    for channels in (5, 6):
        model = short_net(channels)
        loaded = romou.load(romou.compile(model, target=TARGET, verify=False).save(tmp_path / "model"))
        assert error_of(loaded, model) < LIMIT
        kept.append(loaded)
    assert error_of(kept[0], short_net(5)) < LIMIT


def lines_of(folder: Path) -> list[dict[str, object]]:
    """Return the records of trials, without the final repeated measurements."""
    path = folder / FILE_NAME
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [record for record in records if not record["is_again"]]


@exhaustive
def test_killed_and_started_again(tmp_path: Path) -> None:
    """SIGKILL in the middle: every finished trial is there, none is measured twice, and the end is as if nothing had
    happened.
    """
    model = tmp_path / "small.onnx"
    onnx.save(short_net(), model)
    records, output = tmp_path / "records", tmp_path / "small.romou"
    options = ["--target", PLUMBING, "--trials", "12", "--work-dir", str(records), "--output", str(output)]
    command = [sys.executable, "-m", "romou.cli", "tune", str(model), *options]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as first:
        deadline = time.monotonic() + 120
        while len(lines_of(records)) < 4 and time.monotonic() < deadline and first.poll() is None:
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.wait()
    before = lines_of(records)
    assert 4 <= len(before) < 12, first.stderr
    assert not output.exists()
    assert list(temporary.iterdir()) != []
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    assert [path.name for path in temporary.iterdir() if path.name.startswith("romou")] == []
    after = lines_of(records)
    assert after[: len(before)] == before
    assert len(after) == 12
    assert len({(line["task_key"], json.dumps(line["config"], sort_keys=True)) for line in after}) == 12
    summary = romou.load(output).summary()
    assert sum(summary.outcomes.values()) == 12
    assert summary.is_right


def test_a_truncated_last_record_is_repaired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = short_net()
    romou.tune(model, target=PLUMBING, trials=4, work_dir=tmp_path)
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-30])
    tuned = romou.tune(model, target=PLUMBING, trials=5, work_dir=tmp_path)
    assert "the last line was cut off" in caplog.text
    assert len(lines_of(tmp_path)) == 5
    assert tuned.summary().is_right


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": "absent.onnx"}, ModelError, "absent.onnx: no such file"),
        ({"target": "opencl -device=adreno641"}, UsageError, "adreno640"),
        ({"target": "metal"}, UsageError, "unknown target kind 'metal'"),
        ({"trials": -1}, UsageError, "trials=-1"),
        ({"allow_tf32": True}, UsageError, "TF32 is a format of NVIDIA's tensor cores"),
        ({"seconds": 0}, UsageError, "seconds=0"),
        ({"shapes": {"img": (1, 3, 11, 11)}}, UsageError, "did you mean 'image'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        romou.tune(**{"model": residual_net(), "target": PLUMBING, "trials": 1, **arguments})  # type: ignore[arg-type]


def test_work_dir_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file; give a folder"):
        romou.tune(short_net(), target=PLUMBING, trials=1, work_dir=tmp_path / "file")


def test_wrong_inputs() -> None:
    model = romou.compile(short_net(), target=PLUMBING)
    good = random_inputs(short_net())
    with pytest.raises(
        UsageError, match=r"input 'image' is float32 \(1, 3, 4, 4\); the model was compiled for float32 \(1, 6, 9, 9\)"
    ):
        model.run({"image": np.zeros((1, 3, 4, 4), "float32")})
    with pytest.raises(UsageError, match="is int64"):
        model.run({"image": good["image"].astype("int64")})
    with pytest.raises(UsageError, match="'image'.*is missing; given: none"):
        model.run({})
    with pytest.raises(UsageError, match="has no input 'label'"):
        model.run({**good, "label": good["image"]})


def test_load_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no saved model"):
        romou.load(tmp_path)
    (tmp_path / "romou.json").write_text("{")
    with pytest.raises(ModelError, match="not a saved model"):
        romou.load(tmp_path)
    (tmp_path / "romou.json").write_text('{"format": 99}')
    with pytest.raises(ModelError, match="format 99"):
        romou.load(tmp_path)


def test_save_overwrites_no_stranger(tmp_path: Path) -> None:
    model = romou.compile(prime_net(), target=PLUMBING)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(UsageError, match="is not a saved model"):
        model.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "model"]


def run_cli(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return forked.run("-m", "romou.cli", *arguments, env={**os.environ, **variables}, timeout=200)


def test_no_device(tmp_path: Path) -> None:
    onnx.save(short_net(), tmp_path / "short.onnx")
    result = run_cli(
        "tune", str(tmp_path / "short.onnx"), "--target", TARGET, "--trials", "1", ROMOU_OPENCL_LIBRARY="/nonexistent"
    )
    assert result.returncode == DeviceError.exit_code == 3
    assert "no OpenCL device" in result.stderr
    assert "Traceback" not in result.stderr


def test_broken_model_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    result = CliRunner().invoke(main, ["tune", str(tmp_path / "broken.onnx"), "--target", TARGET])
    assert result.exit_code == 1
    assert "broken.onnx: not a" in result.stderr
    assert "Traceback" not in result.stderr


def test_json_on_stdout_and_nothing_else(tmp_path: Path) -> None:
    onnx.save(prime_net(), tmp_path / "prime.onnx")
    output = str(tmp_path / "prime.romou")
    result = run_cli(
        "tune", str(tmp_path / "prime.onnx"), "--target", PLUMBING, "--trials", "4", "--output", output, "--json"
    )
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["summary"]["is_right"] is True
    assert [row["name"] for row in data["summary"]["rows"] if row["name"].startswith(("conv2d", "dense"))] == [
        "conv2d_1x31x17x17_37_7x1_s1",
        "dense_1x37_31",
    ]
    again = json.loads(CliRunner().invoke(main, ["run", output, "--repeat", "2", "--json"]).stdout)
    assert again["outputs"][0]["shape"] == [1, 31]


def test_compiled_for_a_phone_without_any_device(tmp_path: Path) -> None:
    """Every kernel is written as a separate file, with images if the phone prefers them. Exit code 4: not checked."""
    onnx.save(residual_net(), tmp_path / "small.onnx")
    folder, output = tmp_path / "kernels", tmp_path / "small.romou"
    arguments = [
        "compile",
        str(tmp_path / "small.onnx"),
        "--target",
        "opencl -device=adreno640",
        "--emit-source",
        str(folder),
        "--output",
        str(output),
        "--json",
    ]
    result = run_cli(*arguments, ROMOU_OPENCL_LIBRARY="/nonexistent")
    assert result.returncode == 4, result.stderr
    assert "not checked: no device that runs kernels for opencl -device=adreno640 is attached" in result.stderr
    data = json.loads(result.stdout)
    assert sorted(data["sources"]) == sorted(str(p) for p in folder.iterdir())
    texts = {p.stem: p.read_text() for p in folder.iterdir()}
    assert set(texts) == set(data["kernels"])
    for name, text in texts.items():
        assert text.count("__kernel ") == 1
        assert f"void {name}(" in text
    # All except the convolution with an epilogue that spreads one pixel over many, which no template covers.
    convolutions = {name for name in texts if ("conv2d" in name or "depthwise" in name) and "sigmoid" not in name}
    assert len({name.partition("_kernel")[0] for name in convolutions}) == 7
    # Winograd's second kernel multiplies what its first one wrote into a buffer.
    products = {name for name in convolutions if name.endswith("_kernel_1")}
    assert {name for name in convolutions if "image2d_array_t" not in texts[name]} == products


def test_sources_of_a_loaded_model(tmp_path: Path, opencl_device: tvm.runtime.Device) -> None:
    model = romou.compile(short_net(), target=TARGET, verify=False)
    assert romou.load(model.save(tmp_path / "short")).sources() == model.sources()
    assert len(model.sources()) >= 3
