"""romou check: where a model's nodes run on a device, their estimated times, and what stands in the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from romou.base.errors import EXIT_FAILED, EXIT_NO_DEVICE
from romou.cli.click_options import options_of
from romou.cli.common import announce, console, debug_option, json_option, print_json
from romou.cli.models import check_dimensions, read_model
from romou.driver.options import CheckOptions


@click.command("check")
@click.argument("model")
@options_of(CheckOptions, "target", "device", "shapes", "dims", "constants", "max_memory", "max_ms")
@options_of(CheckOptions, "precision", "io_precision", "calibration")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Also write this HTML page."
)
@click.option(
    "--node-data",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Also write the estimate by ONNX node to this JSON file, which Model Explorer shows beside the graph.",
)
@click.option("--allow-host", is_flag=True, help="Accept a model with much of its operations on the host.")
@json_option
@debug_option
def command(
    model: str, page: Path | None, node_data: Path | None, allow_host: bool, is_json: bool, **options: Any
) -> None:
    """Check MODEL for a device in seconds, without the device and without compiling a kernel.

    MODEL is an ONNX file, or bundled:NAME for one of the shipped networks. It prints which nodes run on the GPU, which
    do not and why, the estimated time of each layer with its limit, memory against the device's largest allocation,
    advice on fp16, and faults of the device's drivers. The estimate counts launches and bytes; how far its milliseconds
    are from recorded ones is printed beside them.

    \b
    Exit codes: 0 fine, 1 it does not fit or is above --max-ms or --max-memory, 3 more than 20% of the operations run on
    the host.

    \b
    Examples:
      romou check model.onnx --device adreno740
      romou check model.onnx --device "Pixel 8" --max-ms 30 --json
      romou check bundled:mobilenetv1_100 --device sm8550 --html check.html --node-data nodes.json
    """
    check_dimensions(model, options)
    from romou.devices.targets import Target

    options["target"] = Target(options["target"])
    announce(options["target"], options["device"], None, is_timed=False)
    source = read_model(model)
    import romou
    from romou.tools.report.check_page import check_lines, check_table, write_check_page
    from romou.tools.report.table import print_table

    report = romou.check(source, **options)
    if page is not None:
        write_check_page(report, page, model)
    if node_data is not None:
        node_data.write_text(json.dumps(report.node_data(), indent=1), encoding="utf-8")
    if is_json:
        print_json({"model": model, **report.to_dict()})
    else:
        out = console(is_json=False)
        print_table(check_table(report), out)
        for heading, lines in check_lines(report):
            for place, line in enumerate(lines):
                out.print(f"{'  ' if place else f'{heading}: '}{line}", markup=False)
        for path in filter(None, (page, node_data)):
            out.print(f"Wrote {path}.", markup=False)
    if report.problems:
        raise SystemExit(EXIT_FAILED)
    if report.is_off_device and not allow_host:
        raise SystemExit(EXIT_NO_DEVICE)
