"""Curves of the device, measured by ArchProbe."""

from __future__ import annotations

from romou.tools.report.evidence import Evidence, Row, UnknownError
from romou.tools.report.figures.figure import Figure

# Most points of a curve, enough for a page of some hundred pixels.
_POINTS = 200


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each point: curve, x, y, axes. A long curve is thinned out evenly."""
    points = [
        {"curve": f"{aspect}: {curve['name']}", "x": x, "y": y, "axes": f"{curve['y_label']} over {curve['x_label']}"}
        for aspect, curve in evidence.curves
        for x, y in list(zip(curve["x"], curve["y"], strict=True))[:: -(-len(curve["x"]) // _POINTS)]
    ]
    if not points:
        raise UnknownError("No curves of the device: give a report of `archprobe run` beside the other files.")
    return points, ""


FIGURE = Figure(
    name="device",
    title="Device",
    note="What ArchProbe measured; each curve has its own axes.",
    rows=rows,
    menus=lambda points: {"curve": list(dict.fromkeys(row["curve"] for row in points))},
    spec={
        "params": [{"name": "curve", "value": ""}],
        "transform": [{"filter": "datum.curve == curve"}],
        "height": 240,
        "mark": {"type": "line", "point": {"size": 14}, "tooltip": {"content": "data"}},
        "encoding": {
            "x": {
                "field": "x",
                "type": "quantitative",
                "scale": {"type": "symlog"},
                "title": None,
                "axis": {"format": "~s"},
            },
            "y": {"field": "y", "type": "quantitative", "title": None, "axis": {"format": "~s"}},
        },
    },
)
