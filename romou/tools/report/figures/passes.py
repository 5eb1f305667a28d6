"""The gain of each of Romou's passes, per kernel (Romou paper, Fig. 17)."""

from __future__ import annotations

from romou.tools.report.evidence import NEEDS_MODEL, Evidence, Row, UnknownError
from romou.tools.report.figures.figure import LAYER_AXIS, OF_LAYER, Figure, category, mark, quantity


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each layer and step.

    Columns: layer, passes, operations (integer operations in loops of a work-item, times trips), share (of the
    operations without any pass).
    """
    if not evidence.operations:
        raise UnknownError(NEEDS_MODEL)
    counts = [
        {"layer": evidence.labels[key], "passes": step, "operations": count, "share": count / max(steps["none"], 1)}
        for key, steps in evidence.operations.items()
        for step, count in steps.items()
    ]
    left_out = len(evidence.spaces) - len(evidence.operations)
    return counts, f"{left_out} layers that take less time, or sum no products, are left out." if left_out else ""


FIGURE = Figure(
    name="passes",
    of_search=True,
    title="Passes",
    note=(
        "Integer operations in the loops of the chosen kernel, without the passes and with one more at a time, in"
        " shares. Counted, not timed."
    ),
    rows=rows,
    spec={
        "transform": [OF_LAYER],
        "height": {"step": 7},
        "mark": mark("bar"),
        "encoding": {
            "y": LAYER_AXIS,
            "yOffset": {"field": "passes", "sort": None},
            "x": quantity("share", "integer operations, share", axis={"format": "%"}),
            "color": category("passes", None),
        },
    },
)
