"""The number of configs from all combinations of knobs to measured ones, by pruning criterion."""

from __future__ import annotations

from romou.tools.report.evidence import NEEDS_MODEL, Evidence, Row, UnknownError
from romou.tools.report.figures.figure import OF_LAYER, Figure, aggregated, category, mark, quantity


def rows(evidence: Evidence) -> tuple[list[Row], str]:
    """Return a row for each layer and stage, in order: layer, stage, configs, source (of a criterion's limit).

    Stages are the knobs, the template, the criteria one after another, the kept configs, and the trials.
    """
    if not evidence.spaces:
        raise UnknownError(NEEDS_MODEL)
    counts: list[Row] = []
    gave_way: list[str] = []
    for task, space in evidence.spaces:
        layer, report = evidence.labels[task.key], space.report
        stages = [("all combinations", report.declared, ""), ("template", report.before, "constraints of the schedule")]
        stages += [(criterion.criterion, criterion.left, criterion.source) for criterion in report.criteria]
        trials = evidence.by_task.get(task.key, [])
        stages += [
            ("kept", report.kept, "after criteria gave way where too few configs were left"),
            ("measured", len(trials), ""),
        ]
        stages.append(("right and timed", sum(r.time_s is not None for r in trials), ""))
        counts += [
            {"layer": layer, "stage": stage, "configs": configs, "source": source} for stage, configs, source in stages
        ]
        gave_way += [f"{layer}: {', '.join(report.relaxed)}"] if report.relaxed else []
    remark = "l1_cache counts every byte, as the Romou paper does. " if evidence.l1 == "paper" else ""
    remark += (
        f"Criteria gave way in {len(gave_way)} of {len(evidence.spaces)} layers, since too few configs would have been"
        " left."
        if gave_way
        else ""
    )
    return counts, remark


FIGURE = Figure(
    name="funnel",
    of_search=True,
    title="Pruning",
    note=(
        "Configs that are left after each criterion, one after another; of all layers: the sum. The axis is"
        " logarithmic."
    ),
    rows=rows,
    spec={
        # A stage with a single config has a bar too. A stage without configs has none.
        "transform": [OF_LAYER, aggregated("sum", "configs", ["stage"]), {"filter": "datum.configs > 0"}],
        "height": {"step": 18},
        "encoding": {
            "y": category("stage", "criterion"),
            "x": quantity("configs", "configs", scale={"type": "log", "domainMin": 0.7}),
            "x2": {"datum": 0.7},
        },
        "mark": mark("bar"),
    },
)
