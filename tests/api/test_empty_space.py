"""A task with a pruned space that becomes empty during a search keeps its default config, and the others are tuned."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import romou
from romou.base.errors import SpaceEmptyError
from romou.compiler.single_operator import conv, task_of
from romou.devices.targets import Target
from romou.tuner.pruning import tasks as pruned_tasks
from romou.tuner.pruning.tasks import pruned_space
from romou.tuner.records import FILE_NAME
from support.models.small_networks import NetworkBuilder

TARGET = "null -device=adreno640"


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return part of the name of a convolution that has no valid config."""
    real = pruned_tasks.prune

    def prune(template: Any, space: Any, *arguments: Any, **how: Any) -> Any:
        if "_12_3x3" in template.name:
            space.add_constraint(lambda columns: {"nothing": False})
        return real(template, space, *arguments, **how)

    monkeypatch.setattr(pruned_tasks, "prune", prune)
    return "_12_3x3"


def test_it_keeps_its_default_and_the_others_are_tuned(
    empty: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = NetworkBuilder({"x": (1, 8, 9, 9)})
    model = graph.model(*[graph.conv("x", 8, count, pads=[1, 1, 1, 1]) for count in (12, 20)])
    with caplog.at_level(logging.WARNING, "romou"):
        tuned = romou.tune(model, target=TARGET, trials=8, work_dir=tmp_path)
    records = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    trials = [record["task_name"] for record in records if not record["is_again"]]
    assert len(trials) == 8
    assert sum(empty in name for name in trials) == 1
    lines = [record.getMessage() for record in caplog.records if "is valid with" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("conv2d_1x8x9x9_12_3x3_s1: none of ")
    assert "; only its default config is tried. Raise -max_num_threads" in lines[0]
    rows = {row.name: row for row in tuned.summary().rows}
    (kept,) = [row for name, row in rows.items() if empty in name]
    assert kept.tuned_ms is not None
    assert kept.config == dict(
        task_of(conv(8, (9, 9), 12, (3, 3), padding=(1, 1, 1, 1)), has_epilogue=False).default_config(Target(TARGET))
    )
    # A later run takes it over without another trial.
    again = romou.tune(model, target=TARGET, trials=8, work_dir=tmp_path)
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == len(records)
    assert again.summary().is_right


def test_who_asks_for_the_space_gets_an_error_that_says_what_to_do(empty: str) -> None:
    task = task_of(conv(8, (9, 9), 12, (3, 3), padding=(1, 1, 1, 1)), has_epilogue=False)
    with pytest.raises(
        SpaceEmptyError,
        match=r"conv2d\w*_12_3x3\w*: none of \d+ configs is valid with work groups of at most 1024 work-items",
    ) as caught:
        pruned_space(task, Target("opencl -device=adreno640"))
    assert "-max_shared_memory_per_block" in str(caught.value)
