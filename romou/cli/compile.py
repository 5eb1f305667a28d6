"""romou compile: an ONNX model with default schedules, its kernels' source and its module, without a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from romou.cli import common
from romou.cli.click_options import options_of
from romou.cli.models import check_dimensions, default_output, read_model
from romou.driver.options import CompileOptions

if TYPE_CHECKING:
    from romou.runtime.module import Summary


@click.command("compile")
@click.argument("model")
@options_of(CompileOptions, "target", "device", "shapes", "dims", "pad", "constants")
@click.option(
    "--emit-source",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for the kernels, one .cl or .cu file each.",
)
@common.output_option("Where to save the model. [default: MODEL's name with .romou]")
@options_of(CompileOptions, "verify", "precision", "io_precision", "calibration", "max_memory", "strict")
@common.host_option
@common.json_option
@common.debug_option
def command(
    model: str, emit_source: Path | None, output: Path | None, allow_host: bool, is_json: bool, **options: Any
) -> None:
    """Compile MODEL with default schedules and save it.

    MODEL is an ONNX file, or bundled:NAME for one of the shipped networks (bundled:squeezenet1_0). Nothing is measured.
    The outputs are checked against onnxruntime's, on the target's device or, if it is not attached, on the CPU's
    OpenCL or Vulkan. Wrong outputs are an error that names the first wrong operator. Without the check the model is
    saved, too, but the exit code is 4 unless --no-verify is given.

    \b
    Examples:
      romou compile model.onnx --device adreno740
      romou compile model.onnx --shape input=1,3,224,224 --emit-source kernels
    """
    check_dimensions(model, options)
    from romou.devices.targets import Target

    target = options["target"] = Target(options["target"])
    common.announce(target, options["device"], None, is_timed=False)
    source, path = read_model(model), output or default_output(model)
    import romou
    from romou.runtime.module.saved import check_output

    check_output(path, target.host)  # before the long part
    compiled = romou.compile(source, **options)
    compiled.save(path)
    kernels, summary = compiled.sources(), compiled.summary()
    files = [] if emit_source is None else _write_sources(kernels, emit_source, target.backend.source_suffix)
    if is_json:
        document = {
            "model": model,
            "target": str(compiled.target),
            "output": str(path),
            "relative_l2_error": summary.relative_l2_error,
            "checked_on": summary.checked_on,
            "kernels": list(kernels),
            "sources": [str(file) for file in files],
            "summary": summary.to_dict(),
        }
        common.print_json(document)
    else:
        _print(len(kernels), path, emit_source, summary)
    common.check_host(summary, allow_host)
    common.check_verified(summary, options["verify"])


def _write_sources(kernels: dict[str, str], folder: Path, suffix: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, text in kernels.items():
        files.append(folder / f"{name}.{suffix}")
        files[-1].write_text(text, encoding="utf-8")
    return files


def _print(kernels: int, path: Path, emit_source: Path | None, summary: Summary) -> None:
    from romou.tools.report.table import device_lines, print_table, shapes_lines, shapes_table

    out = common.console(is_json=False)
    checked = f"Its outputs were not checked: {summary.unchecked}."
    if summary.relative_l2_error is not None:
        error = f"relative L2 error {summary.relative_l2_error:.1e}"
        checked = f"Its outputs are onnxruntime's, {error}, on {summary.checked_on}."
    out.print(f"{kernels} kernels, saved to {path}. {checked}", markup=False)
    if emit_source is not None:
        out.print(f"Their source is in {emit_source}.", markup=False)
    if summary.shapes:
        print_table(shapes_table(summary), out)
    for line in (*shapes_lines(summary), *device_lines(summary)):
        out.print(line, markup=False)
