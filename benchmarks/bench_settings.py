#!/usr/bin/env python3
"""Compares the configs of an operator with each other, and the same configs on several operators and on two devices.

It measures how well one predicts the other, and the cost of a single config for all operators.

    python benchmarks/bench_settings.py --operators conv1x1,dense,conv3x3 --settings 200 --json here.json
    python benchmarks/bench_settings.py --compare benchmarks/data/spaces_pocl benchmarks/data/spaces_intel     recorded by two drivers
    python benchmarks/bench_settings.py --compare here.json there.json                                         measured on two devices
    python benchmarks/bench_settings.py --space benchmarks/data/spaces_h200/conv1x1.json.gz                    BEAST's figures 7 to 9 of a recording

Pearson's rho is computed of rates, as in BEAST's figures 10 (two operators) and 11 (two devices). The single config is
the one with the smallest sum of times over all operators, Boda's manual tuning of figure 12.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from record_spaces import MORE, OPERATORS
from romou.base.errors import RomouError, UsageError, unknown_name
from romou.base.knob import Choice
from romou.base.space import Config
from romou.compiler.operators.families import declared_knobs
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tools.report.table import table_of_numbers
from romou.tuner.measure import Candidate, LocalBuilder, LocalRunner, MeasureOptions
from romou.tuner.records import Record
from romou.tuner.records.recorded_space import RecordedSpace
from romou.tuner.search import TuningOptions, TuningSession

# Operator -> key of a config -> seconds of a launch.
Times = Mapping[str, Mapping[str, float]]
# A correlation of fewer configs is noise.
LEAST = 3
# Work groups of figure 9.
GROUPS = 5
# Configs of one operator that are drawn for each that all operators have.
DRAWN = 400


def config_for(task: TunableTask, target: Target, setting: Mapping[str, Choice]) -> Config | None:
    """Return the config of a task that a setting gives. Knobs of other tasks have to be at their default.

    Return None if the task has no such config.
    """
    space = task.space(target)
    if any(declared_knobs()[name].default != choice for name, choice in setting.items() if name not in space.knobs):
        return None
    config = Config({name: setting.get(name, declared_knobs()[name].default) for name in space.knobs})
    return config if space.knows(config) and space.is_valid(config) else None


def settings_of(tasks: Sequence[TunableTask], target: Target, count: int, seed: int) -> list[Config]:
    """Draw up to `count` configs of the first task that every task has."""
    drawn = tasks[0].space(target).sample(np.random.default_rng(seed), DRAWN * count)
    common = (config for config in drawn if all(config_for(task, target, config) is not None for task in tasks))
    return list(itertools.islice(common, count))


def measured(
    tasks: Mapping[str, TunableTask],
    settings: Sequence[Config],
    target: Target,
    builder: LocalBuilder,
    runner: LocalRunner,
) -> dict[str, dict[str, float]]:
    """Time the settings on each operator. What fails or is wrong is left out."""
    times: dict[str, dict[str, float]] = {name: {} for name in tasks}
    for name, task in tasks.items():
        configs = [config_for(task, target, setting) for setting in settings]
        candidates = [
            Candidate(task=task, config=config, trial=at) for at, config in enumerate(configs) if config is not None
        ]
        for built in builder.build(candidates):
            for result in runner.run([built]) if built.library is not None else ():
                if result.times_s:
                    times[name][settings[built.candidate.trial].key] = statistics.median(result.times_s)
    return times


def loaded(path: Path) -> tuple[str, dict[str, dict[str, float]]]:
    """Read a folder of recorded spaces, or a file of this script. Return the device's name and the times."""
    if path.is_file():
        data = json.loads(path.read_text(encoding="utf-8"))
        return data["device"], data["seconds"]
    spaces = [RecordedSpace.load(file) for file in sorted(path.glob("*.json.gz"))]
    if not spaces:
        raise UsageError(f"{path} has no recorded space", hint="benchmarks/record_spaces.py records them.")
    times: dict[str, dict[str, float]] = {}
    for recorded in spaces:
        space = recorded.space()
        times[recorded.name] = {
            space.at(index).key: recorded_config.time_s
            for index, recorded_config in recorded.configs.items()
            if recorded_config.time_s is not None
        }
    device = spaces[0].device
    return f"{device['name']} ({device['platform']})", times


def correlation(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[float | None, list[str]]:
    """Return Pearson's rho of the rates of configs that work on both sides, and their keys.

    None if they are fewer than three, or if all of a side are alike.
    """
    keys = sorted(first.keys() & second.keys())
    rates = [[1 / times[key] for key in keys] for times in (first, second)]
    if len(keys) < LEAST or any(len(set(side)) == 1 for side in rates):
        return None, keys
    return float(np.atleast_2d(np.corrcoef(rates))[0, 1]), keys


def _rho(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def between_operators(times: Times) -> Table:
    """Return BEAST's figure 10: Pearson's rho of each two operators."""
    count = len(set.union(*(set(row) for row in times.values())))
    title = f"{count} configs on two operators (BEAST, figure 10)"
    table = table_of_numbers("Pearson's rho of", tuple(times), title=title)
    for name, row in times.items():
        table.add_row(name, *(_rho(correlation(row, other)[0]) for other in times.values()))
    return table


def between_devices(first: Times, second: Times, names: Sequence[str]) -> Table:
    """Return BEAST's figure 11: rho of two devices, and the speed of each one's best config on the other."""
    columns = ("configs", "rho", f"best of {names[0]}", f"best of {names[1]}")
    title = "The same configs on two devices (BEAST, figure 11), and what the best config of one reaches on the other"
    table = table_of_numbers("operator", columns, title=title)
    for name in [name for name in first if name in second]:
        rho, keys = correlation(first[name], second[name])
        reached = ["-", "-"]
        if keys:
            for at, (own, other) in enumerate(((first[name], second[name]), (second[name], first[name]))):
                best = min(keys, key=lambda key: own[key])
                reached[at] = f"{min(other[key] for key in keys) / other[best]:.0%}"
        table.add_row(name, str(len(keys)), _rho(rho), *reached)
    return table


def histogram(recorded: RecordedSpace) -> Table:
    """Return BEAST's figure 7: how many configs reach which share of the best rate."""
    gflops = [rate for _, rate in rates_of(recorded)]
    counts, edges = np.histogram(gflops, bins=10, range=(0, max(gflops)))
    title = f"{recorded.name}, {recorded.device['name']}: configs by their rate (BEAST, figure 7)"
    table = table_of_numbers("GFLOPS", ("configs", "share"), title=title)
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        table.add_row(f"{low:.1f} to {high:.1f}", str(count), f"{count / len(gflops):.1%}")
    failed = len(recorded.configs) - len(gflops)
    table.caption = f"{min(gflops):.1f} to {max(gflops):.1f} GFLOPS; {failed} of {len(recorded.configs)} configs failed"
    return table


def rates_of(recorded: RecordedSpace) -> list[tuple[Config, float]]:
    """Return the configs that worked, with their rates in GFLOPS."""
    space, flops = recorded.space(), float(recorded.task["flops"])
    times = ((space.at(index), config.time_s) for index, config in recorded.configs.items())
    return [(config, flops / time_s / 1e9) for config, time_s in times if time_s is not None]


def heat_map(rates: Sequence[tuple[Config, float]], title: str, row: str, column: str) -> Table:
    """Return the best rate for each pair of values, as a share of the best of all. A dash: no config worked.

    row, column: names of knobs. The values of knobs with * between them are multiplied.
    """
    best: dict[tuple[int, int], float] = {}
    for config, rate in rates:
        y, x = (math.prod(config[name] for name in names.split("*")) for names in (row, column))
        best[y, x] = max(best.get((y, x), 0.0), rate)
    ys, xs = (sorted({pair[side] for pair in best}) for side in (0, 1))
    table = table_of_numbers(f"{row} \\ {column}", tuple(map(str, xs)), title=title)
    most = max(best.values())
    for y in ys:
        table.add_row(str(y), *(f"{best[y, x] / most:.2f}" if (y, x) in best else "-" for x in xs))
    return table


def heat_maps(recorded: RecordedSpace) -> Iterator[Table]:
    """Yield BEAST's figure 8, work-items of a group over outputs of a work-item, and 9, five groups one by one."""
    rates = rates_of(recorded)
    yield heat_map(rates, "Share of the best rate (BEAST, figure 8)", "wg_o*wg_w", "tile_o*tile_h*tile_w")
    groups: dict[tuple[Any, Any], list[tuple[Config, float]]] = {}
    for config, rate in rates:
        groups.setdefault((config["wg_o"], config["wg_w"]), []).append((config, rate))
    ranked = sorted(groups.items(), key=lambda entry: -max(rate for _, rate in entry[1]))
    for (wg_o, wg_w), own in ranked[:GROUPS]:
        best = max(rate for _, rate in own)
        title = f"wg_o={wg_o}, wg_w={wg_w}: {best:.1f} GFLOPS at best, and shares of it (BEAST, figure 9)"
        yield heat_map(own, title, "tile_o", "tile_h*tile_w")


def single_setting(times: Times, tuned: Mapping[str, float]) -> Table:
    """Return Boda's figure 12: one config for all operators against each operator's best.

    tuned: operator -> seconds that a search found. Empty if there was none.
    """
    columns = ("single us", "best of these us", "single / best", "autotuned us", "single / autotuned")
    table = table_of_numbers("operator", columns, title="One config for all operators (Boda, figure 12)")
    common = set.intersection(*(set(row) for row in times.values()))
    if not common:
        table.add_row("no config works on all")
        return table
    single = min(sorted(common), key=lambda key: sum(row[key] for row in times.values()))
    ratios: list[list[float]] = [[], []]
    for name, row in times.items():
        cells = [f"{row[single] * 1e6:.1f}"]
        for at, best in enumerate((min(row.values()), tuned.get(name))):
            if best is not None:
                ratios[at].append(row[single] / best)
            cells += ["-", "-"] if best is None else [f"{best * 1e6:.1f}", f"{row[single] / best:.2f}x"]
        table.add_row(name, *cells)
    means = [f"{statistics.geometric_mean(column):.2f}x" if column else "-" for column in ratios]
    table.add_section()
    table.add_row("geometric mean", "", "", means[0], "", means[1])
    table.caption = f"of {len(common)} configs that work on all: {single}"
    return table


def searched(
    tasks: Mapping[str, TunableTask], target: Target, builder: LocalBuilder, runner: LocalRunner, trials: int
) -> Iterator[tuple[str, float]]:
    """Yield each operator with the seconds of the best config of a search."""
    for name, task in tasks.items():
        store: list[Record] = []
        options = TuningOptions(trials=trials, confirm=2, batch_size=8)
        session = TuningSession([task], target, store=store, builder=builder, runner=runner, options=options)
        best_ms = session.run()[task.key].best_ms
        if best_ms is not None:
            yield name, best_ms / 1e3


def measure_here(names: Sequence[str], target: str, count: int, trials: int, seed: int) -> dict[str, Any]:
    """Time the same settings on operators of the attached device, and search each if there are trials."""
    works = {**OPERATORS, **MORE}
    for name in names:
        if name not in works:
            raise unknown_name("operator", name, works)
    asked = Target(target)
    index = asked.backend.device_index(asked.device_name)
    facts = asked.backend.facts(index)
    here = asked.limited_to(facts)
    how = MeasureOptions(repeat=3, min_repeat_ms=2.0)
    tasks = {name: task_of(works[name], has_epilogue=False) for name in names}
    settings = settings_of(list(tasks.values()), here, count, seed)
    with (
        contextlib.closing(LocalRunner(f"{asked.kind}:{index}", how)) as runner,
        contextlib.closing(LocalBuilder(here, how)) as builder,
    ):
        seconds = measured(tasks, settings, here, builder, runner)
        tuned = dict(searched(tasks, here, builder, runner, trials)) if trials else {}
    return {"device": f"{facts['name']} ({facts['platform']})", "target": target, "seconds": seconds, "tuned": tuned}


@click.command()
@click.option(
    "--compare",
    "sources",
    type=(click.Path(exists=True, path_type=Path), click.Path(exists=True, path_type=Path)),
    default=None,
    help="Two folders of recorded spaces, or files of --json, instead of a measurement.",
)
@click.option(
    "--space",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Recorded: its histogram and heat maps.",
)
@click.option("--operators", default="conv1x1,dense,conv3x3", show_default=True, help="Those of record_spaces.py.")
@click.option("--target", default="opencl", show_default=True)
@click.option("--settings", "count", type=click.IntRange(min=1), default=100, show_default=True, help="Configs.")
@click.option("--trials", type=click.IntRange(min=0), default=64, show_default=True, help="Of a search per operator.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "output", type=click.Path(dir_okay=False, path_type=Path), help="Also write every time here.")
def main(
    sources: tuple[Path, Path] | None,
    space: Path | None,
    operators: str,
    target: str,
    count: int,
    trials: int,
    seed: int,
    output: Path | None,
) -> None:
    """Print the tables."""
    out = Console(width=150)
    try:
        if space is not None:
            recorded = RecordedSpace.load(space)
            for table in (histogram(recorded), *heat_maps(recorded)):
                out.print(table)
            return
        if sources is not None:
            (here, first), (there, second) = map(loaded, sources)
            out.print(f"first: {here}\nsecond: {there}", markup=False)
            out.print(between_devices(first, second, ("first", "second")))
            return
        names = [name.strip() for name in operators.split(",") if name.strip()]
        page = measure_here(names, target, count, trials, seed)
    except RomouError as error:
        raise SystemExit(f"bench_settings: {error}") from error
    out.print(f"{page['device']}, {target}", markup=False)
    out.print(between_operators(page["seconds"]))
    out.print(single_setting(page["seconds"], page["tuned"]))
    if output is not None:
        output.write_text(json.dumps(page, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
