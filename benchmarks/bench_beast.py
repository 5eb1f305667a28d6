#!/usr/bin/env python3
"""Cuts BEAST's space and Romou's for the same layer, and counts what a layout with the batch innermost would save.

    python benchmarks/bench_beast.py                          AlexNet's second layer at batch 128, opencl -device=nvidia_h200
    python benchmarks/bench_beast.py --layer 3 --target "opencl -device=adreno640"
    python benchmarks/bench_beast.py --time cuda --layer 3    also times the batch innermost against Romou's layout
    python benchmarks/bench_beast.py --time opencl --layer 3 --batch 64 --shrink 4       with a quarter of the channels, for a CPU

Without --time it needs no device, and nothing is compiled. It prints

BEAST: its five parameters, each any number up to the layer's extent or the largest group, and what each constraint of
the paper (section 5.4) leaves, in the paper's order. Kernels are not run, so errors of compilers are not among them.

Romou: all combinations of knobs, what the constraints between knobs leave, and what the criteria leave of that; then
the share that each constraint and each criterion excludes.

Layouts: a warp reads one tap of the window for its outputs. Counted for all taps and a sample of warps: cache lines that
it touches, the share of their bytes that it uses, and the share of warps in which only some work-items are in the
padding.

Times (--time): direct sums in Romou's layout and with the batch innermost (`batch_innermost.py`), both by the same
schedules and searched for the same number of trials. The fastest kernels run alternately on the same inputs.
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import click
import numpy as np
from rich.console import Console

from batch_innermost import INNERMOST, PACKED, race
from operator_lists import alexnet
from romou.base.errors import RomouError
from romou.compiler.operators.workload import Conv2d
from romou.compiler.single_operator import task_of
from romou.compiler.tir.primitives import LANES
from romou.devices.targets import Target
from romou.tools.report.spaces import constraint_table, criteria_table, percent
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning import PrunedSpace, Rules, prune_each

# The paper's GPU, AMD Fury X: work-items of a group, local memory in bytes and vector registers of a work-item (section
# 5.4), and the least groups that a core shall hold.
GROUP, LOCAL_BYTES, REGISTERS, GROUPS = 256, 32768, 256, 2
# Largest K_BLK that is counted. The paper's example has 16.
MOST_DEPTH = 64
LINE_BYTES, NUMBER_BYTES, WARP = 64, 4, 32
# Warps that are looked at for each layout, evenly spread.
_WARPS = 4096
# Largest difference of the two layouts' outputs, relative to the largest number.
_TOLERANCE = 1e-4


def beast_cut(work: Conv2d) -> list[tuple[str, int]]:
    """Return (constraint, configs left) of BEAST's five parameters, in the paper's order.

    M counts images, N filters: M_BLK x N_BLK outputs of a group of M_DIM x N_DIM work-items, K_BLK products at a time.
    """
    n, k = work.batch, work.out_channels
    m_dim, n_dim = (axis.ravel() for axis in np.meshgrid(np.arange(1, GROUP + 1), np.arange(1, GROUP + 1)))
    left = {"all": GROUP**2 * n * k * MOST_DEPTH, "whole tiles": 0, "layer": 0, "group": 0, "registers": 0, "local": 0}
    for depth in range(1, MOST_DEPTH + 1):
        is_whole = (depth % m_dim == 0) & (depth % n_dim == 0)
        for m, d in zip(m_dim[is_whole], n_dim[is_whole], strict=True):
            rows, columns = np.arange(m, n + 1, m)[:, None], np.arange(d, k + 1, d)[None, :]
            divides = (n % rows == 0) & (k % columns == 0)
            fits_group = divides & bool(m * d <= GROUP)
            outputs = (rows // m) * (columns // d)
            fits_registers = fits_group & (outputs + rows // m + columns // d <= REGISTERS // GROUPS)
            bytes_of_group = (rows + columns) * depth * NUMBER_BYTES
            fits_local = fits_registers & (GROUPS * bytes_of_group <= LOCAL_BYTES)
            for name, mask in zip(
                ("whole tiles", "layer", "group", "registers", "local"),
                (np.ones_like(divides), divides, fits_group, fits_registers, fits_local),
                strict=True,
            ):
                left[name] += int(mask.sum())
    texts = {
        "all": f"M_DIM, N_DIM to {GROUP}, M_BLK to {n}, N_BLK to {k}, K_BLK to {MOST_DEPTH}",
        "whole tiles": "M_DIM divides M_BLK, N_DIM divides N_BLK, both divide K_BLK",
        "layer": f"M_BLK divides N = {n}, N_BLK divides K = {k}",
        "group": f"at most {GROUP} work-items",
        "registers": f"outputs and operands in {REGISTERS} / {GROUPS} registers",
        "local": f"{GROUPS} groups in {LOCAL_BYTES} bytes of local memory",
    }
    return [(texts[name], count) for name, count in left.items()]


def romou_cut(work: Conv2d, target: Target) -> tuple[list[tuple[str, int]], PrunedSpace]:
    """Return (step, configs left) of Romou's space, and the pruned space."""
    task = task_of(work)
    space = task.template.space(target.limits)
    (pruned,) = prune_each(task.template, space, target.spec, target.limits, (Rules(),))
    report = pruned.report
    rows = [
        (f"{len(space.knobs)} knobs, all combinations", report.declared),
        ("constraints between knobs", report.before),
        ("criteria", report.kept),
    ]
    return rows, pruned


def addresses(work: Conv2d) -> Mapping[str, Callable[[Any, Any, Any], Any]]:
    """Return layout -> the byte address of channel 0 at (n, y, x), with the order of pixels that suits the layout."""
    (h, w), n, c = work.in_hw, work.batch, work.in_channels
    texels = -(-c // LANES)
    return {
        "NCHW": lambda i, y, x: NUMBER_BYTES * (i * c * h * w + y * w + x),
        "NCHW4c": lambda i, y, x: NUMBER_BYTES * LANES * (i * texels * h * w + y * w + x),
        "CHWN": lambda i, y, x: NUMBER_BYTES * ((y * w + x) * n + i),
    }


def layout_rows(work: Conv2d) -> list[tuple[str, float, float, float]]:
    """Return (layout, lines of a warp's read, share of their bytes that is used, share of divergent warps)."""
    (oh, ow), (h, w) = work.out_hw, work.in_hw
    outputs = work.batch * oh * ow
    warps = np.unique(np.linspace(0, outputs // WARP - 1, _WARPS).astype(int))
    rows = []
    for name, address in addresses(work).items():
        item = warps[:, None] * WARP + np.arange(WARP)
        # Neighbouring work-items have neighbouring pixels, or neighbouring images if the batch is innermost.
        image, pixel = (
            (item % work.batch, item // work.batch) if name == "CHWN" else (item // (oh * ow), item % (oh * ow))
        )
        width = NUMBER_BYTES * (LANES if name == "NCHW4c" else 1)
        lines = used = divergent = reads = 0
        for ky in range(work.kernel[0]):
            for kx in range(work.kernel[1]):
                y = pixel // ow * work.stride[0] + ky - work.padding[0]
                x = pixel % ow * work.stride[1] + kx - work.padding[1]
                inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
                first = np.where(inside, address(image, y, x), -1)
                for warp, mask in zip(first, inside, strict=True):
                    read = warp[mask]
                    lines += len(np.unique(read // LINE_BYTES))
                    used += len(read) * width
                divergent += int((inside.any(1) & ~inside.all(1)).sum())
                reads += len(warps)
        rows.append((name, lines / reads, used / (lines * LINE_BYTES), divergent / reads))
    return rows


def time_layouts(work: Conv2d, text: str, trials: int, seconds: float, pairs: int, out: Console) -> bool:
    """Print the fastest kernel of both layouts, timed alternately. Return whether their outputs are the same."""
    asked = Target(text)
    index = asked.backend.device_index(asked.device_name)
    target = asked.limited_to(asked.backend.facts(index))
    if target.limits.max_image is not None:
        # In images, texels have another layout.
        target = target.with_options(images="never")
    sides, best, timed, difference = race(work, target, asked.backend.device(index), trials, seconds, pairs)
    median = dict(zip((PACKED, INNERMOST), np.median(timed, axis=0), strict=True))
    table = table_of_numbers("layout", ("configs", "ms", "GFLOPS"), "fastest config", title=f"{work.name} on {text}")
    for layout, side in sides.items():
        config = ", ".join(f"{name}={value}" for name, value in best[layout].items())
        rate = work.flops / median[layout] / 1e9
        table.add_row(layout, str(len(side.seconds)), f"{median[layout] * 1e3:.3f}", f"{rate:,.1f}", config)
    out.print(table)
    ratios = np.sort([innermost / packed for packed, innermost in timed])
    out.print(
        f"{INNERMOST} takes {np.median(ratios):.2f} times as long as {PACKED} ({ratios[0]:.2f} to {ratios[-1]:.2f},"
        f" {len(ratios)} pairs); largest difference of the outputs {difference:.1e}"
    )
    return difference < _TOLERANCE


@click.command()
@click.option("--layer", type=click.IntRange(1, 5), default=2, show_default=True, help="Convolution of AlexNet.")
@click.option("--batch", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--target", "text", default="opencl -device=nvidia_h200", show_default=True)
@click.option("--time", "timed", default=None, help="Target whose device times both layouts.")
@click.option("--shrink", type=click.IntRange(min=1), default=1, show_default=True, help="Time 1/N of the channels.")
@click.option("--trials", type=click.IntRange(min=1), default=64, show_default=True, help="Configs of each layout.")
@click.option("--seconds", type=float, default=math.inf, help="Begin no config of a layout after this time.")
@click.option("--pairs", type=click.IntRange(min=1), default=9, show_default=True)
def main(
    layer: int, batch: int, text: str, timed: str | None, shrink: int, trials: int, seconds: float, pairs: int
) -> None:
    """Print the three tables, and with --time the times of both layouts. The exit code is 1 if outputs differ."""
    if timed is not None and batch % LANES:
        raise click.BadParameter(f"{batch} images do not fill texels of {LANES}", param_hint="--batch")
    try:
        target = Target(text)
    except RomouError as error:
        raise click.BadParameter(str(error), param_hint="--target") from error
    work, out = alexnet(batch)[layer - 1], Console(width=140)
    romou_rows, pruned = romou_cut(work, target)
    for title, rows in (("BEAST", beast_cut(work)), (f"Romou, {target}", romou_rows)):
        table = table_of_numbers("step", ("configs left", "of the step before"), title=f"{title}: {task_of(work).name}")
        before = rows[0][1]
        for name, count in rows:
            table.add_row(name, f"{count:,}", percent(count / before))
            before = count
        out.print(table)
    out.print(constraint_table([pruned]))
    out.print(criteria_table([pruned.report]))
    table = table_of_numbers(
        "layout", ("lines of a read", "bytes used", "divergent warps"), title=f"One tap, {WARP} work-items, fp32"
    )
    for name, lines, used, divergent in layout_rows(work):
        table.add_row(name, f"{lines:.2f}", percent(used), percent(divergent))
    out.print(table)
    if timed is not None:
        inputs, outputs = (max(channels // shrink, 1) for channels in (work.in_channels, work.out_channels))
        work = dataclasses.replace(work, in_channels=inputs, out_channels=outputs)
        if not time_layouts(work, timed, trials, seconds, pairs, out):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
