"""Time of each layer before and after tuning."""

from __future__ import annotations

from romou.tools.report.evidence import Evidence, Row, UnknownError
from romou.tools.report.figures.figure import LAYER_AXIS, OF_LAYER, Figure, category, mark, quantity


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each layer and version, the most expensive layer first.

    Columns: layer, version, ms of all calls, and ms_of_call and calls of one model.
    """
    versions: list[Row] = []
    if evidence.compared:
        # Layers of two models have several kernels each, so calls of one kernel are no column.
        for layer, times_ms in evidence.matched:
            pairs = zip(evidence.compared, times_ms, strict=True)
            versions += [{"layer": layer, "version": name, "ms": ms} for (name, _), ms in pairs]
    elif evidence.summary is not None:
        for row in evidence.summary.rows:
            # A difference within the noise is not drawn.
            default = [("default schedule", row.default_ms)] if row.speedup is not None else []
            for version, ms in (*default, ("tuned", row.tuned_ms)):
                versions.append(_row(evidence.label_of(row), version, row.calls, ms))
    elif evidence.best_s:
        for key, best_s in evidence.best_s.items():
            # The first record of a task is its default schedule.
            for version, time_s in (("default schedule", evidence.by_task[key][0].time_s), ("tuned", best_s)):
                versions.append(
                    _row(
                        evidence.labels[key],
                        version,
                        evidence.calls.get(key, 1),
                        None if time_s is None else time_s * 1e3,
                    )
                )
    for operator in evidence.bench.operators if evidence.bench is not None else ():
        versions.append(_row(evidence.labels[operator.key], "bench", operator.calls, operator.time_ms))
    timed = [row for row in versions if row["ms"] is not None]
    if not timed:
        raise UnknownError(
            "No layer was timed: give a folder of records, a tuned model (.romou), or a file of `romou bench`."
        )
    most = {row["layer"]: max(r["ms"] for r in timed if r["layer"] == row["layer"]) for row in timed}
    missing = sorted({row["layer"] for row in versions} - most.keys())
    remark = f"Not timed: {', '.join(missing)}." if missing else ""
    if not evidence.models and evidence.bench is None and not evidence.calls:
        remark += " How often the model calls a layer is not known; each counts once."
    return sorted(timed, key=lambda row: -most[row["layer"]]), remark.strip()


def _row(layer: str, version: str, calls: int, ms: float | None) -> Row:
    return {
        "layer": layer,
        "version": version,
        "calls": calls,
        "ms_of_call": ms,
        "ms": None if ms is None else ms * calls,
    }


FIGURE = Figure(
    name="layers",
    title="Time per layer",
    note="Milliseconds that a run of the model spends in each layer, all its calls together.",
    rows=rows,
    spec={
        "transform": [OF_LAYER],
        "height": {"step": 9},
        "mark": mark("bar"),
        "encoding": {
            "y": LAYER_AXIS,
            "yOffset": {"field": "version", "sort": None},
            "x": quantity("ms", "ms of a run"),
            "color": category("version", None),
        },
    },
)
