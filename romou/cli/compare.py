"""romou compare: has a model become slower, or a kernel worse, since a bench was saved?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from romou.base.errors import EXIT_FAILED, UsageError
from romou.cli.common import (
    console,
    constants_option,
    debug_option,
    json_option,
    precision_options,
    print_json,
    rpc_option,
)
from romou.cli.tune import parse_shapes, read_model


@click.command("compare")
@click.argument("baseline")
@click.argument("current")
@click.option("--fail-over", default="5%", show_default=True, help="Share by which a time or a measure may rise.")
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Records to take configs from. [default: BASELINE's configs]",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=SIZES",
    help="Fix a dynamic input: input=1,3,224,224. May be repeated.",
)
@constants_option
@click.option(
    "--repeats",
    type=click.IntRange(min=8),
    default=16,
    show_default=True,
    help="Pairs that are timed at first; what stays open gets more.",
)
@click.option(
    "--only",
    type=click.Choice(["times", "measures"]),
    default=None,
    help="measures: what is read off the kernels; no device needed.",
)
@click.option("--recorded", is_flag=True, help="Compare the times in the files, even where both could be timed now.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write JUnit XML here.")
@click.option(
    "--markdown",
    "markdown_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write a Markdown table here.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the inputs and of the order of the measurements."
)
@precision_options
@rpc_option
@json_option
@debug_option
def command(
    baseline: str,
    current: str,
    fail_over: str,
    work_dir: Path | None,
    shapes: tuple[str, ...],
    constants: dict[str, Any] | None,
    repeats: int,
    only: str | None,
    recorded: bool,
    junit: Path | None,
    markdown_path: Path | None,
    seed: int,
    precision: dict[str, Any],
    rpc: str | None,
    is_json: bool,
) -> None:
    """Compare CURRENT with BASELINE, which `romou bench` saved. CURRENT is another such file, or a model as `romou
    bench` takes it.

    Times are compared in turns where both compiled models are at hand, otherwise as they were recorded, if on one
    device. Noise fails nothing: a row fails if a rank test, corrected for the number of operators, and the size of the
    shift agree; or if a measure of an equally configured kernel is worse.

    \b
    Exit codes: 0 nothing is worse, 1 something is, 2 wrong use, 3 no usable device.
    """
    from romou.tools.regression.comparison import parse_threshold

    share = parse_threshold(fail_over)
    for path in (junit, markdown_path):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"folder {str(path.parent)!r} for {path.name} does not exist", path=str(path))
    fixed = parse_shapes(shapes)
    source: Any = current if current.endswith(".json") else read_model(current)
    import romou

    found = romou.compare(
        baseline,
        source,
        fail_over=share,
        work_dir=work_dir,
        shapes=fixed or None,
        constants=constants,
        repeats=repeats,
        seed=seed,
        times=only != "measures",
        measures=only != "times",
        recorded=recorded,
        label=current,
        rpc=rpc,
        **precision,
    )
    from romou.tools.report.comparison import comparison_table, headline, junit_xml, markdown, remarks
    from romou.tools.report.table import print_table

    if junit is not None:
        junit.write_text(junit_xml(found), encoding="utf-8")
    if markdown_path is not None:
        markdown_path.write_text(markdown(found), encoding="utf-8")
    if is_json:
        print_json(found.to_dict())
    else:
        out = console(is_json=False)
        print_table(comparison_table(found), out)
        for text in (*remarks(found), f"{headline(found)}."):
            out.print(text, markup=False)
    if found.regressions:
        raise SystemExit(EXIT_FAILED)
