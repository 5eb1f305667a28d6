#!/usr/bin/env python3
"""Prints the device memory of the bundled networks, and its ratio to a lower bound.

The memory is a memory plan's, and the lower bound is the peak of live tensors.

    python benchmarks/bench_memory.py
    python benchmarks/bench_memory.py resnet18 --target "opencl -device=adreno640" --precision float16
    python benchmarks/bench_memory.py --target "opencl -device=adreno640" --larger-images

Nothing runs. The numbers are taken from the plan, which tests compare with the runtime's allocations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import click
import numpy as np
from rich.console import Console

import romou
from romou import models
from romou.compiler.graph.memory.memory import PlannedTensor
from romou.compiler.tir.primitives import LANES, image_extents
from romou.devices.backends.launch import SEPARATORS
from romou.driver.options import PrecisionName
from romou.tools.report.table import mib, print_table, table_of_numbers

TARGETS = ("opencl -device=host", "opencl -device=adreno640")


def image_bytes(tensors: Sequence[PlannedTensor], *, is_larger: bool) -> int:
    """Return the bytes of the images that hold all tensors.

    By default, tensors of equal width and height share images. With `is_larger`, any tensors may share one, as if no
    kernel relied on zeros outside. A shared image has the largest extents of its tensors, and is shared only if that
    takes fewer bytes than one more image.
    """
    best = None
    for order in (
        lambda planned: -planned.bytes,
        lambda planned: planned.first,
        lambda planned: (-image_extents(planned.shape, planned.scope)[0], -planned.bytes),
    ):
        made: list[tuple[list[PlannedTensor], tuple[int, ...], int]] = []
        for tensor in sorted(tensors, key=order):
            extents = image_extents(tensor.shape, tensor.scope)
            texel_bytes = LANES * np.dtype(tensor.dtype).itemsize
            grown, at = tensor.bytes, len(made)
            for index, (held, image, held_texel) in enumerate(made):
                is_free = all(other.last < tensor.first or tensor.last < other.first for other in held)
                if is_free and held_texel == texel_bytes and (is_larger or image[:2] == extents[:2]):
                    growth = (math.prod(map(max, image, extents)) - math.prod(image)) * texel_bytes
                    grown, at = min((grown, at), (growth, index))
            if at == len(made):
                made.append(([tensor], extents, texel_bytes))
            else:
                held, image, _ = made[at]
                made[at] = ([*held, tensor], tuple(map(max, image, extents)), texel_bytes)
        total = sum(math.prod(image) * texel_bytes for _, image, texel_bytes in made)
        best = total if best is None else min(best, total)
    return best or 0


def print_larger(names: Sequence[str], target: str, precision: PrecisionName) -> None:
    table = table_of_numbers(
        "network",
        ("equal width and height", "any", "live at once"),
        title=f"images between kernels, {target}, {precision}, MiB",
    )
    for name in names:
        plan = romou.memory_plan(models.load(name), target=target, precision=precision)
        images = [image for image in plan.tensors if image.scope in SEPARATORS]
        live = max(
            (
                sum(image.bytes for image in images if image.first <= call <= image.last)
                for call in range(len(plan.calls))
            ),
            default=0,
        )
        table.add_row(
            name, mib(image_bytes(images, is_larger=False)), mib(image_bytes(images, is_larger=True)), mib(live)
        )
    print_table(table, Console())


@click.command()
@click.argument("names", nargs=-1)
@click.option("--target", "targets", multiple=True, default=TARGETS, show_default=True)
@click.option("--precision", default="float32", show_default=True)
@click.option(
    "--larger-images",
    is_flag=True,
    help="What images would take if one served tensors of any smaller width and height as well.",
)
def main(names: tuple[str, ...], targets: tuple[str, ...], precision: PrecisionName, larger_images: bool) -> None:
    """Print a table for each target, with default configs, in MiB."""
    for target in targets:
        if larger_images:
            print_larger(names or models.names(), target, precision)
            continue
        table = table_of_numbers(
            "network",
            ("weights", "tensors", "live at once", "ratio", "workspaces", "total"),
            title=f"{target}, {precision}, MiB",
        )
        for name in names or models.names():
            use = romou.memory_plan(models.load(name), target=target, precision=precision).use
            share = f"{use.tensors / use.least:.2f}"
            table.add_row(
                name, mib(use.weights), mib(use.tensors), mib(use.least), share, mib(use.workspaces), mib(use.total)
            )
        print_table(table, Console())


if __name__ == "__main__":
    main()
