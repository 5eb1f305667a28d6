"""Prints the results of benchmarks/kernel_bench.py: a line for each operator, then means, totals and clocks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from romou.tools.report.table import table_of_numbers


def configs_text(config: Mapping[str, Any]) -> str:
    """Return the knobs that distinguish configs, one word each."""
    tile, group = (
        "x".join(str(config[k]) for k in keys) for keys in (("tile_o", "tile_h", "tile_w"), ("wg_o", "wg_w"))
    )
    rest = [f"{k}={config[k]}" for k in ("split_k", "local", "steps") if config.get(k) not in (0, 1, None)]
    shown = (
        "tile_o",
        "tile_h",
        "tile_w",
        "wg_o",
        "wg_w",
        "split_k",
        "local",
        "steps",
        "autobroadcast",
        "multiply_add",
        "accumulate",
    )
    words = [str(v) for k, v in config.items() if k not in shown and v not in ("buffer", "lanes", 4)]
    words += [word for word in ("mma", "tf32", "coopmat") if config.get("multiply_add") == word]
    return " ".join([f"tile {tile} group {group}", *rest, *words])


def print_table(rows: Sequence[Mapping[str, Any]], head: Mapping[str, Any], title: str, library: str) -> None:
    """Print one line for each operator, ending with configs and layouts, then the means."""
    out = Console(width=240)
    device = head["device"]
    has_paper = any(row.get("paper") for row in rows)
    columns = (
        "MFLOP",
        "F/B",
        f"{library} us",
        "GF/s",
        "initial us",
        "Romou us",
        "GF/s",
        "ratio",
        "of peak",
        f"{library} of peak",
        *["paper of peak"] * has_paper,
        "roofline",
        "bound",
        "trials",
        "error",
    )
    where = f"{device['name']} ({device['platform']}, driver {device['driver']}), {head['target']}"
    table = table_of_numbers("operator", columns, "config", title=f"{title}, {head['dtype']}, {where}")
    for row in rows:
        cells = [f"{row['flops'] / 1e6:.1f}", f"{row['flops'] / row['bytes']:.1f}"]
        cells += [_text(row["peer_us"], ".1f"), gflops_text(row, "peer_us"), _text(row.get("initial_us"), ".1f")]
        cells += [_text(row["us"], ".1f"), gflops_text(row, "us"), _text(row["ratio"], ".2f", "x")]
        cells += [_text(row.get(key), ".0%") for key in ("peak", "peer_peak", *["paper"] * has_paper, "roofline")]
        cells += [
            row["bound"] or "-",
            str(row["trials"]),
            "WRONG" if row["problem"] else _text(row["relative_l2_error"], ".0e"),
        ]
        table.add_row(
            row["name"], *cells, f"{configs_text(row['config'])}{' | ' + row['layout'] if row['layout'] else ''}"
        )
    out.print(table)
    for line in summary_lines(rows, head, library):
        out.print(line, markup=False, highlight=False)


def summary_lines(rows: Sequence[Mapping[str, Any]], head: Mapping[str, Any], library: str) -> Iterator[str]:
    """Yield means, totals, the cost of tuning and the clocks, one line each."""
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    yield f"Romou: {sum(row['us'] for row in rows):.1f} us in all"
    gains = [row["initial_us"] / row["us"] for row in rows if row.get("initial_us") is not None]
    if gains:
        yield f"initial / Romou: geometric mean {statistics.geometric_mean(gains):.3f}x over {len(gains)} operators"
    if ratios:
        slow = [row["name"] for row in rows if row["ratio"] is not None and row["ratio"] < 0.8]
        yield f"{library}: {sum(row['peer_us'] for row in rows):.1f} us in all ({head['peer']})"
        below = f"{len(slow)} of {len(ratios)} below 0.8x" + (f": {', '.join(slow)}" if slow else "")
        yield f"{library} / Romou: geometric mean {statistics.geometric_mean(ratios):.3f}x; {below}"
    lowest = sorted((row for row in rows if row["roofline"] is not None), key=lambda row: row["roofline"])[:3]
    if lowest:
        text = ", ".join(f"{row['name']} {row['roofline']:.0%} ({row['bound']})" for row in lowest)
        yield (
            f"Slowest relative to the roofline of {head['peak_gflops']:.0f} GFLOPS and {head['bandwidth_gbps']:.0f}"
            f" GB/s: {text}"
        )
    tuning = head["tuning"]
    if tuning:
        cost = f"{tuning['trials']:.0f} trials and {tuning['minutes']:.1f} minutes"
        yield (
            f"Within 5% of the final total after {cost}, of {tuning['all_trials']:.0f} and {tuning['all_minutes']:.1f}"
        )
    yield f"GPU before: {head['clocks'][0]}"
    yield f"GPU after:  {head['clocks'][-1]}"


def gflops_text(row: Mapping[str, Any], time: str) -> str:
    """Spell billions of operations a second. time: the key of the row's microseconds."""
    return "-" if row.get(time) is None else f"{row['flops'] / row[time] / 1e3:.1f}"


def _text(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
