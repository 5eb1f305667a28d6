"""AutoTVM's measurements as recorded spaces, one file for each task.

Knobs are AutoTVM's. A split of an axis is a knob for each size but the first, which follows from the others:
"tile_x.1", "tile_x.2". `context["equivalents"]` has Romou's config with the same kernel by the index of a config, if
there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from romou.base.errors import RecordError, UsageError
from romou.base.foreign import refused
from romou.base.knob import Choice
from romou.base.space import Config
from romou.devices.targets import Target
from romou.tuner.records.autotvm import AutotvmTask, read_autotvm
from romou.tuner.records.autotvm_kernels import equivalent, kernel_of
from romou.tuner.records.recorded_space import RecordedConfig, RecordedSpace


def import_autotvm(path: Path, folder: Path, gpu: str = "") -> list[RecordedSpace]:
    """Write AutoTVM's measurements to `folder` as recorded spaces, and return these.

    gpu: name of the device if the file does not give it

    Raises
    ------
    RecordError
        The file is damaged, or cannot be written.
    UsageError
        Nothing names the device, or there are no facts of it.
    """
    spaces: dict[str, RecordedSpace] = {}
    for task in read_autotvm(path, gpu):
        if not task.gpu:
            raise UsageError(f"{path}: does not say on which GPU {task.template} was measured", hint="Give --gpu.")
        with refused(RecordError, f"{path}: {task.template}: cannot read its knobs"):
            space = recorded_space(task)
        # Operators that differ in padding only have one name.
        count = sum(name.partition("-")[0] == space.name for name in spaces)
        space.name += f"-{count + 1}" if count else ""
        spaces[space.name] = space
    for name, space in spaces.items():
        space.start(RecordedSpace.path_in(folder, name))
    return list(spaces.values())


def recorded_space(task: AutotvmTask) -> RecordedSpace:
    """Return the measurements of a task as a recorded space, whose choices are the recorded values."""
    configs = [_numbers(measurement.knobs) for measurement in task.measurements]
    knobs: dict[str, tuple[Choice, ...]] = {
        name: tuple(sorted({config[name] for config in configs}, key=lambda value: (str(type(value)), value)))
        for name in configs[0]
    }
    operator = {} if task.task is None or task.work is None else {
        "key": task.task.key, "flops": task.task.flops, "workload": task.work.to_dict()
    }  # fmt: skip
    recorded = RecordedSpace(
        name=f"{task.gpu}_{task.name}",
        task={"name": task.name, **operator},
        knobs=knobs,
        device={"kind": _target_of(task).kind, "name": task.gpu},
        context={"source": "AutoTVM", "template": task.template, "accumulate": task.sums, "layout": task.layout},
    )
    space = recorded.space()
    indices = [space.index_of(config) for config in configs]
    for index, measurement in zip(indices, task.measurements, strict=True):
        recorded.configs[index] = RecordedConfig(index=index, outcome=measurement.outcome, times_s=measurement.times_s)
    same = zip(indices, equivalents(task), strict=True)
    recorded.context["equivalents"] = {str(index): dict(config) for index, config in same if isinstance(config, Config)}
    recorded.context["default"] = indices[0]
    return recorded


def equivalents(task: AutotvmTask) -> list[Config | str]:
    """Return Romou's config with the same kernel for each measurement, or the reason why there is none."""
    if task.task is None:
        return ["Romou has no template for the operator"] * len(task.measurements)
    space = task.task.space(_target_of(task))
    return [equivalent(kernel_of(task, measurement.knobs), space) for measurement in task.measurements]


def _target_of(task: AutotvmTask) -> Target:
    return Target(f"opencl -device={task.gpu}")


def _numbers(knobs: Mapping[str, Any]) -> dict[str, Choice]:
    """Return AutoTVM's knobs with one number or text each."""
    numbers: dict[str, Choice] = {}
    for name, value in knobs.items():
        if isinstance(value, list) and name.startswith("tile_"):
            numbers |= {f"{name}.{place}": size for place, size in enumerate(value[1:], 1)}
        else:
            numbers[name] = ",".join(map(str, value)) if isinstance(value, list) else value
    return numbers
