#!/usr/bin/env python3
"""Prints the device memory of the bundled networks, and its ratio to a lower bound.

The memory is a memory plan's, and the lower bound is the peak of live tensors.

    python benchmarks/bench_memory.py
    python benchmarks/bench_memory.py resnet18 --target "opencl -device=adreno640" --precision float16
    python benchmarks/bench_memory.py --target "opencl -device=adreno740 -images=apart"

Nothing runs. The numbers are taken from the plan, which tests compare with the runtime's allocations.
"""

from __future__ import annotations

import click
from rich.console import Console

import romou
from romou import models
from romou.driver.options import PrecisionName
from romou.tools.report.table import mib, print_table, table_of_numbers

TARGETS = ("opencl -device=host", "opencl -device=adreno640", "opencl -device=adreno740")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--target", "targets", multiple=True, default=TARGETS, show_default=True)
@click.option("--precision", default="float32", show_default=True)
def main(names: tuple[str, ...], targets: tuple[str, ...], precision: PrecisionName) -> None:
    """Print a table for each target, with default configs, in MiB."""
    for target in targets:
        table = table_of_numbers(
            "network",
            ("weights", "tensors", "live at once", "ratio", "workspaces", "total"),
            title=f"{target}, {precision}, MiB",
        )
        for name in names or models.names():
            use = romou.memory_plan(models.load(name), target=target, precision=precision).use
            share = f"{use.tensors / use.least:.2f}"
            table.add_row(
                name, mib(use.weights), mib(use.tensors), mib(use.least), share, mib(use.workspaces), mib(use.total)
            )
        print_table(table, Console())


if __name__ == "__main__":
    main()
