"""Synthetic recordings, for tests of simulations."""

from __future__ import annotations

import dataclasses
import random

import numpy as np

from romou.compiler.single_operator import conv, task_of
from romou.devices.targets import Target
from romou.tuner.records.recorded_space import RecordedConfig, RecordedSpace

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
