"""Knob spaces before and after pruning, for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from romou.pruning import PruningReport
    from romou.pruning.prune import CriterionCount


def space_table(rows: Sequence[tuple[str, PruningReport]], *, title: str) -> Table:
    """Return a table with a line for each task: configs by its knobs, those that its template admits, those that are left, and which criteria gave way."""
    table = Table(title=escape(title))
    table.add_column("task", no_wrap=True)
    for column in ("declared", "before", "kept", "pruned"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("gave way")
    for name, report in rows:
        table.add_row(escape(name), str(report.declared), str(report.before), str(report.kept), percent(report.pruned_share), ", ".join(report.relaxed))
    return table


def criteria_table(reports: Sequence[PruningReport]) -> Table:
    """Return a table with a line for each criterion: mean share of the spaces that it removes alone, and that it alone removes."""
    table = Table(title="What each criterion removes, mean over the tasks")
    table.add_column("criterion", no_wrap=True)
    for column in ("alone", "only it", "gave way"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("limit from")
    for name, counts in _by_criterion(reports).items():
        alone, only = (sum(getattr(c, field) / r.before for r, c in counts) / len(reports) for field in ("alone", "only"))
        gave_way = sum(c.slack != 1 for _, c in counts)
        table.add_row(name, percent(alone), percent(only), str(gave_way), escape(counts[0][1].source))
    together = sum(r.pruned_share for r in reports) / len(reports) if reports else 0.0
    table.add_row("all together", percent(together), "", "", "")
    return table


def percent(share: float) -> str:
    """0.999 -> "99.9%"; what is not quite all never reads 100%."""
    return f"{min(share, 0.9999) if share < 1 else share:.2%}"


def _by_criterion(reports: Sequence[PruningReport]) -> dict[str, list[tuple[PruningReport, CriterionCount]]]:
    found: dict[str, list[tuple[PruningReport, CriterionCount]]] = {}
    for report in reports:
        for count in report.criteria:
            found.setdefault(count.criterion, []).append((report, count))
    return found
