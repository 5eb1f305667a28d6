"""The code of docs/contributing/extending.md works as the page says: each recipe is extracted and run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from click.testing import CliRunner
from tvm import relax

import archprobe.probes
import romou
import romou.cli
import romou.devices.hardware.files
from archprobe.cli import app
from archprobe.report.document import load_report
from romou.compiler import pipeline
from romou.compiler.assembly.kernel import build_task
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.compiler.importing import import_onnx
from romou.compiler.operators.families import families
from romou.compiler.stages import stage
from romou.compiler.task import TunableTask
from romou.devices.backends import installed
from romou.devices.hardware import known_devices
from romou.devices.targets import Target
from romou.tuner.pruning.tasks import pruned_space
from support.docs.documents import ROOT
from support.kernels.operators import conv, error_on, random_arrays, reference, relax_tasks, task_of
from support.models.small_networks import NetworkBuilder, random_inputs, residual_net
from tvm_patches.onnx_converters.node import CONVERTERS

_PAGE = (ROOT / "docs/contributing/extending.md").read_text()


def code(recipe: str, number: int = 0) -> str:
    """Return a block of Python code below a heading of the page, the first one by default."""
    section = re.search(rf"^## {recipe}\n(.*?)(?=^## |\Z)", _PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None, recipe
    return re.findall(r"^```python\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)[number]


def test_an_onnx_converter() -> None:
    """A node that the converter handles runs on the device, and one that it rejects runs on the host."""
    exec(code("An ONNX converter"), {})
    try:
        for extent, groups in ((2, ()), (3, (("Det (t0)",),))):
            g = NetworkBuilder({"x": (5, extent, extent)})
            assert import_onnx(g.model(g.add("Det", "x"))).host_groups == groups
    finally:
        del CONVERTERS["Det"]


def test_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "romou/devices/hardware/devices"
    folder.mkdir(parents=True)
    monkeypatch.setattr(romou.devices.hardware.files, "_DEVICES", folder)
    monkeypatch.chdir(tmp_path)
    exec(code("A device"), {})
    assert known_devices() == ("my_gpu",)
    limits = Target("opencl -device=my_gpu").limits
    assert (limits.max_work_group_size, limits.local_memory_bytes) == (512, 16384)


def test_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its entry point, it compiles a model, and the kernels compute the right numbers."""
    (tmp_path / "toy_backend.py").write_text(code("A backend"))
    about = tmp_path / "toy_backend-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[romou.backends]\ntoy = toy_backend:BACKEND\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    try:
        assert list(installed()) == ["opencl", "cuda", "null", "toy", "vulkan"]
        target, model = Target("toy -max_num_threads=64"), residual_net()
        compiled = romou.compile(model, target=target)
        assert Target(target.tvm_target).kind == "opencl", "TVM knows it as what generates its code"
        assert target.limits.max_work_group_size == 64
        assert all("__kernel " in source for source in compiled.sources().values())
        inputs = random_inputs(model, seed=0)
        reference = run_onnxruntime(model, inputs)
        assert reference is not None
        assert max(relative_l2_error(a, b) for a, b in zip(compiled.run(inputs), reference, strict=True)) < 1e-4
    finally:
        installed.cache_clear()


def test_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(x: relax.Expr) -> relax.Expr:
        return relax.op.multiply(relax.op.exp(x), relax.const(2.0))

    (task,), target = relax_tasks(doubled, (64, 256)), Target("opencl -device=host")
    config = task.default_config(target)
    space: dict[str, Any] = {}
    exec(code("A pass"), space)
    sources = {"before": _source(task, target)}
    before = [each.name for each in pipeline.DEVICE].index("share_loads")
    added = stage(space["add_to_double"], "x * 2 is one operand less than x + x")
    monkeypatch.setattr(pipeline, "DEVICE", (*pipeline.DEVICE[:before], added, *pipeline.DEVICE[before:]))
    for place, left_out in (("after", []), ("left out", ["add_to_double"])):
        with tvm.transform.PassContext(disabled_pass=left_out):
            sources[place] = _source(task, target)
    assert "2.0" in sources["before"]
    assert "2.0" not in sources["after"]
    assert sources["left out"] == sources["before"]
    arrays = random_arrays(task, np.random.default_rng(0))
    assert error_on(target, task, config, arrays, reference(task, arrays)) < 1e-6


def _source(task: TunableTask, target: Target) -> str:
    return build_task(task, task.default_config(target), target).imports[0].inspect_source()


def test_a_subcommand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `romou --help` lists the command, and that its text and its JSON agree."""
    (tmp_path / "families.py").write_text(code("A subcommand"))
    monkeypatch.setattr(romou.cli, "__path__", [*romou.cli.__path__, str(tmp_path)])
    monkeypatch.setattr(romou.cli, "COMMANDS", dict(romou.cli.COMMANDS))
    exec(code("A subcommand", number=1), {"COMMANDS": romou.cli.COMMANDS})
    try:
        outputs = [_romou(*arguments) for arguments in (["--help"], ["families"], ["families", "--json"])]
    finally:
        sys.modules.pop("romou.cli.families", None)
    names = [family.name for family in families()]
    assert "List the operator families." in outputs[0]
    assert outputs[1].split() == json.loads(outputs[2]) == names


def _romou(*arguments: str) -> str:
    result = CliRunner().invoke(romou.cli.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_criterion(monkeypatch: pytest.MonkeyPatch) -> None:
    task, target = task_of(conv(64, (14, 14), 64, (1, 1))), Target("opencl -device=adreno640")
    before = pruned_space(task, target).report
    monkeypatch.setattr(
        romou.compiler.operators.costs.criteria, "CRITERIA", dict(romou.compiler.operators.costs.criteria.CRITERIA)
    )
    exec(code("A criterion"), {})
    after = pruned_space(task, target).report
    counts = {count.criterion: count for count in after.criteria}
    assert "half_full" not in {count.criterion for count in before.criteria}
    assert counts["half_full"].alone > 0
    assert after.kept <= before.kept


def test_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "step.py").write_text(code("A probe"))
    monkeypatch.setattr(archprobe.probes, "__path__", [*archprobe.probes.__path__, str(tmp_path)])
    report = tmp_path / "report.json"
    result = CliRunner().invoke(app, ["run", "--only", "step", "--quick", "-o", str(report)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    answer = load_report(report).answers()["Step.StepTime"]
    assert answer.unit == "us"
    assert answer.is_declined or answer.number() > 0
