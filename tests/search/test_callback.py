"""A callback sees each finished trial, may end the search, and may fail without losing a record."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.devices.targets import Target
from romou.tuner.measure import BuildResult, MeasureResult
from romou.tuner.records import Record, RecordStore
from romou.tuner.search import SessionHooks, TaskResult, Trial, TrialCallback, TuningOptions, TuningSession
from support.devices.made_up_device import Builder, Runner
from support.kernels.operators import small_tasks


class WideRunner(Runner):
    """Four devices at a time, each trial of some length."""

    width = 4  # type: ignore[assignment]

    def run(
        self, batch: Sequence[BuildResult], *, best_s: float | None = None, stop_at: float | None = None
    ) -> Iterator[MeasureResult]:
        time.sleep(0.02)
        return super().run(batch, best_s=best_s, stop_at=stop_at)


def run(folder: Path, runner: Runner, callback: TrialCallback, *, trials: int = 40) -> dict[str, TaskResult]:
    with RecordStore(folder) as store:
        options = TuningOptions(trials=trials, confirm=0)
        made = TuningSession(
            small_tasks(),
            Target("opencl -device=host"),
            store=store,
            builder=Builder(5),
            runner=runner,
            options=options,
            hooks=SessionHooks(callback=callback),
        )
        return made.run()


def records(folder: Path) -> list[Record]:
    with RecordStore(folder) as store:
        return list(store)


def test_it_sees_every_trial(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And -v, which prints this level, has a line for each."""
    caplog.set_level(logging.INFO, "romou")
    seen: list[Trial] = []
    run(tmp_path, Runner(), seen.append)
    kept = records(tmp_path)
    lines = [line for line in caplog.messages if line.startswith("trial ")]
    assert lines == [
        f"trial {t.number}: {t.task}, {f'{1e3 * t.time_s:.4f} ms' if t.time_s else t.outcome.value}, {Config(t.config)}"
        for t in seen
    ]
    assert [trial.number for trial in seen] == list(range(1, len(seen) + 1))
    assert sum(trial.outcome is not Outcome.INVALID for trial in seen) == 40
    assert [(t.task, t.config, t.outcome, t.time_s, t.error) for t in seen] == [
        (r.task_name, r.config, r.outcome, r.time_s, r.error) for r in kept
    ]
    assert {trial.outcome for trial in seen} == {Outcome.OK, Outcome.INVALID}
    best: dict[str, float] = {}
    for trial, record in zip(seen, kept, strict=True):
        if trial.time_s is not None:
            best[record.task_key] = min(trial.time_s, best.get(record.task_key, trial.time_s))
        assert trial.best_s == best.get(record.task_key)
    # Each task is called once here: the model's time is the sum of their best ones, once all have one.
    tasks = {task.key for task in small_tasks()}
    assert {task.calls for task in small_tasks()} == {1}
    assert seen[0].model_s is None
    assert best.keys() == tasks
    assert seen[-1].model_s == pytest.approx(sum(best.values()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen[0].number = 2  # type: ignore[misc]


@pytest.mark.parametrize("kind", [Runner, WideRunner])
def test_true_ends_the_search(kind: type[Runner], tmp_path: Path) -> None:
    runner, numbers = kind(), []

    def callback(trial: Trial) -> bool:
        numbers.append(trial.number)
        return trial.number == 7

    results = run(tmp_path, runner, callback)
    assert numbers == list(range(1, 8))
    # Trials that ran at the same time on other devices are kept, no others.
    assert len(runner.seen) <= 7 + runner.width - 1
    kept = records(tmp_path)
    assert len(kept) >= 7
    assert sum(r.trials for r in results.values()) == sum(r.outcome is not Outcome.INVALID for r in kept)


@pytest.mark.parametrize("kind", [Runner, WideRunner])
def test_an_exception_loses_nothing(kind: type[Runner], tmp_path: Path) -> None:
    runner = kind()

    def callback(trial: Trial) -> None:
        if trial.number == 7:
            raise RuntimeError("the caller's own bug")

    with pytest.raises(RuntimeError, match="the caller's own bug"):
        run(tmp_path, runner, callback)
    kept = records(tmp_path)
    measured = [record for record in kept if record.outcome is not Outcome.INVALID]
    assert len(kept) >= 7
    assert len(measured) == len(runner.seen)
    # The next run continues from them.
    again = Runner()
    results = run(tmp_path, again, lambda trial: None, trials=20)
    assert sum(r.trials for r in results.values()) == 20
    assert not set(again.seen) & set(runner.seen)
