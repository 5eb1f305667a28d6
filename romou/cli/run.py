"""romou run: a saved model, run on given or random inputs, with its outputs and its time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from romou.base.errors import UsageError, unknown_name
from romou.base.inputs import converted
from romou.cli.click_options import parse_shapes, rpc_option
from romou.cli.common import announce, console, debug_option, is_verbose, json_option, print_json

if TYPE_CHECKING:
    import numpy as np

    from romou.runtime.module import Profile, TunedModel


def read_inputs(
    texts: tuple[str, ...], signature: dict[str, tuple[tuple[int, ...], str]], *, any_shape: bool = False
) -> dict[str, np.ndarray]:
    """Return ("x=x.npy",) as {"x": array}. Each array is checked against the model's shape and dtype.

    any_shape: the shape is checked later, against several.
    """
    import numpy as np

    values: dict[str, np.ndarray] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or not name or not file:
            raise UsageError(f"--input {text!r}: expected NAME=FILE.npy")
        if name not in signature:
            raise unknown_name("input", name, signature)
        try:
            value = np.load(file, allow_pickle=False)
        except Exception as error:  # by the types of all the parsers that NumPy uses
            raise UsageError(f"--input {name}: cannot read {file}: {error}", path=file) from error
        if not isinstance(value, np.ndarray):
            raise UsageError(f"--input {name}: {file} holds several arrays; expected NAME=FILE.npy", path=file)
        shape, dtype = signature[name]
        value = converted(f"--input {name}", value, dtype)
        if not (any_shape or tuple(value.shape) == tuple(shape)) or value.dtype != np.dtype(dtype):
            raise UsageError(
                f"--input {name}: {file} holds {value.dtype} {tuple(value.shape)}; the model takes {np.dtype(dtype)}"
                f" {tuple(shape)}",
                name=name,
            )
        values[name] = value
    return values


@click.command("run")
@click.argument("module", metavar="MODEL", type=click.Path(path_type=Path))
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="An input from a file; the others are random."
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=SIZES",
    callback=lambda _context, _parameter, texts: parse_shapes(texts),
    help="Shape of a random input, if the model has several. [default: the largest]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--repeat", type=click.IntRange(min=1), default=10, show_default=True, help="Timed runs.")
@click.option(
    "--profile", is_flag=True, help="Also time every call of a run, by its ONNX nodes and by Romou's name of the layer."
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Profile, and write the calls to this file for chrome://tracing or ui.perfetto.dev.",
)
@click.option(
    "--save-outputs",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for the outputs as output_0.npy, output_1.npy, …",
)
@click.option(
    "--device",
    default=None,
    metavar="NAME",
    help="Attached device by number or name (1, intel). [default: the first]",
)
@rpc_option
@json_option
@debug_option
def command(
    module: Path,
    inputs: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]] | list[dict[str, tuple[int, ...]]] | None,
    seed: int,
    repeat: int,
    profile: bool,
    trace: Path | None,
    save_outputs: Path | None,
    device: str | None,
    rpc: str | None,
    is_json: bool,
) -> None:
    """Run MODEL, which `romou tune` saved, and print its outputs' shapes and its time.

    A saved model is code, which runs with your rights: run only what you trust.

    \b
    Examples:
      romou run model.romou --profile
      romou run model.romou --input input=x.npy --save-outputs out
      romou run model.romou --trace trace.json
      romou run model.romou --shape ids=1,100
    """
    import numpy as np

    if not module.exists():
        raise UsageError(
            f"model {str(module)!r} does not exist", hint="`romou tune MODEL` makes one.", path=str(module)
        )
    import romou
    from romou.base.inputs import random_inputs
    from romou.runtime.module import MultiShapeModel, RunTimeSizesModel

    model = romou.load(module, device=0 if device is None else device, rpc=rpc)
    announce(model.target, model.device_index, rpc)
    signature, given = _signature(model, inputs, shapes)
    values = random_inputs(signature, seed) | model.settled | given
    outputs = model.run(values)
    there = {name: array.shape for name, array in values.items()}
    # Times are of the shape that runs.
    if isinstance(model, MultiShapeModel):
        model = model.model_for(there)
    options: dict[str, Any] = {"sizes": model.sizes_in(there)} if isinstance(model, RunTimeSizesModel) else {}
    whole = values if options or signature == model.inputs else None
    profiled = model.profile(whole, repeat=repeat) if profile or trace is not None else None
    # One time of one run: a profile divides it among its calls.
    time_ms = float(np.median(model.times(repeat=repeat, **options))) if profiled is None else profiled.whole_ms
    if profiled is not None and trace is not None:
        profiled.save_trace(trace)
    if save_outputs is not None:
        save_outputs.mkdir(parents=True, exist_ok=True)
        for i, array in enumerate(outputs):
            np.save(save_outputs / f"output_{i}.npy", array)
    described = [{"name": name, **_describe(outputs[name])} for name in outputs.names]
    if is_json:
        data: dict[str, Any] = {
            "module": str(module),
            "outputs": described,
            "time_ms": time_ms,
            "launching": model.launching,
        }
        data["programs"] = None if model.programs is None else dataclasses.asdict(model.programs)
        data["profile"] = None if profiled is None else profiled.to_dict()
        print_json(data)
        return
    _print(model, described, time_ms, repeat)
    if profiled is not None:
        _print_profile(profiled, trace)


_Signature = dict[str, tuple[tuple[int, ...], str]]


def _signature(
    model: TunedModel,
    inputs: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]] | list[dict[str, tuple[int, ...]]] | None,
) -> tuple[_Signature, dict[str, np.ndarray]]:
    """Return (shape and type of all inputs, the inputs that are read). Inputs that are given have their own shapes."""
    from romou.runtime.module import MultiShapeModel, RunTimeSizesModel

    if isinstance(model, MultiShapeModel | RunTimeSizesModel):
        given = read_inputs(inputs, model.inputs, any_shape=True)
        return model.signature_for({**_single(shapes), **{name: array.shape for name, array in given.items()}}), given
    if shapes is not None:
        raise UsageError("--shape: the model has one shape", hint="Leave it out.")
    return model.inputs, read_inputs(inputs, model.inputs)


def _single(
    shapes: dict[str, tuple[int, ...]] | list[dict[str, tuple[int, ...]]] | None,
) -> dict[str, tuple[int, ...]]:
    if isinstance(shapes, list):
        raise UsageError("--shape gives an input several shapes; one of them runs", hint="Give each input once.")
    return shapes or {}


def _print(model: TunedModel, described: list[dict[str, Any]], time_ms: float, repeat: int) -> None:
    out = console(is_json=False)
    for i, entry in enumerate(described):
        out.print(f"output {i} {entry['name']}: {entry['dtype']} {entry['shape']}, {_range_text(entry)}", markup=False)
    clock = "the host's clock" if model.host_nodes else "the device's clock"
    out.print(f"time: {time_ms:.3f} ms (median of {repeat} runs, {clock})", markup=False)
    if is_verbose():
        if model.programs is not None:
            out.print(f"programs: {model.programs}", markup=False)
        out.print(f"launched: {model.launching}", markup=False)


def _print_profile(profiled: Profile, trace: Path | None) -> None:
    from romou.tools.report.table import print_table, profile_table

    out = console(is_json=False)
    print_table(profile_table(profiled), out)
    text = "The time of a run is divided among its calls in the ratio of their times, each repeated at its place."
    out.print(text, markup=False)
    if trace is not None:
        out.print(f"Trace: {trace} (chrome://tracing, ui.perfetto.dev)", markup=False)


def _describe(array: np.ndarray) -> dict[str, Any]:
    import numpy as np

    finite = bool(np.isfinite(array).all())
    stats = (
        {"min": float(array.min()), "max": float(array.max()), "mean": float(array.mean())}
        if finite and array.size
        else {}
    )
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "is_finite": finite,
        **(stats or {"min": None, "max": None, "mean": None}),
    }


def _range_text(entry: dict[str, Any]) -> str:
    if not entry["is_finite"]:
        return "holds NaN or infinity"
    if entry["min"] is None:
        return "empty"
    return f"min {entry['min']:.6g}, max {entry['max']:.6g}, mean {entry['mean']:.6g}"
