"""The tuning loop with a synthetic device: budgets, resuming, Ctrl-C, tasks without a working config."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from romou.base.errors import UsageError
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tuner.measure import BuildResult, DeviceFingerprint, MeasureResult
from romou.tuner.pruning.tasks import pruned_task
from romou.tuner.records import FILE_NAME, RecordStore
from romou.tuner.search import SessionHooks, TaskResult, Trial, TrialCallback, TuningOptions, TuningSession
from romou.tuner.search.explorer import EXPLORERS
from romou.tuner.search.progress import PlainProgress, Status
from support.devices import faulty_kernels
from support.devices.made_up_device import Builder, Runner
from support.kernels.operators import small_tasks
from support.suite.exhaustive import exhaustive

TARGET = Target("opencl -device=host")


def session(
    folder: Path,
    runner: Runner,
    builder: Builder | None = None,
    callback: TrialCallback | None = None,
    hooks: SessionHooks | None = None,
    **options: object,
) -> dict[str, TaskResult]:
    with RecordStore(folder) as store:
        made = TuningSession(
            small_tasks(),
            TARGET,
            store=store,
            builder=builder or Builder(),
            runner=runner,
            options=TuningOptions(**{"trials": 40, "confirm": 0, **options}),  # type: ignore[arg-type]
            hooks=hooks or SessionHooks(callback=callback),
        )
        return made.run()


def test_budget_of_trials(tmp_path: Path) -> None:
    runner = Runner()
    results = session(tmp_path, runner)
    assert len(runner.seen) == len(set(runner.seen)) == 40
    assert sum(r.trials for r in results.values()) == 40
    assert all(
        r.config is not None and r.best_ms is not None and r.default_ms is not None and r.best_ms <= r.default_ms
        for r in results.values()
    )
    # The default of every task comes before anything else.
    assert len({line.split()[0] for line in runner.seen[: len(results)]}) == len(results)


@pytest.mark.parametrize("batch_size", [4, 12])
def test_every_task_gets_a_second_config_before_one_gets_many(tmp_path: Path, batch_size: int) -> None:
    runner = Runner()
    # The made-up times of the tasks are alike.
    results = session(tmp_path, runner, trials=3 * len(small_tasks()), batch_size=batch_size)
    assert all(result.trials >= 2 for result in results.values())


def test_a_task_with_its_default_config_alone_is_not_pruned(tmp_path: Path) -> None:
    tasks = [pruned_task(task, TARGET) for task in small_tasks()]
    spaces = [task.space(TARGET) for task in tasks]
    for trials, is_pruned in ((len(tasks), False), (len(tasks) + 1, True)):
        with RecordStore(tmp_path) as store:
            options = TuningOptions(trials=trials)
            TuningSession(tasks, TARGET, store=store, builder=Builder(), runner=Runner(), options=options).run()
        assert any(space.is_pruned for space in spaces) is is_pruned


def test_budget_of_seconds(tmp_path: Path) -> None:
    start = time.monotonic()
    results = session(tmp_path, Runner(seconds=0.02), trials=10_000, hooks=SessionHooks(stop_at=start + 1.0))
    assert time.monotonic() - start < 5
    assert 3 <= sum(r.trials for r in results.values()) <= 60


def test_a_second_session_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    first, second = Runner(), Runner()
    session(tmp_path, first, trials=25)
    before = (tmp_path / FILE_NAME).read_text()
    results = session(tmp_path, second, trials=60)
    assert len(second.seen) == 35
    assert not set(first.seen) & set(second.seen)
    assert (tmp_path / FILE_NAME).read_text().startswith(before)
    assert sum(r.trials for r in results.values()) == 60


def test_a_session_in_the_middle_of_another_one_records_no_config_twice(tmp_path: Path) -> None:
    """The second one measures a config that the first has in progress. The session that finishes later keeps no record
    and has a trial left for another config.
    """
    first, second = Runner(), Runner()

    def other(trial: Trial) -> None:
        if trial.number == 5:
            session(tmp_path, second, trials=25)

    results = session(tmp_path, first, trials=40, callback=other)
    assert set(first.seen) & set(second.seen)
    records = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert len({json.dumps([r["task_key"], r["config"]]) for r in records}) == len(records) == 40
    assert sum(r.trials for r in results.values()) == 40


def test_a_spent_budget_measures_nothing(tmp_path: Path) -> None:
    session(tmp_path, Runner(), trials=30)
    runner = Runner()
    results = session(tmp_path, runner, trials=30)
    assert runner.seen == []
    assert all(r.best_ms is not None for r in results.values())


def test_records_of_another_device_do_not_count(tmp_path: Path) -> None:
    session(tmp_path, Runner(), trials=20)
    other = Runner()
    other.fingerprint = lambda: DeviceFingerprint(kind="opencl", name="another", driver="1", platform="p")  # type: ignore[method-assign]
    session(tmp_path, other, trials=20)
    assert len(other.seen) == 20


def test_interrupt_keeps_what_is_finished(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    results = session(tmp_path, Runner(fail_after=12))
    assert sum(r.trials for r in results.values()) == 12
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 12
    assert "going on with the 12 trials" in caplog.text


def test_a_bug_stops_the_session_and_loses_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        session(tmp_path, Runner(fail_after=12, error=ZeroDivisionError))
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 12


def test_excluded_configs_are_records_and_no_trials(tmp_path: Path) -> None:
    runner = Runner()
    results = session(tmp_path, runner, Builder(invalid_every=4))
    assert sum(r.trials for r in results.values()) == len(runner.seen) == 40
    excluded = sum(r.outcomes["invalid"] for r in results.values())
    assert excluded in (13, 14)
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 40 + excluded
    resumed = Runner()
    session(tmp_path, resumed, trials=44)
    assert len(resumed.seen) == 4


def test_excluded_configs_end_a_session(tmp_path: Path) -> None:
    """Where each config is excluded, as many are tried as the budget has free, and the budget."""
    results = session(tmp_path, Runner(), Builder(invalid_every=1))
    assert sum(r.outcomes.get("invalid", 0) for r in results.values()) <= 80


def test_a_task_where_nothing_works_has_no_config(tmp_path: Path) -> None:
    bad = small_tasks()[0].key
    results = session(tmp_path, Runner(wrong=bad), trials=60)
    assert results[bad].config is None
    assert results[bad].outcomes == {"wrong_result": results[bad].trials}
    assert results[bad].trials < 40
    assert all(r.config is not None for key, r in results.items() if key != bad)


def test_without_a_budget_the_defaults_stay(tmp_path: Path) -> None:
    results = session(tmp_path, Runner(), trials=0)
    assert all(r.config is not None and r.best_ms is None for r in results.values())


@pytest.mark.parametrize(
    "task",
    [faulty_kernels.faulty_task(*"abcdefghijkl"), pytest.param(faulty_kernels.task(), marks=exhaustive)],
    ids=["knob", "operator"],
)
def test_a_small_space_is_exhausted(task: TunableTask, tmp_path: Path) -> None:
    runner = Runner()
    with RecordStore(tmp_path) as store:
        options = TuningOptions(trials=100_000, patience=100_000, batch_size=64, confirm=0)
        made = TuningSession([task], TARGET, store=store, builder=Builder(), runner=runner, options=options)
        made.run()
    assert len(runner.seen) == sum(1 for _ in task.space(TARGET))


class DriftingRunner(Runner):
    """A device with a falling clock: every candidate is slower than it would have been before, except in the final
    measurements.
    """

    def __init__(self, trials: int) -> None:
        super().__init__()
        self.trials = trials

    def run(
        self, batch: Sequence[BuildResult], *, best_s: float | None = None, stop_at: float | None = None
    ) -> Iterator[MeasureResult]:
        for result in super().run(batch):
            drift = 1 + 1e-3 * len(self.seen) if len(self.seen) <= self.trials else 1.0
            yield dataclasses.replace(result, times_s=tuple(t * drift for t in result.times_s))


def test_close_calls_are_measured_again_when_the_search_is_over(tmp_path: Path) -> None:
    runner = DriftingRunner(40)
    results = session(tmp_path, runner, confirm=3)
    again, first = runner.seen[40:], runner.seen[:40]
    assert again
    assert set(again) <= set(first)
    records = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert [r["is_again"] for r in records] == [False] * 40 + [True] * len(again)
    assert sum(r.trials for r in results.values()) == 40
    for key, result in results.items():
        mine = [r for r in records if r["is_again"] and r["task_key"] == key]
        assert 2 <= len(mine) <= 4  # the default config is one of them if it is near
        best = min(mine, key=lambda r: r["times_s"])
        assert result.config is not None
        assert (dict(result.config), result.best_ms) == (best["config"], pytest.approx(best["times_s"][0] * 1e3))
    # Decisions are not repeated.
    second = Runner()
    assert {key: r.config for key, r in session(tmp_path, second, confirm=3).items()} == {
        key: r.config for key, r in results.items()
    }
    assert second.seen == []


class ColdRunner(Runner):
    """A device that is slower in repeated measurements, except for default configs."""

    def run(self, batch: Sequence[BuildResult], **how: object) -> Iterator[MeasureResult]:
        for built, result in zip(batch, super().run(batch), strict=True):
            is_slow = built.candidate.is_winner and built.candidate.config != built.candidate.task.default_config(
                TARGET
            )
            yield dataclasses.replace(result, times_s=(2 * result.times_s[0],)) if is_slow else result


def test_what_turns_out_slower_than_the_default_is_not_kept(tmp_path: Path) -> None:
    results = session(tmp_path, ColdRunner(), confirm=3)
    assert all(result.is_default and result.best_ms == result.default_ms for result in results.values())
    records = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert len({json.dumps(r["config"]) for r in records if r["is_again"]}) > len(results)


class UnstableRunner(Runner):
    """A device that changes the output of each second winner."""

    def run(self, batch: Sequence[BuildResult], **how: object) -> Iterator[MeasureResult]:
        for built, result in zip(batch, super().run(batch), strict=True):
            is_changing = built.candidate.is_winner and len(built.candidate.config.key) % 2 == 0
            yield (
                dataclasses.replace(result, outcome=Outcome.UNSTABLE, times_s=(), error="changed")
                if is_changing
                else result
            )


def test_an_unstable_winner_gives_way_to_the_next_best(tmp_path: Path) -> None:
    """The result is the fastest stable config, also for a session that continues later. Each rejected one is recorded,
    and none is built again.
    """
    builder = Builder()
    results = session(tmp_path, UnstableRunner(), builder, confirm=3)
    records = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    again = [record for record in records if record["is_again"]]
    unstable = [record for record in again if record["outcome"] == "unstable"]
    assert unstable
    assert builder.built == 40
    for key, result in results.items():
        mine = [record for record in records if record["task_key"] == key and not record["is_again"]]
        stable = [record for record in mine if len(Config(record["config"]).key) % 2]
        if not stable:
            assert result.config is None
            continue
        assert result.config is not None
        assert result.best_ms == pytest.approx(1e3 * min(record["times_s"][0] for record in stable))
        assert result.outcomes.get("unstable", 0) == sum(record["task_key"] == key for record in unstable)
    second = UnstableRunner()
    assert {key: r.config for key, r in session(tmp_path, second, confirm=3).items()} == {
        key: r.config for key, r in results.items()
    }
    assert second.seen == []


def test_no_progress_ends_the_search(tmp_path: Path) -> None:
    class Flat(Runner):
        def run(
            self, batch: Sequence[BuildResult], *, best_s: float | None = None, stop_at: float | None = None
        ) -> Iterator[MeasureResult]:
            for number, result in enumerate(super().run(batch)):
                # Half a percent faster now and then is noise.
                yield dataclasses.replace(result, times_s=(0.001 - 1e-6 * (number % 5),))

    runner = Flat()
    session(tmp_path, runner, trials=1000, no_progress=20)
    tasks = len(small_tasks())
    assert tasks + 20 <= len(runner.seen) <= tasks + 20 + 2 * TuningOptions().batch_size


def test_the_best_of_another_device_is_tried_right_after_the_default(tmp_path: Path) -> None:
    results = session(tmp_path, Runner(), trials=60)
    other = Runner()
    other.fingerprint = lambda: DeviceFingerprint(kind="opencl", name="another", driver="1", platform="p")  # type: ignore[method-assign]
    session(tmp_path, other, trials=60)
    for key, result in results.items():
        mine = [line for line in other.seen if line.startswith(key)]
        assert result.config is not None
        assert f"{key} {result.config.key}" in mine[:3]


@pytest.mark.parametrize("explorer", EXPLORERS)
def test_every_explorer_keeps_to_the_budget(tmp_path: Path, explorer: str) -> None:
    runner = Runner()
    results = session(tmp_path, runner, explorer=explorer, trials=24, batch_size=12)
    assert len(set(runner.seen)) == 24
    assert all(r.config is not None for r in results.values())


def test_an_explorer_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="anealing") as raised:
        TuningOptions(explorer="anealing")
    assert "annealing" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("name", "value"),
    [("no_progress", 0), ("confirm", -1), ("trials", -1), ("batch_size", 0), ("seed", -2)],
)
def test_options_are_checked(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        TuningOptions(**{name: value})


def test_lines_of_progress(capsys: pytest.CaptureFixture[str]) -> None:
    progress = PlainProgress(every_s=0)
    progress.start(3, 10)
    progress.update(
        Status(task="conv", outcome="ok", best_ms=1.5, gflops=12.34, model_ms=20.0, done=4, total=10, seconds_left=59.2)
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "3 of 10 trials are in the records",
        "[4/10] conv: best 1.500 ms, 12.3 GFLOPS; all layers 20.00 ms; 6 trials, 60 s left",
    ]
