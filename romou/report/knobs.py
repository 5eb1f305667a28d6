"""The knobs of a model's tasks, for a person and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from romou.core.knob import Choice, nearest
from romou.core.space import Space


def knob_rows(spaces: Sequence[Space]) -> list[dict[str, Any]]:
    """Return one entry a knob of some tasks' spaces: its choices in any of them, how many have it, and what is declared of it."""
    declared = {name: knob for space in spaces for name, knob in space.declared.items()}
    rows = []
    for name, knob in declared.items():
        having = [space.knobs[name] for space in spaces if name in space.knobs]
        choices = list(dict.fromkeys(choice for own in having for choice in own))
        default = nearest(choices, knob.default)
        rows.append({"knob": name, "choices": choices, "default": default, "tasks": len(having), "devices": knob.devices, "help": knob.help})
    return rows


def knob_table(spaces: Sequence[Space], *, title: str) -> Table:
    """Return a table with a line for each knob of some tasks' spaces."""
    table = Table(title=escape(title))
    for column in ("knob", "choices", "default", "tasks", "devices", "meaning"):
        table.add_column(column, no_wrap=column == "knob", justify="right" if column == "tasks" else "left")
    for row in knob_rows(spaces):
        texts = row["knob"], _spelled(row["choices"]), _spelled([row["default"]]), str(row["tasks"]), row["devices"], row["help"]
        table.add_row(*map(escape, texts))
    return table


def _spelled(choices: Sequence[Choice]) -> str:
    return ", ".join(("no", "yes")[choice] if isinstance(choice, bool) else str(choice) for choice in choices)
