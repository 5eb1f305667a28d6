"""Registers of each measured config, against the most registers that its work group can have."""

from __future__ import annotations

import numpy as np

from romou.base.space import Config
from romou.compiler.operators.analysis.form import columns_of
from romou.devices.hardware import HardwareSpec
from romou.tools.report.evidence import NEEDS_MODEL, NEEDS_RECORDS, Evidence, Row, UnknownError
from romou.tools.report.figures.figure import LOG2, OF_LAYER, Figure, aggregated, mark, quantity
from romou.tuner.pruning import judge


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each trial.

    Columns: layer, registers (32 bit, of a work-item), limit (None if it is not known), work_group, slower (times the
    best).

    Registers are from the formulas for pruning.
    """
    if not evidence.spaces or evidence.target is None:
        raise UnknownError(NEEDS_MODEL)
    if not evidence.by_task:
        raise UnknownError(NEEDS_RECORDS)
    trials: list[Row] = []
    for task, space in evidence.spaces:
        timed = [
            record for record in evidence.by_task.get(task.key, []) if record.time_s and space.knows(record.config)
        ]
        if not timed:
            continue
        usage = task.template.form(task.limits(evidence.target)).usage(
            columns_of([Config(record.config) for record in timed])
        )
        verdict = judge(usage, evidence.spec or HardwareSpec(name="unknown", title="")).get("registers")
        used, limit, size = (
            np.broadcast_to(np.asarray(values), len(timed))
            for values in (
                usage.needed_registers if verdict is None else verdict.used,
                np.nan if verdict is None else verdict.limit,
                usage.work_group_size,
            )
        )
        for record, registers, most, group in zip(timed, used, limit, size, strict=True):
            assert record.time_s is not None
            row = {
                "layer": evidence.labels[task.key],
                "registers": float(registers),
                "limit": None if np.isnan(most) else float(most),
            }
            trials.append({**row, "work_group": int(group), "slower": record.time_s / evidence.best_s[task.key]})
    if not trials:
        raise UnknownError("No trial of these records belongs to the model on this target.")
    has_limit = any(row["limit"] is not None for row in trials)
    return trials, "" if has_limit else "The device's registers are not known, so there is no limit to show."


FIGURE = Figure(
    name="registers",
    of_search=True,
    title="Registers",
    note=(
        "32-bit registers that a work-item needs, by the formulas of pruning, over the size of its work group. The line"
        " is the most it may take."
    ),
    rows=rows,
    spec={
        # Both series share one field, because Vega draws an unbounded axis for a field without values.
        "transform": [{"fold": ["registers", "limit"], "as": ["kind", "value"]}, {"filter": "isValid(datum.value)"}],
        "height": 260,
        "encoding": {"x": quantity("work_group", "work-items of a group", scale=LOG2)},
        "layer": [
            {
                "transform": [OF_LAYER, {"filter": "datum.kind == 'registers'"}],
                "mark": mark("point", filled=True, size=45),
                "encoding": {
                    "y": quantity("value", "registers"),
                    "color": quantity(
                        "slower", "times best", scale={"type": "log", "scheme": "viridis", "reverse": True}
                    ),
                },
            },
            {
                "needs": "limit",
                "transform": [{"filter": "datum.kind == 'limit'"}, aggregated("min", "value", ["work_group"])],
                "mark": {"type": "line", "interpolate": "step-after"},
                "encoding": {"y": {"field": "value", "type": "quantitative"}},
            },
        ],
    },
)
