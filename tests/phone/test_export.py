"""An exported model runs without Romou, through its samples, and gives onnxruntime's numbers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import romou
from romou.base.errors import BuildError, ModelError, UsageError
from romou.cli import main
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from support.models.quantized import QuantizedCase
from support.models.small_networks import NetworkBuilder
from support.servers.phone_servers import Server

HERE = "x86_64-linux-gnu"
STEPS = ("programs", "weights to the device", "first run", "inputs to the device", "run", "outputs from the device")


def two_layers() -> onnx.ModelProto:
    """Return a model with two inputs and two outputs. On Adreno, images are between the convolutions."""
    graph = NetworkBuilder({"x": (1, 5, 9, 9), "y": (1, 6, 9, 9)})
    first = graph.add("Relu", graph.conv("x", 5, 6, pads=[1, 1, 1, 1]))
    second = graph.conv(graph.add("Add", first, "y"), 6, 7, kernel=(1, 1))
    return graph.model(first, second)


def random_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


def run_bench(
    runtime: Path, folder: Path, model: onnx.ModelProto, *options: str, by: Sequence[str] = (), **environment: str
) -> str:
    """Run `romou_bench` on the model in `folder`, check its outputs and messages, and return the messages."""
    inputs = random_inputs(model)
    files = []
    for name, array in inputs.items():
        array.tofile(folder / f"{name}.bin")
        files.append(str(folder / f"{name}.bin"))
    command = [*by, str(runtime / "romou_bench"), str(folder), *files, *options]
    command += ["--repeats", "1", "--hold", "0", "--outputs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    for step in STEPS:
        assert re.search(rf"^{step} +\d+\.\d+ ms\b", done.stdout, re.MULTILINE), done.stdout
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for number, wanted in enumerate(expected):
        found = np.fromfile(folder / f"output{number}.bin", wanted.dtype).reshape(wanted.shape)
        assert relative_l2_error(found, wanted) < 1e-5
    return done.stdout


@pytest.fixture(scope="module", params=["opencl", "vulkan"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = romou.compile(two_layers(), target=f"{request.param} -device=adreno640", device=0)
    return model.export_android(tmp_path_factory.mktemp("exported") / "model", host=HERE)


def test_it_is_run_here(exported: Path, host_runtime: Path) -> None:
    """The second start loads the programs that the first one left in the folder."""
    first, second = (run_bench(host_runtime, exported, two_layers()) for _ in range(2))
    (count,) = re.findall(r"^programs +\S+ ms  0 loaded, (\d+) compiled$", first, re.MULTILINE)
    assert int(count) == len(list(exported.glob("*/programs/*.program"))) > 0
    assert re.search(rf"^programs +\S+ ms  {count} loaded, 0 compiled$", second, re.MULTILINE)


def test_a_packed_weight_in_an_image_is_run_here(host_runtime: Path, tmp_path: Path) -> None:
    network, _, _ = QuantizedCase(m=1, k=203, n=37, zero="uint8", has_bias=True).model()
    model = romou.compile(network, target="opencl -device=adreno640", device=0)
    assert any("read_imageui" in source for source in model.sources().values())
    run_bench(host_runtime, model.export_android(tmp_path / "model", host=HERE), network)


@pytest.fixture(scope="module")
def on_arm64(tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, Path]:
    """Return a convolution, and the folder that it is exported to for arm64: kernels, and plain code."""
    graph = NetworkBuilder({"x": (1, 5, 9, 9)})
    model = graph.model(graph.add("Relu", graph.conv("x", 5, 6, pads=[1, 1, 1, 1])))
    folder = tmp_path_factory.mktemp("arm64")
    saved = [
        romou.compile(model, target=target, verify=False).save(folder / target[:4])
        for target in ("opencl -device=adreno640", "null")
    ]
    first, second = map(romou.load, saved)
    first.export_android(folder / "model", others=[second], host="aarch64-linux-gnu")
    assert json.loads((folder / "model/model.json").read_text())["host"] == "aarch64-linux-gnu"
    return model, folder / "model"


def test_plain_code_runs_on_arm64(on_arm64: tuple[onnx.ModelProto, Path], arm64: Path, arm64_runtime: Path) -> None:
    model, folder = on_arm64
    run_bench(arm64_runtime, folder, model, "--variant", "cpu", by=[str(arm64)])


def test_it_goes_as_far_as_the_device_on_arm64(
    on_arm64: tuple[onnx.ModelProto, Path], arm64: Path, arm64_runtime: Path
) -> None:
    """The cross-compiled library of the model is loaded, and the device's driver is queried for the model's
    requirements.
    """
    _, folder = on_arm64
    command = [str(arm64), str(arm64_runtime / "romou_bench"), str(folder), "--variant", "opencl-adreno640"]
    environment = {**os.environ, "ROMOU_OPENCL_BUILD_OPTIONS": "-no-such-option"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert re.search(
        r"romou_bench: opencl-adreno640 on .*clBuildProgram failed: CL_(INVALID_BUILD_OPTIONS|BUILD_PROGRAM_FAILURE).*;"
        r" kernel \w+",
        done.stderr,
    ), done.stderr


def test_the_python_sample(exported: Path, serve: Callable[..., Server], tmp_path: Path) -> None:
    server, model = serve(), two_layers()
    inputs = random_inputs(model)
    words = []
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
        words.append(f"{name}={tmp_path / f'{name}.npy'}")
    (tmp_path / "key").write_text("phone\n")
    command = [sys.executable, str(exported / "run_model.py"), f"127.0.0.1:{server.port}/@{tmp_path / 'key'}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for step in STEPS:
        assert re.search(rf"^{step} +\d+\.\d+ ms\b", done.stdout, re.MULTILINE), done.stdout
    expected = run_onnxruntime(model, inputs)
    assert expected is not None
    for number, wanted in enumerate(expected):
        assert relative_l2_error(np.load(exported / f"output{number}.npy"), wanted) < 1e-5


def test_what_the_bench_lacks_is_said(exported: Path, host_runtime: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        command = [str(host_runtime / "romou_bench"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done.stderr

    assert "which model?" in run()
    assert "romou_bench: cannot read" in run(str(tmp_path))
    assert "romou_bench: the model has 2 inputs" in run(str(exported), "x.bin")
    assert "unknown option --x" in run(str(exported), "--x")
    assert "--repeats 0: must be a number" in run(str(exported), "--repeats", "0")
    (tmp_path / "short.bin").write_bytes(b"1234")
    text = run(str(exported), *[str(tmp_path / "short.bin")] * 2)
    assert "romou_bench: input x takes 1620 bytes, 4 were given" in text


@pytest.mark.parametrize("saved_for", [HERE, "aarch64-linux-gnu"])
def test_a_saved_model_is_exported_for_any_host(host_runtime: Path, tmp_path: Path, saved_for: str) -> None:
    """The files are those of the model that was saved, whatever host it was compiled for, and after a run."""
    model = romou.compile(two_layers(), target=f"opencl -device=adreno640 -host={saved_for}", verify=False)
    model.save(tmp_path / "saved")
    command = ["export", str(tmp_path / "saved"), "--android", str(tmp_path / "out"), "--host", HERE, "--json"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    sizes = json.loads(done.stdout)["bytes"][str(tmp_path / "out")]
    assert sizes.keys() == {"model.json", "run_model.py", "opencl-adreno640/model.so", "opencl-adreno640/weights.bin"}
    run_bench(host_runtime, tmp_path / "out", two_layers())
    loaded = romou.load(tmp_path / "saved")
    if saved_for == HERE:
        loaded.run(random_inputs(two_layers()))
    again = loaded.export_android(tmp_path / "again", host="aarch64-linux-gnu")
    weights, kernels = (f"opencl-adreno640/{name}" for name in ("weights.bin", "model.so"))
    assert (again / weights).read_bytes() == (tmp_path / "out" / weights).read_bytes()
    # 183 is the number of arm64 in ELF.
    assert int.from_bytes((again / kernels).read_bytes()[18:20], "little") == 183


def test_what_a_saved_model_lacks_for_an_export_is_said(tmp_path: Path) -> None:
    saved = romou.compile(two_layers(), target="opencl -device=host", verify=False).save(tmp_path / "saved")
    model = romou.load(saved)
    library = next(saved.glob("*.so"))
    content = library.read_bytes()
    for damaged in (b"", b"\x7fELF", content[:3000], content.replace(b"__tvm_ffi__library_bin", b"x" * 22)):
        library.unlink()
        library.write_bytes(damaged)
        with pytest.raises(ModelError, match="no library of a model: .*; save the model again"):
            model.export_android(tmp_path / "out", host=HERE)
    host_code = saved / "host.json.gz"
    for break_it in (lambda: host_code.write_bytes(b"{"), host_code.unlink):
        break_it()
        with pytest.raises(ModelError, match="host.json.gz: cannot be read: .*; save the model again"):
            model.export_android(tmp_path / "out", host=HERE)
    assert not (tmp_path / "out").exists()


def test_wrong_folders_and_missing_compilers(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = romou.compile(two_layers(), target="opencl -device=host")
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="other exists and is not an exported model"):
        model.export_android(tmp_path / "other", host=HERE)
    with pytest.raises(UsageError, match="two models are for opencl-host"):
        model.export_android(tmp_path / "out", others=[model], host=HERE)
    graph = NetworkBuilder({"x": (1, 5, 9, 9)})
    other = romou.compile(graph.model(graph.conv("x", 5, 6)), target="null", verify=False)
    with pytest.raises(UsageError, match="cpu and opencl-host are different models"):
        model.export_android(tmp_path / "out", others=[other], host=HERE)
    cuda = romou.compile(two_layers(), target="cuda -device=nvidia_h200", verify=False)
    with pytest.raises(
        UsageError, match="a model for cuda cannot be exported: the phone's runtime has devices of opencl, vulkan"
    ):
        cuda.export_android(tmp_path / "out", host=HERE)
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    with pytest.raises(BuildError, match="ANDROID_NDK_HOME"):
        model.export_android(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # An earlier export is replaced.
    again = model.export_android(shutil.copytree(exported, tmp_path / "again"), host=HERE)
    assert not list(again.glob("*/programs"))
