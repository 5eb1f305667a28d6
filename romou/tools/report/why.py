"""The reasons for a default config, for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from romou.tools.report.table import table_of_numbers

if TYPE_CHECKING:
    from romou.base.knob import Choice
    from romou.tools.inspection.why import DefaultReasons, PricedConfig


def why_table(reasons: DefaultReasons) -> Table:
    """Return a table with a line for each term of the estimate, and a pair of columns for each config."""
    columns = [column for name in _configs(reasons) for column in (name, "us")]
    table = table_of_numbers("term", columns, title=f"Estimate of {reasons.name}, cycles and us")
    for term in reasons.default.cycles:
        cells = ((f"{priced.cycles[term]:.0f}", f"{priced.us[term]:.1f}") for priced in _configs(reasons).values())
        table.add_row(term, *(cell for pair in cells for cell in pair), end_section=term in ("output", "unrolled"))
    return table


def why_lines(reasons: DefaultReasons) -> list[str]:
    """Return the default config, what the others change in it, and how long each takes by the estimate."""
    default, *others = _configs(reasons).items()
    lines = [f"default: {_spelled(default[1].config)}"]
    for name, priced in others:
        ratio = priced.cycles["all"] / reasons.default.cycles["all"]
        lines.append(f"{name}: {_spelled(priced.changed)}; {ratio:.2f} times the default's estimate")
    return lines


def _configs(reasons: DefaultReasons) -> dict[str, PricedConfig]:
    named = {
        "default": reasons.default,
        "one knob": reasons.neighbour,
        "algorithm": reasons.other,
    }
    return {name: priced for name, priced in named.items() if priced is not None}


def _spelled(choices: Mapping[str, Choice]) -> str:
    return ", ".join(f"{knob} {choice}" for knob, choice in choices.items())
