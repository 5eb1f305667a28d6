#!/usr/bin/env python3
"""What the bundled networks take of a device's memory, and how near the plan of their tensors is to the lower bound: the most that is live at once.

    python scripts/bench_memory.py
    python scripts/bench_memory.py resnet18 --target "opencl -device=adreno640" --precision float16

Nothing runs: the numbers are those of the plan, which tests compare with what the runtime allocates.
"""

from __future__ import annotations

import click
from rich.console import Console

import romou
from romou import models
from romou.report.memory import mib
from romou.report.table import print_table, table_of_numbers

TARGETS = ("opencl -device=host", "opencl -device=adreno640")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--target", "targets", multiple=True, default=TARGETS, show_default=True)
@click.option("--precision", default="float32", show_default=True)
def main(names: tuple[str, ...], targets: tuple[str, ...], precision: str) -> None:
    """Print a table for each target, default configs, in MiB."""
    for target in targets:
        table = table_of_numbers("network", ("weights", "tensors", "live at once", "ratio", "workspaces", "total"), title=f"{target}, {precision}, MiB")
        for name in names or models.names():
            use = romou.memory_plan(models.load(name), target=target, precision=precision).use
            share = f"{use.tensors / use.least:.2f}"
            table.add_row(name, mib(use.weights), mib(use.tensors), mib(use.least), share, mib(use.workspaces), mib(use.total))
        print_table(table, Console())


if __name__ == "__main__":
    main()
