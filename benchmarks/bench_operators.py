#!/usr/bin/env python3
"""The Romou paper's operators against TVM's kernels on the same device, as the paper's figures 2, 3b, 13 and 14.

    python benchmarks/bench_operators.py --trials 2000 --json rows.json             all four figures on the first OpenCL device
    python benchmarks/bench_operators.py --figure 13 --rows rows.json               one figure of rows that were measured before
    python benchmarks/bench_operators.py --figure 13 --peer metaschedule            against a searched TVM, 64 trials an operator
    python benchmarks/bench_operators.py --only 1x1 --peak-gflops 890 --bandwidth-gbps 28

benchmarks/kernel_bench.py makes the rows. It measures both sides alternately and checks their outputs.
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from kernel_bench import SUITES, Options, compare
from paper_figures import by_category, by_layer, distribution, utilization
from romou.base.errors import RomouError

FIGURES = ("2", "3b", "13", "14")


def tables(
    figures: Sequence[str], rows: Sequence[Mapping[str, Any]], peer: str, peak: float | None, bandwidth: float | None
) -> Iterator[Table]:
    """Yield the tables of the figures. peak, bandwidth: GFLOPS and GB/s of the device, None if unknown."""
    for figure in figures:
        if figure == "2":
            yield distribution(rows, peer, peak)
        elif figure == "3b":
            yield utilization(rows, peer, peak, bandwidth)
        elif figure == "13":
            yield by_category(rows, peer)
        else:
            yield from by_layer(rows, peer)


@click.command()
@click.option("--figure", "figures", type=click.Choice(FIGURES), multiple=True, default=FIGURES, show_default=True)
@click.option("--rows", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Measured before by --json.")
@click.option("--target", default="opencl", show_default=True)
@click.option("--trials", type=click.IntRange(min=0), default=2000, show_default=True, help="Over all operators.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=None, help="Limit of the search.")
@click.option(
    "--work-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("bench_records"), show_default=True
)
@click.option("--only", default="", help="Operators whose name contains one of these, with commas.")
@click.option("--rounds", type=click.IntRange(min=1), default=11, show_default=True, help="Timings of each side.")
@click.option("--peak-gflops", type=float, default=None, help="Of the device. [default: its device file]")
@click.option("--bandwidth-gbps", type=float, default=None, help="Of the device's memory. [default: its device file]")
@click.option("--peer", type=click.Choice(["tvm", "metaschedule"]), default="tvm", show_default=True)
@click.option("--peer-trials", type=click.IntRange(min=1), default=64, show_default=True, help="MetaSchedule's, each.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(
    figures: tuple[str, ...],
    rows: Path | None,
    peak_gflops: float | None,
    bandwidth_gbps: float | None,
    output: Path | None,
    **values: Any,
) -> None:
    """Print the figures as tables. The exit code is 1 if an output of Romou's is wrong."""
    out = Console(width=140)
    if rows is None:
        how: dict[str, Any] = {"dtype": "float32", "batch": 1, "has_peer": True, "allows_tf32": False}
        options = Options(**values, **how, is_pruned=True, seed=0, output=output)
        try:
            measured, head = compare(SUITES["paper97"].works(options), options)
        except RomouError as error:
            raise SystemExit(f"bench_operators: {error}") from error
    else:
        head = json.loads(rows.read_text(encoding="utf-8"))
        measured = head["rows"]
    peak, bandwidth = peak_gflops or head["peak_gflops"], bandwidth_gbps or head["bandwidth_gbps"]
    out.print(f"{head['device']['name']}, {head['target']}; {head['peer']}", markup=False)
    for table in tables(figures, measured, "TVM", peak, bandwidth):
        out.print(table)
    missing = [row["name"] for row in measured if row["peer_us"] is None]
    if missing:
        out.print(f"No right kernel by TVM: {', '.join(missing)}", markup=False)
    raise SystemExit(1 if any(row["problem"] for row in measured) else 0)


if __name__ == "__main__":
    main()
