"""A checked model as text and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from romou.runtime.module.profile import nodes_text
from romou.tools.report.html_page import write_html
from romou.tools.report.table import float_lines, memory_text, mib, number, table_of_numbers

if TYPE_CHECKING:
    from romou.tools.inspection.check_report import CheckedLayer, CheckReport

_COLUMNS = ("ms", "share", "calls")
_TEXTS = ("limit", "kernel")


def check_table(report: CheckReport) -> Table:
    """Return a table with a line for each layer, the slowest first."""
    table = table_of_numbers("layer", _COLUMNS, *_TEXTS, title="Estimated time per layer (ms of all calls)")
    for name, *cells in _rows(report):
        table.add_row(escape(name), *map(escape, cells))
    return table


def _rows(report: CheckReport) -> Iterator[tuple[str, ...]]:
    total = report.ms
    ordered: list[CheckedLayer] = sorted(report.layers, key=lambda layer: -(layer.ms or 0.0))
    for layer in ordered:
        share = f"{layer.ms / total:.0%}" if layer.ms is not None and total else "-"
        nodes = nodes_text(layer.nodes)
        yield nodes or layer.name, number(layer.ms), share, str(layer.calls), layer.words, layer.name if nodes else ""


def check_lines(report: CheckReport) -> Iterator[tuple[str, list[str]]]:
    """Yield (heading, lines) on everything but the layers."""
    on_gpu = report.nodes - len(report.host)
    lines = [
        f"{on_gpu} of {report.nodes} nodes have kernels; {report.host_share:.0%} of the operations are on the host."
    ]
    lines += [f"on the host: {node.name}: {node.reason}. {node.hint}".rstrip() for node in report.host]
    if report.by_tvm:
        lines.append(f"by a schedule of TVM's, without an estimate: {', '.join(report.by_tvm)}")
    yield "Nodes", [*lines, *float_lines(report.floats)]
    lines = ["no estimate" if report.ms is None else f"{report.ms:.3f} ms in all, by the estimate"]
    if report.between_ms is not None:
        low, high = report.between_ms
        lines[0] += f", between {low:.3f} and {high:.3f} ms by the errors of recorded times"
    if report.cpu_ms is not None:
        lines.append(f"onnxruntime takes {number(report.cpu_ms)} ms on this machine's CPU, which is not the device's")
    yield "Time", [*(f"{line}." for line in lines), *report.remarks]
    yield "Beside a phone's CPU, by what others published", [each.words(report.ms or 0.0) for each in report.on_cpus]
    yield "LiteRT's GPU delegate", list(report.litert)
    lines = [] if report.memory is None else [memory_text(report.memory)]
    if report.largest is not None:
        most = "is not known" if report.largest_allowed is None else f"is {mib(report.largest_allowed)} MiB"
        lines.append(f"Largest tensor: {mib(report.largest.bytes)} MiB; the device's largest allocation {most}.")
    yield "Memory", lines
    yield "Precision", list(report.precision)
    yield "Drivers", list(report.quirks)
    yield "Problems", list(report.problems)


def write_check_page(report: CheckReport, path: Path, title: str) -> Path:
    """Write the report as one HTML page without scripts, and return its path.

    Raises
    ------
    UsageError
        The page cannot be written.
    """
    return write_html(
        "check.html",
        path,
        title=f"{title} on {report.device}",
        about="",
        target=report.target,
        lists=list(check_lines(report)),
        columns=("layer", *_COLUMNS, *_TEXTS),
        rows=list(_rows(report)),
        numbers=_COLUMNS,
    )
