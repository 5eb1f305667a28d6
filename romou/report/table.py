"""The per-layer table of a tuned model: time before and after, and the check against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from romou.module.summary import LayerRow, Summary


def number(value: float | None, digits: int = 3) -> str:
    """Fixed digits, or a dash for what was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def ratio(value: float | None) -> str:
    """2.5 -> "2.50x"."""
    return "-" if value is None else f"{value:.2f}x"


def layer_table(rows: Sequence[LayerRow]) -> Table:
    """One line per task, the most expensive first, and a last line with the sums over all calls."""
    table = Table(title="Time per layer (ms of one call)", show_footer=bool(rows))
    before, after = _total_ms(rows, "default_ms"), _total_ms(rows, "tuned_ms")
    table.add_column("layer", footer="all calls", no_wrap=True)
    right = {"justify": "right", "no_wrap": True}
    table.add_column("calls", footer=str(sum(row.calls for row in rows)), **right)  # type: ignore[arg-type]
    table.add_column("before", footer=number(before), **right)  # type: ignore[arg-type]
    table.add_column("after", footer=number(after), **right)  # type: ignore[arg-type]
    table.add_column("faster", footer=ratio(before / after if before and after else None), **right)  # type: ignore[arg-type]
    table.add_column("GFLOPS", **right)  # type: ignore[arg-type]
    table.add_column("trials", footer=str(sum(row.trials for row in rows)), **right)  # type: ignore[arg-type]
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
