"""Synthetic recordings and records of searches."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from romou.base.outcome import Outcome
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tuner.records.record import Record
from romou.tuner.records.recorded_space import RecordedConfig, RecordedSpace
from romou.tuner.records.store import RecordStore
from romou.tuner.records.task_files import keep_tasks

TARGET = Target("opencl -device=host")


def recorded(count: int = 60, name: str = "made up", is_host_cpu: bool = False) -> RecordedSpace:
    """Return a synthetic recording of random configs of a real operator. Every seventh config fails."""
    work = conv(16, (7, 7), 16, (1, 1))
    task = task_of(work).with_free_images()
    space, default = task.space(TARGET), task.default_config(TARGET)
    numbers = random.Random(3)
    indices = list(
        dict.fromkeys(
            [space.index_of(default), *(space.index_of(c) for c in space.sample(np.random.default_rng(5), count))]
        )
    )[:count]
    made = RecordedSpace(
        name="conv",
        task={"key": task.key, "workload": work.to_dict()},
        knobs=space.knobs,
        device={"kind": "opencl", "name": name, "driver": "1", "platform": "p", "is_host_cpu": is_host_cpu},
        context={"default": indices[0], "limits": dataclasses.asdict(TARGET.limits)},
    )
    for place, index in enumerate(indices):
        times = (1e-6 * numbers.uniform(1, 9),) * 3
        outcome = "build_error" if place % 7 == 3 else "run_error" if place % 7 == 5 else "ok"
        made.configs[index] = RecordedConfig(
            index=index, outcome=outcome, times_s=times if outcome == "ok" else (), build_s=0.5, run_s=0.25
        )
    return made


def searched(folder: Path, tasks: Sequence[TunableTask], device: str = "made up") -> list[Record]:
    """Write and return what a search of tasks leaves in a folder.

    The default config of task n (from 1) has two records, of 0.9 n and 1.1 n microseconds.
    """
    keep_tasks(folder, tasks)
    store = RecordStore(folder)
    for number, task in enumerate(tasks, start=1):
        config = dict(task.default_config(TARGET))
        for time_s in (number * 0.9e-6, number * 1.1e-6):
            store.append(
                Record(
                    task_key=task.key,
                    task_name=task.name,
                    config=config,
                    device={"name": device},
                    outcome=Outcome.OK,
                    times_s=(time_s,),
                )
            )
    return list(store)
