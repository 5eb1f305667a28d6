"""A checked model as text and as an HTML page."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from romou.base.errors import UsageError
from romou.base.version import __version__
from romou.runtime.module.profile import nodes_text
from romou.tools.report.table import float_lines, memory_text, mib, number, table_of_numbers

if TYPE_CHECKING:
    from romou.tools.inspection.check import CheckedLayer, CheckReport

_COLUMNS = ("calls", "ms", "share")
_TEXTS = ("limit", "ONNX nodes")
_NODE_CHARACTERS = 22
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.2em .6em;border-bottom:1px solid #ddd}"
    "td:nth-child(n+2):nth-child(-n+4){text-align:right}"
)


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
        nodes = nodes_text(layer.nodes, _NODE_CHARACTERS)
        yield layer.name, str(layer.calls), number(layer.ms), share, layer.words, nodes


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
    parts = [f"<h1>{html.escape(title)} on {html.escape(report.device)}</h1>"]
    for heading, lines in check_lines(report):
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        parts.append(f"<h2>{heading}</h2><ul>{items}</ul>" if lines else "")
    head = "".join(f"<th scope=col>{name}</th>" for name in ("layer", *_COLUMNS, *_TEXTS))
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in _rows(report))
    parts.append(f"<h2>Estimated time per layer (ms of all calls)</h2><table><tr>{head}</tr>{rows}</table>")
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{_STYLE}</style>"
    )
    try:
        path.write_text(f"{page}{''.join(parts)}<p>romou {__version__}, target {html.escape(report.target)}", "utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}", path=str(path)) from error
    return path
