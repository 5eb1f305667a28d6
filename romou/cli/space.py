"""romou space: the knob spaces of a model before and after pruning, without a device."""

from __future__ import annotations

from typing import Any

import click

from romou.cli.common import console, debug_option, json_option, print_json
from romou.cli.models import read_model
from romou.cli.options import precision_options, shape_options, target_option


@click.command("space")
@click.argument("model")
@target_option
@shape_options
@click.option(
    "--literal",
    "count_per_work_item",
    is_flag=True,
    help="Count bytes as the Romou paper does: a work-item's times the work group's size.",
)
@precision_options
@json_option
@debug_option
def command(model: str, target: str, count_per_work_item: bool, is_json: bool, **options: Any) -> None:
    """Show how many configs each task of MODEL has, of which knobs, and what each criterion removes by itself and
    together with the others.

    MODEL is an ONNX file, or bundled:NAME for one of the shipped networks (bundled:squeezenet1_0). Nothing is lowered
    or measured.
    """
    from romou.devices.targets import Target

    parsed = Target(target)
    source = read_model(model)
    from romou.api.spaces import pruned_spaces
    from romou.tuner.pruning import Rules

    rules = Rules(count_per_work_item=count_per_work_item)
    spaces = pruned_spaces(source, target=parsed, rules=rules, **options)
    if is_json:
        tasks = [
            {"task": task.name, "key": task.key, "calls": task.calls, "knobs": space.knobs, **space.report.to_dict()}
            for task, space in spaces
        ]
        print_json({"model": model, "target": str(parsed), "count_per_work_item": count_per_work_item, "tasks": tasks})
        return
    from romou.tools.report.spaces import criteria_table, knob_table, space_table
    from romou.tools.report.table import print_table

    out = console(is_json=False)
    if not spaces:
        out.print("No tasks: no kernel of this model has knobs.", markup=False)
        return
    rows = [(task.name, space.report) for task, space in spaces]
    print_table(space_table(rows, title=f"Configs on {parsed}"), out)
    print_table(criteria_table([report for _, report in rows]), out)
    print_table(knob_table([space for _, space in spaces], title="Knobs, with the choices of all tasks"), out)
