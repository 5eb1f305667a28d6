#!/usr/bin/env python3
"""Counts the instructions of the Romou paper's Listing 4, B = A + n, under Mesa's compilers.

    python benchmarks/bench_listing4.py                  Adreno 630 and 740
    python benchmarks/bench_listing4.py --side 56        with divisions in the addresses
    python benchmarks/bench_listing4.py --gpu g76        another GPU

Each kernel is Romou's for one choice of the knobs `data` and `output` (setImage) and `autobroadcast`. A work-item adds
one vector of four elements. n is a number, as in the listing, or an input.
"""

from __future__ import annotations

import click
from rich.console import Console
from tvm import te

import romou
from mobile_options import by_vendor, gpus_option
from romou.base.errors import BuildError
from romou.compiler.compilation import Compilation
from romou.compiler.task import TunableTask
from romou.devices.mobile_compilers import GPUS, compile_all, mesa_version
from romou.devices.targets import Target
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from romou.tools.report.table import table_of_numbers

TARGET = Target("opencl -device=adreno640")
COMPARED = ("a630", "a740")


def add_number(a: te.Tensor) -> te.Tensor:
    return te.compute(a.shape, lambda *i: a[i] + te.const(3.0, "float32"), name="b")


def add_input(a: te.Tensor, n: te.Tensor) -> te.Tensor:
    return te.compute(a.shape, lambda *i: a[i] + n[0], name="b")


def task_of(n: str, side: int) -> TunableTask:
    """Return the element-wise task that adds n, a "number" or an "input", to 16 channels of texels."""
    shape = (1, 16, side, side, 4)
    if n == "number":
        operator = romou.operators.from_te(add_number, {"a": shape})
    else:
        operator = romou.operators.from_te(add_input, {"a": shape, "n": (1,)})
    (task,) = Compilation.of(operator, TARGET).lowered().tasks
    return task


def kernel_of(task: TunableTask, place: str, *, has_autobroadcast: bool) -> InspectedKernel:
    """Return the OpenCL kernel with A and B in buffers or images."""
    config = task.default_config(TARGET).replace(data=place, output=place, autobroadcast=has_autobroadcast)
    (kernel,) = inspect_function(task.schedule(config, TARGET)["main"], TARGET, config=config)
    return kernel


@click.command()
@gpus_option(COMPARED)
@click.option("--side", default=64, show_default=True, help="Rows and columns of A and B.")
def main(gpus: tuple[str, ...], side: int) -> None:
    """Print a table of the four kernels of each computation, by GPU."""
    rows = [(n, place, has) for n in ("number", "input") for place in ("buffer", "image") for has in (False, True)]
    tasks = {n: task_of(n, side) for n in ("number", "input")}
    kernels = [kernel_of(tasks[n], place, has_autobroadcast=has) for n, place, has in rows]
    answers = [compile_all([kernel.source for kernel in kernels], gpu) for gpu in gpus]
    columns = ("A and B", "autobroadcast", *(name for gpu in gpus for name in (GPUS[gpu], "registers")))
    table = table_of_numbers("n", columns, title=f"B = A + n: instructions by Mesa {mesa_version()}, not the vendor's")
    for (n, place, has), kernel, *compiled in zip(rows, kernels, *answers, strict=True):
        cells: list[str] = []
        for gpu, answer in zip(gpus, compiled, strict=True):
            if isinstance(answer, BuildError):
                raise SystemExit(f"bench_listing4: {answer}")
            cells += [str(answer[0].instructions), f"{answer[0].registers}{by_vendor([kernel], gpu)}"]
        table.add_row(n, place, "yes" if has else "no", *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
