"""Memory of the model's activations over a run."""

from __future__ import annotations

from romou.report.evidence import NEEDS_MODEL, Evidence, Row, UnknownError
from romou.report.figures.figure import Figure


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each call, in order: call, function, mib."""
    if not evidence.memory:
        raise UnknownError(NEEDS_MODEL)
    found: list[Row] = [{"call": place, "function": one.function, "mib": one.bytes / 2**20} for place, one in enumerate(evidence.memory, 1)]
    most = max(found, key=lambda row: row["mib"])
    return found, f"At most {most['mib']:.2f} MiB, in {most['function']}."


FIGURE = Figure(
    name="memory",
    title="Memory",
    note="Activations that are live during each call, slices of one buffer counted once; weights, workspaces and padding come on top.",
    rows=rows,
    spec={
        "height": 200,
        "mark": {"type": "bar", "tooltip": {"content": "data"}},
        "encoding": {
            "x": {"field": "call", "type": "ordinal", "title": "call", "axis": {"labelOverlap": True, "labelAngle": 0}},
            "y": {"field": "mib", "type": "quantitative", "title": "MiB"},
        },
    },
)
