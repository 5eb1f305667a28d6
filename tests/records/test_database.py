"""Tuned schedules: the files that ship are valid, a search starts with them, and users' records become such files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

import romou
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.cli import main
from romou.compiler.operators.families import workload_of as parse_workload
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tuner.records import FILE_NAME, Record, RecordStore
from romou.tuner.records.database import (
    SHIPPED,
    SUFFIX,
    ScheduleDatabase,
    TunedSchedule,
    best_schedules,
    distance,
    file_of,
    merged,
    read_schedules,
    workload_of,
    write_schedules,
)
from romou.tuner.records.task_files import keep_tasks
from romou.tuner.search import PriorKnowledge, TuningOptions, TuningSession
from support.devices.made_up_device import Builder, Runner

TARGET = Target("opencl -device=host")
DEVICE = Runner().fingerprint().to_dict()
FILES = sorted(SHIPPED.glob(f"*{SUFFIX}"))


def small(channels: int = 16, **given: object) -> TunableTask:
    return task_of(conv(channels, (8, 8), 16, (1, 1), **given))


def schedule_of(task: TunableTask, config: Config, time_s: float = 1e-3) -> TunedSchedule:
    record = Record(
        task_key=task.key,
        task_name=task.name,
        config=dict(config),
        device=DEVICE,
        outcome=Outcome.OK,
        times_s=(time_s,),
    )
    return TunedSchedule(record=record, family=task.family, workload=workload_of(task), source="a test")


def other_config(task: TunableTask) -> Config:
    default = task.default_config(TARGET)
    return next(config for config in task.space(TARGET) if config != default)


def database(folder: Path, *schedules: TunedSchedule) -> ScheduleDatabase:
    write_schedules(file_of(folder, DEVICE), schedules)
    return ScheduleDatabase(folder)


def first_trials(folder: Path, task: TunableTask, schedules: ScheduleDatabase | None) -> list[Config]:
    with RecordStore(folder) as store:
        TuningSession(
            [task],
            TARGET,
            store=store,
            builder=Builder(),
            runner=Runner(),
            options=TuningOptions(trials=4, confirm=0),
            prior=PriorKnowledge(database=schedules),
        ).run()
        return [Config(record.config) for record in store]


def starts(made: ScheduleDatabase, task: TunableTask, **device: object) -> list[Config]:
    return made.starts(task, task.space(TARGET), task.default_config(TARGET), {**DEVICE, **device})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_schedules_are_valid(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    schedules = read_schedules(path)
    assert schedules
    assert not caplog.records
    assert len(schedules) == len(path.read_text(encoding="utf-8").splitlines()) == len(merged((), schedules))
    for number, schedule in enumerate(schedules):
        # Other tools' files have hundreds of lines.
        if schedule.is_foreign and number % 24:
            continue
        assert file_of(SHIPPED, schedule.record.device) == path
        assert schedule.record.time
        assert schedule.source
        assert schedule.record.device["driver"]
        target = Target(schedule.record.target)
        # An unnamed device has the limits of the attached one.
        if not schedule.workload or target.device_name is None or schedule.family == "depthwise_pointwise":
            continue
        plain = task_of(parse_workload(dict(schedule.workload)))
        task = plain if schedule.record.task_key == plain.key else plain.with_free_images()
        assert task.family == schedule.family
        assert task.name == schedule.record.task_name
        if task.key == schedule.record.task_key:
            config, space = Config(schedule.record.config), task.space(target)
            assert space.knows(config), schedule.record.task_name
            assert space.is_valid(config), schedule.record.task_name


@pytest.mark.parametrize(("gpu", "near"), [("adreno660", 660), ("adreno642l", 660), ("adreno750", 740)])
def test_a_phone_starts_with_the_best_kernel_of_another_tool(gpu: str, near: int) -> None:
    shipped = read_schedules(SHIPPED / f"adreno_{near}.jsonl")
    target = Target(f"opencl -device={gpu}")
    for schedule in shipped[:: len(shipped) // 4]:
        assert schedule.measured_by == "autotvm"
        task = task_of(parse_workload(dict(schedule.workload)))
        default, space = task.default_config(target), task.space(target)
        device = {"kind": "opencl", "name": "QUALCOMM Adreno(TM)"}
        (start,) = ScheduleDatabase().starts(task, space, default, device, gpu)
        assert schedule.record.config.items() <= dict(start).items()
        assert space.is_valid(start)


def test_only_a_gpu_that_is_named_has_a_near_one() -> None:
    task = small()
    for gpu in (None, "host", "mali_g76", "nvidia_h200"):
        assert ScheduleDatabase().starts(task, task.space(TARGET), task.default_config(TARGET), {}, gpu) == []


def test_schedules_ship() -> None:
    assert "nvidia_h200" in [path.stem for path in FILES]


def test_a_schedule_is_the_first_candidate_after_the_default(tmp_path: Path) -> None:
    task = small()
    tuned = other_config(task)
    trials = first_trials(tmp_path / "with", task, database(tmp_path, schedule_of(task, tuned)))
    assert trials[:2] == [task.default_config(TARGET), tuned]
    assert first_trials(tmp_path / "without", task, None)[1] != tuned


def test_the_same_operator_with_another_epilogue(tmp_path: Path) -> None:
    plain = task_of(conv(16, (8, 8), 16, (1, 1)), has_epilogue=False)
    task = small()
    assert plain.key != task.key
    assert starts(database(tmp_path, schedule_of(plain, other_config(plain))), task) == [other_config(plain)]


def test_the_most_similar_operator(tmp_path: Path) -> None:
    near, far, task = small(32), small(128), small(16)
    near_config, *_, far_config = itertools.islice(near.space(TARGET), 1, 50)
    made = database(tmp_path, schedule_of(far, far_config), schedule_of(near, near_config))
    assert starts(made, task) == [near_config]
    kept = database(tmp_path / "exact", schedule_of(near, near_config), schedule_of(task, far_config))
    assert starts(kept, task) == [far_config]


def test_too_different_operators_are_left_out(tmp_path: Path) -> None:
    other, task = small(2048), small(16)
    assert starts(database(tmp_path, schedule_of(other, other_config(other))), task) == []
    assert distance(workload_of(small(16)), workload_of(small(16, dtype="float16"))) == float("inf")
    assert distance(workload_of(small(15)), workload_of(small(31))) == 1.0


def test_a_schedule_is_of_a_device_whatever_its_driver(tmp_path: Path) -> None:
    task = small()
    made = database(tmp_path, schedule_of(task, other_config(task)))
    assert starts(made, task, driver="another one") == [other_config(task)]
    assert starts(made, task, kind="cuda") == starts(made, task, platform="another one") == []
    assert starts(made, task, name="another one") == []


def test_choices_that_the_space_lacks_are_replaced(tmp_path: Path) -> None:
    task = small()
    config = other_config(task)
    odd = Config({**{k: v for k, v in config.items() if k != "unroll"}, "wg_w": 10**6, "gone": 1})
    (fitted,) = starts(database(tmp_path, schedule_of(task, odd)), task)
    assert task.space(TARGET).knows(fitted)
    assert fitted["wg_w"] == max(task.space(TARGET).knobs["wg_w"])
    assert fitted["unroll"] == task.default_config(TARGET)["unroll"]


def test_damaged_lines_are_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = small()
    good = schedule_of(task, other_config(task))
    failed = {**json.loads(good.to_line()), "outcome": "timeout"}
    newer = {**json.loads(good.to_line()), "schema": 99}
    lines = [good.to_line(), "{", json.dumps(failed), json.dumps(newer), "\xff", good.to_line()[:-20]]
    path = file_of(tmp_path, DEVICE)
    path.write_text("\n".join(lines), encoding="latin-1")
    with caplog.at_level(logging.WARNING, "romou"):
        assert read_schedules(path) == (good,)
    assert [f"{path}:{number}: this tuned schedule is skipped" in caplog.text for number in range(1, 7)] == (
        [False] + [True] * 5
    )


def test_the_last_time_of_a_config_counts() -> None:
    task = small()
    slow, fast = other_config(task), task.default_config(TARGET)
    records = [schedule_of(task, fast, 1e-3).record, schedule_of(task, slow, 2e-3).record]
    again = dataclasses.replace(schedule_of(task, fast, 3e-3).record, is_again=True)
    (best,) = best_schedules([*records, again], {task.key: task})
    assert Config(best.record.config) == slow
    assert (best.family, best.workload) == (task.family, workload_of(task))


def test_of_two_schedules_the_faster_one_stays() -> None:
    task = small()
    slow, fast = schedule_of(task, other_config(task), 2e-3), schedule_of(task, task.default_config(TARGET))
    assert merged([slow], [fast]) == merged([fast], [slow]) == [fast]
    assert merged([fast], [schedule_of(small(32), other_config(small(32)))])[0] == fast


def test_contributed_records_are_a_database(tmp_path: Path) -> None:
    task = small()
    config = other_config(task)
    with RecordStore(tmp_path / "work") as store:
        store.append(schedule_of(task, task.default_config(TARGET), 2e-3).record)
        store.append(schedule_of(task, config).record)
    keep_tasks(tmp_path / "work", [task])
    path = file_of(tmp_path / "offered", DEVICE)
    for _ in range(2):
        done = CliRunner().invoke(main, ["records", "--contribute", str(path), "--work-dir", str(tmp_path / "work")])
        assert done.exit_code == 0, done.output
        assert "1 kernels in the records" in done.output
    (schedule,) = read_schedules(path)
    assert schedule.family == task.family
    assert schedule.source == "romou tune, 2 configs"
    assert starts(ScheduleDatabase(tmp_path / "offered"), task) == [config]
    # A line of the database is a record.
    (tmp_path / "again").mkdir()
    path.rename(tmp_path / "again" / FILE_NAME)
    with RecordStore(tmp_path / "again") as store:
        assert [Config(record.config) for record in store] == [config]


def test_one_file_for_each_device(tmp_path: Path) -> None:
    task = small()
    record = schedule_of(task, other_config(task)).record
    with RecordStore(tmp_path) as store:
        store.append(record)
        store.append(dataclasses.replace(record, device={**DEVICE, "name": "another one"}))
    done = CliRunner().invoke(main, ["records", "--contribute", str(tmp_path / "x.jsonl"), "--work-dir", str(tmp_path)])
    assert done.exit_code != 0
    assert "would hold schedules of 2 devices" in str(done.output) + str(done.exception)


@pytest.mark.parametrize("is_used", [True, False])
def test_tune_tries_the_database_unless_it_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_used: bool
) -> None:
    asked: list[str] = []

    class Watched(ScheduleDatabase):
        def starts(self, task: TunableTask, *_: object) -> list[Config]:  # type: ignore[override]
            asked.append(task.name)
            return []

    monkeypatch.setattr("romou.driver.search.model_search.ScheduleDatabase", Watched)
    model = romou.operators.conv2d(in_channels=64, size=16, out_channels=64, kernel=3)
    romou.tune(model, target="opencl -device=host", trials=1, work_dir=tmp_path, database=is_used)
    assert bool(asked) == is_used
