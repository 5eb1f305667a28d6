"""Memory of the model's activations over a run."""

from __future__ import annotations

from romou.base.model_bytes import MemoryUse
from romou.compiler.graph.memory.memory import MemoryPlan
from romou.tools.report.evidence import NEEDS_MODEL, Evidence, Row, UnknownError
from romou.tools.report.figures.figure import Figure, mark, quantity
from romou.tools.report.table import memory_text


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each call, in order: call, function, mib."""
    if evidence.memory is None:
        raise UnknownError(NEEDS_MODEL)
    plan = evidence.memory
    # The names of the other figures, as far as functions are layers.
    named = {call.function: call.layer for call in (evidence.summary.calls if evidence.summary else ()) if call.layer}
    calls = zip((named.get(function, function) for function in plan.calls), plan.live, strict=True)
    by_call: list[Row] = [
        {"call": number, "function": function, "mib": live / 2**20} for number, (function, live) in enumerate(calls, 1)
    ]
    most = max(by_call, key=lambda row: row["mib"])
    return (
        by_call,
        f"At most {most['mib']:.2f} MiB are live, in {most['function']}. {memory_text(_use_of(evidence, plan))}",
    )


def _use_of(evidence: Evidence, plan: MemoryPlan) -> MemoryUse:
    """Return the memory of the saved model, so that page and command line print one figure, or else of the plan."""
    return (evidence.summary.memory if evidence.summary else None) or plan.use


FIGURE = Figure(
    name="memory",
    title="Memory",
    note=(
        "Activations and workspaces that are live during each call, slices of one buffer counted once. What shares no"
        " memory is allocated on top."
    ),
    rows=rows,
    spec={
        "height": 200,
        "mark": mark("bar"),
        "encoding": {
            "x": {"field": "call", "type": "ordinal", "title": "call", "axis": {"labelOverlap": True, "labelAngle": 0}},
            "y": quantity("mib", "MiB"),
        },
    },
)
