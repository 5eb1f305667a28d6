"""Knob spaces before and after pruning, for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from romou.base.knob import Choice, nearest
from romou.base.space import Space
from romou.runtime.module.profile import nodes_text
from romou.tools.report.table import table_of_numbers

if TYPE_CHECKING:
    from romou.base.task import Task
    from romou.tuner.pruning import PrunedSpace, PruningReport
    from romou.tuner.pruning.prune import CriterionCount


# Number of configs that a comparison draws from a space.
_SAMPLE = 300


def space_table(rows: Sequence[tuple[Task, PruningReport]], *, title: str) -> Table:
    """Return a table with a line for each task.

    Its columns are the configs of the knobs, of the template and after pruning, the criteria that gave way, and the
    ONNX nodes.
    """
    columns = ("declared", "before", "kept", "pruned")
    table = table_of_numbers("task", columns, "gave way", "ONNX nodes", title=title)
    for task, report in rows:
        table.add_row(
            escape(task.name),
            str(report.declared),
            str(report.before),
            str(report.kept),
            percent(report.pruned_share),
            ", ".join(report.relaxed),
            escape(nodes_text(task.nodes)),
        )
    return table


def constraint_table(spaces: Sequence[Space]) -> Table:
    """Return a table of the mean share of all combinations that each constraint between knobs rules out by itself."""
    table = table_of_numbers("constraint", ("rules out",), title="Constraints between knobs, mean over the tasks")
    shares = [space.ruled_out() for space in spaces]
    means = {
        reason: sum(own.get(reason, 0.0) for own in shares) / len(shares)
        for reason in dict.fromkeys(reason for own in shares for reason in own)
    }
    for reason, mean in sorted(means.items(), key=lambda entry: -entry[1]):
        if mean:
            table.add_row(escape(reason), percent(mean))
    return table


def criteria_table(reports: Sequence[PruningReport]) -> Table:
    """Return a table of the shares of the spaces that each criterion removes.

    A line has the mean share that the criterion removes, and the mean share that no other criterion removes.
    """
    table = table_of_numbers(
        "criterion",
        ("alone", "only it", "gave way"),
        "limit from",
        title="What each criterion removes, mean over the tasks",
    )
    for name, counts in _by_criterion(reports).items():
        alone, only = (
            sum(getattr(c, field) / r.before for r, c in counts) / len(reports) for field in ("alone", "only")
        )
        gave_way = sum(c.slack != 1 for _, c in counts)
        table.add_row(name, percent(alone), percent(only), str(gave_way), escape(counts[0][1].source))
    together = sum(r.pruned_share for r in reports) / len(reports) if reports else 0.0
    table.add_row("all together", percent(together), "", "", "")
    return table


def shared_shares(one: PrunedSpace, other: PrunedSpace) -> tuple[float, float]:
    """Return the share of each space's configs that the other space also keeps, from a sample of each."""
    return _share_in(one, other), _share_in(other, one)


def _share_in(space: Space, other: Space) -> float:
    sample = space.sample(np.random.default_rng(0), _SAMPLE)
    kept = sum(other.knows(config) and bool(other.is_valid(config)) for config in sample)
    return kept / len(sample) if sample else 1.0


def compared_spaces_table(rows: Sequence[tuple[Task, PrunedSpace, PrunedSpace]], names: tuple[str, str]) -> Table:
    """Return a table of each task's configs on two devices.

    A line also has the share of each device's configs that the other keeps.
    """
    one, other = names
    columns = (f"kept on {one}", f"kept on {other}", f"of {one}'s on {other}", f"of {other}'s on {one}")
    table = table_of_numbers("task", columns, "ONNX nodes", title=f"Pruned spaces by the facts of {one} and {other}")
    for task, *spaces in rows:
        shares, kept = shared_shares(*spaces), (str(space.report.kept) for space in spaces)
        nodes = escape(nodes_text(task.nodes))
        table.add_row(escape(task.name), *kept, *map(percent, shares), nodes)
    return table


def compared_criteria_table(reports: Sequence[tuple[PruningReport, PruningReport]], names: tuple[str, str]) -> Table:
    """Return a table of the mean share of the spaces that each criterion removes on each device.

    A dash: the device's facts do not allow the criterion.
    """
    table = table_of_numbers("criterion", names, title="What each criterion removes by itself, mean over the tasks")
    sides = [_by_criterion([pair[side] for pair in reports]) for side in (0, 1)]
    for name in dict.fromkeys(name for side in sides for name in side):
        shares = [
            percent(sum(count.alone / report.before for report, count in side[name]) / len(reports))
            if name in side
            else "-"
            for side in sides
        ]
        table.add_row(name, *shares)
    return table


def percent(share: float) -> str:
    """Format a share, 0.999 as "99.9%". A share below one is never shown as 100%."""
    return f"{min(share, 0.9999) if share < 1 else share:.2%}"


def _by_criterion(reports: Sequence[PruningReport]) -> dict[str, list[tuple[PruningReport, CriterionCount]]]:
    counts: dict[str, list[tuple[PruningReport, CriterionCount]]] = {}
    for report in reports:
        for count in report.criteria:
            counts.setdefault(count.criterion, []).append((report, count))
    return counts


def knob_rows(spaces: Sequence[Space]) -> list[dict[str, Any]]:
    """Return an entry per knob of `spaces`: its choices in any space, the number of spaces, and its declaration."""
    declared = {name: knob for space in spaces for name, knob in space.declared.items()}
    rows = []
    for name, knob in declared.items():
        having = [space.knobs[name] for space in spaces if name in space.knobs]
        choices = list(dict.fromkeys(choice for own in having for choice in own))
        default = nearest(choices, knob.default)
        rows.append(
            {
                "knob": name,
                "choices": choices,
                "default": default,
                "tasks": len(having),
                "devices": knob.devices,
                "help": knob.help,
            }
        )
    return rows


def knob_table(spaces: Sequence[Space], *, title: str) -> Table:
    """Return a table with a line for each knob of some tasks' spaces."""
    table = Table(title=escape(title))
    for column in ("knob", "choices", "default", "tasks", "devices", "meaning"):
        table.add_column(column, no_wrap=column == "knob", justify="right" if column == "tasks" else "left")
    for row in knob_rows(spaces):
        texts = (
            row["knob"],
            _spelled(row["choices"]),
            _spelled([row["default"]]),
            str(row["tasks"]),
            row["devices"],
            row["help"],
        )
        table.add_row(*map(escape, texts))
    return table


def _spelled(choices: Sequence[Choice]) -> str:
    return ", ".join(("no", "yes")[choice] if isinstance(choice, bool) else str(choice) for choice in choices)
