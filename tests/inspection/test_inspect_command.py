"""`romou inspect` and `romou.inspect`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import romou
from romou.api.spaces import knob_spaces
from romou.base.errors import UsageError
from romou.cli import inspect, main
from romou.cli.common import LOADING
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.operators.costs.estimate import estimate_seconds
from romou.devices import mobile_compilers
from romou.devices.mobile_compilers import MobileCompilersMissingError, find_compilers
from romou.devices.targets import Target
from romou.tuner.pruning.tasks import pruned_space
from romou.tuner.records import Record, RecordStore
from support.models.small_networks import NetworkBuilder

TARGET = "opencl -device=adreno640"


def network() -> onnx.ModelProto:
    g = NetworkBuilder({"image": (1, 8, 12, 12)})
    x = g.add("Relu", g.conv("image", 8, 16, pads=[1, 1, 1, 1]))
    pooled = g.add("MaxPool", g.conv(x, 16, 8, (1, 1)), kernel_shape=[2, 2], strides=[2, 2])
    whole = g.add("Cast", pooled, to=onnx.TensorProto.INT32)
    return g.model(
        g.add("Cast", g.add("MatMul", whole, g.constant(np.eye(6, dtype="int32"))), to=onnx.TensorProto.FLOAT)
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(network(), path)
    return path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["inspect", *arguments])


def test_kernels_are_those_of_compile(model: Path) -> None:
    kernels = romou.inspect(model, target=TARGET)
    sources = romou.compile(model, target=TARGET).sources()
    assert {k.name: k.source for k in kernels} == sources
    by_task = {k.task: k for k in kernels}
    conv = by_task["conv2d_1x8x12x12_16_3x3_s1"]
    assert conv.config["tile_w"] >= 1
    assert conv.traffic.multiply_adds % 16 == 0
    assert conv.traffic.bytes_loaded > 0
    assert conv.text_operations.divisions_in_loops == 0
    assert any(not k.task for k in kernels), "a product of integers of 32 bits has no template"


def test_one_kernel_by_its_names(model: Path) -> None:
    (kernel,) = romou.inspect(model, target=TARGET, kernel="conv2d_1x8x12x12_16_3x3_s1")
    for name in (kernel.name, kernel.function):
        assert [k.name for k in romou.inspect(model, target=TARGET, kernel=name)] == [kernel.name]
    with pytest.raises(
        UsageError,
        match=r"unknown kernel 'conv2d_1x8x12x12_16_3x3'; known: (?s:.*)Did you mean 'conv2d_1x8x12x12_16_3x3_s1'\?",
    ):
        romou.inspect(model, target=TARGET, kernel="conv2d_1x8x12x12_16_3x3")


def test_records_choose_the_config(model: Path, tmp_path: Path) -> None:
    (plain,) = romou.inspect(model, target=TARGET, kernel="conv2d_1x16x12x12_8_1x1_s1")
    graph = Compilation.of(import_model(model, None), romou.Target(TARGET)).with_default_kernels()
    task = next(t for t in graph.tasks if t.name == plain.task)
    other = next(c for c in task.space(romou.Target(TARGET)) if c["tile_w"] != plain.config["tile_w"])
    with RecordStore(tmp_path) as store:
        for config, time_s in ((plain.config, 2.0), (other, 1.0)):
            store.append(
                Record(
                    task_key=task.key,
                    task_name=task.name,
                    config=dict(config),
                    device={},
                    outcome="ok",
                    times_s=(time_s,),
                )
            )
    (best,) = romou.inspect(model, target=TARGET, kernel=plain.task, work_dir=tmp_path)
    assert best.config == other
    assert best.source != plain.source
    with pytest.raises(UsageError, match="is no folder; give the one that `tune` wrote"):
        romou.inspect(model, target=TARGET, work_dir=tmp_path / "none")


def test_printed(model: Path) -> None:
    result = invoke(str(model), "--target", TARGET, "--kernel", "conv2d_1x8x12x12_16_3x3_s1")
    assert result.exit_code == 0, result.output
    assert re.search(r"__kernel .*void \w+\(", result.stdout)
    for named in (
        r"^// oc = .*group_y",
        r"^// y = ",
        r"^// x = ",
        r"^// sum over ic 2, ky 3, kx 3",
        r"\[ic 2\]\[y 12\]",
    ):
        assert re.search(named, result.stdout, re.MULTILINE), f"the text names its dimensions: {named}"
    for row in (
        "registers (32 bit)",
        "innermost loop: bytes loaded",
        "integer operations in loops",
        "divisions and modulos in loops",
    ):
        assert row in result.stdout
    assert re.search(r"^ONNX nodes: Conv \(.*\)", result.stdout, re.MULTILINE)
    assert "Mesa" not in result.stdout
    assert "__kernel" not in invoke(str(model), "--target", TARGET, "--no-source").stdout


def test_the_memory_plan_names_onnx_nodes(model: Path) -> None:
    plan = romou.memory_plan(model, target=TARGET)
    nodes = dict(zip(plan.calls, plan.nodes, strict=True))
    assert nodes["fused_conv2d_add_relu"] == ("Conv (t0)", "Relu (t1)")
    assert nodes["max_pool2d"] == ("MaxPool (t3)",)
    assert all(nodes.values()), "each call is of a node"
    text = invoke(str(model), "--target", TARGET, "--memory").stdout
    assert re.search(r"fused_conv2d_add_relu\b.* Conv \(t0\) \+1", text)
    said = json.loads(invoke(str(model), "--target", TARGET, "--memory", "--json").stdout)["memory"]
    assert said["nodes"] == [list(names) for names in plan.nodes]


def test_passes_show_the_ir_before_and_after(model: Path) -> None:
    text = invoke(
        str(model), "--target", TARGET, "--kernel", "conv2d_1x8x12x12_16_3x3_s1", "--passes", "--no-source"
    ).stdout
    assert (
        text.index("--- before tirx.VectorizeLoop")
        < text.index("--- after tirx.VectorizeLoop")
        < text.index("--- before tirx.FlattenBuffer")
    )
    assert re.search(r"^--- tirx\.\w+: changes nothing$", text, re.MULTILINE)


def test_json(model: Path) -> None:
    result = invoke(str(model), "--target", TARGET, "--json", "--passes")
    assert result.exit_code == 0, result.output
    kernels = json.loads(result.stdout)["kernels"]
    assert {
        "name",
        "registers",
        "needed_registers",
        "bytes_per_iteration",
        "integer_operations_in_loops",
        "source",
        "passes",
        "mesa",
    } <= set(kernels[0])
    assert all(kernel["passes"] for kernel in kernels)


def test_missing_compilers_are_reported_first(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROMOU_MOBILE_COMPILERS", str(tmp_path))
    result = invoke(str(model), "--target", TARGET, "--gpu", "a630")
    assert result.exit_code == 3
    assert result.stderr.startswith(
        f"{LOADING}\nromou: Mesa's mobile compilers are not in {tmp_path}\nhint: Run romou setup mobile-compilers"
    )


def test_what_mesa_says_stands_beside(model: Path) -> None:
    try:
        find_compilers()
    except MobileCompilersMissingError as error:
        pytest.skip(
            f"NOT TESTED, the mobile compilers are missing: {str(error).splitlines()[0]};"
            " romou setup mobile-compilers says why it fails"
        )
    result = invoke(
        str(model), "--target", TARGET, "--kernel", "conv2d_1x8x12x12_16_3x3_s1", "--gpu", "a630", "--gpu", "g76"
    )
    assert result.exit_code == 0, result.output
    assert "Mesa, a630" in result.stdout
    assert "Mesa, g76" in result.stdout
    # The estimate's error is printed beside the number of the compiler that it models, and of no other.
    own, adreno, percent, mali = re.search(
        r"registers \(32 bit\) +│ +(\d+) │ +(\d+) \(estimate ([+-]\d+)%\) │ +(\d+) │", result.stdout
    ).groups()  # type: ignore[union-attr]
    assert abs(int(own) / int(adreno) - 1 - int(percent) / 100) < 0.01
    assert int(mali) <= 64
    assert "Mesa's compilers, not the vendors'" in " ".join(result.stdout.split())


_LAYER = "conv2d_1x8x12x12_16_3x3_s1"


def test_why_prints_the_terms_of_the_default_beside_those_of_others(model: Path) -> None:
    printed = invoke(str(model), "--target", TARGET, "--why", _LAYER, "--json")
    assert printed.exit_code == 0, printed.output
    (layer,) = json.loads(printed.stdout)["layers"]
    target = Target(TARGET)
    (task,) = [t for t, _ in knob_spaces(model, target=TARGET) if t.name == _LAYER]
    default, neighbour, other = (layer[role] for role in ("default", "neighbour", "other"))
    assert default["config"] == dict(task.default_config(target))
    assert default["changed"] == {}
    assert len(neighbour["changed"]) == 1
    assert "algorithm" not in neighbour["changed"]
    assert other["config"]["algorithm"] != default["config"]["algorithm"]
    for priced in (default, neighbour, other):
        cycles = priced["cycles"]
        seconds = estimate_seconds(task.usage_of(priced["config"], target), target.spec)
        assert priced["us"]["all"] == pytest.approx(1e6 * float(np.asarray(seconds)))
        parts = ("issuing", "waiting", "buffers", "images", "l2", "output")
        norm = sum(cycles[part] ** 2 for part in parts) ** 0.5
        assert cycles["all"] == pytest.approx(norm + cycles["transforms"] + cycles["spill"] + cycles["unrolled"])
    # No other neighbour is better.
    space = pruned_space(task, target)
    for knob, choices in space.knobs.items():
        for config in (task.default_config(target).replace(**{knob: choice}) for choice in choices):
            if knob != "algorithm" and config != task.default_config(target) and space.is_valid(config):
                seconds = estimate_seconds(task.usage_of(config, target), target.spec)
                assert 1e6 * float(np.asarray(seconds)) >= neighbour["us"]["all"] * (1 - 1e-9), config


@pytest.mark.parametrize(
    ("target", "layer", "says"),
    [
        (TARGET, _LAYER, r"issuing .*\n.*waiting(.|\n)* all (.|\n)*one knob: \w+ \w+; \d\.\d\d times the default's"),
        (TARGET, "conv2d_1x8x12x12_16_3x3_s2", rf"unknown layer (.|\n)*{_LAYER}"),
        ("opencl -device=host", _LAYER, r"times of CPUs are not: opencl -device=host\n+.*Name a GPU"),
    ],
)
def test_why_in_words(model: Path, target: str, layer: str, says: str) -> None:
    result = invoke(str(model), "--target", target, "--why", layer)
    assert re.search(says, result.output), result.output


def test_each_version_of_mesa_that_was_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adreno 830 needs a later version than 630."""
    monkeypatch.setattr(mobile_compilers, "mesa_version", lambda *, mesa: f"{mesa}.9")
    assert inspect._versions(("a830", "a630", "a740")).startswith("Mesa 25.9 and 26.9. ")
    assert inspect._versions(("a830",)).startswith("Mesa 26.9. ")
