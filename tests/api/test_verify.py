"""romou.compile checks its result: a wrong model is an error that names the first wrong ONNX operator."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

import romou
from romou.base.space import Config
from romou.cli import main
from romou.compiler.frontend.precision import AS_GIVEN
from romou.compiler.frontend.reference import relative_l2_error
from romou.devices.backends.opencl.fp16_accesses import needs_fp16
from romou.driver.check import compiled as check_compiled
from romou.driver.check import verify
from romou.driver.check.wrong_node import first_wrong_on_equal_inputs
from romou.driver.choice.finish import configs_with_fp32_sums
from romou.runtime.module import TunedModel
from support.kernels.operators import conv, task_of
from support.models.small_networks import NetworkBuilder, prime_net
from support.suite.exhaustive import in_turn

TARGET = "opencl -device=host"


def branches() -> onnx.ModelProto:
    """Return two branches that meet. A wrong tensor of one is read long after the other is finished and right."""
    g = NetworkBuilder({"x": (2, 12)})
    one = g.add("Sigmoid", g.add("Relu", "x"), name="wrong")
    one = g.add("Neg", g.add("Abs", one))
    two = g.add("Exp", g.add("Neg", g.add("Abs", "x")))
    two = g.add("MatMul", two, g.weight(12, 12))
    both = g.add("Add", one, two)
    return g.model(g.add("Mul", both, both), g.add("Neg", two))


@pytest.fixture
def wrong_sigmoid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        onnx_frontend.Sigmoid, "_impl_v13", classmethod(lambda cls, bb, inputs, attr, params: relax.op.tanh(inputs[0]))
    )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[TunedModel]:
    """Return a list that receives the models that are run."""
    found: list[TunedModel] = []
    run = TunedModel.run
    monkeypatch.setattr(TunedModel, "run", lambda self, inputs: found.append(self) or run(self, inputs))  # type: ignore[func-returns-value]
    return found


def test_a_right_model_runs_once_and_its_error_is_kept(runs: list[TunedModel]) -> None:
    summary = romou.compile(branches(), target=TARGET).summary()
    assert len(runs) == 1
    assert summary.is_right
    assert summary.tolerance == verify.TOLERANCE["float32"]
    assert summary.relative_l2_error is not None
    assert summary.relative_l2_error < 1e-5


def test_a_wrong_model_names_its_first_wrong_operator(wrong_sigmoid: None, runs: list[TunedModel]) -> None:
    with pytest.raises(
        romou.NumericError, match="the first operator whose output differs is Sigmoid 'wrong'"
    ) as caught:
        romou.compile(branches(), target=TARGET)
    assert (caught.value.operator, caught.value.node) == ("Sigmoid", "wrong")
    assert caught.value.error > caught.value.limit
    # By bisection: the model, and a few of its beginnings.
    assert len(runs) <= 1 + int(np.ceil(np.log2(len(branches().graph.node))))


@pytest.mark.parametrize("target", [TARGET, "null"])
def test_an_only_operator_that_is_wrong_is_named(target: str, wrong_sigmoid: None) -> None:
    g = NetworkBuilder({"x": (3, 5)})
    with pytest.raises(romou.NumericError, match="is Sigmoid 't0'"):
        romou.compile(g.model(g.add("Sigmoid", "x")), target=target)


@pytest.mark.parametrize(
    "options",
    [{"verify": False}, {"target": "opencl -host=aarch64-linux-android"}, {"target": "cuda -device=nvidia_h200"}],
)
def test_nothing_runs_where_that_is_not_asked_or_cannot_be(
    options: dict[str, Any], wrong_sigmoid: None, runs: list[TunedModel]
) -> None:
    summary = romou.compile(branches(), **{"target": TARGET, **options}).summary()
    assert (summary.relative_l2_error, summary.checked_on) == (None, "")
    assert runs == []


def drawing() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (2, 12)})
    return g.model(g.add("Add", "x", g.add("RandomNormalLike", "x", name="dice")))


def cutting() -> onnx.ModelProto:
    """Return a model that declares rows which no bounds drawn at random leave."""
    g = NetworkBuilder({"x": (4, 3), "ends": (1,)})
    model = g.model(g.add("Slice", g.add("Relu", "x"), g.constant(np.int64([0])), "ends"))
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(model.graph.output[0].name, 1, [4, 3]))
    return model


@pytest.mark.parametrize(
    ("make", "target", "reason"),
    [
        (drawing, TARGET, "RandomNormalLike (dice) draws other numbers in each run"),
        (cutting, TARGET, "where the model declares (4, 3)"),
        (branches, TARGET, "onnxruntime cannot run this model: no such thing"),
        (branches, "cuda -device=nvidia_h200", "no device that runs kernels for cuda -device=nvidia_h200"),
    ],
    ids=["random", "shapes", "refused", "no device"],
)
def test_a_model_that_was_not_checked_says_why(
    make: Any, target: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is saved, with the reason in its summary. The exit code is 4 unless --no-verify was given."""
    if "no such thing" in reason:
        monkeypatch.setattr("romou.compiler.frontend.reference.cpu_session", lambda *a, **k: 1 / 0)
        reason = reason.replace("no such thing", "division by zero")
    onnx.save(make(), tmp_path / "m.onnx")
    arguments = ["compile", str(tmp_path / "m.onnx"), "--target", target, "-o", str(tmp_path / "out"), "--allow-host"]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, reason in " ".join(done.output.split())) == (4, True), done.output
    summary = romou.load(tmp_path / "out").summary() if target == TARGET else None
    assert summary is None or (reason in summary.unchecked and summary.is_right is None)
    accepted = CliRunner().invoke(main, [*arguments, "--no-verify"])
    assert (accepted.exit_code, "--no-verify" in accepted.output) == (0, True), accepted.output


def test_a_tuned_model_that_was_not_checked_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    onnx.save(drawing(), tmp_path / "m.onnx")
    arguments = ["tune", str(tmp_path / "m.onnx"), "--target", TARGET, "--trials", "0", "-o", str(tmp_path / "out")]
    arguments += ["--no-records", "--allow-host"]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, "not checked: RandomNormalLike (dice)" in done.output) == (4, True), done.output
    done = CliRunner().invoke(main, [*arguments, "--no-verify", "-v"])
    assert (done.exit_code, "launched: " in done.stdout) == (0, True), done.output


@pytest.mark.parametrize("target", ["opencl -device=adreno640", "opencl -device=mali_g76", "vulkan -device=adreno640"])
def test_kernels_for_a_phone_are_checked_on_a_cpu(target: str, runs: list[TunedModel]) -> None:
    named = romou.Target(target)
    cpus = [facts["name"] for facts in named.backend.list_devices() if facts["type"] == "cpu"]
    assert cpus, "this test needs the CPU's OpenCL and lavapipe"
    model = romou.compile(branches(), target=target)
    summary = model.summary()
    assert summary.is_right
    assert summary.checked_on in cpus
    assert str(model.target) == target
    assert [named.backend.facts(run.device_index)["name"] for run in runs] == [summary.checked_on]


def test_a_wrong_model_for_a_phone_is_the_same_error(wrong_sigmoid: None) -> None:
    with pytest.raises(romou.NumericError, match="the first operator whose output differs is Sigmoid 'wrong'"):
        romou.compile(branches(), target="opencl -device=adreno640")


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_kernels_that_are_checked_are_those_of_the_phone(precision: str) -> None:
    """Sums in fp16 run if the CPU's OpenCL has them, and native functions if they are accurate there. If no CPU runs
    the kernels, the model is compiled once more without both.
    """
    phone = romou.Target("opencl -device=adreno640")
    for network in (prime_net(), branches()):
        summary = romou.compile(network, target=phone, precision=precision).summary()
        assert summary.is_right
        plain = romou.compile(network, target=phone, precision=precision, verify=False)
        text = "".join(plain.sources().values())
        runs_all = {}
        for entry in phone.backend.list_devices():
            limited = phone.limited_to(entry)
            has_fp16 = limited.limits.has_fp16_arithmetic or not needs_fp16(text)
            # PoCL's images are smaller than a phone's on machines with little memory.
            has_images = limited.limits.max_image == phone.limits.max_image
            runs_all[entry["name"]] = has_fp16 and has_images and not (limited.limits.without and "native_" in text)
            assert check_compiled.runs_on_stand_in(plain, phone, limited) == runs_all[entry["name"]]
        assert runs_all[summary.checked_on] or not any(runs_all.values())


def test_a_cpu_that_does_not_run_a_phones_kernels_says_nothing_of_the_model(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(self: TunedModel, inputs: Any) -> Any:
        raise RuntimeError("CL_OUT_OF_RESOURCES")

    monkeypatch.setattr(TunedModel, "run", failing)
    assert romou.compile(prime_net(), target="opencl -device=adreno640").summary().checked_on == ""
    assert "the outputs are not checked: the compiled model does not run on opencl:" in caplog.text


def test_a_wrong_tuned_model_is_an_error_and_its_records_are_kept(wrong_sigmoid: None, tmp_path: Path) -> None:
    how: dict[str, Any] = {"target": TARGET, "trials": 4, "work_dir": tmp_path, "measure": {"repeat": 1}}
    with pytest.raises(romou.NumericError, match="is Sigmoid 'wrong'") as caught:
        romou.tune(branches(), **how)
    assert caught.value.error > caught.value.limit
    assert f"Records are kept in {tmp_path}" in str(caught.value)
    assert "verify=False" in str(caught.value)
    assert any(path.stat().st_size for path in tmp_path.rglob("*.jsonl"))


def test_a_wrong_tuned_model_is_returned_where_that_is_asked(
    wrong_sigmoid: None, caplog: pytest.LogCaptureFixture
) -> None:
    summary = romou.tune(branches(), target=TARGET, trials=0, verify=False).summary()
    assert summary.is_right is False
    assert "the model's outputs differ from onnxruntime's by" in caplog.text


def test_what_overflows_is_fp32_in_a_tuned_model() -> None:
    g = NetworkBuilder({"x": (2, 12)})
    large = g.add("Mul", g.add("Tanh", "x"), g.constant(np.float32(1e6)), name="large")
    model = g.model(g.add("MatMul", large, g.weight(12, 12)))
    summary = romou.tune(model, target=TARGET, trials=0, precision="float16").summary()
    assert (summary.is_right, summary.fp32_layers) == (True, ("t1", "t2"))


def test_a_device_that_is_given_is_attached(wrong_sigmoid: None) -> None:
    with pytest.raises(romou.NumericError, match="Sigmoid"):
        romou.compile(branches(), target="opencl -device=adreno640", device=0)


def test_a_model_that_fails_on_the_device_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: TunedModel, inputs: Any) -> Any:
        raise RuntimeError("trace\nCL_OUT_OF_RESOURCES")

    monkeypatch.setattr(TunedModel, "run", failing)
    with pytest.raises(
        romou.DeviceError, match="the compiled model does not run on opencl:0: CL_OUT_OF_RESOURCES\nverify=False"
    ):
        romou.compile(prime_net(), target=TARGET)


def test_the_command_line_checks_too(wrong_sigmoid: None, tmp_path: Path) -> None:
    onnx.save(branches(), tmp_path / "model.onnx")
    arguments = ["compile", str(tmp_path / "model.onnx"), "--target", TARGET, "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "Sigmoid 'wrong'" in result.stderr
    assert not (tmp_path / "out").exists()
    unchecked = CliRunner().invoke(main, [*arguments, "--no-verify"])
    assert unchecked.exit_code == 0
    assert "Its outputs were not checked: verify=False (--no-verify)." in " ".join(unchecked.stdout.split())


def test_what_counts_as_an_error() -> None:
    ones = np.ones(4, np.float32)
    assert verify._error(ones, ones) == 0
    assert verify._error(ones * 1.5, ones) == pytest.approx(0.5)
    assert verify._error(ones.astype(np.float64), ones) == float("inf")
    assert verify._error(ones[:3], ones) == float("inf")
    assert verify._error(np.array([1, np.nan], np.float32), np.ones(2, np.float32)) == float("inf")
    assert verify._error(ones * 1e-9, ones * 0) == float("inf")
    # What cancels out leaves rounding errors.
    for off, is_wrong in ((1e-6, False), (1e-3, True)):
        check = verify._beside(ones * off, ones * 0, 1e-4, ones * 1e-6, float("inf"), has_all=False)
        assert check.is_wrong == is_wrong
    # The smallest number of fp16, and less than the smallest normal one of fp32, may be zero.
    assert verify._error(ones.astype(np.float16) * 0, np.float16([6e-8] * 4)) == 0
    assert verify._error(ones.astype(np.float16) * 0, np.float16([2e-7] * 4)) == 1
    assert verify._error(ones * 0, ones * 1e-39) == 0
    assert verify._error(ones * 0, ones * 1e-37) == 1
    # A quantized value may be rounded to either side, and no further.
    steps = np.array([3, 5], np.uint8)
    assert verify._error(steps + np.uint8(1), steps) == 0
    assert verify._error(steps + np.uint8(2), steps) > 0.1
    assert verify._error(steps.astype(np.int32) + 1, steps.astype(np.int32)) > 0.1


def small(scale: float) -> onnx.ModelProto:
    """Return a model with outputs of the size of the weights."""
    g = NetworkBuilder({"x": (1, 3, 5, 5)})
    return g.model(g.add("Conv", "x", g.weight(4, 3, 1, 1, scale=scale)))


def many_classes() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (1, 4)})
    return g.model(g.add("Softmax", g.add("MatMul", "x", g.weight(4, 60000, scale=0.1))))


def cancelling() -> onnx.ModelProto:
    """Return a model that subtracts a mean from itself, which leaves only rounding."""
    g = NetworkBuilder({"x": (3, 400)})
    large = g.add("Mul", "x", g.constant(np.float32(300)))
    return g.model(
        g.add("ReduceMean", g.add("Sub", large, g.add("ReduceMean", large, axes=[-1])), axes=[-1], keepdims=0)
    )


@in_turn
@pytest.mark.parametrize("model", [small(1e-9), many_classes()], ids=["weights", "classes"])
@pytest.mark.parametrize("target", [TARGET, "opencl -device=adreno640"])
def test_zeros_for_small_numbers_are_wrong(
    model: onnx.ModelProto, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert romou.compile(model, target=target).summary().is_right
    run = TunedModel.run
    monkeypatch.setattr(TunedModel, "run", lambda self, inputs: [0 * output for output in run(self, inputs)])
    with pytest.raises(romou.NumericError):
        romou.compile(model, target=target)


def test_weights_that_fp16_has_no_numbers_for_are_wrong(
    runs: list[TunedModel], caplog: pytest.LogCaptureFixture
) -> None:
    """The format is named, not a kernel: no part is compiled, and no other kernel is tried."""
    with pytest.raises(romou.NumericError, match="fp16 is too coarse for it: rounding alone gives .* Conv") as caught:
        romou.compile(small(1e-9), target=TARGET, precision="float16")
    assert len(runs) == 1
    assert "--precision mixed" in str(caught.value.hint)
    assert "report" not in caplog.text + str(caught.value)


def test_the_search_for_a_wrong_operator_ends(
    wrong_sigmoid: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verify, "_SEARCH_S", -1.0)
    with pytest.raises(romou.NumericError, match="the first wrong operator was not found in -1 s") as caught:
        romou.compile(branches(), target=TARGET)
    assert caught.value.node is None
    assert "parts of the model are compiled to find the first wrong one of 11 operators" in caplog.text


def test_what_cancels_out_is_judged_by_what_was_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs with a relative error of one are right if onnxruntime's own error is as large. An output of the summands'
    size is wrong.
    """
    summary = romou.compile(cancelling(), target=TARGET).summary()
    assert summary.is_right
    run = TunedModel.run
    monkeypatch.setattr(
        TunedModel, "run", lambda self, inputs: [output + np.float32(0.3) for output in run(self, inputs)]
    )
    with pytest.raises(romou.NumericError):
        romou.compile(cancelling(), target=TARGET)


def quantized_layers(count: int = 2) -> onnx.ModelProto:
    """Return layers that quantize their activations anew, as onnxruntime.quantization's dynamic models do."""
    g, last = NetworkBuilder({"x": (64, 96)}), "x"
    for _ in range(count):
        scale = g.add("DynamicQuantizeLinear", last)
        node = g.nodes[-1]
        node.output[:] = (f"{scale}_codes", scale, f"{scale}_zero")
        weight = g.constant(g.rng.integers(-127, 128, (96, 96)).astype(np.int8))
        product = g.add("MatMulInteger", f"{scale}_codes", weight, f"{scale}_zero")
        factor = g.add("Mul", scale, g.constant(np.float32([0.0014])))
        last = g.add("Relu", g.add("Mul", g.add("Cast", product, to=onnx.TensorProto.FLOAT), factor))
    return g.model(last)


def test_rounding_of_quantized_activations_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is rounded to the other side changes the layers behind it. A wrong column is wrong."""
    model, run = quantized_layers(), TunedModel.run
    errors: list[float] = []

    def rounded(self: TunedModel, inputs: Any) -> list[np.ndarray]:
        x = inputs["x"]
        output = run(self, {"x": x + np.float32(3e-6) * x[::-1]})
        errors.append(relative_l2_error(output[0], run(self, inputs)[0]))
        return output

    monkeypatch.setattr(TunedModel, "run", rounded)
    assert romou.compile(model, target=TARGET).summary().is_right
    assert max(errors) > verify.TOLERANCE["float32"]

    def without_a_column(self: TunedModel, inputs: Any) -> list[np.ndarray]:
        outputs: list[np.ndarray] = run(self, inputs)
        for output in outputs:
            if output.ndim == 2:
                output[:, int(np.argmax(np.abs(output).sum(axis=0)))] = 0
        return outputs

    monkeypatch.setattr(TunedModel, "run", without_a_column)
    with pytest.raises(romou.NumericError, match="differ from onnxruntime's") as wrong:
        romou.compile(model, target=TARGET)
    assert "the first operator whose output differs on equal inputs is" in str(wrong.value)

    whole = {output.name for output in model.graph.output}

    def wrong_as_a_whole(self: TunedModel, inputs: Any) -> list[np.ndarray]:
        outputs: list[np.ndarray] = run(self, inputs)
        return [2 * output for output in outputs] if {*self.inputs} == {"x"} and {*self.outputs} == whole else outputs

    monkeypatch.setattr(TunedModel, "run", wrong_as_a_whole)
    with pytest.raises(romou.NumericError, match="no operator's output differs on equal inputs") as wrong:
        romou.compile(model, target=TARGET)
    assert "amplify rounding" in str(wrong.value.hint)
    assert wrong.value.node is None


@pytest.mark.parametrize("wrong", [None, 7, 14])
def test_an_operator_of_a_quantized_model_is_compared_on_equal_inputs(wrong: int | None) -> None:
    """Nodes 3 and 9 amplify what the nodes before them leave. Alone they are right."""
    model = onnx.shape_inference.infer_shapes(quantized_layers(3))
    names = [node.output[0] for node in model.graph.node]
    inputs = {"x": np.random.default_rng(0).standard_normal((64, 96)).astype("float32")}
    compiled = functools.partial(romou.compile, target=TARGET, verify=False)

    def is_wrong(part: onnx.ModelProto, tensors: Any) -> bool:
        is_really = verify._is_part_wrong(compiled, romou.Target(TARGET), AS_GIVEN, part, tensors)
        assert not is_really, "a part reads onnxruntime's tensors"
        made = [names.index(node.output[0]) for node in part.graph.node]
        return wrong in made or any({at - 1, at} <= {*made} for at in (3, 9))

    node = first_wrong_on_equal_inputs(model, inputs, is_wrong)
    assert (None if node is None else names.index(node.output[0])) == wrong


def test_sums_in_fp16_become_fp32_where_the_whole_model_needs_it() -> None:
    """A config that is none without them is left out, so the default is taken."""
    phone = romou.Target("opencl -device=adreno640")
    storage = phone.with_options(half="storage")
    tasks = [task_of(conv(n, (6, 6), 24, (3, 3), "float16", padding=(1, 1, 1, 1))) for n in (24, 32)]
    kept = tasks[0].direct_config(phone)
    assert kept["accumulate"] == "mixed"
    config = kept.replace(accumulate="float16")
    configs = configs_with_fp32_sums(
        tasks, {tasks[0].key: config, tasks[1].key: Config({**config, "tile_o": 3}), "small": None}, storage
    )
    assert configs == {tasks[0].key: kept.replace(accumulate="float32"), "small": None}
    assert tasks[0].space(storage).is_valid(configs[tasks[0].key])
