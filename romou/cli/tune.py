"""romou tune: an ONNX model in, a tuned and saved model and a table of the times out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from romou.base.errors import UsageError
from romou.cli import common
from romou.cli.click_options import options_of
from romou.cli.models import check_dimensions, default_output, read_model
from romou.driver.options import ImportOptions, TuneOptions

if TYPE_CHECKING:
    from romou.runtime.module import TunedModel


@click.command("tune")
@click.argument("model")
@options_of(TuneOptions, "target", "device", "trials", "seconds", "no_progress", "work_dir")
@click.option(
    "--no-records",
    is_flag=True,
    help="Keep no records. Without this and --work-dir they go to the user's cache, and a later run resumes from them.",
)
@options_of(TuneOptions, "shapes", "dims", "pad", "constants")
@common.output_option("Where to save the tuned model. [default: MODEL's name with .romou]")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Draw the search and its result on this HTML page.",
)
@options_of(TuneOptions, "prune", "database", "allow_tf32", "verify", "precision", "io_precision", "calibration", "rpc")
@options_of(TuneOptions, "l1", "variant", "builders", "trust_builders", "explorer")
@click.option(
    "--build-timeout", type=float, default=None, metavar="SECONDS", help="Limit of one candidate's build. [default: 30]"
)
@click.option(
    "--run-timeout",
    type=float,
    default=None,
    metavar="SECONDS",
    help="Limit of one candidate on the device: load, run, check, time. [default: 15]",
)
@options_of(TuneOptions, "measure", "seed", "max_memory", "strict")
@common.host_option
@common.json_option
@common.debug_option
def command(
    model: str,
    output: Path | None,
    report: Path | None,
    no_records: bool,
    build_timeout: float | None,
    run_timeout: float | None,
    allow_host: bool,
    is_json: bool,
    **options: Any,
) -> None:
    """Tune MODEL and save it.

    MODEL is an ONNX file, or bundled:NAME for one of the shipped networks (bundled:squeezenet1_0).

    \b
    Examples:
      romou tune model.onnx --trials 200
      romou tune bundled:squeezenet1_0 --device 1 --report report.html
      romou tune model.onnx --device "Pixel 8" --rpc 127.0.0.1:9090/phone
    """
    check_dimensions(model, options)
    from romou.devices.targets import Target

    if no_records and options["work_dir"] is not None:
        raise UsageError(
            f"--no-records keeps nothing, but --work-dir names {str(options['work_dir'])!r}; give one of them"
        )
    options["work_dir"] = False if no_records else options["work_dir"]
    limits = {"build_timeout_s": build_timeout, "run_timeout_s": run_timeout}
    options["measure"] = {name: value for name, value in limits.items() if value is not None} | options["measure"]
    options["target"] = Target(options["target"])
    common.announce(options["target"], options["device"], options["rpc"])
    source, path = read_model(model), output or default_output(model)
    _check_outputs(path, report, options["target"].host)
    import romou

    tuned = romou.tune(source, progress=not common.is_quiet(), **options)
    tuned.save(path)
    if report is not None:
        imported = {name: options[name] for name in (field.name for field in dataclasses.fields(ImportOptions))}
        romou.write_report(path, output=report, model=source, target=tuned.target, **imported)
    summary = tuned.summary()
    if is_json:
        target = str(tuned.target)
        common.print_json({"model": model, "target": target, "output": str(path), "summary": summary.to_dict()})
    else:
        _print(tuned, path, report, options["rpc"])
    common.check_host(summary, allow_host)
    common.check_verified(summary, options["verify"])


def _check_outputs(path: Path, report: Path | None, host: str | None) -> None:
    """Raise UsageError if the model or the report cannot be written, before the long part."""
    if report is not None:
        from romou.tools.report.page import check_library

        check_library()
    from romou.runtime.module.saved import check_output

    check_output(path, host)


def _print(tuned: TunedModel, path: Path, report: Path | None, rpc: str | None) -> None:
    from romou.tools.report.table import print_summary

    out, summary = common.console(is_json=False), tuned.summary()
    print_summary(summary, out)
    if common.is_verbose():
        out.print(f"launched: {summary.launching}", markup=False)
    if summary.records is not None:
        out.print(f"records: {summary.records} (a later run goes on from them)", markup=False)
    if report is not None:
        out.print(f"Report: {report}", markup=False)
    out.print(f"Saved to {path}. Run it: romou run {path}{f' --rpc {rpc}' if rpc else ''}", markup=False)
