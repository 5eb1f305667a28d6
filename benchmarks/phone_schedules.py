"""Writes the tuned schedules of phones that follow from AutoTVM's measurements: the best kernel of each layer.

    python benchmarks/phone_schedules.py adreno_autotvm.jsonl.gz

writes schedules/adreno_660.jsonl and the same for other GPUs of the file. The times are of AutoTVM's kernels, so each
line is marked `measured_by: autotvm`. schedules/README.md describes the files.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from phone_tasks import PhoneTask, load_tasks
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.compiler.operators.algorithms.algorithm import DIRECT
from romou.compiler.operators.costs.criteria import Choices, judge
from romou.devices.targets import Target
from romou.tools.report.table import table_of_numbers
from romou.tuner.records import Record
from romou.tuner.records.autotvm import AutotvmTask
from romou.tuner.records.autotvm_kernels import ForeignKernel
from romou.tuner.records.database import SHIPPED, SUFFIX, TunedSchedule, workload_of, write_schedules

SOURCE = "Deelvin/qualcomm and octoml/qualcomm, Apache-2.0"
# Shorter times are mostly launches and copies.
LEAST_S = 1e-4
# What a config of AutoTVM says about Romou's kernel. Other knobs are left to Romou's default.
_SIDES = ("tile_o", "tile_h", "tile_w", "wg_o", "wg_h", "wg_w")
_SAID = ("algorithm", "pixels", *_SIDES, "split_k", "arrangement", "local", "unroll")
_UNKNOWN = "not recorded"
# Factors of two that are worse than any other difference.
_EXCLUDED = 100


def nearest_config(kernel: ForeignKernel, task: PhoneTask, start: Config) -> Config:
    """Return the valid config of a space whose tile and work group are nearest to a kernel's, in factors of two.

    The shape of a group counts half as much as its size. Configs that no criterion excludes come first, because a
    search passes over the others.

    start: the other knobs
    """
    space = task.space
    knobs = {name: int(kernel.knobs[name]) for name in _SIDES}
    candidates = list(itertools.product(*(space.knobs[name] for name in _SIDES)))
    o, h, w, group_o, group_h, group_w = np.log2(np.array(candidates, dtype=float)).T
    wanted = {name: math.log2(value) for name, value in knobs.items()}
    size = group_o + group_h + group_w - wanted["wg_o"] - wanted["wg_h"] - wanted["wg_w"]
    away = sum(abs(mine - wanted[name]) for mine, name in ((o, "tile_o"), (h, "tile_h"), (w, "tile_w")))
    away = away + abs(size) + (abs(group_o - wanted["wg_o"]) + abs(group_h - wanted["wg_h"])) / 2
    away = away + _EXCLUDED * is_excluded(task, start, dict(zip(_SIDES, np.array(candidates).T, strict=True)))
    for index in np.argsort(away, kind="stable"):
        config = start.replace(**dict(zip(_SIDES, candidates[int(index)], strict=True)), split_k=1, local=0)
        for change in ({"arrangement": kernel.knobs["arrangement"]}, {"arrangement": "blocked"}):
            if space.knows(tried := config.replace(**change)) and space.is_valid(tried):
                return tried
    return start


def is_excluded(task: PhoneTask, start: Config, sides: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return which configs a criterion excludes by the facts of the GPU's file. The estimate excludes nothing here."""
    count = len(sides["tile_o"])
    columns = {name: np.full(count, value) for name, value in start.items()} | dict(sides)
    usage = task.form.usage({**columns, "split_k": np.ones(count, int), "local": np.zeros(count, int)})
    spec = Target(f"opencl -device={task.recorded.gpu}").spec
    verdicts = judge(usage, spec, choices=Choices(images=frozenset({"data", "weight", "output"}))).values()
    kept = [np.broadcast_to(np.asarray(verdict.keep, dtype=bool), count) for verdict in verdicts]
    excluded: np.ndarray = ~np.logical_and.reduce(kept)
    return excluded


def best_of(task: PhoneTask) -> tuple[float, int]:
    """Return the fastest time of a task, and the index of its config."""
    times = np.where(task.is_timed, task.time_s, np.inf)
    index = int(np.argmin(times))
    return float(times[index]), index


def schedule_of(tasks: Sequence[PhoneTask]) -> TunedSchedule | None:
    """Return the best kernel of the recordings of one layer. None if its time says nothing."""
    task = min(tasks, key=lambda each: best_of(each)[0])
    (time_s, index), gpu, work = best_of(task), task.recorded.gpu, task.recorded.task
    kernel, limits = task.kernels[index], task.target.limits
    if work is None or not LEAST_S <= time_s < math.inf:
        return None
    starts = task.template.starts(limits)
    start = next(c for c in starts if c.get("algorithm", DIRECT) == kernel.knobs["algorithm"])
    if (unroll := kernel.knobs["unroll"]) in task.space.knobs["unroll"]:
        start = start.replace(unroll=unroll)
    config = nearest_config(kernel, task, start)
    said = {name: config[name] for name in _SAID if name in config}
    count = sum(len(each.time_s) for each in tasks)
    record = Record(
        task_key=work.key,
        task_name=work.name,
        config=said,
        device={"kind": "opencl", "name": name_of(gpu), "driver": _UNKNOWN, "platform": _UNKNOWN},
        outcome=Outcome.OK,
        times_s=(float(f"{time_s:.4g}"),),
        target=f"opencl -device={gpu}",
        time=_UNKNOWN,
    )
    source = f"{task.recorded.template}, best of {count}; {SOURCE}"
    return TunedSchedule(
        record=record, family=work.family, workload=workload_of(work), source=source, measured_by="autotvm"
    )


def name_of(gpu: str) -> str:
    """Return the name of a GPU that its database file is named by: "adreno660" -> "Adreno 660"."""
    return re.sub(r"(?<=[a-z])(?=\d)", " ", gpu).capitalize()


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpu", default="", help="GPU of a log that does not name one.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=SHIPPED, help="Folder of the files.")
def main(file: Path, gpu: str, out: Path) -> None:
    """Write the files and print their sizes."""
    layers: dict[str, dict[str, list[PhoneTask]]] = {}
    for task in load_tasks(file, default_gpu=gpu):
        operator = task.recorded.task
        if task.is_timed.any() and operator is not None and isinstance(task.recorded, AutotvmTask):
            layers.setdefault(task.recorded.gpu, {}).setdefault(operator.key, []).append(task)
    table = table_of_numbers("file", ("layers", "written", "bytes"))
    for name, works in sorted(layers.items()):
        schedules = [schedule for tasks in works.values() if (schedule := schedule_of(tasks)) is not None]
        path = out / f"{name_of(name).lower().replace(' ', '_')}{SUFFIX}"
        if schedules:
            write_schedules(path, schedules)
            table.add_row(path.name, str(len(works)), str(len(schedules)), str(path.stat().st_size))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
