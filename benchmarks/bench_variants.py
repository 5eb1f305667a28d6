#!/usr/bin/env python3
"""Compares Boda's variants of a convolution, operator by operator, by the best of a few configs of each variant.

See docs/evidence/variants.md.

    python benchmarks/bench_variants.py                                               on the first OpenCL device, 24 configs of each variant
    python benchmarks/bench_variants.py --target "cuda -device=nvidia_h200" --trials 48 --seconds 200
    python benchmarks/bench_variants.py --operators conv43                           the convolutions of Boda's second paper
    python benchmarks/bench_variants.py --static a630 --trials 8                     Mesa's compiler for Adreno 630: instructions for a multiply-add

Each variant is a subspace of the operator's space (romou/base/variants.py). On a device, each subspace is searched as
`romou tune` searches, and the table has microseconds. With --static nothing is run. The table then has instructions for
each multiply-add of a decent config and of random ones, counted as in benchmarks/bench_mobile_static.py.

The second table has each operator's fastest variant with its rate and operations per byte (Boda-RTC, figures 7 and 8),
and how many times as long the general variant takes (figure 6).
"""  # noqa: E501

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from bench_mobile_static import MOST_REGISTERS, WAVE, best_of
from kernel_bench import memory_bytes
from operator_lists import conv43
from record_spaces import MORE, OPERATORS
from romou.base.errors import RomouError, UsageError
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask
from romou.devices.mobile_compilers import GPUS
from romou.devices.targets import Target
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from romou.tools.report.table import table_of_numbers
from romou.tuner.measure import LocalBuilder, LocalRunner, MeasureOptions
from romou.tuner.records import Record
from romou.tuner.search import TuningOptions, TuningSession

CHOSEN = (
    "conv1x1",
    "conv3x3",
    "conv3x3_stride2",
    "conv3x3_grouped",
    "more5x5",
    "conv7x1_prime",
    "conv7x7_stride2",
    "depthwise3x3",
)
ADRENO = Target("opencl -device=adreno640")
# Columns of the table: each operator has only one of tconv and k1conv, and for windows of one element k1conv_simd is
# conv_simd.
COLUMNS = ("conv", "conv_simd", "conv_simd_buffered", "tconv", "k1conv", "texture", "texture_tconv")
ANY = "any"
# Random configs of a variant, among which configs for Mesa's compiler are chosen.
DRAWN = 128


def of_variant(target: Target, variant: str) -> Target:
    """Return the target with all operators restricted to a variant that they have."""
    return target if variant == ANY else target.with_options(variant=variant)


def has(task: TunableTask, target: Target, variant: str) -> bool:
    """Return whether the operator has the variant on the target."""
    return variant == ANY or task.template.has_variant(of_variant(target, variant).limits)


def measured(
    task: TunableTask, target: Target, how: MeasureOptions, runner: LocalRunner, trials: int, seed: int
) -> tuple[float, Mapping[str, Any]] | None:
    """Return the microseconds and the config of the best of `trials` configs, or None if none works."""
    store: list[Record] = []
    options = TuningOptions(trials=trials, seed=seed, confirm=2, batch_size=8)
    # It builds only configs of the target's spaces, and variants have spaces of their own.
    with contextlib.closing(LocalBuilder(target, how)) as builder:
        session = TuningSession([task], target, store=store, builder=builder, runner=runner, options=options)
        result = session.run()[task.key]
    return None if result.config is None or result.best_ms is None else (result.best_ms * 1e3, dict(result.config))


def compiled(
    task: TunableTask, target: Target, gpu: str, trials: int, seed: int
) -> tuple[float, Mapping[str, Any]] | None:
    """Return the instructions for each multiply-add of the best config, and the config.

    It is the best by Mesa's compiler. None if no config compiles.
    """
    functions: list[list[InspectedKernel]] = []
    sample = task.space(target).sample(np.random.default_rng(0), DRAWN)
    drawn = (sample[int(index)] for index in np.random.default_rng(seed).permutation(len(sample)))
    full = (config for config in drawn if config["wg_o"] * config["wg_w"] * config["split_k"] >= WAVE[gpu])
    for config in dict.fromkeys([task.default_config(target), *full]):
        if len(functions) == trials:
            break
        with contextlib.suppress(RomouError, RuntimeError):  # a config that cannot be built is none
            kernels = inspect_function(task.schedule(config, target)["main"], target, config=config)
            if max(kernel.registers.needed for kernel in kernels) <= MOST_REGISTERS[gpu]:
                functions.append(kernels)
    best = best_of(functions, gpu, task.flops // 2) if functions else "nothing"
    return None if isinstance(best, str) else (best.per_multiply_add, best.config)


def print_table(
    rows: Mapping[str, Mapping[str, tuple[float, Any] | None]], unit: str, where: str, out: Console
) -> None:
    """Print a line for each operator with its best variant marked.

    Below, print how often each variant is the best, and its distance from the best.
    """
    names = COLUMNS
    table = table_of_numbers(
        "operator",
        (*names, ANY),
        title=f"{unit}, the best config of each variant; * the best of Boda's variants; {where}",
    )
    wins, behind = dict.fromkeys(names, 0), {name: [] for name in names}  # type: dict[str, int], dict[str, list[float]]
    for operator, cells in rows.items():
        value_of = {name: cell[0] for name in names if (cell := cells.get(name)) is not None}
        best = min(value_of, key=lambda name: value_of[name], default="")
        for name, value in value_of.items():
            wins[name] += name == best
            behind[name].append(value / value_of[best])
        shown = {
            name: f"{cell[0]:.3g}{'*' if name == best else ''}" for name, cell in cells.items() if cell is not None
        }
        table.add_row(
            operator, *(shown.get(name, "-") for name in (*names, ANY)), end_section=operator == list(rows)[-1]
        )
    table.add_row("the best of", *(str(wins[name]) for name in names), "")
    means = {name: f"{math.exp(float(np.mean(np.log(ratios)))):.2f}x" for name, ratios in behind.items() if ratios}
    table.add_row("as long as the best", *(means.get(name, "-") for name in names), "")
    out.print(table)


def print_speeds(
    rows: Mapping[str, Mapping[str, tuple[float, Any] | None]], works: Mapping[str, Any], out: Console
) -> None:
    """Print each operator's fastest variant, its time and rate, in order of operations (Boda-RTC, figures 6 to 8)."""
    columns = ("MFLOP", "F/B", "us", "GF/s", "conv / fastest")
    title = "The fastest of Boda's variants (Boda-RTC, figures 6 to 8)"
    table = table_of_numbers("operator", columns, "variant", title=title)
    for operator in sorted(rows, key=lambda name: works[name].flops):
        us_of = {name: cell[0] for name in COLUMNS if (cell := rows[operator].get(name)) is not None}
        if not us_of:
            continue
        fastest, flops = min(us_of, key=lambda name: us_of[name]), works[operator].flops
        cells = [f"{flops / 1e6:.1f}", f"{flops / memory_bytes(works[operator]):.1f}", f"{us_of[fastest]:.1f}"]
        cells.append(f"{flops / us_of[fastest] / 1e3:.1f}")
        cells.append(f"{us_of['conv'] / us_of[fastest]:.2f}x" if "conv" in us_of else "-")
        table.add_row(operator, *cells, fastest)
    out.print(table)


@click.command()
@click.option("--target", default="opencl", show_default=True)
@click.option(
    "--static",
    "gpu",
    type=click.Choice(list(GPUS)),
    default=None,
    help="A GPU whose compiler Mesa has; nothing is run.",
)
@click.option(
    "--operators",
    default=",".join(CHOSEN),
    show_default=True,
    help="Those of record_spaces.py, with commas, or conv43.",
)
@click.option("--trials", type=click.IntRange(min=1), default=24, show_default=True, help="Configs of each variant.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=math.inf, help="Begin no variant after this time."
)
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Build processes. [default: those of a search]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--json",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Also write each number with its config.",
)
def main(
    target: str,
    gpu: str | None,
    operators: str,
    trials: int,
    seconds: float,
    jobs: int | None,
    seed: int,
    output: Path | None,
) -> None:
    """Print the table of an operator's variants."""
    papers = {work.name: work for work in conv43()}
    out, stop_at, works = Console(width=150), time.monotonic() + seconds, {**OPERATORS, **MORE, **papers}
    names = list(papers) if operators == "conv43" else [name.strip() for name in operators.split(",") if name.strip()]
    rows: dict[str, dict[str, tuple[float, Any] | None]] = {name: {} for name in names}
    try:
        if unknown := [name for name in names if name not in works]:
            raise UsageError(f"unknown operators: {', '.join(unknown)}", hint=f"Known: conv43, {', '.join(works)}.")
        here, stack = ADRENO, contextlib.ExitStack()
        if gpu is None:
            asked = Target(target)
            index = asked.backend.device_index(asked.device_name)
            here = asked.limited_to(asked.backend.facts(index))
            how = MeasureOptions(repeat=3, min_repeat_ms=2.0, **({"build_workers": jobs} if jobs else {}))
            runner = stack.enter_context(contextlib.closing(LocalRunner(f"{asked.kind}:{index}", how)))
        left: list[str] = []
        with stack:
            for name, variant in ((name, variant) for name in names for variant in (*COLUMNS, ANY)):
                task = task_of(works[name], has_epilogue=False).with_free_images()
                if not has(task, here, variant):
                    continue
                if time.monotonic() > stop_at:
                    left.append(name)
                    continue
                there = of_variant(here, variant)
                rows[name][variant] = (
                    compiled(task, there, gpu, trials, seed)
                    if gpu
                    else measured(task, there, how, runner, trials, seed)
                )
    except RomouError as error:
        raise SystemExit(f"bench_variants: {error}") from error
    where = f"Mesa's {gpu}" if gpu else str(here)
    # With only some variants measured, the best of an operator is unknown.
    rows = {name: cells for name, cells in rows.items() if name not in left}
    print_table(rows, "vector instructions for a multiply-add" if gpu else "us", where, out)
    if gpu is None:
        print_speeds(rows, works, out)
    if left:
        out.print(f"out of time: {', '.join(dict.fromkeys(left))} left out, {len(left)} variants short", markup=False)
    if output is not None:
        output.write_text(json.dumps({"where": where, "trials": trials, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
