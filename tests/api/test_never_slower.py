"""A tuned model is never slower than the one with default configs, whatever times its single kernels had."""

from __future__ import annotations

from typing import Any

import pytest

import romou
from romou.base.space import Config
from romou.driver import finish
from romou.tuner.search import TaskResult, TuningSession
from support.models.small_networks import NetworkBuilder


def tuned_with(
    monkeypatch: pytest.MonkeyPatch, *, default_ms: float, tuned_ms: float
) -> tuple[romou.TunedModel, dict[str, Config]]:
    """Return a model and the default configs. Its search found another config for each task, with half the measured
    time.
    """
    defaults: dict[str, Config] = {}

    def run(self: TuningSession, _progress: Any) -> dict[str, TaskResult]:
        found = {}
        for state in self._states:
            other = next(config for config in state.space if config != state.default)
            defaults[state.task.key] = state.default
            found[state.task.key] = TaskResult(
                task_key=state.task.key,
                config=other,
                best_ms=1.0,
                default_ms=2.0,
                is_default=False,
                trials=2,
                outcomes={"ok": 2},
            )
        return found

    made: list[romou.TunedModel] = []
    make = finish.tuned_model

    def tuned_model(*arguments: Any) -> romou.TunedModel:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(TuningSession, "run", run)
    monkeypatch.setattr(finish, "tuned_model", tuned_model)
    monkeypatch.setattr(
        romou.TunedModel, "times", lambda self, *, repeat: [default_ms if self is made[0] else tuned_ms] * repeat
    )
    # The table has the search's times if a kernel is not timed in the model.
    monkeypatch.setattr(finish, "time_layers", lambda *_: {})
    graph = NetworkBuilder({"x": (1, 8, 9, 9)})
    model = romou.tune(graph.model(graph.conv("x", 8, 12)), target="null", trials=2, work_dir=False)
    assert len(made) == 2
    return model, defaults


def test_what_does_not_help_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, defaults = tuned_with(monkeypatch, default_ms=3.0, tuned_ms=3.2)
    summary = model.summary()
    assert (summary.default_ms, summary.tuned_ms) == (3.0, 3.0)
    rows = [row for row in summary.rows if row.key in defaults]
    assert [(row.config, row.tuned_ms, row.speedup) for row in rows] == [
        (dict(config), 2.0, 1.0) for config in defaults.values()
    ]
    assert summary.is_right


def test_what_helps_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, defaults = tuned_with(monkeypatch, default_ms=3.0, tuned_ms=2.9)
    summary = model.summary()
    assert (summary.default_ms, summary.tuned_ms) == (3.0, 2.9)
    assert [row.speedup for row in summary.rows if row.key in defaults and row.config != dict(defaults[row.key])] == [
        2.0
    ] * len(defaults)
