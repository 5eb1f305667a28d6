"""romou bench: the times of a model's operators and what can be read off its kernels, as a file for romou compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

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


@click.command("bench")
@click.argument("model")
@click.option(
    "--save",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The bench's file, for example baseline.json.",
)
@click.option(
    "--target",
    default="opencl",
    show_default=True,
    help='For example "opencl -device=host" or "opencl -device=adreno640".',
)
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of tune's records: best configs, not default ones.",
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
    help="Rounds; in each, everything is timed once more.",
)
@click.option("--times/--no-times", default=True, show_default=True, help="Without times no device is needed.")
@click.option(
    "--module/--no-module",
    default=True,
    show_default=True,
    help="Keep the compiled model beside the file, to time it again.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the inputs and of the order of the measurements."
)
@precision_options
@rpc_option
@json_option
@debug_option
def command(
    model: str,
    path: Path,
    target: str,
    work_dir: Path | None,
    shapes: tuple[str, ...],
    constants: dict[str, Any] | None,
    repeats: int,
    times: bool,
    module: bool,
    seed: int,
    precision: dict[str, Any],
    rpc: str | None,
    is_json: bool,
) -> None:
    """Measure MODEL by operator and as a whole, and save every repeat, for `romou compare`.

    MODEL is an ONNX file, or bundled:NAME for one of the shipped networks (bundled:squeezenet1_0). Beside the file lies
    the compiled model, in a folder of the same name with .romou: with it, `romou compare` times both versions in turns,
    whatever the machine does.
    """
    from romou.devices.targets import Target

    fixed = parse_shapes(shapes)
    parsed = Target(target)
    source: Any = read_model(model)
    import romou

    how: dict[str, Any] = {
        "work_dir": work_dir,
        "shapes": fixed or None,
        "constants": constants,
        "repeats": repeats,
        "seed": seed,
        "rpc": rpc,
        **precision,
    }
    made = romou.bench(source, target=parsed, times=times, label=model, **how)
    made.save(path, module=module)
    if is_json:
        print_json(json.loads(made.to_json()))
        return
    from romou.tools.report.comparison import bench_table
    from romou.tools.report.table import print_table

    out = console(is_json=False)
    print_table(bench_table(made), out)
    if made.time_ms is not None:
        out.print(f"Whole model: {made.time_ms:.3f} ms.", markup=False)
    out.print(
        f"Saved to {path}. Compare with it: romou compare {path} {model}{f' --rpc {rpc}' if rpc else ''}", markup=False
    )
