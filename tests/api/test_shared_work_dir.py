"""A work_dir of several models: what they share is measured once, and each learns from the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_networks import Graph

import romou
from romou.records import FILE_NAME, RecordStore
from romou.records.task_files import FOLDER_NAME, other_tasks
from romou.search import TuningSession


def model(*outputs: int) -> Any:
    """A model with a convolution for each of `outputs`, of the same input."""
    graph = Graph({"x": (1, 8, 9, 9)})
    return graph.model(*[graph.conv("x", 8, count, pads=[1, 1, 1, 1]) for count in outputs])


def test_a_second_model_learns_from_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[TuningSession] = []
    run = TuningSession.run
    monkeypatch.setattr(TuningSession, "run", lambda self, *how: sessions.append(self) or run(self, *how))  # type: ignore[func-returns-value]

    def trials(*outputs: int, count: int) -> list[dict[str, Any]]:
        before = len((tmp_path / FILE_NAME).read_text().splitlines()) if (tmp_path / FILE_NAME).exists() else 0
        romou.tune(model(*outputs), target="null", trials=count, work_dir=tmp_path)
        found = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()[before:]]
        return [record for record in found if not record["is_again"]]

    first = trials(12, 20, count=12)
    keys = {record["task_key"] for record in first}
    assert len(keys) == 2
    assert sessions[0]._others == []
    both = {state.task.key for state in sessions[0]._states}
    # One convolution is the first model's, the other one is new.
    second = trials(20, 28, count=14)
    shared = [state for state in sessions[1]._states if state.task.key in both]
    (new,) = [state for state in sessions[1]._states if state.task.key not in both]
    assert len(shared) == 1
    assert len({json.dumps([r["task_key"], r["config"]]) for r in first + second}) == len(first) + len(second)
    assert {state.task.key for state in sessions[1]._others} == keys - {shared[0].task.key}
    assert len(sessions[1]._transfer_data(new)) == 2
    # What another version wrote is left out.
    (other,) = (state.task for state in sessions[1]._others)
    (tmp_path / FOLDER_NAME / f"{other.key}.json").write_text("{}")
    with RecordStore(tmp_path) as store:
        assert other_tasks(tmp_path, store, [shared[0].task, new.task]) == []
