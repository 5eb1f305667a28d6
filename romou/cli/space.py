"""romou space: the knob spaces of a model before and after pruning, without a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from romou.cli.click_options import options_of, precision_options, shape_options, target_option
from romou.cli.common import console, debug_option, json_option, print_json
from romou.cli.models import check_dimensions, read_model
from romou.driver.options import ModelOptions, TuneOptions

if TYPE_CHECKING:
    from romou.devices.targets import Target
    from romou.tuner.pruning import Rules


@click.command("space")
@click.argument("model")
@target_option
@shape_options
@options_of(TuneOptions, "l1")
@click.option(
    "--compare-devices",
    "compared",
    metavar="A,B",
    help="Show what the facts of two devices change in the pruned spaces: names that -device= accepts.",
)
@precision_options
@json_option
@debug_option
def command(
    model: str, target: str, device: str | None, l1: str, compared: str | None, is_json: bool, **options: Any
) -> None:
    """Show the knobs of each task of MODEL, and its number of configs before and after pruning.

    Further tables have the share of all combinations that each constraint between knobs rules out, and the configs
    that each criterion removes, alone and if no other does.

    MODEL is an ONNX file, or bundled:NAME for one of the shipped networks (bundled:squeezenet1_0). Nothing is lowered
    or measured.

    \b
    Examples:
      romou space model.onnx --device adreno640
    """
    check_dimensions(model, options)
    options["device"] = device
    parsed = ModelOptions(target=target, device=device).parsed_target()
    source = read_model(model)
    from romou.api.spaces import pruned_spaces
    from romou.compiler.operators.costs.criteria import L1_RULES

    rules = L1_RULES[l1]
    if compared is not None:
        _compare(source, parsed, _two_devices(compared), rules, options, is_json=is_json)
        return
    spaces = pruned_spaces(source, target=parsed, rules=rules, **options)
    if is_json:
        tasks = [
            {
                "task": task.name,
                "key": task.key,
                "calls": task.calls,
                "nodes": task.nodes,
                "knobs": space.knobs,
                "constraints": space.ruled_out(),
                **space.report.to_dict(),
            }
            for task, space in spaces
        ]
        print_json({"model": model, "target": str(parsed), "l1": l1, "tasks": tasks})
        return
    from romou.tools.report.spaces import constraint_table, criteria_table, knob_table, space_table
    from romou.tools.report.table import print_table

    out = console(is_json=False)
    if not spaces:
        out.print("No tasks: no kernel of this model has knobs.", markup=False)
        return
    rows = [(task, space.report) for task, space in spaces]
    print_table(space_table(rows, title=f"Configs on {parsed}"), out)
    print_table(constraint_table([space for _, space in spaces]), out)
    print_table(criteria_table([report for _, report in rows]), out)
    print_table(knob_table([space for _, space in spaces], title="Knobs, with the choices of all tasks"), out)


def _two_devices(text: str) -> tuple[str, str]:
    """Return the names in "A,B"."""
    from romou.base.errors import UsageError

    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names):
        raise UsageError(f"--compare-devices {text!r}: expected two names, A,B", hint="Write adreno640,pixel4.")
    return names[0], names[1]


def _compare(
    source: Any, target: Target, names: tuple[str, str], rules: Rules, options: dict[str, Any], *, is_json: bool
) -> None:
    """Print two devices' kept configs of each task, the configs they share, and each criterion's removed configs."""
    from romou.api.spaces import pruned_spaces
    from romou.tools.report.spaces import compared_criteria_table, compared_spaces_table, shared_shares
    from romou.tools.report.table import print_table

    both = [pruned_spaces(source, target=target.with_options(device=name), rules=rules, **options) for name in names]
    # Devices may fuse differently: tasks are compared by name.
    others = {task.name: space for task, space in both[1]}
    rows = [(task, space, others[task.name]) for task, space in both[0] if task.name in others]
    if is_json:
        tasks = [
            {
                "task": task.name,
                "nodes": task.nodes,
                "shared": list(shared_shares(first, second)),
                "spaces": {
                    device: space.report.to_dict() for device, space in zip(names, (first, second), strict=True)
                },
            }
            for task, first, second in rows
        ]
        print_json({"devices": names, "tasks": tasks})
        return
    out = console(is_json=False)
    print_table(compared_spaces_table(rows, names), out)
    print_table(compared_criteria_table([(first.report, second.report) for _, first, second in rows], names), out)
