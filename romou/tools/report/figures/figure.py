"""A figure of a report: rows of plain data, and a Vega-Lite specification to draw them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from romou.tools.report.evidence import Evidence, Row

# The value of the page's layer menu for all layers.
ALL = "all layers"
OF_LAYER = {"filter": f"layer == '{ALL}' || datum.layer == layer"}
LOG2 = {"type": "log", "base": 2}


def quantity(field: str, title: Any, **options: Any) -> dict[str, Any]:
    """Return a Vega-Lite channel of numbers. title: the name of its axis, with the unit, or a signal that gives it."""
    return {"field": field, "type": "quantitative", "title": title, **options}


def category(field: str, title: str | None, **options: Any) -> dict[str, Any]:
    """Return a Vega-Lite channel of names, in the order of their first rows."""
    return {"field": field, "type": "nominal", "sort": None, "title": title, **options}


def mark(kind: str, **options: Any) -> dict[str, Any]:
    """Return a Vega-Lite mark that shows its row when it is pointed at."""
    return {"type": kind, "tooltip": {"content": "data"}, **options}


def aggregated(operation: str, field: str, by: list[str]) -> dict[str, Any]:
    """Return a Vega-Lite transform that leaves one row for each value of the columns `by`."""
    return {"aggregate": [{"op": operation, "field": field, "as": field}], "groupby": by}


# The page shortens names so that they stay distinct. The title is above the names: beside them it would cover them.
LAYER_AXIS = category(
    "layer",
    "layer",
    axis={
        "labelExpr": "short[datum.value] || datum.value",
        "labelLimit": 0,
        "titleAngle": 0,
        "titleAlign": "right",
        "titleX": -6,
        "titleY": -4,
    },
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the report.

    name    identifier of the figure in the page
    note    one or two sentences that explain the figure
    rows    returns plain rows, and a remark on missing data ("" if nothing is missing). UnknownError if there are no
            rows
    spec    Vega-Lite specification without data. The page adds the rows, and the parameter `layer`. A layer of marks
            may name a column under "needs". It is left out if no row has a value in this column
    menus   parameter of the spec -> the entries of its menu, from the rows. The first one is selected initially
    values  parameter of the spec -> its value, from the rows
    of_search   the figure is on the search and its space, for whoever works on the tuner
    """

    name: str
    title: str
    note: str
    rows: Callable[[Evidence], tuple[list[Row], str]]
    spec: dict[str, Any]
    menus: Callable[[list[Row]], dict[str, list[str]]] = lambda rows: {}
    values: Callable[[list[Row]], dict[str, Any]] = lambda rows: {}
    of_search: bool = False
