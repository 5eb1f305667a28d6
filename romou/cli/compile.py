"""romou compile: an ONNX model compiled with default schedules, without a device; its kernels as source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from romou.cli.common import (
    check_host,
    console,
    constants_option,
    debug_option,
    host_option,
    json_option,
    memory_option,
    precision_options,
    print_json,
    strict_option,
)
from romou.cli.tune import default_output, parse_shapes, read_model


@click.command("compile")
@click.argument("model")
@click.option(
    "--target",
    default="opencl",
    show_default=True,
    help='A named device needs none attached: "opencl -device=adreno640".',
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
    "--emit-source",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for the kernels, one .cl or .cu file each.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    help="Where to save the model. [default: MODEL's name with .romou]",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Check the outputs against onnxruntime's, on the device or a CPU in its place.",
)
@precision_options
@memory_option
@strict_option
@host_option
@json_option
@debug_option
def command(
    model: str,
    target: str,
    shapes: tuple[str, ...],
    constants: dict[str, Any] | None,
    emit_source: Path | None,
    output: Path | None,
    verify: bool,
    precision: dict[str, Any],
    max_memory: int | None,
    strict: bool,
    allow_host: bool,
    is_json: bool,
) -> None:
    """Compile MODEL with default schedules and save it.

    MODEL is an ONNX file, or bundled:NAME for one of the shipped networks (bundled:squeezenet1_0). Nothing is measured.
    The outputs are checked against onnxruntime's, on the target's device or, where it is not attached, on the CPU's
    OpenCL or Vulkan: a wrong model is an error that names the first wrong operator.
    """
    from romou.devices.targets import Target

    fixed = parse_shapes(shapes)
    parsed = Target(target)
    source: Any = read_model(model)
    import romou

    how: dict[str, Any] = {
        "shapes": fixed or None,
        "constants": constants,
        "verify": verify,
        "strict": strict,
        "max_memory": max_memory,
    }
    compiled = romou.compile(source, target=parsed, **how, **precision)
    path = compiled.save(output or default_output(model))
    sources = compiled.sources()
    suffix = parsed.backend.source_suffix
    if emit_source is not None:
        emit_source.mkdir(parents=True, exist_ok=True)
        for name, text in sources.items():
            (emit_source / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    summary = compiled.summary()
    if is_json:
        files = [str(emit_source / f"{name}.{suffix}") for name in sources] if emit_source is not None else []
        about = {
            "model": model,
            "target": str(parsed),
            "output": str(path),
            "relative_l2_error": summary.relative_l2_error,
        }
        about |= {"checked_on": summary.checked_on}
        print_json({**about, "kernels": list(sources), "sources": files, "summary": summary.to_dict()})
        check_host(summary, allow_host)
        return
    from romou.tools.report.table import device_lines

    out = console(is_json=False)
    reason = (
        "no device that runs its kernels is here, or onnxruntime does not run the model." if verify else "--no-verify."
    )
    checked = f"Its outputs were not checked: {reason}"
    if summary.relative_l2_error is not None:
        checked = (
            f"Its outputs are onnxruntime's, relative L2 error {summary.relative_l2_error:.1e}, on"
            f" {summary.checked_on}."
        )
    out.print(f"{len(sources)} kernels, saved to {path}. {checked}", markup=False)
    if emit_source is not None:
        out.print(f"Their source is in {emit_source}.", markup=False)
    for line in device_lines(summary):
        out.print(line, markup=False)
    check_host(summary, allow_host)
