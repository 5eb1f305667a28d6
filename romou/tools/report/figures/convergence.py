"""The progress of a search: every trial, the best so far, and the cost model's prediction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from romou.tools.report.evidence import NEEDS_RECORDS, Evidence, Row, UnknownError
from romou.tools.report.figures.figure import ALL, LOG2, Figure, mark, quantity
from romou.tuner.records import Record

# Longer gaps between records are pauses: a session that was resumed later did not search in between.
_PAUSE_S = 120.0


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each trial: layer, trial, seconds, ms, best_ms, expected_ms, outcome.

    Further rows for all layers have the sum of the best times. There, ms and expected_ms are None. In rows of a layer,
    ms is None if the trial failed, best_ms before any trial worked, and expected_ms if the cost model made no
    prediction.
    """
    order = [record for record in evidence.records if not record.is_again]
    if not order:
        raise UnknownError(NEEDS_RECORDS)
    if not evidence.best_s:
        raise UnknownError("No trial worked, so there is no time to draw; the records give the errors.")
    points: list[Row] = []
    best: dict[str, float] = {}
    trials: dict[str, int] = {}
    for number, (record, seconds) in enumerate(zip(order, _seconds(order), strict=True), 1):
        key = record.task_key
        trials[key] = trials.get(key, 0) + 1
        if record.time_s is not None:
            best[key] = min(best.get(key, record.time_s), record.time_s)
        row = {"seconds": seconds, "outcome": str(record.outcome)}
        own = {
            "layer": evidence.labels[key],
            "trial": trials[key],
            "ms": _ms(record.time_s),
            "best_ms": _ms(best.get(key)),
        }
        points.append({**own, **row, "expected_ms": _ms(record.expected_s)})
        if best.keys() == evidence.best_s.keys():
            total = sum(evidence.calls.get(task, 1) * seconds for task, seconds in best.items())
            points.append(
                {"layer": ALL, "trial": number, "ms": None, "best_ms": _ms(total), **row, "expected_ms": None}
            )
    broken = [evidence.labels[key] for key in evidence.by_task if key not in best]
    remark = f"Nothing worked of {', '.join(broken)}; the sum is without. " if broken else ""
    if all(record.expected_s is None for record in order):
        remark += "No expectation was recorded: the cost model had no say yet, or the records are older than the field."
    return points, remark.strip()


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _seconds(records: Sequence[Record]) -> list[float]:
    """Return the seconds from the first record to each, without pauses. All are 0 if records have no time."""
    times = [datetime.fromisoformat(record.time) if record.time else None for record in records]
    passed, seconds = 0.0, []
    for before, after in zip([times[0], *times], times, strict=False):
        step = (after - before).total_seconds() if before and after else 0.0
        passed += step if 0 < step < _PAUSE_S else 0.0
        seconds.append(passed)
    return seconds


# All three series share one field, because Vega draws an unbounded axis for a field without values.
_AXES = {"x": quantity("x", {"signal": "along"}), "y": quantity("value", "ms", scale=LOG2)}


def _series(kind: str, drawing: dict[str, Any], **encoding: Any) -> dict[str, Any]:
    return {
        "needs": kind,
        "transform": [{"filter": f"datum.kind == '{kind}'"}],
        "mark": drawing,
        "encoding": {**_AXES, **encoding},
    }


FIGURE = Figure(
    name="convergence",
    of_search=True,
    title="Search",
    note=(
        "The line is the best time so far (of all layers: the sum over the model's calls). Points are trials, rings"
        " what the cost model had expected of them."
    ),
    rows=rows,
    spec={
        "params": [
            {
                "name": "along",
                "value": "trial",
                "bind": {"input": "radio", "options": ["trial", "seconds"], "name": "along "},
            }
        ],
        "transform": [
            {"filter": "datum.layer == layer"},
            {"calculate": "datum[along]", "as": "x"},
            {"fold": ["best_ms", "ms", "expected_ms"], "as": ["kind", "value"]},
            {"filter": "isValid(datum.value)"},
        ],
        "height": 280,
        "layer": [
            _series("best_ms", {"type": "line", "interpolate": "step-after"}),
            _series("ms", mark("point", filled=True)),
            _series("expected_ms", mark("point", filled=False, size=80), color={"datum": "expected", "title": None}),
        ],
    },
)
