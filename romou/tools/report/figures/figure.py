"""A figure of a report: rows of plain data, and how they are drawn, as Vega-Lite says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from romou.tools.report.evidence import Evidence, Row

# What the page's menu of layers sets in each figure.
ALL = "all layers"
OF_LAYER = {"filter": f"layer == '{ALL}' || datum.layer == layer"}
# Layers in the order of their first row, their names cut where there is little room.
LAYER_AXIS: dict[str, Any] = {"field": "layer", "type": "nominal", "sort": None, "title": None}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the report.

    name    of its place in the page
    note    one or two sentences on what is seen
    rows    plain rows, and a remark on what they leave open ("" for nothing); UnknownError where there is nothing to show
    spec    Vega-Lite, without data; the page adds the rows, and the parameter `layer`. One of several layers (of marks) may name a column under "needs":
            it is left out where no row has a value there
    menus   of the rows: parameter of the spec -> what its menu offers, the first one chosen at first
    """  # noqa: E501

    name: str
    title: str
    note: str
    rows: Callable[[Evidence], tuple[list[Row], str]]
    spec: dict[str, Any]
    menus: Callable[[list[Row]], dict[str, list[str]]] = lambda rows: {}
