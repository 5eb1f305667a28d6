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
from support.models.small_networks import NetworkBuilder
from support.servers.phone_servers import Server
from support.suite.exhaustive import exhaustive

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


def run_sample(command: Sequence[str], folder: Path, model: onnx.ModelProto, environment: dict[str, str]) -> str:
    """Run the C++ sample in `folder`, check its outputs and messages, and return the messages."""
    inputs = random_inputs(model)
    files = []
    for name, array in inputs.items():
        array.tofile(folder / f"{name}.bin")
        files.append(str(folder / f"{name}.bin"))
    command = [*command, str(folder / "run_model"), str(folder), *files]
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
def exported(request: pytest.FixtureRequest, host_runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = romou.compile(two_layers(), target=f"{request.param} -device=adreno640", device=0)
    return model.export_android(tmp_path_factory.mktemp("exported") / "model", host=HERE, runtime=host_runtime)


def test_the_cpp_sample_here(exported: Path, host_runtime: Path) -> None:
    """The second start of the sample loads the programs that the first one left in the folder."""
    first, second = (run_sample([], exported, two_layers(), {"LD_LIBRARY_PATH": str(host_runtime)}) for _ in range(2))
    (count,) = re.findall(r"^programs +\S+ ms  0 loaded, (\d+) compiled$", first, re.MULTILINE)
    assert int(count) == len(list((exported / "programs").glob("*.program"))) > 0
    assert re.search(rf"^programs +\S+ ms  {count} loaded, 0 compiled$", second, re.MULTILINE)
    assert "keep the programs" in first
    assert "keep the programs" not in second


@pytest.fixture(scope="module")
def on_arm64(arm64_runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, Path]:
    """Return a convolution, and the folder that it is exported to for arm64."""
    graph = NetworkBuilder({"x": (1, 5, 9, 9)})
    model = graph.model(graph.add("Relu", graph.conv("x", 5, 6, pads=[1, 1, 1, 1])))
    compiled = romou.compile(model, target="opencl -device=adreno640")
    folder = compiled.export_android(
        tmp_path_factory.mktemp("arm64") / "model", host="aarch64-linux-gnu", runtime=arm64_runtime
    )
    assert json.loads((folder / "model.json").read_text())["host"] == "aarch64-linux-gnu"
    # The libraries are copied beside it, instead of a pushed folder.
    shutil.copytree(arm64_runtime, folder, dirs_exist_ok=True)
    return model, folder


# Under qemu, a driver compiles each kernel for half a minute. The kernels of a convolution are run by test_arm64.py.
@exhaustive
def test_the_cpp_sample_on_arm64(on_arm64: tuple[onnx.ModelProto, Path], arm64: Path) -> None:
    model, folder = on_arm64
    run_sample([str(arm64)], folder, model, {"ROMOU_OPENCL_BUILD_OPTIONS": "-cl-opt-disable"})


def test_the_cpp_sample_goes_as_far_as_the_device_on_arm64(on_arm64: tuple[onnx.ModelProto, Path], arm64: Path) -> None:
    """The sample loads the cross-compiled library of the model and queries the device's driver for the model's
    requirements.
    """
    _, folder = on_arm64
    command = [str(arm64), str(folder / "run_model"), str(folder)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ROMOU_OPENCL_BUILD_OPTIONS": "-no-such-option"},
    )
    assert done.returncode == 1
    assert re.search(
        r"run_model: .*clBuildProgram failed: CL_(INVALID_BUILD_OPTIONS|BUILD_PROGRAM_FAILURE).*; kernel \w+",
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


def test_the_cpp_sample_says_what_it_lacks(exported: Path, host_runtime: Path, tmp_path: Path) -> None:
    def run(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [str(exported / "run_model"), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )
        assert done.returncode == 1
        return done.stderr

    here = {"LD_LIBRARY_PATH": str(host_runtime)}
    assert "cannot read" in run(str(tmp_path), **here)
    assert "run_model: the model has 2 inputs" in run(str(exported), "x.bin", **here)
    (tmp_path / "short.bin").write_bytes(b"1234")
    assert re.search(
        r"input x takes 1620 bytes, .*short.bin has 4", run(str(exported), *[str(tmp_path / "short.bin")] * 2, **here)
    )


@pytest.mark.parametrize("saved_for", [HERE, "aarch64-linux-gnu"])
def test_a_saved_model_is_exported_for_any_host(
    exported: Path, host_runtime: Path, tmp_path: Path, saved_for: str
) -> None:
    """The files are those of the model that was saved, whatever host it was compiled for, and after a run."""
    model = romou.compile(two_layers(), target=f"opencl -device=adreno640 -host={saved_for}", verify=False)
    model.save(tmp_path / "saved")
    command = ["export", str(tmp_path / "saved"), "--android", str(tmp_path / "out"), "--host", HERE, "--json"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    sizes = json.loads(done.stdout)["bytes"]
    assert sizes == {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    shutil.copy(exported / "run_model", tmp_path / "out")
    run_sample([], tmp_path / "out", two_layers(), {"LD_LIBRARY_PATH": str(host_runtime)})
    loaded = romou.load(tmp_path / "saved")
    if saved_for == HERE:
        loaded.run(random_inputs(two_layers()))
    again = loaded.export_android(tmp_path / "again", host="aarch64-linux-gnu")
    assert (again / "weights.bin").read_bytes() == (tmp_path / "out/weights.bin").read_bytes()
    # 183 is the number of arm64 in ELF.
    assert int.from_bytes((again / "model.so").read_bytes()[18:20], "little") == 183


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


def test_wrong_folders_and_missing_compilers(
    exported: Path, host_runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = romou.compile(two_layers(), target="opencl -device=host")
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="other exists and is not an exported model"):
        model.export_android(tmp_path / "other", host=HERE)
    with pytest.raises(UsageError, match="other holds no runtime for a phone"):
        model.export_android(tmp_path / "out", host=HERE, runtime=tmp_path / "other")
    with pytest.raises(UsageError, match="was built for host; the model is for aarch64-linux-gnu"):
        model.export_android(tmp_path / "out", host="aarch64-linux-gnu", runtime=host_runtime)
    with pytest.raises(
        UsageError, match="a model for null cannot be exported: the phone's runtime has devices of opencl, vulkan"
    ):
        romou.compile(two_layers(), target="null").export_android(tmp_path / "out", host=HERE)
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    with pytest.raises(BuildError, match="ANDROID_NDK_HOME"):
        model.export_android(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # An earlier export is replaced.
    again = model.export_android(shutil.copytree(exported, tmp_path / "again"), host=HERE)
    assert not (again / "run_model").exists()
