"""Facts of devices for a person, one per line."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from romou.devices.hardware import HardwareSpec
from romou.devices.hardware.spec import LIMITS, SCHEMA

UNKNOWN = "not known"


def facts_table(spec: HardwareSpec, nearest: HardwareSpec | None) -> Table:
    """Return a table of facts with unit and source. For an unknown fact, it shows the value of the nearest device."""
    table = Table("fact", "value", "unit", "source", title=f"{spec.name}: {spec.title}")
    for key, (unit, _) in SCHEMA.items():
        value = getattr(spec, key)
        offer = None if nearest is None or key in LIMITS else getattr(nearest, key)
        source = spec.source_of(key)
        if value is None and source == UNKNOWN:
            source = ""
        if value is None and nearest is not None and offer is not None:
            source = "; ".join(filter(None, (source, f"{nearest.name} has {shown(offer)}")))
        table.add_row(key, shown(value), unit, source)
    return table


def comparison_table(one: HardwareSpec, other: HardwareSpec) -> Table:
    """Return a table of the facts that differ between two devices."""
    table = Table("fact", one.name, other.name, "unit", title=f"{one.title}, {other.title}: where they differ")
    for key, (unit, _) in SCHEMA.items():
        values = getattr(one, key), getattr(other, key)
        if values[0] != values[1]:
            table.add_row(key, *map(shown, values), unit)
    return table


def shown(value: Any) -> str:
    """Return a fact's value in human-readable form."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
