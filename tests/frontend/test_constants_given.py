"""Inputs that are fixed when a model is compiled: branches and loops that depend on them are folded, and wrong values
are reported.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import romou
from romou.base.errors import UsageError
from romou.cli import main
from romou.compiler.frontend.constants_given import with_constants
from romou.compiler.frontend.reference import run_onnxruntime

DETECTOR = """<ir_version: 8, opset_import: ["": 17]> detector (float[1, n] x, int64 sr, float[2] state) => (float[1, 1] y, float[2] next) {
    rate = Constant<value = int64 {16000}>()
    is_wide = Equal(sr, rate)
    y, next = If (is_wide) <
        then_branch = wide () => (float[1, 1] a, float[2] b) { a = ReduceMean<keepdims = 1>(x) b = Neg(state) },
        else_branch = narrow () => (float[1, 1] c, float[2] d) { t = Transpose(x) e = ReduceMax<keepdims = 1>(t) c = Neg(e) d = Abs(state) }
    >
}"""  # noqa: E501
COUNTED = """<ir_version: 8, opset_import: ["": 17]> counted (float[4] x, int64 n, bool go) => (float[4] y, float[k, 4] rows) {
    y, rows = Loop (n, go, x) <
        body = step (int64 i, bool before, float[4] v) => (bool after, float[4] w, float[4] r) { after = Identity(before) w = Add(v, v) r = Neg(w) }
    >
}"""  # noqa: E501


def detector() -> onnx.ModelProto:
    return onnx.parser.parse_model(DETECTOR)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_the_branch_that_a_constant_chooses(rate: int) -> None:
    compiled = romou.compile(detector(), shapes={"x": (1, 37)}, constants={"sr": rate}, strict=True)
    assert list(compiled.inputs) == ["x", "state"]
    rng = np.random.default_rng(rate)
    given = {"x": rng.standard_normal((1, 37)).astype("float32"), "state": rng.standard_normal(2).astype("float32")}
    expected = run_onnxruntime(detector(), {**given, "sr": np.array(rate)})
    assert expected is not None
    for a, b in zip(compiled.run(given), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    with pytest.raises(UsageError, match="no input 'sr'"):
        compiled.run({**given, "sr": np.array(rate)})


@pytest.mark.parametrize(("count", "goes"), [(0, True), (3, False), (1, True), (40, True)])
def test_a_loop_of_constant_count(count: int, goes: bool) -> None:
    model = onnx.parser.parse_model(COUNTED)
    compiled = romou.compile(model, constants={"n": count, "go": goes}, strict=True)
    given = {"x": np.linspace(-1, 1, 4, dtype="float32")}
    expected = run_onnxruntime(model, {**given, "n": np.array(count), "go": np.array(goes)})
    assert expected is not None
    for a, b in zip(compiled.run(given), expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_loop_that_is_too_long_for_kernels_runs_on_the_host() -> None:
    model = onnx.parser.parse_model(COUNTED)
    compiled = romou.compile(model, constants={"n": 5000, "go": True})
    given = {"x": np.zeros(4, "float32")}
    assert compiled.host_nodes
    assert compiled.run(given)[1].shape == (5000, 4)


def test_a_constant_decides_an_open_shape() -> None:
    compiled = romou.compile(
        detector(), constants={"x": np.ones((1, 50), "float32"), "sr": np.array(16000)}, strict=True
    )
    assert list(compiled.inputs) == ["state"]
    np.testing.assert_allclose(compiled.run({"state": np.ones(2, "float32")})[0], [[1.0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"rs": 16000}, "'rs', but the model's inputs are x, sr, state\nDid you mean 'sr'?"),
        ({"sr": 1.5}, "the constant for 'sr' is 1.5 (float64); the model's input takes int64[]"),
        ({"sr": 16000.0}, "the constant for 'sr' is 16000.0 (float64); the model's input takes int64[]"),
        ({"sr": True}, "the constant for 'sr' is True (bool)"),
        ({"sr": 2**63}, f"the constant for 'sr' is {2**63} (uint64)"),
        ({"sr": "16000"}, "the constant for 'sr' is '16000'; the model's input takes int64[]"),
        ({"sr": [8000, 16000]}, "the constant for 'sr' has the shape (2,); the model's input takes int64[]"),
        ({"x": np.zeros((2, 7), "float32")}, "has the shape (2, 7); the model's input takes float32[1, ?]"),
        ({"state": [[1, 2], [3]]}, "the constant for 'state' is no array of numbers"),
        ("sr=16000", "expected {name: value}, for example {'sr': 16000}"),
    ],
)
def test_wrong_constants(constants: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_constants(detector(), constants)
    assert message in str(caught.value)


def test_numbers_become_the_inputs_type() -> None:
    fixed = with_constants(detector(), {"state": [1, 2]})
    assert isinstance(fixed, onnx.ModelProto)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(fixed.graph.initializer[0]), np.array([1, 2], "float32"))
    assert with_constants("model.onnx", None) == "model.onnx"
    old = detector()
    old.ir_version = 3
    fixed = with_constants(old, {"sr": 1})
    assert isinstance(fixed, onnx.ModelProto)
    assert [value.name for value in fixed.graph.input] == ["x", "sr", "state"]


def test_the_command_sets_them(tmp_path: Path) -> None:
    onnx.save(detector(), tmp_path / "detector.onnx")
    run = CliRunner().invoke
    given = [
        "compile",
        str(tmp_path / "detector.onnx"),
        "--shape",
        "x=1,37",
        "-o",
        str(tmp_path / "detector.romou"),
        "--strict",
    ]
    done = run(main, [*given, "--set", "sr=16000"])
    assert done.exit_code == 0, done.output
    assert list(romou.load(tmp_path / "detector.romou").inputs) == ["x", "state"]
    for wrong, message in {
        "sr": "expected NAME=VALUE",
        "sr=16k": "'16k' is no value",
        "rs=1": "Did you mean 'sr'?",
    }.items():
        done = run(main, [*given, "--set", wrong])
        assert done.exit_code == 2
        assert message in done.output
