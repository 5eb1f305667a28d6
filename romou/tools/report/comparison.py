"""A bench as a table, and a comparison of two benches.

A comparison is a table or Markdown for a person, and JUnit XML for a CI server.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from romou.devices.targets import Target
from romou.runtime.module.profile import nodes_text
from romou.tools.report.table import filled, number

if TYPE_CHECKING:
    from romou.tools.regression import Bench, Comparison, Row
    from romou.tools.regression.bench_data import OperatorBench

_NAME, _TIMES, *_WRAPPED = "layer", "times", "measures and notes", "kernel"
_COLUMNS = (_NAME, "calls", "before ms", "after ms", "ratio", "99% bounds", _TIMES, *_WRAPPED)
# Columns of a bench: title -> measure
_MEASURES = {
    "registers": "registers",
    "integer operations in loops": "integer_operations_in_loops",
    "bytes an iteration": "bytes_per_iteration",
}
_COUNTS = {
    "compiled: instructions executed": "compiled_executed",
    "compiled: registers": "compiled_registers",
    "compiled: spills": "compiled_spills",
    "vendor: cycles": "vendor_cycles",
    "vendor: registers": "vendor_registers",
    "vendor: spills": "vendor_spills",
}
# Characters that XML 1.0 does not allow, even escaped.
_NO_XML = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF])


def comparison_table(comparison: Comparison) -> Table:
    """Return a table with one line per operator that marks regressions."""
    table = Table(title=escape(headline(comparison)))
    for title in _COLUMNS:
        table.add_column(title, justify="left" if _is_text(title) else "right", no_wrap=title not in _WRAPPED)
    for row in comparison.rows:
        table.add_row(*map(escape, _cells(row)), style="bold red" if row.is_regression else None)
    return table


def bench_table(bench: Bench) -> Table:
    """Return a table with one line per operator: its time and its kernels' measures."""
    table = Table(title=escape(f"{bench.model}, {Target.from_json(bench.target)}"))
    table.add_column("layer", no_wrap=True)
    counted = {name for operator in bench.operators for name in operator.measures}
    shown = {**_MEASURES, **{title: name for title, name in _COUNTS.items() if name in counted}}
    for title in ("calls", "ms", *shown):
        table.add_column(title, justify="right")
    table.add_column("kernel")
    for operator in bench.operators:
        measures = (str(operator.measures.get(name, "-")) for name in shown.values())
        name, kernel = map(escape, _names(operator))
        table.add_row(name, str(operator.calls), number(operator.time_ms, 4), *measures, kernel)
    return table


def headline(comparison: Comparison) -> str:
    """Return the verdict in a line."""
    worse = len(comparison.regressions)
    what = (
        f"{worse} of {len(comparison.rows)} rows worse by more than {100 * comparison.fail_over:g}%"
        if worse
        else "nothing is worse"
    )
    return f"{comparison.model}: {what}"


def remarks(comparison: Comparison) -> Iterator[str]:
    """Return lines on how the times were compared, and on undecided operators."""
    if comparison.timing == "in turns":
        yield f"Times: both measured in turns on {comparison.device}" + (
            f"; {comparison.reason}." if comparison.reason else "."
        )
    elif comparison.timing == "recorded":
        yield f"Times: as recorded on {comparison.device}, because {comparison.reason}."
        yield f"The machine took {comparison.machine:.3f} times as long for the reference model; that widens the limit."
        yield (
            "Recorded times can only tell where both sessions were quiet; timing in turns needs the baseline's .romou"
            " folder beside its file."
        )
    else:
        yield f"Times were NOT compared: {comparison.reason}."
    if comparison.compiler is not None:
        yield f"Counts: by {comparison.compiler}."
    if comparison.undecided:
        names = ", ".join(row.name for row in comparison.undecided)
        yield (
            f"Undecided, because the times scatter too widely: {names}. More --repeats, or a quieter machine, would"
            " tell."
        )


def markdown(comparison: Comparison) -> str:
    """Return a table for a pull request's page."""
    lines = [f"### {_md(headline(comparison))}", "", *(_md(text) + "  " for text in remarks(comparison)), ""]
    columns, rows = filled(_COLUMNS, [_cells(row) for row in comparison.rows])
    lines += ["| " + " | ".join(columns) + " |"]
    lines += ["|" + "".join("---|" if _is_text(column) else "---:|" for column in columns)]
    for row, texts in zip(comparison.rows, rows, strict=True):
        cells = [_md(cell) for cell in texts]
        if row.is_regression:
            cells[0] = f"**{cells[0]}**"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def junit_xml(comparison: Comparison) -> str:
    """Return a test suite with one case per operator.

    A failure is a regression. A skipped case was not compared, or its times scatter too widely to tell.
    """
    rows = comparison.rows
    skipped = [row for row in rows if _is_skipped(row)]
    counts = {
        "tests": str(len(rows)),
        "failures": str(len(comparison.regressions)),
        "errors": "0",
        "skipped": str(len(skipped)),
    }
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": _xml(f"romou compare {comparison.model}"), **counts})
    for row in rows:
        seconds = f"{row.times.after_ms / 1e3:.9f}" if row.times is not None else "0"
        name, kernel = _names(row)
        # Two kernels of one node need distinct names.
        name = f"{name}: {kernel}" if kernel else name
        case = ET.SubElement(
            suite, "testcase", {"classname": _xml(comparison.model), "name": _xml(name), "time": seconds}
        )
        text = _xml(_sentence(row))
        if row.is_regression:
            ET.SubElement(case, "failure", {"message": text, "type": "regression"}).text = text
        elif _is_skipped(row):
            ET.SubElement(case, "skipped", {"message": text})
        else:
            ET.SubElement(case, "system-out").text = text
    ET.SubElement(suite, "system-out").text = _xml("\n".join(remarks(comparison)))
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    times = row.times
    if times is None:
        numbers = ("-",) * 5
    else:
        shift = times.shift
        numbers = (
            number(times.before_ms, 4),
            number(times.after_ms, 4),
            number(shift.ratio),
            f"{shift.low:.3f}-{shift.high:.3f}",
            times.verdict,
        )
    name, kernel = _names(row)
    return name, str(row.calls), *numbers, "; ".join((*_rises(row), *row.notes)), kernel


def _names(row: Row | OperatorBench) -> tuple[str, str]:
    """Return (name of the layer, name of its kernel). If its ONNX nodes are unknown, the kernel names the layer."""
    nodes = nodes_text(row.nodes)
    return (nodes, row.name) if nodes else (row.name, "")


def _is_text(column: str) -> bool:
    return column in (_NAME, _TIMES, *_WRAPPED)


def _rises(row: Row) -> list[str]:
    return [f"{rise.measure} WORSE {rise.before:g} -> {rise.after:g}" for rise in row.rises]


def _sentence(row: Row) -> str:
    parts = [*_rises(row), *row.notes]
    if row.times is not None:
        shift = row.times.shift
        bounds = f"{shift.ratio:.3f} times as long ({shift.low:.3f} to {shift.high:.3f}, p {row.times.p:.2g})"
        parts.insert(0, f"{row.times.verdict}: {row.times.before_ms:.4f} ms -> {row.times.after_ms:.4f} ms, {bounds}")
    return "; ".join(parts) or "measures equal"


def _is_skipped(row: Row) -> bool:
    return row.notes[:1] in (("new",), ("gone",)) or (row.times is not None and row.times.verdict == "undecided")


def _md(text: str) -> str:
    return (
        text.replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("*", "\\*")
        .replace("_", "\\_")
        .replace("<", "&lt;")
        .replace("\n", " ")
    )


def _xml(text: str) -> str:
    return text.translate(_NO_XML)
