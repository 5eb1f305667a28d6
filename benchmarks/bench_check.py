#!/usr/bin/env python3
"""Prints what `romou check` says of networks on GPUs, beside times that were recorded on phones.

    python benchmarks/bench_check.py
    python benchmarks/bench_check.py resnet18 --device adreno730

The recorded times are those of the database of tuned schedules (schedules/README.md), in fp32: the fastest kernel of a
layer of the same sizes. Most are AutoTVM's. No device is needed.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import click
from rich.console import Console

import romou
from romou import models
from romou.tools.inspection.check_report import CheckReport
from romou.tools.report.table import print_table, table_of_numbers
from romou.tuner.records.database import read_schedules

DEVICES = ("adreno660", "adreno740", "malig76")
FOLDER = Path(__file__).parents[1] / "schedules"


def recorded_ms(device: str) -> dict[str, float]:
    """Return layer -> milliseconds of its fastest recorded kernel on the GPU in fp32."""
    path = FOLDER / re.sub(r"(\d+)", r"_\1.jsonl", device, count=1)
    times: dict[str, float] = {}
    for schedule in read_schedules(path) if path.exists() else ():
        name = schedule.record.task_name
        if schedule.workload.get("dtype") == "float32":
            times[name] = min(times.get(name, math.inf), 1e3 * schedule.time_s)
    return times


def cells(report: CheckReport, recorded: dict[str, float]) -> list[str]:
    """Return the columns of a network on a device."""
    text = "-" if report.ms is None else f"{report.ms:.1f}"
    if report.between_ms is not None:
        low, high = report.between_ms
        text += f" ({low:.1f} to {high:.1f})"
    both = [layer for layer in report.layers if layer.name in recorded and layer.ms is not None]
    share = f"{sum(layer.calls for layer in both)} of {sum(layer.calls for layer in report.layers)}"
    if not both:
        return [text, "-", "-", "-"]
    estimated = sum(layer.ms or 0.0 for layer in both)
    measured = sum(recorded[layer.name] * layer.calls for layer in both)
    return [text, share, f"{estimated:.1f}", f"{measured:.1f}"]


@click.command()
@click.argument("names", nargs=-1)
@click.option("--device", "devices", multiple=True, default=DEVICES, show_default=True)
def main(names: tuple[str, ...], devices: tuple[str, ...]) -> None:
    """Print a table for each device: default kernels, fp32, milliseconds. The recorded layers are estimated again."""
    for device in devices:
        recorded = recorded_ms(device)
        table = table_of_numbers(
            "network",
            ("ms (quartiles)", "recorded", "estimated", "measured"),
            title=f"romou check --device {device}",
        )
        for name in names or models.names():
            table.add_row(name, *cells(romou.check(models.load(name), device=device), recorded))
        print_table(table, Console())


if __name__ == "__main__":
    main()
