"""romou inspect: the kernels of a model taken apart, without a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from romou.cli.click_options import GPU_FORM, options_of, precision_options, shape_options, target_option
from romou.cli.common import console, debug_option, json_option, print_json
from romou.cli.models import read_model
from romou.driver.options import InspectOptions, ModelOptions

if TYPE_CHECKING:
    from romou.devices.mobile_compilers import KernelStatistics, VendorStatistics
    from romou.devices.targets import Target
    from romou.tools.inspection.kernels import InspectedKernel

_MESA = "Mesa, "


@click.command("inspect")
@click.argument("model")
@target_option
@shape_options
@options_of(InspectOptions, "work_dir", "kernel")
@click.option(
    "--gpu",
    "gpus",
    **GPU_FORM,
    multiple=True,
    help=(
        "Ask Mesa's compiler (not the vendor's): a618, a630, a660, a730, a740, a750, a810, a830, g52, g57, g71, g72,"
        " g76, g610; without a name, or `own`, that of the target's GPU. Arm's malioc in PATH, for any Mali, and the"
        " program in ROMOU_ADRENO_COMPILER are asked, too. May be repeated."
    ),
)
@click.option(
    "--execute",
    "is_executed",
    is_flag=True,
    help=(
        "Execute the machine code of each --gpu, an Adreno, in a simulator instead, and compare the outputs with those"
        " of unscheduled functions. Without --gpu, that of the target's GPU."
    ),
)
@options_of(InspectOptions, "passes")
@click.option("--source/--no-source", "has_source", default=True, show_default=True, help="Show the OpenCL source.")
@click.option(
    "--knobs",
    "has_knobs",
    is_flag=True,
    help="Explain the knobs of the tasks instead: choices on the target, default, meaning.",
)
@click.option(
    "--why",
    "why",
    metavar="LAYER",
    default=None,
    help=(
        "Show why this layer has its default config instead: the terms of its estimate, and those of the best other"
        " configs. A layer of `romou check`, or an ONNX node."
    ),
)
@click.option(
    "--memory",
    "has_memory",
    is_flag=True,
    help="Show the memory plan instead: weights, and the tensors between kernels.",
)
@click.option(
    "--stages",
    is_flag=False,
    flag_value="all",
    default=None,
    metavar="[NAMES]",
    help="Write the module after these stages of the compiler to text files instead; without names, after all.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("romou-dump"),
    show_default=True,
    help="Folder of the files of --stages.",
)
@precision_options
@json_option
@debug_option
def command(
    model: str,
    target: str,
    device: str | None,
    work_dir: Path | None,
    kernel: str | None,
    gpus: tuple[str, ...],
    is_executed: bool,
    passes: bool,
    has_source: bool,
    has_knobs: bool,
    why: str | None,
    has_memory: bool,
    stages: str | None,
    output: Path,
    is_json: bool,
    **options: Any,
) -> None:
    """Show the kernels of MODEL without a device: source, registers, bytes loaded, integer operations in loops.

    MODEL is an ONNX file, or bundled:NAME for one of the shipped networks. --gpu adds statistics of each kernel from
    Mesa's compilers for Adreno and Mali, which `romou setup mobile-compilers` fetches. They are not the vendors'
    compilers.

    Registers are the estimate of pruning and regression runs: the criterion `registers` compares "needed" with the
    device. Over 200 random kernels its rank correlation with Mesa's compiler for Adreno is 0.89. With --gpu a630 its
    error is printed for each kernel.

    \b
    Examples:
      romou inspect model.onnx --device adreno640
      romou inspect model.onnx --memory
      romou inspect bundled:squeezenet1_0 --device adreno640 --gpu a630 --execute
      romou inspect bundled:resnet18 --device adreno640 --why conv2d_1x64x56x56_64_3x3_s1
    """
    options["device"] = device
    parsed = ModelOptions(target=target, device=device).parsed_target()
    source: Any = read_model(model)
    if has_knobs:
        _explain_knobs(source, parsed, options, kernel, is_json=is_json)
        return
    if why is not None:
        _explain_default(source, parsed, options, why, is_json=is_json)
        return
    if has_memory:
        _show_memory(source, parsed, {**options, "work_dir": work_dir}, is_json=is_json)
        return
    if stages is not None:
        _write_stages(source, parsed, {**options, "work_dir": work_dir}, stages, output, is_json=is_json)
        return
    gpus = _checked_gpus(gpus or (GPU_FORM["flag_value"],) * is_executed, parsed)  # before the long part
    if is_executed:
        _execute(source, parsed, {**options, "work_dir": work_dir, "kernel": kernel}, gpus, is_json=is_json)
        return
    import romou

    kernels = romou.inspect(source, target=parsed, work_dir=work_dir, kernel=kernel, passes=passes, **options)
    statistics = _statistics(kernels, gpus)
    if is_json:
        rows = [
            {**inspected.to_dict(), **_by_compiler(by_name, inspected)}
            for inspected, by_name in zip(kernels, statistics, strict=True)
        ]
        print_json({"model": model, "target": str(parsed), "kernels": rows})
    else:
        _print_kernels(kernels, statistics, has_source=has_source)


def _checked_gpus(gpus: tuple[str, ...], target: Target) -> tuple[str, ...]:
    """Return the GPUs of --gpu by name. Raises an error if there is no compiler for one of them."""
    if not gpus:
        return ()
    from romou.devices.mobile_compilers import compilers_for
    from romou.devices.targets import gpu_for

    named = tuple(gpu_for(gpu, target) for gpu in gpus)
    for gpu in named:
        compilers_for(gpu)
    return named


def _print_kernels(
    kernels: list[InspectedKernel],
    statistics: list[dict[str, KernelStatistics | VendorStatistics | str]],
    *,
    has_source: bool,
) -> None:
    from romou.devices.mobile_compilers import VendorStatistics
    from romou.tools.report.inspected import print_kernel

    out = console(is_json=False)
    if not kernels:
        out.print("No kernels: the device computes nothing of this model.", markup=False)
    for kernel, by_name in zip(kernels, statistics, strict=True):
        print_kernel(kernel, by_name, out, has_source=has_source)
    answers = {name: said for by_name in statistics for name, said in by_name.items()}
    for vendor in sorted({said.compiler for said in answers.values() if isinstance(said, VendorStatistics)}):
        out.print(f"{vendor}: the vendor's compiler. Nothing was executed.", markup=False)
    if gpus := tuple(name.removeprefix(_MESA) for name in answers if name.startswith(_MESA)):
        out.print(_versions(gpus), markup=False)


def _versions(gpus: tuple[str, ...]) -> str:
    """Return the line that names the versions of Mesa whose compilers were asked."""
    from romou.devices.mobile_compilers import mesa_version, mobile_gpu
    from romou.tools.report.inspected import NOT_THE_VENDORS

    versions = sorted({mesa_version(mesa=mobile_gpu(gpu).mesa) for gpu in gpus})
    return f"Mesa {' and '.join(versions)}. {NOT_THE_VENDORS}"


def _execute(source: Any, target: Target, options: dict[str, Any], gpus: tuple[str, ...], *, is_json: bool) -> None:
    import romou
    from romou.tools.report.inspected import executed_lines

    executed = [each for gpu in gpus for each in romou.simulate(source, target=target, gpu=gpu, **options)]
    if is_json:
        print_json({"target": str(target), "executed": [dataclasses.asdict(each) for each in executed]})
        return
    out = console(is_json=False)
    for function in executed:
        for line in executed_lines(function):
            out.print(f"{function.gpu} {line}", markup=False, soft_wrap=True)
    right = sum(function.problem is None for function in executed)
    kernels = [kernel for function in executed for kernel in function.kernels]
    seconds = sum(kernel.seconds for kernel in kernels)
    out.print(
        f"{right} of {len(executed)} functions have equal outputs: {len(kernels)} kernels in {seconds:.0f} s.",
        markup=False,
    )
    out.print(_versions(gpus), markup=False)


def _write_stages(
    source: Any, target: Target, options: dict[str, Any], stages: str, folder: Path, *, is_json: bool
) -> None:
    from romou.api.inspect import dump_stages

    files = dump_stages(source, folder, stages, target=target, **options)
    if is_json:
        print_json({"target": str(target), "stages": [str(path) for path in files]})
    else:
        console(is_json=False).print(f"{len(files)} files in {folder}", markup=False)


def _show_memory(source: Any, target: Target, options: dict[str, Any], *, is_json: bool) -> None:
    import romou
    from romou.tools.report.inspected import memory_table, tensor_table
    from romou.tools.report.table import print_table

    plan = romou.memory_plan(source, target=target, **options)
    if is_json:
        print_json({"target": str(target), "memory": plan.to_dict()})
        return
    out = console(is_json=False)
    print_table(tensor_table(plan), out)
    print_table(memory_table(plan.use), out)


def _explain_knobs(source: Any, target: Target, options: dict[str, Any], task: str | None, *, is_json: bool) -> None:
    from romou.api.spaces import knob_spaces
    from romou.base.errors import unknown_name
    from romou.tools.report.spaces import knob_rows, knob_table
    from romou.tools.report.table import print_table

    task_spaces = knob_spaces(source, target=target, **options)
    spaces = [space for tunable, space in task_spaces if task in (None, tunable.name)]
    if task is not None and not spaces:
        raise unknown_name("task", task, {tunable.name for tunable, _ in task_spaces})
    if is_json:
        print_json({"target": str(target), "knobs": knob_rows(spaces)})
    else:
        print_table(knob_table(spaces, title=f"Knobs on {target}"), console(is_json=False))


def _explain_default(source: Any, target: Target, options: dict[str, Any], layer: str, *, is_json: bool) -> None:
    from romou.api.inspect import explain_default
    from romou.tools.report.inspected import why_lines, why_table
    from romou.tools.report.table import print_table

    reasons = explain_default(source, layer, ModelOptions.from_dict({"target": target, **options}))
    if is_json:
        print_json({"target": str(target), "layers": [each.to_dict() for each in reasons]})
        return
    out = console(is_json=False)
    for each in reasons:
        print_table(why_table(each), out)
        for line in why_lines(each):
            out.print(line, markup=False)


def _by_compiler(
    statistics: dict[str, KernelStatistics | VendorStatistics | str], kernel: InspectedKernel
) -> dict[str, dict[str, Any]]:
    """Return a kernel's statistics as plain data, by the GPU. On Adreno, Mesa's have the error of the estimate."""
    plain: dict[str, dict[str, Any]] = {"mesa": {}, "vendor": {}}
    for name, said in statistics.items():
        made: Any = said
        if not isinstance(said, str):
            made = {key: value for key, value in dataclasses.asdict(said).items() if key != "machine_code"}
            if getattr(said, "is_adreno", False):
                made["registers_error"] = kernel.registers.error(said.registers)
        plain["mesa" if name.startswith(_MESA) else "vendor"][name.rpartition(", ")[2]] = made
    return plain


def _statistics(
    kernels: list[InspectedKernel], gpus: tuple[str, ...]
) -> list[dict[str, KernelStatistics | VendorStatistics | str]]:
    """Return for each kernel: compiler and GPU -> statistics, or the text of the compiler's error.

    A kernel that the compiler refuses must not hide the others.
    """
    statistics: list[dict[str, KernelStatistics | VendorStatistics | str]] = [{} for _ in kernels]
    if not gpus:
        return statistics
    from romou.base.errors import BuildError
    from romou.devices import mobile_compilers as compilers

    for gpu in dict.fromkeys(gpus):
        mesa, vendor = compilers.compilers_for(gpu)
        answers: dict[str, Sequence[Any]] = {}
        if mesa is not None:
            answers[f"{_MESA}{gpu}"] = compilers.compile_all([k.source for k in kernels], gpu)
        if vendor is not None:
            answers[f"{vendor.name}, {gpu}"] = compilers.compile_by_vendor([(k.name, k.source) for k in kernels], gpu)
        for name, of_kernels in answers.items():
            for by_name, answer in zip(statistics, of_kernels, strict=True):
                said = answer[0] if isinstance(answer, list) else answer
                by_name[name] = str(said) if isinstance(said, BuildError) else said
    return statistics
