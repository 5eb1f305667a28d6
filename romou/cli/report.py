"""romou report: records, tuned models and benches as one HTML page with figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from romou.cli.click_options import options_of
from romou.cli.common import console, debug_option, json_option, print_json
from romou.cli.models import read_model
from romou.driver.options import ReportOptions


@click.command("report")
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@options_of(ReportOptions, "output", "model", "target", "device", "shapes", "dims", "constants")
@options_of(ReportOptions, "precision", "io_precision", "calibration")
@json_option
@debug_option
def command(sources: tuple[Path, ...], is_json: bool, **options: Any) -> None:
    """Draw SOURCES as one HTML page that needs no network.

    SOURCES are folders and files of one model, in any order: the records of `romou tune` (--work-dir), a tuned model
    (.romou), a file of `romou bench`, a report of `archprobe run`. Or several tuned models, which are shown side by
    side. A figure without its data says which data it lacks. With --model, onnxruntime is timed on this machine's CPU.

    \b
    Examples:
      romou report records model.romou --model model.onnx -o report.html
      romou report phone.romou tablet.romou -o report.html
    """
    import romou

    if options["model"] is not None:
        options["model"] = read_model(options["model"])
    path = romou.write_report(*sources, **options)
    if is_json:
        print_json({"report": str(path)})
    else:
        console(is_json=False).print(f"Wrote {path}: open it in a browser.", markup=False)
