"""Heat map of any two knobs: the best measured time for each pair of choices."""

from __future__ import annotations

from romou.tools.report.evidence import NEEDS_RECORDS, Evidence, Row, UnknownError
from romou.tools.report.figures.figure import OF_LAYER, Figure, mark, quantity

# Prefix of the columns of knobs, so that no knob is mistaken for another column.
PREFIX = "knob "


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each trial that worked.

    Columns: layer, share (best time of the layer / its time), and its choice of every knob under "knob NAME".
    """
    if not evidence.by_task:
        raise UnknownError(NEEDS_RECORDS)
    trials: list[Row] = []
    for key, records in evidence.by_task.items():
        for record in records:
            if record.time_s:
                knobs = {PREFIX + name: choice for name, choice in record.config.items()}
                trials.append({"layer": evidence.labels[key], "share": evidence.best_s[key] / record.time_s, **knobs})
    if not trials:
        raise UnknownError("No trial worked, so there are no times to compare.")
    return trials, ""


def menus(trials: list[Row]) -> dict[str, list[str]]:
    """Return all knobs for each axis, sorted by the number of trials that have them, then by choices."""
    values: dict[str, list[object]] = {}
    for row in trials:
        for name in row:
            if name.startswith(PREFIX):
                values.setdefault(name, []).append(row[name])
    names = sorted(values, key=lambda name: (-len(values[name]), -len(set(values[name]))))
    return {"knob_x": names, "knob_y": [*names[1:], *names[:1]]}


FIGURE = Figure(
    name="knobs",
    of_search=True,
    title="Two knobs",
    note=(
        "For each pair of choices the best time of the layer divided by the best one with that pair: 1 is the fastest"
        " config, 0.5 takes twice as long."
    ),
    rows=rows,
    menus=menus,
    spec={
        "params": [{"name": "knob_x", "value": ""}, {"name": "knob_y", "value": ""}],
        "transform": [
            OF_LAYER,
            {"calculate": "datum[knob_x]", "as": "x"},
            {"calculate": "datum[knob_y]", "as": "y"},
            {"filter": "isValid(datum.x) && isValid(datum.y)"},
            {
                "aggregate": [{"op": "max", "field": "share", "as": "share"}, {"op": "count", "as": "trials"}],
                "groupby": ["x", "y"],
            },
        ],
        "height": 260,
        "mark": mark("rect"),
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "title": {"signal": "knob_x"}, "axis": {"labelAngle": 0}},
            "y": {"field": "y", "type": "ordinal", "title": {"signal": "knob_y"}},
            "color": quantity("share", "best / time", scale={"domain": [0, 1], "scheme": "viridis"}),
        },
    },
)
