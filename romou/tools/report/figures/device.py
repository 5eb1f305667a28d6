"""Curves of the device, measured by ArchProbe, with their knees."""

from __future__ import annotations

from collections.abc import Iterator

from romou.devices.hardware.archprobe_report import Curve
from romou.devices.hardware.spec import SCHEMA
from romou.tools.report.evidence import Evidence, Row, UnknownError
from romou.tools.report.figures.figure import Figure, mark, quantity

# Most points of a curve, enough for a page of some hundred pixels.
_POINTS = 200


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each point: curve, x, y, x_label, y_label, and one for each knee: curve, x, knee.

    A long curve is thinned out evenly. The remark lists the facts that are not known of the device.
    """
    points = [row for aspect, curve in evidence.curves for row in _rows_of(f"{aspect}: {curve.name}", curve)]
    if not points:
        raise UnknownError("No curves of the device: give a report of `archprobe run` beside the other files.")
    spec = evidence.spec
    missing = [fact for fact in SCHEMA if getattr(spec, fact) is None] if spec else []
    return points, f"Not known of {spec.name}: {', '.join(missing)}." if spec and missing else ""


def _rows_of(name: str, curve: Curve) -> Iterator[Row]:
    axes = {"x_label": curve.x_label, "y_label": curve.y_label}
    for x, y in list(zip(curve.x, curve.y, strict=True))[:: -(-len(curve.x) // _POINTS) or None]:
        yield {"curve": name, "x": x, "y": y, **axes}
    for key, x in curve.marks.items():
        if curve.x and min(curve.x) <= x <= max(curve.x):
            yield {"curve": name, "x": x, "knee": f"{key} = {x:g}"}


_X = quantity("x", {"signal": "x_label[curve]"}, scale={"type": "symlog"}, axis={"format": "~s"})
_KNEE = {"needs": "knee", "transform": [{"filter": "isValid(datum.knee)"}]}


FIGURE = Figure(
    name="device",
    of_search=True,
    title="Device",
    note="Curves that ArchProbe measured, each with its own axes. A dashed line is a knee.",
    rows=rows,
    values=lambda points: {
        name: {row["curve"]: row[name] for row in points if name in row} for name in ("x_label", "y_label")
    },
    menus=lambda points: {"curve": list(dict.fromkeys(row["curve"] for row in points))},
    spec={
        "params": [{"name": "curve", "value": ""}, {"name": "x_label", "value": {}}, {"name": "y_label", "value": {}}],
        "transform": [{"filter": "datum.curve == curve"}],
        "height": 240,
        "layer": [
            {
                "transform": [{"filter": "!isValid(datum.knee)"}],
                "mark": mark("line", point={"size": 14}),
                "encoding": {"x": _X, "y": quantity("y", {"signal": "y_label[curve]"}, axis={"format": "~s"})},
            },
            {**_KNEE, "mark": {"type": "rule", "strokeDash": [4, 4]}, "encoding": {"x": _X}},
            {
                **_KNEE,
                "mark": {"type": "text", "align": "left", "dx": 4, "baseline": "top"},
                "encoding": {"x": _X, "y": {"value": 0}, "text": {"field": "knee"}},
            },
        ],
    },
)
