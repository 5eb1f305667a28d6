"""A tuned model is never slower than the one with default configs, whatever times its single kernels had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import romou
from romou.base.device_lock import device_lock, lock_path
from romou.base.space import Config
from romou.driver import model
from romou.driver.choice import finalist, finish
from romou.driver.search.course import Course
from romou.runtime.module import Timed
from romou.tuner.search import TaskResult, TuningSession
from support.models.small_networks import NetworkBuilder, short_net


def tuned_with(
    monkeypatch: pytest.MonkeyPatch, times_ms: Sequence[float], layers: Sequence[Timed] = (), convs: int = 1
) -> tuple[romou.TunedModel, dict[str, Config]]:
    """Return a model and the default configs. Its search found another config for each task, with half the measured
    time.

    times_ms: of the models that are made, in order, the default one first.
    layers: times of the first tasks in the model. Without an entry, the table has the search's times.
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
    make = model.tuned_model

    def tuned_model(*arguments: Any) -> romou.TunedModel:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(TuningSession, "run", run)
    monkeypatch.setattr(finalist, "tuned_model", tuned_model)
    # A busy machine searches for longer, and has more time for this.
    monkeypatch.setattr(Course, "may_choose", lambda _: lambda: False)
    monkeypatch.setattr(romou.TunedModel, "times", lambda self, *, repeat: [times_ms[made.index(self)]] * repeat)
    monkeypatch.setattr(finalist, "time_layers", lambda *_: dict(zip(defaults, layers, strict=False)))
    graph, x = NetworkBuilder({"x": (1, 8, 9, 9)}), "x"
    for number in range(convs):
        x = graph.conv(x, 8 + number, 9 + number)
    tuned = romou.tune(graph.model(x), target="null", trials=2 * convs, work_dir=False)
    assert len(made) == len(times_ms)
    return tuned, defaults


def layer(default_ms: float, tuned_ms: float) -> Timed:
    return Timed(default_ms=default_ms, tuned_ms=tuned_ms)


def has_own_config(model: romou.TunedModel, defaults: dict[str, Config]) -> list[bool]:
    configs = {row.key: row.config for row in model.summary().rows}
    return [configs[key] != dict(default) for key, default in defaults.items()]


def test_what_does_not_help_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, defaults = tuned_with(monkeypatch, [3.0, 3.2])
    summary = model.summary()
    assert (summary.default_ms, summary.tuned_ms) == (3.0, 3.0)
    rows = [row for row in summary.rows if row.key in defaults]
    assert [(row.config, row.tuned_ms, row.speedup) for row in rows] == [
        (dict(config), 2.0, None) for config in defaults.values()
    ]
    assert summary.is_right


def test_what_helps_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, defaults = tuned_with(monkeypatch, [3.0, 2.9])
    summary = model.summary()
    assert (summary.default_ms, summary.tuned_ms) == (3.0, 2.9)
    assert [row.speedup for row in summary.rows if row.key in defaults and row.config != dict(defaults[row.key])] == [
        2.0
    ] * len(defaults)


def test_a_kernel_that_is_slower_beside_its_default_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [layer(2.0, 1.5), layer(2.0, 2.1), layer(2.0, 1.8)]
    model, defaults = tuned_with(monkeypatch, [3.0, 9.9, 2.9], layers, convs=3)
    assert has_own_config(model, defaults) == [True, False, True]
    summary = model.summary()
    assert (summary.default_ms, summary.tuned_ms) == (3.0, 2.9)
    times = {row.key: (row.default_ms, row.tuned_ms) for row in summary.rows}
    assert [times[key] for key in defaults] == [(2.0, 1.5), (2.0, 2.0), (2.0, 1.8)]


def test_the_half_that_saves_the_most_is_tried_before_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [layer(2.0, 1.9), layer(2.0, 1.0), layer(2.0, 1.8), layer(2.0, 1.5)]
    model, defaults = tuned_with(monkeypatch, [3.0, 3.2, 2.8], layers, convs=4)
    assert has_own_config(model, defaults) == [False, True, False, True]
    assert (model.summary().default_ms, model.summary().tuned_ms) == (3.0, 2.8)


def test_the_defaults_are_kept_where_no_part_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [layer(2.0, 1.9), layer(2.0, 2.0), layer(2.0, 1.8)]
    model, defaults = tuned_with(monkeypatch, [3.0, 3.1, 3.2, 3.3], layers, convs=3)
    assert has_own_config(model, defaults) == [False, False, False]
    assert (model.summary().default_ms, model.summary().tuned_ms) == (3.0, 3.0)


def test_no_other_process_times_between_the_timings_of_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    path = lock_path("cpu")
    assert path is not None
    held: dict[str, list[bool]] = {}

    def noting(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            held.setdefault(name, []).append(device_lock(path)._depth > 0)
            return call(*arguments, **named)

        monkeypatch.setattr(owner, name, noted)

    for owner, name in (
        (romou.TunedModel, "times"),
        (romou.TunedModel, "operator_timer"),
        (finish, "check_stability"),
        (finalist, "check_outputs"),
    ):
        noting(owner, name)
    romou.tune(short_net(), target="null", trials=2, work_dir=False)
    assert held.pop("check_outputs") == [False]  # onnxruntime would keep the device from others
    assert held.keys() == {"times", "operator_timer", "check_stability"}
    assert all(all(each) for each in held.values()), held
