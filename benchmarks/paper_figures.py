"""Figures of the Romou paper as tables, from rows that benchmarks/kernel_bench.py measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from operator_lists import CATEGORIES, NETWORKS, category, convolutions_of, paper_operators
from romou.tools.report.table import table_of_numbers

Row = Mapping[str, Any]
# Lower bounds of the bins of figure 2 in GFLOPS.
BINS = (0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)


def spread(values: Sequence[float], form: str = ".2f", unit: str = "") -> str:
    """Spell mean, maximum and minimum, as the paper does. "-" if there are none."""
    if not values:
        return "-"
    return ", ".join(f"{value:{form}}{unit}" for value in (statistics.mean(values), max(values), min(values)))


def category_of_name(name: str) -> str:
    """Return the category of an operator or layer whose name starts with its kind, as "conv1x1" or "3x3"."""
    kind = name.split()[0].removeprefix("conv")
    return "fully connected" if kind == "dense" else kind if kind in CATEGORIES else "other"


def ratios_by_category(ratios: Sequence[tuple[str, float]], title: str) -> Table:
    """Return figure 13b from counted instructions: ratios of operators, by name, as mean, maximum and minimum."""
    groups: dict[str, list[float]] = {}
    for name, ratio in ratios:
        groups.setdefault(category_of_name(name), []).append(ratio)
    table = table_of_numbers("category", ("operators", "mean, maximum, minimum"), title=title)
    for name in CATEGORIES:
        if name in groups:
            table.add_row(name, str(len(groups[name])), spread(groups[name], unit="x"))
    return table


def gflops(rows: Sequence[Row], side: str) -> list[float]:
    """Return billions of operations a second. side: the key of a row's microseconds. Rows without it are left out."""
    return [row["flops"] / row[side] / 1e3 for row in rows if row.get(side)]


def of_category(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each category. Categories without a row are left out."""
    works = {work.name: work for work in paper_operators()}
    groups: dict[str, list[Row]] = {name: [] for name in CATEGORIES}
    for row in rows:
        groups[category(works[row["name"]])].append(row)
    return {name: group for name, group in groups.items() if group}


def by_category(rows: Sequence[Row], peer: str) -> Table:
    """Return figure 13: rate and speedup by category."""
    columns = ("operators", "Romou GFLOPS", f"{peer} GFLOPS", f"{peer} / Romou")
    table = table_of_numbers("category", columns, title="Figure 13: mean, maximum, minimum of each category")
    for name, group in of_category(rows).items():
        ratios = [row["ratio"] for row in group if row["ratio"] is not None]
        rates = (spread(gflops(group, side), ".1f") for side in ("us", "peer_us"))
        table.add_row(name, str(len(group)), *rates, spread(ratios, unit="x"))
    return table


def by_layer(rows: Sequence[Row], peer: str) -> Iterator[Table]:
    """Yield figure 14, a table for each network: its convolutions in order of execution, and their sums.

    Layers without a row are left out.
    """
    row_of = {row["name"]: row for row in rows}
    for network in NETWORKS:
        layers = [row_of[work.name] for work in convolutions_of(network) if work.name in row_of]
        if not layers:
            continue
        columns = ("Romou us", "GFLOPS", f"{peer} us", f"{peer} / Romou")
        table = table_of_numbers("layer", columns, title=f"Figure 14: {network}, {len(layers)} convolutions in order")
        for number, row in enumerate(layers, 1):
            rate = f"{row['flops'] / row['us'] / 1e3:.1f}"
            theirs = ("-", "-") if row["peer_us"] is None else (f"{row['peer_us']:.1f}", f"{row['ratio']:.2f}x")
            table.add_row(f"{number:2} {row['name']}", f"{row['us']:.1f}", rate, *theirs)
        both = [row for row in layers if row["peer_us"] is not None]
        ours, theirs_us = (sum(row[side] for row in both) for side in ("us", "peer_us"))
        sums = (f"{theirs_us:.1f}", f"{theirs_us / ours:.2f}x") if both else ("-", "-")
        table.add_section()
        table.add_row(f"the {len(both) or len(layers)} of both", f"{ours:.1f}" if both else "-", "", *sums)
        yield table


def distribution(rows: Sequence[Row], peer: str, peak_gflops: float | None) -> Table:
    """Return figure 2: how many operators reach which rate. peak_gflops: peak of the device, None if unknown."""
    sides = {"Romou": gflops(rows, "us"), peer: gflops(rows, "peer_us")}
    table = table_of_numbers("GFLOPS", tuple(sides), title="Figure 2: operators by their rate")
    for low, high in zip(BINS, (*BINS[1:], float("inf")), strict=True):
        counts = [sum(low <= rate < high for rate in rates) for rates in sides.values()]
        if any(counts):
            table.add_row(f"{low} to {high}", *map(str, counts))
    table.add_section()
    table.add_row("highest", *(f"{max(rates):.1f}" if rates else "-" for rates in sides.values()))
    shares = {name: max(rates) / peak_gflops for name, rates in sides.items() if rates and peak_gflops}
    table.add_row("highest, of peak", *(f"{shares[name]:.1%}" if name in shares else "-" for name in sides))
    return table


def utilization(rows: Sequence[Row], peer: str, peak_gflops: float | None, bandwidth_gbps: float | None) -> Table:
    """Return figure 3b: shares of the peak rate and of the memory's bandwidth over each network's convolutions.

    The paper's profiler counted busy cycles. These are operations and bytes, each moved once, over the kernels' time.
    """
    columns = ("layers", "Romou of ALUs", "of memory", f"{peer} of ALUs", "of memory")
    table = table_of_numbers(
        "network", columns, title="Figure 3b: use of the device, from counted operations and bytes"
    )
    row_of = {row["name"]: row for row in rows}
    for network in NETWORKS:
        layers = [row_of[work.name] for work in convolutions_of(network) if work.name in row_of]
        cells = []
        for side in ("us", "peer_us"):
            timed = [row for row in layers if row.get(side)]
            for counted, most in (("flops", peak_gflops), ("bytes", bandwidth_gbps)):
                us = sum(row[side] for row in timed)
                share = sum(row[counted] for row in timed) / us / 1e3 / most if us and most else None
                cells.append("-" if share is None else f"{share:.1%}")
        if layers:
            table.add_row(network, str(len(layers)), *cells)
    return table
