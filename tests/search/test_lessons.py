"""What tasks teach each other: features that mean the same for every task, and records of other tasks and devices that make a model before the first trial."""

from __future__ import annotations

import numpy as np
import pytest
from operators import small_tasks
from recordings import recorded

from romou.records import MemoryRecords, Origin, Record
from romou.search import TuningOptions, TuningSession
from romou.search.cost_model import CostModel, Lessons, scores
from romou.search.features import TaskFeatures
from romou.search.replay import ReplayDevice, ReplayTask
from romou.target import Target

TARGET = Target("opencl -device=host")


def test_features_of_all_tasks_have_the_same_columns() -> None:
    widths = set()
    for task in small_tasks():
        features = TaskFeatures(task.template, task.limits(TARGET))
        configs = task.space(TARGET).sample(np.random.default_rng(0), 9)
        rows = features(configs)
        assert np.isfinite(rows).all()
        assert np.array_equal(features(configs[::-1]), rows[::-1])
        widths.add(rows.shape[1])
    assert len(widths) == 1


def test_scores() -> None:
    assert scores([2.0, 1.0, None, 1000.0]) == pytest.approx(-np.log([2, 1, 32, 32]))
    assert scores([None]) == pytest.approx([-np.log(32)])


def test_too_little_teaches_nothing() -> None:
    lessons = Lessons()
    lessons.add(np.zeros((3, 2)), [1.0, 2.0, 3.0])
    lessons.add(np.zeros((8, 2)), [None] * 7 + [1.0])
    assert lessons.joined() is None


def test_a_model_knows_what_other_tasks_taught() -> None:
    task = small_tasks()[0]
    features = TaskFeatures(task.template, task.limits(TARGET))
    configs = task.space(TARGET).sample(np.random.default_rng(0), 80)
    lessons = Lessons()
    lessons.add(features(configs[:60]), [float(c["tile_w"]) for c in configs[:60]])
    model = CostModel(features)
    model.fit([], [], lessons)
    predicted, wide = model.predict(configs[60:]), np.array([float(c["tile_w"]) for c in configs[60:]])
    assert np.corrcoef(predicted, -np.log(wide))[0, 1] > 0.8


def test_records_of_another_device_are_where_the_search_begins() -> None:
    made = recorded(200)
    task = ReplayTask.of_recording(made)
    best = min((i for i, c in made.configs.items() if c.time_s), key=lambda i: made.configs[i].time_s or 0.0)
    elsewhere = Origin.here({**made.device, "name": "another"})

    def tried(store: MemoryRecords) -> list[int]:
        device, before = ReplayDevice([task]), len(list(store))
        options = TuningOptions(trials=40, confirm=0)
        TuningSession([task], TARGET, store=store, builder=device, runner=device, options=options, clock=device.clock).run()
        return [made.space().index_of(r.config) for r in list(store)[before:]]

    warm = MemoryRecords()
    for index, found in made.configs.items():
        if found.outcome == "ok":
            config = dict(made.space().at(index))
            warm.append(
                Record(
                    task_key=task.key,
                    task_name="",
                    config=config,
                    outcome="ok",
                    times_s=found.times_s,
                    device=elsewhere.device,
                    romou=elsewhere.romou,
                    tvm=elsewhere.tvm,
                )
            )
    cold = tried(MemoryRecords())
    found = tried(warm)
    assert len(found) == len(cold) == 40
    assert best in found
