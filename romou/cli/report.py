"""romou report: what is known of a tuned model as one HTML page with figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from romou.cli.common import console, constants_option, debug_option, json_option, precision_options, print_json
from romou.cli.tune import parse_shapes, read_model


@click.command("report")
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="report.html",
    show_default=True,
    help="The page.",
)
@click.option(
    "--model",
    default=None,
    help="The ONNX file or bundled:NAME that was tuned; without it nothing is known of its kernels.",
)
@click.option("--target", default=None, help="What it was tuned for. [default: what SOURCES say]")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=SIZES",
    help="Fix a dynamic input: input=1,3,224,224. May be repeated.",
)
@constants_option
@partial(precision_options, default=None)
@json_option
@debug_option
def command(
    sources: tuple[Path, ...],
    output: Path,
    model: str | None,
    target: str | None,
    shapes: tuple[str, ...],
    constants: dict[str, Any] | None,
    precision: dict[str, Any],
    is_json: bool,
) -> None:
    """Draw SOURCES as one HTML page that needs no network.

    SOURCES are, in any number and order, folders and files: the records of `romou tune` (--work-dir), a tuned model
    (.romou), a file of `romou bench`, a report of `archprobe run`. A figure for which something is missing says what.
    """
    import romou

    source = None if model is None else read_model(model)
    how: dict[str, Any] = {"shapes": parse_shapes(shapes) or None, "constants": constants, **precision}
    path = romou.write_report(*sources, output=output, model=source, target=target, **how)
    if is_json:
        print_json({"report": str(path)})
    else:
        console(is_json=False).print(f"Wrote {path}: open it in a browser.", markup=False)
