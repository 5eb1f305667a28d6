"""romou bench: times and measures of a model's operators, as a file for romou compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from romou.cli.click_options import options_of, rpc_option
from romou.cli.common import announce, console, debug_option, json_option, print_json
from romou.cli.models import check_dimensions, read_model
from romou.driver.options import BenchOptions

if TYPE_CHECKING:
    from romou.compiler.frontend.shape_sets import Shapes
    from romou.tools.regression import Bench


@click.command("bench")
@click.argument("model")
@click.option(
    "--save",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The bench's file, for example baseline.json.",
)
@options_of(BenchOptions, "target", "device", "work_dir", "shapes", "dims", "constants", "repeats", "times", "gpu")
@click.option(
    "--module/--no-module",
    default=True,
    show_default=True,
    help="Keep the compiled model beside the file, to time it again.",
)
@options_of(BenchOptions, "seed", "precision", "io_precision", "calibration")
@rpc_option
@json_option
@debug_option
def command(model: str, path: Path, module: bool, is_json: bool, **options: Any) -> None:
    """Measure MODEL by operator and as a whole, and save every repeat, for `romou compare`.

    MODEL is an ONNX file, or bundled:NAME for one of the shipped networks (bundled:squeezenet1_0). The compiled
    model is saved beside the file, in a folder of the same name with .romou. With it, `romou compare` times both
    versions alternately, so that the load of the machine cancels in the ratio. Several shapes have a file each:
    baseline-1.json, baseline-2.json.

    \b
    Examples:
      romou bench model.onnx --save baseline.json
      romou bench model.onnx --save baseline.json --no-times --device adreno640
      romou bench model.onnx --save counts.json --no-times --device adreno740 --gpu
    """
    check_dimensions(model, options)
    from romou.devices.targets import Target

    options["target"] = Target(options["target"])
    announce(options["target"], options["device"], options["rpc"])
    source: Any
    source, sets = BenchOptions.from_dict(options).shape_sets(read_model(model))
    import romou

    paths = [path] if len(sets) == 1 else [path.with_stem(f"{path.stem}-{i + 1}") for i in range(len(sets))]
    benches = []
    for shapes, file in zip(sets, paths, strict=True):
        given = {**options, "shapes": shapes or None, "dims": None, "constants": None}
        benches.append(romou.bench(source, label=model, **given))
        benches[-1].save(file, module=module)
    if is_json:
        documents = [json.loads(measured.to_json()) for measured in benches]
        print_json(documents[0] if len(sets) == 1 else {"shapes": documents})
        return
    rpc = f" --rpc {options['rpc']}" if options["rpc"] else ""
    for measured, shapes, file in zip(benches, sets, paths, strict=True):
        _print(measured, shapes if len(sets) > 1 else {}, file, f"{model}{rpc}")


def _print(measured: Bench, shapes: Shapes, path: Path, model: str) -> None:
    """Print a bench and where it is. shapes: the shape of several, or nothing."""
    from romou.tools.report.comparison import bench_table
    from romou.tools.report.table import print_table

    out = console(is_json=False)
    options = "".join(f" --shape {name}={','.join(map(str, sizes))}" for name, sizes in shapes.items())
    if options:
        out.print(f"Shape:{options}", markup=False)
    print_table(bench_table(measured), out)
    if measured.time_ms is not None:
        out.print(f"Whole model: {measured.time_ms:.3f} ms.", markup=False)
    out.print(f"Saved to {path}. Compare with it: romou compare {path} {model}{options}", markup=False)
