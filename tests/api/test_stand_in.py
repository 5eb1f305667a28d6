"""A target names a GPU that is not attached: the device that is timed is named, and its times choose nothing."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

import romou
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.costs.pretrained import pretrained_for
from romou.runtime.module import Summary
from romou.tools.report.table import print_summary
from romou.tuner.records import RecordStore
from support.models.small_networks import NetworkBuilder


def one_convolution() -> onnx.ModelProto:
    g = NetworkBuilder({"image": (1, 16, 12, 12)})
    return g.model(g.conv("image", 16, 16, kernel=(3, 3), pads=[1, 1, 1, 1]))


def test_the_estimate_of_the_named_device_chooses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, target = one_convolution(), romou.Target("opencl -device=adreno660")
    with caplog.at_level("WARNING", "romou"):
        tuned = romou.tune(model, target=target, trials=8, work_dir=tmp_path)
    summary = tuned.summary()
    assert summary.is_right
    text = f"No adreno660 is attached: times are those of {summary.device}; configs are chosen by the estimate of"
    assert summary.stand_in == f"{text} adreno660."
    assert summary.stand_in in caplog.messages
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=200))
    assert summary.stand_in in out.getvalue()
    assert Summary.from_dict(summary.to_dict()).stand_in == summary.stand_in
    compilation = Compilation.of(import_model(model, None), target).with_default_kernels()
    (task,) = (task for task in compilation.tasks if task.template.sums_products)
    with RecordStore(tmp_path) as store:
        worked = [r for r in store if r.outcome == Outcome.OK and r.task_key == task.key and not r.is_again]
    (row,) = (row for row in summary.rows if row.key == task.key)
    # Adreno 660's pretrained model corrects the estimate.
    features = TaskFeatures(task.template, task.limits(target), target.spec, pretrained_for(target))
    scores = {Config(r.config).key: float(features.expected([Config(r.config)])[0]) for r in worked}
    assert len(scores) >= 3
    assert scores[Config(row.config).key] == pytest.approx(max(scores.values()), rel=1e-5)
    # The table has the CPU's time.
    assert row.tuned_ms is not None
    assert row.tuned_ms / 1e3 != pytest.approx(np.exp(-max(scores.values())), rel=1e-5)


def facts(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "driver": "1", "platform": "p"}


@pytest.mark.parametrize(
    ("target", "attached", "missing"),
    [
        ("opencl", facts("cpu", "EPYC"), ""),
        ("opencl -device=host", facts("cpu", "EPYC"), ""),
        ("opencl -device=host", facts("gpu", "QUALCOMM Adreno(TM)"), "host"),
        ("opencl -device=adreno640", facts("cpu", "EPYC"), "adreno640"),
        ("opencl -device=adreno640", facts("gpu", "QUALCOMM Adreno(TM) 640"), ""),
        ("opencl -device=adreno640", facts("gpu", "QUALCOMM Adreno(TM) 740"), "adreno640"),
        # A driver that says no number: it may be any Adreno.
        ("opencl -device=adreno640", facts("gpu", "QUALCOMM Adreno(TM)"), ""),
        ("cuda -device=nvidia_h200", facts("gpu", "NVIDIA H200"), ""),
    ],
)
def test_which_device_is_another_one(target: str, attached: dict[str, Any], missing: str) -> None:
    assert romou.Target(target).missing_on(attached) == missing


def test_without_an_estimate_the_text_names_whose_times_chose() -> None:
    summary = Summary.unmeasured(target="opencl -device=adreno740", rows=(), seconds=0.0, stands_in_for="adreno740")
    summary = dataclasses.replace(summary, device="EPYC")
    assert summary.stand_in == (
        "No adreno740 is attached: times are those of EPYC; configs are chosen by these times, not adreno740's."
    )


def test_a_saved_model_says_that_it_runs_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for target, texts in (("opencl -device=adreno640", ["no adreno640 is attached"]), ("opencl -device=host", [])):
        path = romou.compile(one_convolution(), target=target, verify=False).save(tmp_path / "m.romou")
        caplog.clear()
        loaded = romou.load(path)
        loaded.run({name: np.zeros(shape, dtype) for name, (shape, dtype) in loaded.inputs.items()})
        assert [record.getMessage()[:24] for record in caplog.records] == texts
