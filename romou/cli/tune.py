"""romou tune: an ONNX model in, a tuned and saved module and a table of what it brought out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from romou.base.errors import UsageError
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
    rpc_option,
    strict_option,
)

_BUNDLED = "bundled:"


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """("x=1,3,224,224",) -> {"x": (1, 3, 224, 224)}; UsageError for anything else."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        # The last "=": names of ONNX inputs may hold one.
        name, equals, sizes = text.rpartition("=")
        try:
            shape = tuple(int(size) for size in sizes.split(",") if size.strip())
        except ValueError:
            shape = (0,)
        if not equals or not name or any(size <= 0 for size in shape):
            raise UsageError(
                f"--shape {text!r}: expected NAME=SIZES",
                hint="For example --shape input=1,3,224,224; sizes are whole numbers above zero.",
            )
        if name in shapes:
            raise UsageError(f"--shape gives {name!r} twice: {shapes[name]} and {shape}", name=name)
        shapes[name] = shape
    return shapes


def parse_measures(texts: tuple[str, ...]) -> dict[str, float]:
    """("repeat=5",)
    ->  {"repeat": 5}, for `MeasureOptions`, which checks names and values; UsageError for what is no number.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError:
            raise UsageError(
                f"--measure {text!r}: expected NAME=NUMBER",
                hint="For example --measure repeat=5; romou.MeasureOptions says which.",
            ) from None
    return found


def default_output(model: str) -> Path:
    """Where a model is saved when --output is not given: its name with .romou, in the current folder."""
    return Path(f"{Path(model.removeprefix(_BUNDLED)).stem}.romou")


@click.command("tune")
@click.argument("model")
@click.option(
    "--target",
    default="opencl",
    show_default=True,
    help='For example "opencl -device=host" or "opencl -device=adreno640".',
)
@click.option(
    "--trials",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    help="Candidates to measure over all tasks; 0: default schedules.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=None, help="Stop tuning after this time."
)
@click.option(
    "--no-progress",
    type=click.IntRange(min=1),
    default=None,
    help="Stop after so many trials without a kernel that is 1% faster.",
)
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for records; a later run resumes from it.",
)
@click.option(
    "--no-records",
    is_flag=True,
    help="Keep no records. Without this and --work-dir they go to the user's cache, and a later run resumes from them.",
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
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    help="Where to save the tuned model. [default: MODEL's name with .romou]",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Draw the search and its result on this HTML page.",
)
@click.option(
    "--prune/--no-prune",
    default=True,
    show_default=True,
    help="Leave out configs that the device's facts make senseless (see romou space).",
)
@click.option(
    "--allow-tf32",
    is_flag=True,
    help="CUDA: floats may be multiplied on tensor cores, which round them to 10 bits behind the point.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Fail where the outputs are not onnxruntime's; else warn, and save the model.",
)
@precision_options
@rpc_option
@click.option(
    "--builders",
    default=None,
    metavar="ADDRESS",
    help="Build candidates on the workers of a dask scheduler, dask://host:port. [default: here]",
)
@click.option(
    "--trust-builders",
    is_flag=True,
    help="Take a scheduler of another machine without TLS, which can run any code here.",
)
@click.option(
    "--explorer",
    default="evolution",
    show_default=True,
    help="evolution, annealing, random or exhaustive: how candidates are chosen.",
)
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
@click.option(
    "--measure",
    "measures",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other field of romou.MeasureOptions: repeat=5. May be repeated.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of the search; the same seed tries the same candidates first.",
)
@memory_option
@strict_option
@host_option
@json_option
@debug_option
def command(
    model: str,
    target: str,
    trials: int,
    seconds: float | None,
    no_progress: int | None,
    work_dir: Path | None,
    no_records: bool,
    shapes: tuple[str, ...],
    constants: dict[str, Any] | None,
    output: Path | None,
    report: Path | None,
    prune: bool,
    allow_tf32: bool,
    verify: bool,
    explorer: str,
    precision: dict[str, Any],
    rpc: str | None,
    builders: str | None,
    trust_builders: bool,
    build_timeout: float | None,
    run_timeout: float | None,
    measures: tuple[str, ...],
    seed: int,
    max_memory: int | None,
    strict: bool,
    allow_host: bool,
    is_json: bool,
) -> None:
    """Tune MODEL and save it.

    MODEL is an ONNX file, or bundled:NAME for one of the shipped networks (bundled:squeezenet1_0).
    """
    from romou.devices.targets import Target

    if no_records and work_dir is not None:
        raise UsageError(f"--no-records keeps nothing, but --work-dir names {str(work_dir)!r}; give one of them")
    fixed = parse_shapes(shapes)
    measure = {"build_timeout_s": build_timeout, "run_timeout_s": run_timeout, **parse_measures(measures)}
    parsed = Target(target)
    source: Any = read_model(model)
    if report is not None:
        from romou.tools.report.page import check_library

        check_library()  # before the long part
    import romou
    from romou.runtime.module.saved import check_output

    path = output or default_output(model)
    check_output(path)  # before the long part
    how: dict[str, Any] = {
        "trials": trials,
        "seconds": seconds,
        "no_progress": no_progress,
        "explorer": explorer,
        "seed": seed,
    }
    how |= {
        "work_dir": False if no_records else work_dir,
        "measure": {name: value for name, value in measure.items() if value is not None},
    }
    how |= {
        "prune": prune,
        "allow_tf32": allow_tf32,
        "rpc": rpc,
        "builders": builders,
        "trust_builders": trust_builders,
        "verify": verify,
        "strict": strict,
        "max_memory": max_memory,
        **precision,
    }
    tuned = romou.tune(source, target=parsed, shapes=fixed or None, constants=constants, progress=True, **how)
    tuned.save(path)
    summary = tuned.summary()
    if report is not None:
        romou.write_report(
            path,
            output=report,
            model=source,
            target=tuned.target,
            shapes=fixed or None,
            constants=constants,
            **precision,
        )
    if is_json:
        print_json({"model": model, "target": str(parsed), "output": str(path), "summary": summary.to_dict()})
    else:
        from romou.tools.report.table import print_summary

        out = console(is_json=False)
        print_summary(summary, out)
        out.print(f"launched: {summary.launching}", markup=False)
        if summary.records is not None:
            out.print(f"records: {summary.records} (a later run goes on from them)", markup=False)
        if report is not None:
            out.print(f"Report: {report}", markup=False)
        out.print(f"Saved to {path}. Run it: romou run {path}{f' --rpc {rpc}' if rpc else ''}", markup=False)
    check_host(summary, allow_host)


def read_model(model: str) -> Any:
    """The path of an ONNX file, or the bundled network that bundled:NAME names; UsageError where neither exists."""
    if model.startswith(_BUNDLED):
        from romou import models

        return models.load(model.removeprefix(_BUNDLED))
    path = Path(model)
    if not path.is_file():
        from romou import models

        hint = (
            f"{_BUNDLED}{model} is a bundled network."
            if model in models.names()
            else f"Bundled networks: {', '.join(_BUNDLED + n for n in models.names())}."
        )
        raise UsageError(f"model file {model!r} does not exist", hint=hint, path=model)
    return path
