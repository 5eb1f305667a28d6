"""A work_dir of several models: shared tasks are measured once, and each model learns from the others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import romou
from romou.tuner.records import FILE_NAME, RecordStore
from romou.tuner.records.task_files import FOLDER_NAME, other_tasks
from romou.tuner.search import TuningSession
from support.models.small_networks import NetworkBuilder


def model(*outputs: int) -> Any:
    """Return a model with a convolution for each of `outputs`, all of the same input."""
    graph = NetworkBuilder({"x": (1, 8, 9, 9)})
    return graph.model(*[graph.conv("x", 8, count, pads=[1, 1, 1, 1]) for count in outputs])


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[TuningSession]:
    """Return the searches in the order of their starts."""
    found: list[TuningSession] = []
    run = TuningSession.run
    monkeypatch.setattr(TuningSession, "run", lambda self, *how: found.append(self) or run(self, *how))  # type: ignore[func-returns-value]
    return found


def first_trials(folder: Path) -> list[dict[str, Any]]:
    """Return the records without second measurements."""
    return [
        record for record in map(json.loads, (folder / FILE_NAME).read_text().splitlines()) if not record["is_again"]
    ]


def test_two_models_tuned_at_the_same_time_learn_from_each_other(tmp_path: Path, sessions: list[TuningSession]) -> None:
    """A second tuner starts after the third trial of the first and ends before its fourth. No config is measured twice,
    and each has all records.
    """

    def second(trial: romou.Trial) -> None:
        if trial.number == 3:
            romou.tune(model(20, 28), target="null", trials=6, work_dir=tmp_path)

    romou.tune(model(12, 20), target="null", trials=10, work_dir=tmp_path, callback=second)
    one, other = sessions
    records = first_trials(tmp_path)
    assert len({json.dumps([r["task_key"], r["config"]]) for r in records}) == len(records)
    own, others = ({state.task.key for state in session._states} for session in sessions)
    (shared,) = own & others
    assert {state.task.key for state in one._others} == others - {shared}
    assert {state.task.key for state in other._others} == own - {shared}
    # Trials of the kernel that both have count for both.
    counts = {key: sum(record["task_key"] == key for record in records) for key in own | others}
    assert {state.task.key: len(state.measured) for state in (*one._states, *one._others)} == counts
    assert (one.done, other.done, sum(counts[key] for key in own)) == (10, 6, 10)


def test_a_second_model_learns_from_the_first(tmp_path: Path, sessions: list[TuningSession]) -> None:
    def trials(*outputs: int, count: int) -> list[dict[str, Any]]:
        before = len(first_trials(tmp_path)) if (tmp_path / FILE_NAME).exists() else 0
        romou.tune(model(*outputs), target="null", trials=count, work_dir=tmp_path)
        return first_trials(tmp_path)[before:]

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
        assert other_tasks(tmp_path, Counter(record.task_key for record in store if record.task_key == other.key)) == []
