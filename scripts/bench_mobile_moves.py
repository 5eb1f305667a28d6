"""Kernels that only move numbers under Mesa's compilers for Adreno 630 and Mali-G76: channels packed by four, unpacked,
and plain operators.

    python scripts/bench_mobile_moves.py
    python scripts/bench_mobile_moves.py --gpu a630 --precision float16 --only unpack

Static counts of default configs: nothing is executed. Millions of machine instructions for all work-items of a kernel,
on Mali also of cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import bench_mobile_layers as layers
import bench_mobile_static as static
import click
import numpy as np
import tvm
from rich.console import Console
from tvm import relax
from tvm.relax import op

from romou.base.errors import BuildError
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.graph.place_images import SCOPE
from romou.compiler.pipeline import fuse_operators
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import set_image
from romou.devices.mobile_compilers import GPUS, compile_all, find_compilers, mobile_gpu
from romou.devices.targets import Target
from romou.tools.inspection.kernels import InspectedKernel
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning.tasks import pruned_task

UNPACKED = (
    (32, 112, 112),
    (32, 149, 149),
    (64, 56, 56),
    (64, 35, 35),
    (255, 13, 13),
    (21, 65, 65),
    (6, 112, 112),
    (3, 224, 224),
)
PACKED = ((3, 224, 224), (3, 299, 299), (32, 112, 112), (64, 35, 35))
MOVED: tuple[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]], ...] = (
    ("transpose 128x1024", lambda x: op.permute_dims(x), ((128, 1024),)),
    ("concat 32x56x56, 64x56x56", lambda x, y: op.concat([x, y], 1), ((1, 32, 56, 56), (1, 64, 56, 56))),
    ("slice 64x56x56", lambda x: op.strided_slice(x, [1], [8], [40]), ((1, 64, 56, 56),)),
    ("pad 32x56x56 by 1", lambda x: op.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1]), ((1, 32, 56, 56),)),
    (
        "depth to space 32x56x56",
        lambda x: op.reshape(
            op.permute_dims(op.reshape(x, (1, 2, 2, 8, 56, 56)), [0, 3, 4, 1, 5, 2]), (1, 8, 112, 112)
        ),
        ((1, 32, 56, 56),),
    ),
)


def graph(build: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], precision: str) -> tvm.IRModule:
    """A graph of what `build` makes of inputs of these shapes."""
    inputs = [relax.Var(f"x{i}", relax.TensorType(shape, precision)) for i, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(build(*inputs)))
        builder.emit_func_output(output)
    return builder.finalize()


def moves(precision: str, target: Target) -> Iterator[tuple[str, TunableTask]]:
    """(what is moved, its task), from buffers to buffers, and where channels are packed also to or from an image."""
    packed = [
        (f"{name} {'x'.join(map(str, shape))}", name, shape)
        for name, shapes in (("unpack", UNPACKED), ("pack", PACKED))
        for shape in shapes
    ]
    for label, name, shape in packed:
        data = (1, *shape) if name == "pack" else (1, 4, *shape[1:])
        weight = relax.const(np.ones((4 if name == "pack" else shape[0], data[1], 1, 1), precision))
        made = pack_channels(graph(lambda x, weight=weight: op.nn.conv2d(x, weight), (data,), precision))
        tasks = [
            task for task in extract_tasks(fuse_operators(made, target))[0] if task.template.family == "elementwise"
        ]
        for task in tasks:
            plain, texels = sorted((p for p in task.func.params), key=lambda p: len(p.shape))
            if tuple(map(int, plain.shape)) == (1, *shape) and str(task.func.params[-1].name) == str(
                (texels if name == "pack" else plain).name
            ):
                yield label, task
                if (found := TunableTask.of(set_image(task.func, str(texels.name), SCOPE))) is not None:
                    yield f"{label}, image", found
    for label, build, shapes in MOVED:
        for task in extract_tasks(fuse_operators(graph(build, shapes, precision), target))[0]:
            yield label, task


def counted(task: TunableTask, target: Target, gpu: str) -> tuple[list[InspectedKernel], layers.Count | None]:
    """The kernels of a task's default config, and what Mesa's compiler makes of them."""
    pruned = pruned_task(task, target)
    try:
        kernels = layers.kernels_of(pruned, pruned.default_config(target), target)
    except BuildError:  # an image is not read number by number
        return [], None
    made = [
        one
        for one in compile_all([kernel.source for kernel in kernels], gpu, timeout_s=layers.TIMEOUT_S)
        if isinstance(one, list)
    ]
    return kernels, layers.count_of(kernels, [one[0] for one in made], 1) if kernels and len(made) == len(
        kernels
    ) else None


@click.command()
@click.option(
    "--gpu", "gpus", type=click.Choice(list(GPUS)), multiple=True, default=list(static.COMPARED), show_default=True
)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(["float32", "float16"]),
    multiple=True,
    default=["float32", "float16"],
    show_default=True,
)
@click.option("--only", default="", help="Only moves whose name holds this text.")
@click.option("--source", "shows_source", is_flag=True, help="Print the kernels, too.")
def main(gpus: tuple[str, ...], precisions: tuple[str, ...], only: str, shows_source: bool) -> None:
    """Print a row for each move and a column for each GPU and precision."""
    find_compilers()
    out = Console(width=180)
    columns = [(gpu, precision) for gpu in gpus for precision in precisions]
    rows: dict[str, list[str]] = {}
    for gpu, precision in columns:
        target = Target(f"opencl -device={mobile_gpu(gpu).devices[-1]}")
        for label, task in moves(precision, target):
            if only not in label:
                continue
            kernels, count = counted(task, target, gpu)
            if shows_source:
                out.print("\n".join(kernel.source for kernel in kernels), markup=False, highlight=False)
            cycles = f"; {count.cycles / 24e6:.2f}" if count and count.cycles else ""
            cell = f"{'' if count.is_exact else '~'}{count.instructions / 1e6:.2f}{cycles}" if count else "-"
            rows.setdefault(label, []).append(cell)
    table = table_of_numbers(
        "moved", [f"{gpu}, {precision}" for gpu, precision in columns], title="Millions of instructions; of cycles"
    )
    for label, cells in rows.items():
        table.add_row(label, *cells)
    out.print(table)


if __name__ == "__main__":
    main()
