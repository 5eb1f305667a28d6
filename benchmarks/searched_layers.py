#!/usr/bin/env python3
"""Packs the configs that searches of whole networks measured into one file, by layer.

    python benchmarks/searched_layers.py benchmarks/data/searches_h100.jsonl.gz RECORDS...

RECORDS are folders of records, as `romou tune --work-dir` and `bench_gain.py --work-dir` write them, of one device. A
layer is what a workload describes: an operator without its epilogue. Kernels of several operators are left out.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import click

from romou.base.errors import RecordError
from romou.base.space import Config
from romou.compiler.operators.families import workload_of
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask
from romou.tuner.records.store import RecordStore
from romou.tuner.records.task_files import kept_task


@dataclass(frozen=True)
class SearchedLayer:
    """A layer and its measured configs.

    times_s: median seconds of each config. None if it failed
    """

    workload: dict[str, Any]
    configs: list[Config]
    times_s: list[float | None]

    @cached_property
    def task(self) -> TunableTask:
        """The layer with a bias and a ReLU."""
        return task_of(workload_of(self.workload)).with_free_images()

    def to_line(self) -> str:
        """Return a line of JSON, with times in nanoseconds. A knob that a config lacks is null."""
        knobs = list(dict.fromkeys(knob for config in self.configs for knob in config))
        rows = [
            [*(config.get(knob) for knob in knobs), None if time is None else round(time * 1e9)]
            for config, time in zip(self.configs, self.times_s, strict=True)
        ]
        return json.dumps({"workload": self.workload, "knobs": knobs, "configs": rows}, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> SearchedLayer:
        """Return the layer that `to_line` wrote."""
        data = json.loads(line)
        choices = [zip(data["knobs"], row[:-1], strict=True) for row in data["configs"]]
        configs = [Config({knob: choice for knob, choice in row if choice is not None}) for row in choices]
        return cls(data["workload"], configs, [None if row[-1] is None else row[-1] / 1e9 for row in data["configs"]])


def load_layers(path: Path) -> list[SearchedLayer]:
    """Return the layers of a packed file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [SearchedLayer.from_line(line) for line in file]


def layers_of(folders: Iterable[Path]) -> Iterator[SearchedLayer]:
    """Yield each layer with the configs that the searches of all folders measured.

    RecordError if they were measured on several devices, or a record has no task.
    """
    devices: set[str] = set()
    found: dict[str, dict[Config, list[float]]] = {}
    for folder in folders:
        records = list(RecordStore(folder))
        devices |= {str(record.device["name"]) for record in records}
        workloads = {key: _workload(folder, key) for key in {record.task_key for record in records}}
        for record in records:
            if (workload := workloads[record.task_key]) is not None:
                times = found.setdefault(workload, {}).setdefault(Config(record.config), [])
                times += [] if record.time_s is None else [record.time_s]
    if len(devices) > 1:
        raise RecordError(f"records of several devices: {', '.join(sorted(devices))}", hint="Give those of one.")
    for workload, timed in sorted(found.items()):
        yield SearchedLayer(
            json.loads(workload), list(timed), [median(times) if times else None for times in timed.values()]
        )


def _workload(folder: Path, key: str) -> str | None:
    """Return a task's workload as JSON. None if its kernel computes more than one operator."""
    task = kept_task(folder, key)
    workload = getattr(task.template, "workload", None)
    return None if workload is None or task_of(workload).family != task.family else json.dumps(workload.to_dict())


@click.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(out: Path, folders: tuple[Path, ...]) -> None:
    """Write the file, as the script's docstring describes."""
    layers = list(layers_of(folders))
    # Without a time stamp, equal layers give equal files.
    out.write_bytes(gzip.compress("".join(f"{layer.to_line()}\n" for layer in layers).encode(), mtime=0))
    click.echo(f"{out}: {len(layers)} layers, {sum(len(layer.configs) for layer in layers)} configs")


if __name__ == "__main__":
    main()
