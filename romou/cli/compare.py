"""romou compare: has a model become slower, or a kernel worse, since a bench was saved?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from romou.base.errors import EXIT_FAILED, UsageError
from romou.cli.click_options import options_of, rpc_option
from romou.cli.common import announce, console, debug_option, json_option, print_json
from romou.cli.models import read_model
from romou.driver.options import CompareOptions


@click.command("compare")
@click.argument("baseline")
@click.argument("current")
@options_of(CompareOptions, "device", "fail_over", "work_dir", "shapes", "dims", "constants", "repeats")
@click.option(
    "--only",
    type=click.Choice(["times", "measures"]),
    default=None,
    help="measures: what is read off the kernels; no device needed.",
)
@options_of(CompareOptions, "recorded")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write JUnit XML here.")
@click.option(
    "--markdown",
    "markdown_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write a Markdown table here.",
)
@options_of(CompareOptions, "seed", "precision", "io_precision", "calibration")
@rpc_option
@json_option
@debug_option
def command(
    baseline: str,
    current: str,
    only: str | None,
    junit: Path | None,
    markdown_path: Path | None,
    is_json: bool,
    **options: Any,
) -> None:
    """Compare CURRENT with BASELINE, which `romou bench` saved.

    CURRENT is another such file, or a model as `romou bench` takes it.

    If both compiled models are at hand, they are timed alternately. Otherwise the recorded times are compared, if they
    are of one device. A row fails if the shift is large enough and significant in a rank test, which is corrected for
    the number of operators. It also fails if a measure of an equally configured kernel is worse. If BASELINE has counts
    of a mobile compiler (`romou bench --gpu`), CURRENT is compiled by the same one.

    \b
    Exit codes: 0 nothing is worse, 1 something is, 2 wrong use, 3 no usable device.

    \b
    Examples:
      romou compare baseline.json model.onnx
      romou compare baseline.json current.json --only measures --junit result.xml
      romou compare counts.json model.onnx --only measures --fail-over 0
    """
    from romou.tools.regression.comparison import parse_threshold

    options["fail_over"] = parse_threshold(options["fail_over"])
    for path in (junit, markdown_path):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"folder {str(path.parent)!r} for {path.name} does not exist", path=str(path))
    source: Any = current if current.endswith(".json") else read_model(current)
    import romou
    from romou.devices.targets import Target
    from romou.tools.regression import Bench

    times, measures = only != "measures", only != "times"
    if times and not options["recorded"]:
        announce(Target.from_json(Bench.load(baseline).target), options["device"], options["rpc"])
    comparison = romou.compare(baseline, source, times=times, measures=measures, label=current, **options)
    from romou.tools.report.comparison import comparison_table, headline, junit_xml, markdown, remarks
    from romou.tools.report.table import print_table

    if junit is not None:
        junit.write_text(junit_xml(comparison), encoding="utf-8")
    if markdown_path is not None:
        markdown_path.write_text(markdown(comparison), encoding="utf-8")
    if is_json:
        print_json(comparison.to_dict())
    else:
        out = console(is_json=False)
        print_table(comparison_table(comparison), out)
        for text in (*remarks(comparison), f"{headline(comparison)}."):
            out.print(text, markup=False)
    if comparison.regressions:
        raise SystemExit(EXIT_FAILED)
