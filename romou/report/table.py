"""The per-layer table of a tuned model: time before and after, and the check against the reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    from romou.module.summary import LayerRow, Summary


def number(value: float | None, digits: int = 3) -> str:
    """Fixed digits, or a dash for what was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def ratio(value: float | None) -> str:
    """2.5 -> "2.50x"."""
    return "-" if value is None else f"{value:.2f}x"


def table_of_numbers(name: str, numbers: Iterable[str], *texts: str, title: str = "") -> Table:
    """An empty table: a column of names, columns of numbers, and columns of text."""
    columns = [Column(name, no_wrap=True), *(Column(column, justify="right", no_wrap=True) for column in numbers), *map(Column, texts)]
    return Table(*columns, title=escape(title) or None)


def layer_table(rows: Sequence[LayerRow]) -> Table:
    """One line per task, the most expensive first, and a last line with the sums over all calls."""
    before, after = _total_ms(rows, "default_ms"), _total_ms(rows, "tuned_ms")
    table = table_of_numbers("layer", ("calls", "before", "after", "faster", "GFLOPS", "trials"), title="Time per layer (ms of one call)")
    table.show_footer = bool(rows)
    calls, trials = (str(sum(getattr(row, field) for row in rows)) for field in ("calls", "trials"))
    footers = ("all calls", calls, number(before), number(after), ratio(before / after if before and after else None), "", trials)
    for column, footer in zip(table.columns, footers, strict=True):
        column.footer = footer
    for row in sorted(rows, key=lambda r: -(r.default_ms or 0.0) * r.calls):
        table.add_row(
            escape(row.name), str(row.calls), number(row.default_ms), number(row.tuned_ms), ratio(row.speedup), number(row.gflops, 2), str(row.trials)
        )
    return table


def _total_ms(rows: Sequence[LayerRow], field: str) -> float | None:
    """The sum over all calls in ms; None as soon as one row was not measured, since a part is no total."""
    total = 0.0
    for row in rows:
        value = getattr(row, field)
        if value is None:
            return None
        total += value * row.calls
    return total if rows else None


def print_summary(summary: Summary, out: Console) -> None:
    """The table, the time of the whole model and the check against onnxruntime."""
    out.print(layer_table(summary.rows))
    if summary.default_ms and summary.tuned_ms:
        faster = ratio(summary.default_ms / summary.tuned_ms)
        out.print(f"Whole model: {number(summary.default_ms)} ms with default schedules, {number(summary.tuned_ms)} ms tuned: {faster}.", markup=False)
    if summary.relative_l2_error is not None:
        verdict = "" if summary.is_right is not False else ": TOO LARGE. Please report it with the model"
        out.print(f"Against onnxruntime: relative L2 error {summary.relative_l2_error:.2e}{verdict}.", markup=False)
    else:
        out.print("Against onnxruntime: not checked.", markup=False)
