"""Recordings of `romou phone record` in the tables of phone_records.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import phone_records
from phone_tasks import recorded_tasks
from romou.base.outcome import Outcome
from romou.compiler.operators.costs.estimate import estimate_seconds
from romou.compiler.single_operator import conv
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.driver.phone.layers import ChosenConfig, choose
from romou.tuner.pruning.tasks import pruned_task
from romou.tuner.records import Origin, Record
from romou.tuner.records.recording import RecordedTrial, Recording, recordable_task
from support.devices.made_up_device import FINGERPRINT

PHONE = Target("opencl -device=adreno640")
ORIGIN = Origin(device={**FINGERPRINT.to_dict(), "name": "Adreno 640"}, romou="1", tvm="2")
WORK = conv(32, (14, 14), 32, (1, 1))


@functools.cache
def chosen() -> tuple[TunableTask, list[ChosenConfig]]:
    task = pruned_task(recordable_task(WORK.to_dict()), PHONE)
    return task, choose(task, PHONE, 18, seed=0)


def recorded(path: Path, seconds: Callable[[float], float]) -> Recording:
    """Return a recording of 16 configs, whose times are a function of their estimates. Two more had a slow clock."""
    task, configs = chosen()
    recording = Recording.begin(path, ORIGIN, {"target": str(PHONE), "timing": {"clock_limit": 1.15}})
    for number, each in enumerate(configs):
        assert each.expected_s is not None
        record = Record(
            task_key=task.key,
            task_name=task.name,
            config=dict(each.config),
            device=ORIGIN.device,
            outcome=Outcome.OK,
            times_s=(seconds(each.expected_s) if number < 16 else 1e-9,),
        )
        trial = RecordedTrial(
            record=record,
            family=task.family,
            workload=WORK.to_dict(),
            chosen_by=each.chosen_by,
            clock_s=(1e-4, 1e-4 if number < 16 else 2e-4),
        )
        recording.append(trial.to_line())
    return recording


def test_a_recording_has_the_estimates_of_its_configs(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "phone.json", lambda expected_s: expected_s)
    (task,) = recorded_tasks(recording.path)
    assert (task.name, task.recorded.gpu, task.recorded.dtype) == (
        "conv2d_1x32x14x14_32_1x1_s1, float32",
        "adreno640",
        "float32",
    )
    assert len(task.time_s) == 16
    np.testing.assert_allclose(estimate_seconds(task.usage, task.target.spec), task.time_s, rtol=1e-5)
    assert [dict(config) for config in task.equivalents if not isinstance(config, str)] == [
        trial.record.config for trial in recording.trials[:16]
    ]
    assert recorded_tasks(recording.path, "depthwise") == recorded_tasks(recording.path, least=17) == []


@pytest.mark.parametrize(
    ("seconds", "row"),
    [(lambda expected_s: 3 * expected_s, "1.00 │ 1.00 to 1.00 │"), (lambda expected_s: 1 / expected_s, "-1.00")],
    ids=["in order", "in reverse"],
)
def test_the_tables_of_a_recording(tmp_path: Path, seconds: Callable[[float], float], row: str) -> None:
    recording = recorded(tmp_path / "phone.json", seconds)
    done = CliRunner().invoke(phone_records.main, [str(recording.path), "--ablate", "--drifts"])
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.strip("│ ").split()) for line in done.output.splitlines()]
    (line,) = [line for line in lines if line.startswith("adreno640, conv2d, float32") and "to" in line][:1]
    assert f"│ 1 │ 16 │ {row}" in line
    assert "1 tasks of at least 10 configs, 16 configs" in lines
