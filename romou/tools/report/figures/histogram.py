"""A histogram of the speed of measured configs, with the number of failures."""

from __future__ import annotations

import math

from romou.tools.report.evidence import NEEDS_RECORDS, Evidence, Row, UnknownError
from romou.tools.report.figures.figure import LOG2, OF_LAYER, Figure, aggregated, mark, quantity

# Bins for each factor of two.
_BINS = 4


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each layer and bin: layer, slower_from and slower_to (times the layer's best time), trials."""
    if not evidence.by_task:
        raise UnknownError(NEEDS_RECORDS)
    counts: dict[tuple[str, int], int] = {}
    total = failed = 0
    for key, records in evidence.by_task.items():
        for record in records:
            total += 1
            if record.time_s:
                index = math.floor(_BINS * math.log2(record.time_s / evidence.best_s[key]))
                counts[evidence.labels[key], index] = counts.get((evidence.labels[key], index), 0) + 1
            else:
                failed += 1
    if not counts:
        raise UnknownError("No trial worked, so there are no times to count.")
    bins = [
        {"layer": layer, "slower_from": 2 ** (b / _BINS), "slower_to": 2 ** ((b + 1) / _BINS), "trials": n}
        for (layer, b), n in sorted(counts.items())
    ]
    return bins, f"{failed} of {total} trials failed and have no time." if failed else ""


FIGURE = Figure(
    name="histogram",
    of_search=True,
    title="Measured configs",
    note="How many trials took how many times as long as the best one of their layer.",
    rows=rows,
    spec={
        "transform": [OF_LAYER, aggregated("sum", "trials", ["slower_from", "slower_to"])],
        "height": 220,
        "mark": mark("bar"),
        "encoding": {
            "x": quantity("slower_from", "times the best time", scale=LOG2),
            "x2": {"field": "slower_to"},
            "y": quantity("trials", "trials"),
            "y2": {"datum": 0},
        },
    },
)
