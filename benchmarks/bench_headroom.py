#!/usr/bin/env python3
"""Measures what a search can save and what it saves after a few trials a kernel, on recorded spaces.

    python benchmarks/bench_headroom.py                                                                  operators recorded on an H200
    python benchmarks/bench_headroom.py benchmarks/data/spaces_h200_cuda --pretrain-on benchmarks/data/spaces_h200_more

One search tunes all operators of the folders, which were recorded on one device, as it tunes the kernels of a model.
Each operator has as many calls as make its share of the time about the same. The first column is the time of the
recorded default configs over that of the best recorded ones, so no search can gain more. The others are gains after
that many trials a kernel, the default config's trial among them: medians over the seeds.
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from pretrain_cost_model import train
from romou.compiler.operators.costs.pretrained import PretrainedModel
from romou.runtime.module.timed import ratio
from romou.tools.report.table import table_of_numbers
from romou.tuner.search import PriorKnowledge, SessionHooks, TuningOptions, TuningSession
from romou.tuner.search.progress import NoProgress, Status
from simulated_searches import DEVICE, SPACES, best_of, target_of, task_of
from simulation import SimulatedDevice, SimulatedTask

TRIALS = (1.5, 2, 3, 5, 10, 20)
# Time of an operator's calls with its default config. Longer ones have one call.
_SHARE_S = 1e-3


def default_s(task: SimulatedTask) -> float:
    """Return the seconds of the recorded default config."""
    seconds = task.recorded.configs[task.recorded.context["default"]].time_s
    assert seconds is not None, f"{task.recorded.name}: the default config has no time"
    return seconds


def model_of(paths: Sequence[Path]) -> list[SimulatedTask]:
    """Return the operators with calls, so that their shares of the time are about the same."""
    tasks = [task_of(path) for path in paths]
    return [dataclasses.replace(task, calls=max(1, round(_SHARE_S / default_s(task)))) for task in tasks]


def gains(
    paths: Sequence[Path], facts: str | None, pretrained: PretrainedModel | None, seed: int, batch_size: int
) -> list[float]:
    """Search all operators at once. Return the default time over the best time after each number of `TRIALS`.

    facts: the device whose facts estimate. None: nothing is estimated
    """
    tasks = model_of(paths)
    device = SimulatedDevice(tasks)
    most = int(TRIALS[-1] * len(tasks))
    session = TuningSession(
        tasks,
        target_of(paths[0], facts),
        store=[],
        builder=device,
        runner=device,
        options=TuningOptions(trials=most, confirm=0, seed=seed, batch_size=batch_size),
        prior=PriorKnowledge(pretrained=pretrained),
        hooks=SessionHooks(clock=device.clock),
    )
    times_ms: list[float | None] = []

    class Course(NoProgress):
        def update(self, status: Status) -> None:
            times_ms.append(status.model_ms)

    session.run(Course)
    before_ms = 1e3 * sum(task.calls * default_s(task) for task in tasks)
    after = [times_ms[min(int(trials * len(tasks)), len(times_ms)) - 1] for trials in TRIALS]
    return [1.0 if time_ms is None else before_ms / time_ms for time_ms in after]


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--pretrain-on", type=click.Path(path_type=Path, exists=True), help="Recordings of other operators.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True)
def main(folders: tuple[Path, ...], pretrain_on: Path | None, seeds: int, batch_size: int) -> None:
    """Print a row for each kind of search."""
    chosen = folders or (SPACES,)
    paths = [path for folder in chosen for path in sorted(folder.glob("*.json.gz"))]
    tasks = model_of(paths)
    most = sum(task.calls * default_s(task) for task in tasks) / sum(
        task.calls * best_of(task.recorded) for task in tasks
    )
    searches: dict[str, tuple[str | None, PretrainedModel | None]] = {"nothing": (None, None)}
    searches["the estimate"] = (DEVICE, None)
    if pretrain_on is not None:
        others = sorted(pretrain_on.glob("*.json.gz"))
        searches["pretrained"] = (DEVICE, train([task_of(path) for path in others], target_of(others[0])))
    columns = ["at most", *(f"{trials:g}" for trials in TRIALS)]
    table = table_of_numbers("known of the device", columns, title=f"{len(tasks)} operators, gain by trials a kernel")
    for name, (facts, pretrained) in searches.items():
        courses = [gains(paths, facts, pretrained, seed, batch_size) for seed in range(seeds)]
        medians = map(statistics.median, zip(*courses, strict=True))
        table.add_row(name, ratio(most), *(ratio(each) for each in medians))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
