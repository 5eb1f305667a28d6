"""Every layer under the roofs of its device (Williams, Waterman and Patterson, Roofline, 2009).

The roof of the L1 texture cache is the bottleneck of the Romou paper (section 3.2, figure 11).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from romou.base.space import Config
from romou.compiler.operators.costs.estimate import texture_bytes
from romou.tools.report.evidence import NEEDS_MODEL, Evidence, Row, UnknownError
from romou.tools.report.figures.figure import OF_LAYER, Figure, mark, quantity

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask

_L1 = "L1 texture cache"
# Fact -> the place whose bytes an intensity counts.
_ROOFS = {"dram_bandwidth_gbps": "memory", "l2_bandwidth_gbps": "L2 cache", "l1_texture_bandwidth_gbps": _L1}
_NEEDED = {
    "peak": "peak_gflops",
    "bandwidth": "dram_bandwidth_gbps",
    "L1 texture bandwidth": "l1_texture_bandwidth_gbps",
}


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return one or two rows for each layer, and two or three for each roof.

    Columns of a layer: layer, bytes, intensity in operations a byte, gflops, ms. Columns of a roof: roof, intensity,
    gflops.

    bytes: "memory" counts a layer's inputs, weights and output once: no kernel moves less. "L1 texture cache" counts
    what the work-items of the best config read from images. A config that reads no image has no such row.
    """
    if not evidence.spaces:
        raise UnknownError(NEEDS_MODEL)
    layers = [row for task, _ in evidence.spaces for row in _points(evidence, task)]
    if not layers:
        raise UnknownError("No layer was timed: give the records of the model.")
    low, high = min(row["intensity"] for row in layers) / 2, max(row["intensity"] for row in layers) * 2
    if evidence.stand_in:
        name = evidence.spec.name if evidence.spec else "the target's device"
        return layers, f"The times are those of {evidence.stand_in}, so the roofs of {name} are not drawn over them."
    peak, roofs, knees = evidence.spec.peak_gflops if evidence.spec else None, [], []
    for fact, memory in _ROOFS.items():
        rate = getattr(evidence.spec, fact, None)
        if rate:
            ridge = [peak / rate] if peak and low < peak / rate < high else []
            knees += [f"{memory} {peak / rate:.1f}"] if peak else []
            roofs += [
                {"roof": f"{memory}, {rate:.0f} GB/s", "intensity": x, "gflops": min(rate * x, peak or math.inf)}
                for x in (low, *ridge, high)
            ]
    if peak and not roofs:
        roofs = [{"roof": f"peak, {peak:.0f} GFLOPS", "intensity": x, "gflops": peak} for x in (low, high)]
    missing = [name for name, fact in _NEEDED.items() if not getattr(evidence.spec, fact, None)]
    name = evidence.spec.name if evidence.spec else "the device"
    remarks = [f"Knees, in operations per byte: {', '.join(knees)}."] if knees else []
    if missing:
        text = f"Not known of {name}: {', '.join(missing)}. A report of `archprobe run` beside the other files tells."
        remarks.append(text)
    return layers + roofs, " ".join(remarks)


def _points(evidence: Evidence, task: TunableTask) -> Iterator[Row]:
    """Yield the rows of a layer. None if it was not timed."""
    time_s, config = _fastest(evidence, task.key)
    if not time_s or not task.flops:
        return
    row = {"layer": evidence.labels[task.key], "gflops": task.flops / time_s / 1e9, "ms": time_s * 1e3}
    yield {**row, "bytes": "memory", "intensity": task.flops / task.moved_bytes}
    if config and evidence.target is not None and task.space(evidence.target).knows(config):
        read = float(texture_bytes(task.usage_of(Config(config), evidence.target)))
        if read:
            yield {**row, "bytes": _L1, "intensity": task.flops / read}


def _fastest(evidence: Evidence, key: str) -> tuple[float | None, Mapping[str, Any]]:
    """Return a layer's best time in seconds and its config, of the summary or else of the records."""
    for row in evidence.summary.rows if evidence.summary else ():
        if row.key == key and row.tuned_ms:
            return row.tuned_ms / 1e3, row.config
    timed = [record for record in evidence.by_task.get(key, ()) if record.time_s]
    best = min(timed, key=lambda record: record.time_s or math.inf, default=None)
    return (None, {}) if best is None else (best.time_s, best.config)


_AXES = {
    "x": quantity("intensity", "operations per byte", scale={"type": "log", "nice": False}),
    "y": quantity("gflops", "GFLOPS", scale={"type": "log"}),
}
FIGURE = Figure(
    name="roofline",
    title="Roofline",
    note=(
        "Each point is a layer with its best time. A layer at the slope waits for memory, one at the flat part for"
        " arithmetic. A second point counts what its work-items read from images: the slope of the L1 texture cache is"
        " its roof."
    ),
    rows=rows,
    spec={
        "layer": [
            {
                "needs": "roof",
                "transform": [{"filter": "isValid(datum.roof)"}],
                "mark": {"type": "line"},
                "encoding": {**_AXES, "color": {"field": "roof", "type": "nominal", "title": None}},
            },
            {
                "transform": [{"filter": "!isValid(datum.roof)"}, OF_LAYER],
                "mark": mark("point", filled=True, size=60),
                "encoding": {**_AXES, "shape": {"field": "bytes", "type": "nominal", "title": "bytes of"}},
            },
        ],
        "height": 300,
    },
)
