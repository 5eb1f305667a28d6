#!/usr/bin/env python3
"""Compares kernels whose outputs wait in local memory with kernels that keep them in registers, under Mesa's compilers.

    python benchmarks/bench_output_buffers.py                          a 1x1 convolution, Adreno 630 and Mali-G76
    python benchmarks/bench_output_buffers.py --layer 3x3 --check      also runs each kernel on the OpenCL device

Source: Boda-RTC, "local-memory based output buffers". docs/evidence/variants.md has this script's figures.

    registers    sums and outputs in registers
    store        sums in registers, then in local memory, from which the group stores in the order of memory: the knob
                 store=group of the variant conv_simd_buffered
    sums         sums in local memory from the first product on, which no config has: the schedule is here
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import click
import numpy as np
import tvm
from rich.console import Console
from tvm import s_tir

from mobile_options import by_vendor, gpus_option
from romou.base.errors import BuildError
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_reference, build_task
from romou.compiler.operators.algorithms import algorithm as algorithms
from romou.compiler.operators.contraction import schedule
from romou.compiler.operators.contraction.stages import Stage
from romou.compiler.scheduling.loops import Loop, load_texels, loops_below, unroll_tile
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.devices.mobile_compilers import GPUS, compile_all
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tools.report.table import table_of_numbers

LAYERS = {
    "1x1": conv(64, (28, 28), 96, (1, 1)),
    "3x3": conv(64, (28, 28), 96, (3, 3), padding=(1, 1, 1, 1)),
}
KINDS = ("registers", "store", "sums")
# (tile_o, tile_w): float4 sums of a work-item.
TILES = ((1, 4), (2, 4), (2, 8))
TARGET = Target("opencl -device=adreno640 -images=never")
# Largest relative error of a checked kernel.
_TOLERANCE = 1e-4


def schedule_sums(
    sch: s_tir.Schedule, loops: Sequence[Loop], config: Config, *, is_along_channels: bool, has_whole_texels: bool
) -> None:
    """Schedule the stages with their sums in local memory, in the place of `schedule_group_store`."""
    # The last loops are over the output: in stripes, so that neighbouring work-items store neighbouring pixels.
    group, tile = schedule._tile_output(sch, loops, config.replace(arrangement="striped"))
    acc, padded = sch.get_sblock(Stage.ACC), sch.get_sblock(Stage.TILE)
    for block in (padded, acc):
        sch.compute_at(block, group, preserve_unit_loops=True)
    sch.compute_inline(padded)
    sch.set_scope(acc, 0, "shared")
    spatial, reduction = schedule._bind_items(sch, loops_below(sch, acc, group), config)
    sch.reorder(*reduction, *spatial)
    for block in schedule._stages_of(sch, schedule._TEXELS):
        load_texels(sch, block, reduction[-2])
    schedule._unroll_inner(sch, spatial, reduction, config)
    schedule._spell_arithmetic(sch, acc, config)
    init = sch.decompose_reduction(acc, reduction[0])
    unroll_tile(sch, sch.get_loops(init)[-4:], config["vector_width"])
    unroll_tile(sch, tile, config["vector_width"])


@contextlib.contextmanager
def outputs_in(kind: str) -> Iterator[None]:
    """Schedule configs with store=group with their sums in local memory, if `kind` says so."""
    with contextlib.ExitStack() as stack:
        if kind == "sums":
            stack.enter_context(mock.patch.object(algorithms, "schedule_group_store", schedule_sums))
        yield


def on(target: Target, kind: str) -> Target:
    """Return the target, with the variant that has output buffers unless outputs are in registers."""
    return target if kind == "registers" else target.with_options(variant="conv_simd_buffered")


def config_of(task: TunableTask, tile: tuple[int, int], target: Target) -> Config:
    """Return an unstaged config with 8 x 8 work-items and a register tile of one row."""
    wanted: dict[str, Any] = {
        **dict.fromkeys(("data", "weight", "output"), "buffer"),
        **dict(zip(("tile_o", "tile_w"), tile, strict=True)),
        "algorithm": "direct",
        "pixels": "flat",
        "tile_h": 1,
        "wg_o": 8,
        "wg_w": 8,
        "split_k": 1,
        "local": 0,
        "arrangement": "blocked",
        "unroll": "lanes",
        "vector_width": 4,
        "local_buffers": 1,
        "wg_h": 1,
    }
    base = task.default_config(target)
    return base.replace(**{name: value for name, value in wanted.items() if name in base})


def error_of(task: TunableTask, tile: tuple[int, int], kind: str) -> float:
    """Return the largest error of a kernel on the first OpenCL device, relative to the largest number of the reference.

    Outputs are NaN before the run.
    """
    target, rng = on(Target("opencl"), kind), np.random.default_rng(0)
    *shapes, output = [tuple(map(int, parameter.shape)) for parameter in task.func.params]
    arrays = [*(rng.standard_normal(shape, dtype=np.float32) for shape in shapes), np.full(output, np.nan, np.float32)]
    expected, results = (
        [tvm.runtime.tensor(array) for array in arrays],
        [tvm.runtime.tensor(array, tvm.device("opencl")) for array in arrays],
    )
    build_reference(task)["main"](*expected)
    with outputs_in(kind):
        build_task(task, config_of(task, tile, target), target)["main"](*results)
    reference = expected[-1].numpy()
    return float(np.abs(results[-1].numpy() - reference).max() / np.abs(reference).max())


def row_of(task: TunableTask, tile: tuple[int, int], kind: str, gpu: str) -> tuple[str, ...]:
    """Return the numbers of a kernel under a compiler, or its error."""
    target = on(TARGET, kind)
    with outputs_in(kind):
        (kernel,) = inspect_function(task.schedule(config_of(task, tile, target), target)["main"], target)
    (answer,) = compile_all([kernel.source], gpu, timeout_s=120)
    name = f"{tile[0]} x {tile[1]}", kind, GPUS[gpu]
    if isinstance(answer, BuildError):
        return *name, str(answer).splitlines()[0][:40]
    statistics, inner = answer[0], answer[0].inner
    return (
        *name,
        f"{inner.instructions / inner.multiply_adds:.2f}",
        f"{inner.memory / inner.multiply_adds:.3f}",
        str(statistics.registers),
        "-" if statistics.waves is None else str(statistics.waves),
        f"{statistics.spills}{by_vendor([kernel], gpu)}",
    )


@click.command()
@click.option("--layer", type=click.Choice(list(LAYERS)), default="1x1", show_default=True)
@gpus_option(("a630", "g76"))
@click.option("--tiles", type=click.IntRange(1, len(TILES)), default=len(TILES), show_default=True, help="How many.")
@click.option("--check", is_flag=True, help="Run each kernel on the first OpenCL device.")
def main(layer: str, gpus: tuple[str, ...], tiles: int, check: bool) -> None:
    """Print the table, and the largest error of the kernels with --check. The exit code is 1 if one is wrong."""
    task, out = task_of(LAYERS[layer]), Console(width=120)
    numbers = ("instructions", "memory", "registers", "waves", "spills")
    table = table_of_numbers("tile", ("outputs", "GPU", *numbers), title=f"{task.name}: inner loop, for a multiply-add")
    for gpu in gpus:
        for tile in TILES[:tiles]:
            for kind in KINDS:
                table.add_row(*row_of(task, tile, kind, gpu))
    out.print(table)
    if check:
        error = max(error_of(task, tile, kind) for tile in TILES[:tiles] for kind in KINDS)
        out.print(f"largest error: {error:.1e}")
        raise SystemExit(0 if error < _TOLERANCE else 1)


if __name__ == "__main__":
    main()
