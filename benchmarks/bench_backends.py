#!/usr/bin/env python3
"""Compares the 43 convolutions of Boda and MetaGPU on all backends with the vendor's library.

The result is one page with the times before and after tuning.

    python benchmarks/bench_backends.py --targets opencl,vulkan --trials 2000               each backend that works here, one after another
    python benchmarks/bench_backends.py --rows opencl.json --rows cuda.json               joins what benchmarks/kernel_bench.py measured (--json)
    python benchmarks/bench_backends.py --targets cuda,opencl,vulkan --peer torch           with cuDNN

The page has Boda's figures 9 (OpenCL against CUDA), 10 (against cuDNN), 11 (initial against tuned) and 13 (all
devices), and MetaGPU's figures 5 (three backends and cuDNN, by operator) and 7 (Vulkan with and without tuning).
"Initial" is the default config, timed alternately with the tuned one. Operators are in order of their operations.
"""  # noqa: E501

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from kernel_bench import SUITES, Options, compare
from romou.base.errors import RomouError
from romou.tools.report.table import table_of_numbers

Measured = Mapping[str, Any]


def name_of(measured: Measured) -> str:
    """Return the backend of a measurement."""
    return str(measured["target"]).partition(" ")[0]


def library_us(pages: Sequence[Measured], operator: str) -> float | None:
    """Return the vendor's time of an operator, the shortest of all pages. None if it was not measured."""
    times_us = [row["peer_us"] for page in pages for row in page["rows"] if row["name"] == operator]
    return min((us for us in times_us if us is not None), default=None)


def names_of(pages: Sequence[Measured]) -> list[str]:
    """Return a name for each page: its backend, with a number if a backend is there twice."""
    names = [name_of(page) for page in pages]
    return [name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, 1)]


def joined(pages: Sequence[Measured]) -> Table:
    """Return the page: a line for each operator, initial and tuned times of each backend, and the library's."""
    names = names_of(pages)
    columns = [column for name in names for column in (f"{name} initial us", "tuned us", "gain")]
    title = "Initial and tuned kernels (Boda, figures 9 to 11 and 13; MetaGPU, figures 5 and 7)"
    table = table_of_numbers("operator", ("MFLOP", *columns, "library us", "library / best"), title=title)
    rows_of = [{row["name"]: row for row in page["rows"]} for page in pages]
    flops = {name: row["flops"] for rows in rows_of for name, row in rows.items()}
    for operator in sorted(flops, key=lambda name: (flops[name], name)):
        cells = [f"{flops[operator] / 1e6:.0f}"]
        of_backends = [rows.get(operator) for rows in rows_of]
        for row in of_backends:
            initial, tuned = (None, None) if row is None else (row.get("initial_us"), row["us"])
            cells += ["-" if us is None else f"{us:.1f}" for us in (initial, tuned)]
            cells.append(f"{initial / tuned:.2f}x" if initial and tuned else "-")
        library, best = library_us(pages, operator), min(row["us"] for row in of_backends if row is not None)
        cells += ["-", "-"] if library is None else [f"{library:.1f}", f"{library / best:.2f}x"]
        table.add_row(operator, *cells)
    return table


def summary_lines(pages: Sequence[Measured]) -> Iterator[str]:
    """Yield geometric means: gains of tuning, backends against each other, and the library."""
    names = names_of(pages)
    for name, page in zip(names, pages, strict=True):
        gains = [row["initial_us"] / row["us"] for row in page["rows"] if row.get("initial_us")]
        failed = sum(not row.get("initial_us") for row in page["rows"])
        mean = f"{statistics.geometric_mean(gains):.2f}x" if gains else "-"
        yield f"{name} ({page['device']['name']}): initial / tuned {mean}, {failed} without an initial kernel"
    for (name, page), (other_name, other) in itertools.combinations(zip(names, pages, strict=True), 2):
        times = {row["name"]: row["us"] for row in other["rows"]}
        ratios = [row["us"] / times[row["name"]] for row in page["rows"] if row["name"] in times]
        if ratios:
            yield f"{name} / {other_name}: {statistics.geometric_mean(ratios):.2f}x over {len(ratios)} operators"
    for name, page in zip(names, pages, strict=True):
        against = [(library_us(pages, row["name"]), row["us"]) for row in page["rows"]]
        ratios = [theirs / ours for theirs, ours in against if theirs is not None]
        if ratios:
            yield f"library / {name}: {statistics.geometric_mean(ratios):.2f}x over {len(ratios)} operators"


def measure_all(targets: Sequence[str], suite: str, **values: Any) -> Iterator[dict[str, Any] | str]:
    """Yield the measurement of each backend, or its error. Each has a folder of records."""
    works = SUITES[suite].works
    for target in targets:
        folder = values["work_dir"] / target.partition(" ")[0]
        folder.mkdir(parents=True, exist_ok=True)
        options = Options(**{**values, "work_dir": folder}, target=target, output=folder / "rows.json")
        try:
            rows, head = compare(works(options), options)
        except (RomouError, RuntimeError) as error:
            yield f"{target}: not run here: {str(error).splitlines()[0]}"
            continue
        yield {**head, "rows": rows}


@click.command()
@click.option(
    "--rows", "files", type=click.Path(exists=True, dir_okay=False, path_type=Path), multiple=True, help="Of --json."
)
@click.option("--suite", type=click.Choice(list(SUITES)), default="conv43", show_default=True)
@click.option("--targets", default="opencl,vulkan,cuda", show_default=True, help="With commas.")
@click.option("--trials", type=click.IntRange(min=0), default=2000, show_default=True, help="Of each backend.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=None, help="Limit of each search.")
@click.option(
    "--work-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("bench_records"), show_default=True
)
@click.option("--peer", type=click.Choice(["none", "torch", "tvm"]), default="none", show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=128, show_default=True, help="Of AlexNet's layers.")
@click.option("--only", default="", help="Operators whose name contains one of these, with commas.")
@click.option("--rounds", type=click.IntRange(min=1), default=11, show_default=True, help="Timings of each side.")
def main(files: tuple[Path, ...], suite: str, targets: str, peer: str, **values: Any) -> None:
    """Print the page. The exit code is 1 if no backend was measured, or if an output is wrong."""
    out = Console(width=110 + 30 * max(len(files), targets.count(",") + 1))
    how = {"dtype": "float32", "peer": peer, "has_peer": peer != "none", "allows_tf32": False, "is_pruned": True}
    answers: list[dict[str, Any] | str] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    if not files:
        answers = list(measure_all([name.strip() for name in targets.split(",")], suite, **values, **how, seed=0))
    pages = [page for page in answers if not isinstance(page, str)]
    if pages:
        out.print(joined(pages))
    for line in (*summary_lines(pages), *(answer for answer in answers if isinstance(answer, str))):
        out.print(line, markup=False, highlight=False)
    raise SystemExit(0 if pages and not any(row["problem"] for page in pages for row in page["rows"]) else 1)


if __name__ == "__main__":
    main()
