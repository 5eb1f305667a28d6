"""romou.Session: onnxruntime's own example code with another import, kernels for each shape, and their cache."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.datasets import get_example

import romou
from romou import models
from romou.api import session
from romou.compiler.frontend.reference import relative_l2_error
from romou.devices.backends import device_backends
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import few

DEVICE = "opencl:0"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """An empty cache, and the shapes that are compiled from now on."""
    monkeypatch.setenv("ROMOU_CACHE_DIR", str(tmp_path / "cache"))
    compile, shapes = romou.compile, []

    def counted(model: onnx.ModelProto, **options: Any) -> romou.TunedModel:
        shapes.append(options["shapes"])
        return compile(model, **options)

    monkeypatch.setattr("romou.api.compile.compile", counted)
    return shapes


def classifier(batch: int | str = "n") -> onnx.ModelProto:
    g = NetworkBuilder({"x": (batch, 8, 7)})
    hidden = g.add("Relu", g.add("MatMul", "x", g.weight(7, 5)))
    return g.model(g.add("Softmax", hidden, axis=-1))


def example(session_of: Callable[..., Any], path: str | bytes) -> np.ndarray:
    """The code of onnxruntime's page "Load and predict with ONNX Runtime and a very simple model"."""
    sess = session_of(path, providers=onnxruntime.get_available_providers())
    input_name = sess.get_inputs()[0].name
    input_shape = sess.get_inputs()[0].shape
    input_type = sess.get_inputs()[0].type
    assert input_type == "tensor(float)"
    output_name = sess.get_outputs()[0].name
    x = np.random.default_rng(0).random(input_shape).astype(np.float32)
    res = sess.run([output_name], {input_name: x})
    return res[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", few(["sigmoid.onnx", "mul_1.onnx", "bundled:squeezenet1_0"], 0, 1))
def test_code_for_onnxruntime_runs_with_another_import(made: list[Any], tmp_path: Path, name: str) -> None:
    if name.startswith("bundled:"):
        path = str(tmp_path / "model.onnx")
        onnx.save(models.load(name.removeprefix("bundled:")), path)
    else:
        path = get_example(name)
    ours, theirs = (example(each, path) for each in (romou.Session, onnxruntime.InferenceSession))
    assert ours.shape == theirs.shape
    assert relative_l2_error(ours, theirs) < 1e-4
    assert len(made) == 1


def test_nodes_are_described_as_by_onnxruntime() -> None:
    g = NetworkBuilder({"x": ("n", 3, 8, 8), "y": (3, 8, 8)})
    data = g.model(g.add("Add", "x", "y")).SerializeToString()
    ours = romou.Session(data, device=DEVICE)
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(n.name, n.type, n.shape) for n in mine] == [(n.name, n.type, n.shape) for n in other]
    assert ours.get_providers() == ["opencl:0"]
    assert "x tensor(float) ['n', 3, 8, 8]" in repr(ours)


def test_each_shape_is_compiled_once_and_kept_for_the_next_process(made: list[Any], tmp_path: Path) -> None:
    proto, rng = classifier(), np.random.default_rng(1)
    expected = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for _ in range(2):
        ours = romou.Session(proto, device=DEVICE)
        for batch in (2, 5, 2):
            x = rng.standard_normal((batch, 8, 7)).astype(np.float32)
            assert relative_l2_error(ours.run(None, {"x": x})[0], expected.run(None, {"x": x})[0]) < 1e-5
        kernels = ours.compiled({"x": (2, 8, 7)}).summary()
        assert kernels.calls
        assert not kernels.host
    assert made == [{"x": (2, 8, 7)}, {"x": (5, 8, 7)}]
    # Another model, precision or damaged file is no model of the cache.
    for kept in (tmp_path / "cache/sessions").glob("*/romou.json"):
        kept.write_text("{}")
    x = np.zeros((2, 8, 7), np.float32)
    for model, options in ((proto, {}), (proto, {"precision": "float16"}), (classifier(batch=2), {})):
        romou.Session(model, device=DEVICE, **options).run(None, {"x": x})  # type: ignore[arg-type]
    assert len(made) == 5


_NEXT_PROCESS = """
import sys, numpy as np, romou
session = romou.Session(sys.argv[1], device=sys.argv[2])
outputs = [session.run(None, {"x": np.load(sys.argv[3])})[0] for _ in range(2)]
assert outputs[0].tobytes() == outputs[1].tobytes()
np.save(sys.argv[3], outputs[0])
print(sorted({"tvm", "onnxruntime", "romou.compiler.pipeline"} & set(sys.modules)))
import tvm
again = session.run(None, {"x": np.load(sys.argv[4])})[0]
print(again.tobytes() == outputs[0].tobytes(), session.compiled({"x": (3, 8, 7)}).times(2))
"""


def test_what_is_kept_runs_without_the_compiler(made: list[Any], tmp_path: Path) -> None:
    path, x = tmp_path / "model.onnx", np.random.default_rng(2).standard_normal((3, 8, 7)).astype(np.float32)
    onnx.save(classifier(), path)
    (expected,) = romou.Session(path, device=DEVICE).run(None, {"x": x})
    arrays = [str(tmp_path / name) for name in ("x.npy", "again.npy")]
    for file in arrays:
        np.save(file, x)
    command = [sys.executable, "-c", _NEXT_PROCESS, str(path), DEVICE, *arrays]
    loaded, later = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert loaded == "[]"
    assert np.load(arrays[0]).tobytes() == expected.tobytes()
    # TVM may come into the process later.
    assert later.startswith("True [")


def test_the_shape_used_longest_ago_leaves_the_device(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MOST_SHAPES", 2)
    monkeypatch.setenv("ROMOU_SESSION_CACHE_MB", "0")
    ours = romou.Session(classifier(), device=DEVICE)
    for batch in (1, 2, 1, 3, 1, 2):
        ours.run(None, {"x": np.zeros((batch, 8, 7), np.float32)})
    assert [shapes["x"][0] for shapes in made] == [1, 2, 3, 2]


def test_the_cache_keeps_what_was_used_last(tmp_path: Path) -> None:
    for place, name in enumerate(("old", "older", "newest")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "weights").write_bytes(bytes(1000))
        (folder / "romou.json").write_text("{}")
        os.utime(folder / "romou.json", (0, (2, 1, 3)[place]))
    session._shrink(tmp_path, 2500)
    assert {path.name for path in tmp_path.iterdir()} == {"old", "newest"}
    session._shrink(tmp_path, 10)
    assert {path.name for path in tmp_path.iterdir()} == {"newest"}


def test_threads_compile_a_shape_once(made: list[Any]) -> None:
    ours, results = romou.Session(classifier(), device=DEVICE), []
    x = np.random.default_rng(2).standard_normal((3, 8, 7)).astype(np.float32)
    threads = [threading.Thread(target=lambda: results.append(ours.run(None, {"x": x})[0])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(results) == 3
    assert all(np.array_equal(results[0], other) for other in results)


X = np.zeros((2, 8, 7), np.float32)


@pytest.mark.parametrize(
    ("outputs", "feed", "message"),
    [
        (["logits"], {"x": X}, "unknown output 'logits'"),
        (None, {"z": X}, "unknown input 'z'"),
        (None, {}, "input 'x', a tensor(float) of ['n', 8, 7], is missing"),
        (None, {"x": X[:, 1:]}, "input 'x' is [2, 7, 7]; the model takes ['n', 8, 7], n=2"),
        (None, {"x": X[0]}, "input 'x' is [8, 7]; the model takes ['n', 8, 7]"),
        (None, [X], "input_feed"),
    ],
)
def test_wrong_feeds_are_named_before_anything_is_compiled(
    made: list[Any], outputs: Any, feed: Any, message: str
) -> None:
    with pytest.raises(romou.UsageError) as error:
        romou.Session(classifier(), device=DEVICE).run(outputs, feed)
    assert message in str(error.value)
    assert not made


def test_wrong_models_and_devices_are_named() -> None:
    with pytest.raises(romou.ModelError, match="3 bytes are no ONNX model"):
        romou.Session(b"abc")
    with pytest.raises(romou.UsageError, match="a session runs on an attached one"):
        romou.Session(classifier(), device="adreno640")


@pytest.mark.parametrize(
    ("attached", "first"),
    [
        ([("opencl", "cpu"), ("vulkan", "cpu")], "opencl:0"),
        ([("opencl", "cpu"), ("vulkan", "gpu")], "vulkan:0"),
        ([("opencl", "cpu"), ("opencl", "gpu"), ("vulkan", "gpu")], "opencl:1"),
        ([("opencl", "gpu"), ("cuda", "gpu"), ("vulkan", "gpu")], "cuda:0"),
        ([], "opencl:0"),
    ],
)
def test_the_first_gpu_comes_before_a_processor(
    monkeypatch: pytest.MonkeyPatch, attached: list[tuple[str, str]], first: str
) -> None:
    backends = [backend for backend in device_backends() if backend.name in {kind for kind, _ in attached}]
    for backend in backends:
        facts = [{"type": type} for kind, type in attached if kind == backend.name]
        monkeypatch.setattr(backend, "list_devices", lambda facts=facts: facts)
    monkeypatch.setattr(session, "device_backends", lambda: backends)
    assert session._first_device() == first
