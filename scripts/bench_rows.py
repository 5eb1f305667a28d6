#!/usr/bin/env python3
"""How work-items that share a row add up their parts: in local memory, in one step or two, or by functions of their
sub-group. Times, taken in turns.

    ROMOU_OPENCL_DEVICE="Intel(R) OpenCL" python scripts/bench_rows.py --target "opencl -device=adreno730 -half=storage"
    python scripts/bench_rows.py --target vulkan --threads 8 --threads 32

The kernels of a line differ in the knobs `combine` and `sub_group` alone. They are timed one after the other, round by
round, and each output is compared with the reference. A phone's kernels run on the CPU here: that they are right there
is seen, what they cost on the phone is not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import click
import numpy as np
import tvm
from rich.console import Console
from tvm import relax
from tvm.relax import op

from romou.base.errors import DeviceError, RomouError, UsageError
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_reference, build_task
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.operators.streaming.row_kernel import LEAST_OF_TREE, SERIAL, TREE
from romou.compiler.pipeline import fuse_operators
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.runtime.module.tensors import device_tensor
from romou.tools.report.table import print_table, table_of_numbers

ROWS, LENGTHS, GROUP = 128, (512, 2048), 64
# Relative L2 error of sums of a few thousand fp32 numbers, whatever their order.
MOST_WRONG = 1e-5


def layer_norm(*operands: relax.Expr) -> relax.Expr:
    """Layer norm over the last axis."""
    return op.nn.layer_norm(*operands, axes=[-1])


OPERATORS: dict[str, tuple[Callable[..., relax.Expr], int]] = {
    "softmax": (lambda x: op.nn.softmax(x, axis=-1), 0),
    "layer norm": (layer_norm, 2),
}


def task_of_rows(name: str, length: int, target: Target) -> TunableTask:
    """Return the task of an operator on `ROWS` rows of so many fp32 numbers."""
    build, vectors = OPERATORS[name]
    shapes = [(ROWS, length), *[(length,)] * vectors]
    inputs = [relax.Var(f"x{i}", relax.TensorType(list(shape), "float32")) for i, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(build(*inputs)))
        builder.emit_func_output(output)
    (task,), _ = extract_tasks(fuse_operators(builder.finalize(), target))
    return task


def ways(task: TunableTask, target: Target, threads: int) -> dict[str, Config]:
    """Return the ways of adding up -> config: the default one with so many work-items for a row, in groups of `GROUP`; {} where that makes no whole sub-group.

    UsageError where the target has no sub-groups.
    """  # noqa: E501
    sub_groups = target.limits.sub_groups
    if sub_groups is None:
        raise UsageError(
            f"{target} has no sub-groups", hint="`romou devices --facts NAME` says what is known of a device."
        )
    space, rows = task.space(target), max(GROUP, sub_groups.size) // threads or 1
    with_sub_groups = task.default_config(target).replace(threads=threads, rows=rows, sub_group=sub_groups.size)
    # Without warps, spaces have one way of adding up in local memory.
    without = {"combine": SERIAL} if "combine" in space.knobs else {}
    kept = (with_sub_groups.replace(keep=keep, **without) for keep in space.knobs["keep"])
    chosen = next((config for config in kept if space.is_valid(config)), None)
    if chosen is None:
        return {}
    plain = {**chosen, "sub_group": 1}
    found = {"serial": Config(plain), "sub-group": chosen}
    return found | ({"tree": Config({**plain, "combine": TREE})} if without and threads >= LEAST_OF_TREE else {})


def timer(task: TunableTask, config: Config, target: Target, device: tvm.runtime.Device) -> Callable[[], float]:
    """Return a function that times a launch, in seconds; DeviceError where the output is wrong."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal([int(d) for d in p.shape]).astype(str(p.dtype)) for p in task.func.params]
    expected = [tvm.runtime.tensor(array) for array in arrays]
    build_reference(task, Target("null"))["main"](*expected)
    tensors = [device_tensor(array, device, "global") for array in arrays]
    module = build_task(task, config, target)
    module["main"](*tensors)
    wanted = expected[-1].numpy()
    error = float(np.linalg.norm(tensors[-1].numpy() - wanted) / np.linalg.norm(wanted))
    # NaN is no less than anything.
    if not error < MOST_WRONG:
        raise DeviceError(f"{task.name} computes wrong numbers: a relative error of {error:.2g} with {config}")
    evaluate = module.time_evaluator("main", device, number=5, repeat=1)
    return lambda: float(evaluate(*tensors).results[0])


def taken_in_turns(timers: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return each way's times in seconds, one for each round; all ways are timed in each of them."""
    times: dict[str, list[float]] = {way: [] for way in timers}
    for _ in range(rounds):
        for way, time in timers.items():
            times[way].append(time())
    return times


@click.command(help=__doc__)
@click.option(
    "--target",
    "text",
    default="opencl",
    show_default=True,
    help="Whose kernels; they run on the first device of the kind.",
)
@click.option(
    "--threads",
    multiple=True,
    type=int,
    default=(8, 32, 64, 256),
    show_default=True,
    help="Work-items of a row; repeatable.",
)
@click.option("--rounds", default=15, show_default=True)
def main(text: str, threads: tuple[int, ...], rounds: int) -> None:
    """See the module."""
    try:
        target, out = Target(text), Console()
        target = target.limited_to(target.backend.facts(0))
        table = table_of_numbers(
            f"{ROWS} rows", ["work-items", "serial", "tree", "sub-group", "serial / sub-group"], title="Microseconds"
        )
        for name in OPERATORS:
            for length in LENGTHS:
                task = task_of_rows(name, length, target)
                for count in threads:
                    timers = {
                        way: timer(task, config, target, target.backend.device(0))
                        for way, config in ways(task, target, count).items()
                    }
                    if timers:
                        table.add_row(f"{name} of {length}", str(count), *cells(taken_in_turns(timers, rounds)))
        print_table(table, out)
        facts: Mapping[str, Any] = target.backend.facts(0)
        out.print(
            f"{target} on {facts['name']} ({facts['platform']}), the best of {rounds} rounds; ratios are medians of the"
            " rounds'"
        )
    except RomouError as error:
        raise click.ClickException(str(error)) from error


def cells(times: Mapping[str, list[float]]) -> list[str]:
    """Return a line of the table: each way's best time, and how much faster than serial sub-groups are in the median
    round.
    """
    ratio = statistics.median(serial / other for serial, other in zip(times["serial"], times["sub-group"], strict=True))
    return [
        *(f"{min(times[way]) * 1e6:.0f}" if way in times else "" for way in ("serial", "tree", "sub-group")),
        f"{ratio:.2f}",
    ]


if __name__ == "__main__":
    main()
