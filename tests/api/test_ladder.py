"""Planted faults: the affected nodes get other kernels, all other nodes keep theirs, and the report names the fault."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from click.testing import CliRunner
from tvm_ffi.structural import structural_map

import romou
from romou.base.errors import BuildError, ModelError, NumericError
from romou.base.rung import Rung
from romou.cli import main
from romou.compiler import lowering
from romou.compiler.assembly import build
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend.reference import run_onnxruntime
from romou.compiler.graph.origins import function_origins
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.stages import stage
from romou.devices.targets import Target
from romou.models import load, names
from support.models.small_networks import NetworkBuilder
from support.suite.exhaustive import few

HOST = "opencl"


def net() -> onnx.ModelProto:
    """Return conv t2 (8 -> 12) and relu t3, conv t6 (12 -> 16) and tanh t7, and a softmax t8."""
    g = NetworkBuilder({"image": (1, 8, 6, 6)})
    x = g.add("Relu", g.conv("image", 8, 12, pads=[1, 1, 1, 1]))
    return g.model(g.add("Softmax", g.add("Tanh", g.conv(x, 12, 16))))


def nodes_of(model: onnx.ModelProto) -> dict[str, str]:
    """Return operator -> first output. The keys of convolutions end with their number of outputs."""
    found = {}
    for node in model.graph.node:
        weight = next(
            (list(t.dims) for t in model.graph.initializer if len(node.input) > 1 and t.name == node.input[1]), [0]
        )
        found[f"{node.op_type}{weight[0] if node.op_type == 'Conv' else ''}"] = str(node.output[0])
    return found


def where(model: onnx.ModelProto, target: str = HOST) -> dict[str, Rung]:
    """Return operator -> rung, for operators that fell back from their usual kernel."""
    graph = Compilation.of(import_model(model, None), Target(target)).with_default_kernels()
    known = {output: operator for operator, output in nodes_of(model).items()}
    return {known[node]: move.rung for move in graph.fallbacks.current_moves for node in move.nodes}


def check(model: onnx.ModelProto) -> None:
    inputs = {"image": np.random.default_rng(3).standard_normal((1, 8, 6, 6)).astype(np.float32)}
    right = run_onnxruntime(model, inputs)
    assert right is not None
    np.testing.assert_allclose(romou.compile(model, target=HOST).run(inputs)[0], right[0], rtol=1e-4, atol=1e-5)


def fail_for(monkeypatch: pytest.MonkeyPatch, template: type, is_broken: Any) -> None:
    """Make the schedule of a template raise if `is_broken` is true of it."""
    schedule = template.schedule  # type: ignore[attr-defined]

    def planted(self: Any, *given: Any) -> Any:
        if is_broken(self):
            raise ValueError("no schedule for this shape")
        return schedule(self, *given)

    monkeypatch.setattr(template, "schedule", planted)


@pytest.mark.parametrize("target", few([HOST, "opencl -device=adreno640"], 1))
def test_an_epilogue_that_cannot_be_fused_is_a_kernel_of_its_own(
    target: str, fallbacks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_for(
        monkeypatch,
        ContractionTemplate,
        lambda template: template.workload.out_channels == 16 and len(template.func.params) > 3,
    )
    assert where(net(), target) == {"Conv16": Rung.APART, "Tanh": Rung.APART}
    check(net())


@pytest.mark.parametrize("target", few([HOST, "opencl -device=adreno640"], 1))
def test_a_family_that_fails_for_one_shape_leaves_that_operator_to_tvm(
    target: str, fallbacks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_for(monkeypatch, ContractionTemplate, lambda template: template.workload.out_channels == 16)
    assert where(net(), target) == {"Conv16": Rung.RULES, "Tanh": Rung.APART}
    check(net())


def test_a_family_that_fails_at_recognising_a_function(fallbacks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    take = ContractionTemplate.of

    def planted(func: tvm.tirx.PrimFunc, operator: Any) -> Any:
        found = take(func, operator)
        if found is not None and found.workload.out_channels == 16:
            raise ValueError("no such layout")
        return found

    monkeypatch.setattr(ContractionTemplate, "of", planted)
    assert where(net()) == {"Conv16": Rung.RULES, "Tanh": Rung.APART}


def break_code_generator(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    """Make TVM's code generator for the device fail on functions with a word in their name."""
    generate = build.codegen_build

    def planted(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
        if target.kind.name == "opencl" and any(kernel in var.name_hint for var in mod.get_global_vars()):
            tvm.get_global_func("no.such.instruction")
        return generate(mod, target)

    monkeypatch.setattr(build, "codegen_build", planted)


def test_what_no_code_is_generated_for_goes_to_the_host_alone(
    fallbacks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_code_generator(monkeypatch, "tanh")
    assert where(net()) == {"Conv16": Rung.APART, "Tanh": Rung.HOST}
    model = romou.compile(net(), target=HOST)
    assert [name.split()[0] for name in model.host_nodes] == ["Tanh"]
    assert "no kernels for Tanh" in caplog.text
    assert "no.such.instruction" in caplog.text
    check(net())


def test_all_other_kernels_stay_and_are_made_once(fallbacks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = romou.compile(net(), target=HOST, verify=False).sources()
    made: Counter[str] = Counter()
    lower_one = build.lower_function

    def counted(var: tvm.ir.GlobalVar, *rest: Any) -> build.Lowered:
        made[var.name_hint] += 1
        return lower_one(var, *rest)

    monkeypatch.setattr(build, "lower_function", counted)
    break_code_generator(monkeypatch, "tanh")
    after = romou.compile(net(), target=HOST, verify=False).sources()
    # The parameters of the kernel between the two have the names of variables, which are numbered.
    kept = {name: text for name, text in before.items() if "tanh" not in name and name != "unpack_kernel"}
    assert len(kept) >= 3
    assert kept.items() <= after.items()
    assert all(made[name.removesuffix("_kernel")] == 1 for name in kept)


def test_strict_says_why(fallbacks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    break_code_generator(monkeypatch, "tanh")
    with pytest.raises(ModelError, match=r"no kernels for Tanh \(\w+\) \(.*no.such.instruction\); strict=True"):
        romou.compile(net(), target=HOST, strict=True)


def plant_a_missing_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def keeping(value: Any) -> Any:
        return forgotten(value)  # type: ignore[name-defined]  # noqa: F821

    monkeypatch.setattr("romou.compiler.passes.nan._keeping", keeping)


def softmax() -> onnx.ModelProto:
    g = NetworkBuilder({"image": (1, 8, 6, 6)})
    return g.model(g.add("Exp", g.add("Relu", "image")))


def test_a_fault_of_our_own_is_an_error_in_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_a_missing_import(monkeypatch)
    with pytest.raises(BuildError, match="'forgotten' is not defined"):
        romou.compile(softmax(), target=HOST)


def test_a_fault_of_our_own_is_one_loud_line_with_its_place(
    fallbacks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def keeping(value: Any) -> Any:
        raise AssertionError("this value was never thought of")

    monkeypatch.setattr("romou.compiler.passes.nan._keeping", keeping)
    model = romou.compile(softmax(), target=HOST)
    faults = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(faults) == 1
    assert "a fault at " in faults[0]
    assert "test_ladder.py:" in faults[0]
    assert "this value was never thought of" in faults[0]
    assert [name.split()[0] for name in model.host_nodes] == ["Relu"]


def test_a_programmers_mistake_comes_out_as_itself(fallbacks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No node goes to the host for a mistake in a pass, in a family, in knobs or in a schedule."""

    def in_a_family(*_: object) -> Any:
        return Tanh().missing  # type: ignore[attr-defined]

    class Tanh:
        pass

    with monkeypatch.context() as planted:
        plant_a_missing_import(planted)
        with pytest.raises(RuntimeError, match="^name 'forgotten' is not defined"):  # TVM has no NameError
            romou.compile(softmax(), target=HOST)
    for place in (
        "elementwise.ElementwiseFamily.template_of",
        "elementwise.Elementwise.space",
        "elementwise.Elementwise.schedule",
    ):
        with monkeypatch.context() as planted:
            planted.setattr(f"romou.compiler.operators.families.{place}", in_a_family)
            with pytest.raises(AttributeError, match="no attribute 'missing'"):
                romou.compile(softmax(), target=HOST)


def test_a_refusal_is_no_fault_of_our_own(
    fallbacks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_code_generator(monkeypatch, "tanh")
    Compilation.of(import_model(net(), None), Target(HOST)).with_default_kernels()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_nodes_that_fail_only_together_are_found_by_bisection(fallbacks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No function and no node is named, and each single node is fine."""

    def planted(mod: tvm.IRModule) -> tvm.IRModule:
        if {"relu", "tanh"} <= {part for var in mod.get_global_vars() for part in var.name_hint.split("_")}:
            raise ValueError("relu and tanh do not go together")
        return mod

    monkeypatch.setattr(lowering, "GRAPH", (*lowering.GRAPH, stage(planted, "fails for two operators together")))
    assert where(net()) == {"Tanh": Rung.HOST}


def test_a_graph_operator_without_a_kernel_is_named_directly(fallbacks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    legalize = tvm.ir.Op.get("relax.tanh").get_attr("FLegalize")
    tvm.ir.Op.get("relax.tanh").reset_attr("FLegalize")
    tvm.ir.register_op_attr("relax.tanh", "FLegalize", lambda *_: (_ for _ in ()).throw(ValueError("no such operator")))
    try:
        assert where(net()) == {"Tanh": Rung.HOST}
    finally:
        tvm.ir.Op.get("relax.tanh").reset_attr("FLegalize")
        tvm.ir.register_op_attr("relax.tanh", "FLegalize", legalize)


@pytest.mark.parametrize("target", few([HOST, "opencl -device=adreno640"], 1))
@pytest.mark.parametrize("name", few(["mobilenet_v2", "bert_2layer", "inception_v3"], 0))
def test_every_node_is_known_by_the_function_that_computes_it(name: str, target: str) -> None:
    assert name in names()
    imported = import_model(load(name), None)
    graph = Compilation.of(imported, Target(target)).with_default_kernels()
    origins = function_origins(graph.functions.fused)
    assert all(origins.values())
    left = [
        node for node in imported.folded.graph.node if not any(node.output[0] in origin for origin in origins.values())
    ]
    # A reshape may be a view between two kernels.
    assert {node.op_type for node in left} <= {"Reshape", "Flatten"}


def plant_wrong_kernels(monkeypatch: pytest.MonkeyPatch, is_wrong: Any) -> None:
    """Make contractions that satisfy `is_wrong` compute twice the right result."""
    schedule = ContractionTemplate.schedule

    def planted(self: Any, *given: Any) -> Any:
        right = schedule(self, *given)
        return doubled(right) if is_wrong(self) else right

    monkeypatch.setattr(ContractionTemplate, "schedule", planted)


def doubled(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with stores to the output that store twice the value."""
    func = mod["main"]
    output = func.params[-1]

    def store(access: tvm.tirx.BufferStore) -> tvm.tirx.Stmt:
        is_output = access.buffer.name == output.name
        return (
            tvm.tirx.BufferStore(access.buffer, access.value * tvm.tirx.const(2, "float32"), access.indices)
            if is_output
            else access
        )

    return tvm.IRModule({"main": func.with_body(structural_map(func.body, (tvm.tirx.BufferStore, store)))})


def test_a_wrong_kernel_gives_way_to_another_one(
    fallbacks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant_wrong_kernels(monkeypatch, lambda template: template.workload.out_channels == 16)
    model = romou.compile(net(), target=HOST)
    assert model.host_nodes == ()
    assert model.summary().is_right
    loud = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert loud
    assert all("the first operator whose output differs is Conv 't2'" in text for text in loud)
    assert "no kernel of Romou's for Conv (t2)" in caplog.text
    check(net())


def test_what_is_wrong_on_every_rung_is_an_error(fallbacks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    models = []

    def wrong(model: romou.TunedModel, *_: Any) -> None:
        models.append(model)
        raise NumericError(f"wrong {len(models)}", operator="Conv", node="t0")

    monkeypatch.setattr("romou.driver.check.compiled.verified", wrong)
    with pytest.raises(NumericError, match="wrong 1"):
        romou.compile(net(), target=HOST)
    # With its activation, without it, by TVM's rules, by the simplest schedule, and on the host.
    assert [len(model.host_nodes) for model in models] == [0, 0, 0, 0, 1]


def test_a_wrong_kernel_fails_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_wrong_kernels(monkeypatch, lambda template: template.workload.out_channels == 16)
    with pytest.raises(NumericError, match="the first operator whose output differs is Conv 't2'"):
        romou.compile(net(), target=HOST)


def test_the_summary_has_the_shares_and_the_reasons(
    fallbacks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_code_generator(monkeypatch, "tanh")
    model = romou.compile(net(), target=HOST)
    summary = model.summary()
    assert summary.nodes == 5
    assert summary.host_node_share == 1 / 5
    # One operation for each element, of two convolutions, their activations, and the softmax.
    counts = {
        "conv0": 2 * 12 * 36 * 72,
        "relu": 12 * 36,
        "conv2": 2 * 16 * 16 * 108,
        "tanh": 16 * 16,
        "softmax": 16 * 16,
    }
    assert summary.flops == sum(counts.values())
    assert summary.host_flop_share == counts["tanh"] / summary.flops
    assert [(row.to, [name.split()[0] for name in row.nodes]) for row in summary.moved] == [
        ("apart", ["Conv"]),
        ("host", ["Tanh"]),
    ]
    assert all("no.such.instruction" in row.reason for row in summary.moved)
    assert type(summary).from_dict(summary.to_dict()) == summary
    assert not summary.is_off_device
    assert "% of the model's operations run on the host" not in caplog.text


def test_a_model_that_is_wholly_on_the_host_says_so(
    fallbacks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_code_generator(monkeypatch, "")
    summary = romou.tune(softmax(), target=HOST, trials=0, work_dir=False).summary()
    assert (summary.host_node_share, summary.host_flop_share, summary.host_share) == (1, 1, 1)
    assert "100% of the model's operations run on the host" in caplog.text


def test_a_schedule_of_tvm_is_named(fallbacks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Conv (t2)" not in romou.compile(net(), target=HOST, verify=False).summary().by_tvm
    fail_for(monkeypatch, ContractionTemplate, lambda template: template.workload.out_channels == 16)
    assert "Conv (t2)" in romou.compile(net(), target=HOST, verify=False).summary().by_tvm


@pytest.mark.parametrize("command", [["compile", "--no-verify"], ["tune", "--trials", "0", "--no-records"]])
def test_a_command_ends_with_an_exit_code_where_much_is_on_the_host(
    command: list[str], fallbacks: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_code_generator(monkeypatch, "")
    path, saved = tmp_path / "net.onnx", tmp_path / "net.romou"
    onnx.save(softmax(), path)
    arguments = [command[0], str(path), *command[1:], "-o", str(saved)]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 3
    assert "100% of the model's operations run on the host, more than 20%; --allow-host accepts that" in refused.output
    assert "On the host: 2 of 2 nodes, 100% of the operations" in refused.output
    assert romou.load(saved).host_nodes
    assert CliRunner().invoke(main, [*arguments, "--allow-host"]).exit_code == 0


def test_what_no_onnx_node_computes_does_not_go_to_the_host(fallbacks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient, say, is a model that was made of an ONNX model which computes something else."""
    imported = replace(import_model(net(), None), onnx_model=None)
    break_code_generator(monkeypatch, "tanh")
    with pytest.raises(BuildError, match="no.such.instruction"):
        Compilation.of(imported, Target(HOST)).with_default_kernels()
