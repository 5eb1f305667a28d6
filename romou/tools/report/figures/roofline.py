"""Every layer under the roofs of its device (Williams, Waterman and Patterson, Roofline, 2009)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from romou.tools.report.evidence import NEEDS_MODEL, Evidence, Row, UnknownError
from romou.tools.report.figures.figure import OF_LAYER, Figure

if TYPE_CHECKING:
    pass

_ROOFS = {"dram_bandwidth_gbps": "memory", "l2_bandwidth_gbps": "L2 cache"}


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each layer (layer, intensity in operations a byte, gflops, ms) and two for each roof (roof,
    intensity, gflops).

    The bytes are a layer's inputs, weights and output, each once: no kernel moves less.
    """
    if not evidence.spaces:
        raise UnknownError(NEEDS_MODEL)
    tuned_s = {
        row.key: row.tuned_ms / 1e3 for row in (evidence.summary.rows if evidence.summary else ()) if row.tuned_ms
    }
    layers: list[Row] = []
    for task, _ in evidence.spaces:
        time_s = tuned_s.get(task.key) or evidence.best_s.get(task.key)
        if time_s and task.flops:
            row = {
                "layer": evidence.labels[task.key],
                "intensity": task.flops / task.moved_bytes,
                "gflops": task.flops / time_s / 1e9,
                "ms": time_s * 1e3,
            }
            layers.append(row)
    if not layers:
        raise UnknownError("No layer was timed: give the records of the model.")
    low, high = min(row["intensity"] for row in layers) / 2, max(row["intensity"] for row in layers) * 2
    peak, roofs = evidence.spec.fp32_peak_gflops if evidence.spec else None, []
    for fact, place in _ROOFS.items():
        rate = getattr(evidence.spec, fact, None)
        if rate:
            ridge = [peak / rate] if peak and low < peak / rate < high else []
            roofs += [
                {"roof": f"{place}, {rate:.0f} GB/s", "intensity": x, "gflops": min(rate * x, peak or math.inf)}
                for x in (low, *ridge, high)
            ]
    if peak and not roofs:
        roofs = [{"roof": f"peak, {peak:.0f} GFLOPS", "intensity": x, "gflops": peak} for x in (low, high)]
    missing = [
        name
        for name, fact in (("peak", peak), ("bandwidth", getattr(evidence.spec, "dram_bandwidth_gbps", None)))
        if not fact
    ]
    name = evidence.spec.name if evidence.spec else "the device"
    remark = (
        f"Not known of {name}: {', '.join(missing)}. A report of `archprobe run` beside the other files tells."
        if missing
        else ""
    )
    return layers + roofs, remark


_X = {
    "field": "intensity",
    "type": "quantitative",
    "scale": {"type": "log", "nice": False},
    "title": "operations per byte",
}
_Y = {"field": "gflops", "type": "quantitative", "scale": {"type": "log"}, "title": "GFLOPS"}
FIGURE = Figure(
    name="roofline",
    title="Roofline",
    note=(
        "Each point is a layer with its best time. A layer at the slope waits for memory, one at the flat part for"
        " arithmetic."
    ),
    rows=rows,
    spec={
        "layer": [
            {
                "needs": "roof",
                "transform": [{"filter": "isValid(datum.roof)"}],
                "mark": {"type": "line"},
                "encoding": {"x": _X, "y": _Y, "color": {"field": "roof", "type": "nominal", "title": None}},
            },
            {
                "transform": [{"filter": "!isValid(datum.roof)"}, OF_LAYER],
                "mark": {"type": "point", "filled": True, "size": 60, "tooltip": {"content": "data"}},
                "encoding": {"x": _X, "y": _Y},
            },
        ],
        "height": 300,
    },
)
