"""Counts the instructions of seven layers under Mesa's compilers for Adreno 630 and Mali-G76.

The default config, and the best of the first configs of a search, are compared with hand-written kernels.

    python benchmarks/bench_mobile_layers.py                        fp32 and fp16, both compilers, 16 configs of each layer
    python benchmarks/bench_mobile_layers.py --gpu a630 --precision float32 --candidates 1 --only 1x1
    python benchmarks/bench_mobile_layers.py --gpu a660 --device adreno690 --candidates 1
    python benchmarks/bench_mobile_layers.py --network bert_2layer --precision float32      every kernel of a bundled network, default configs

They are machine instructions for each needed multiply-add, idle lanes of partial waves included: executed ones of
Adreno's simulator, and on Mali static ones, weighted by trip counts. On Mali, a second number is the bound in cycles
for 24 multiply-adds. The hand-written kernels are MNN's for images. MACE's or Winograd's replace them if they are
leaner.
"""  # noqa: E501

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np
from rich.console import Console

import bench_mobile_static as static
import romou
from mobile_options import by_vendor, gpus_option, layers_option, precisions_option
from paper_figures import ratios_by_category
from romou import models
from romou.base.errors import BuildError, InvalidConfigError
from romou.base.space import Config
from romou.compiler.frontend.precision import Precision
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.operators.analysis.executed import Executed
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.pipeline import fuse_operators
from romou.compiler.task import TunableTask
from romou.devices.mobile_compilers import GPUS, KernelStatistics, compile_all, find_compilers, mesa_version, mobile_gpu
from romou.devices.targets import Target
from romou.driver.options import PrecisionName
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning.tasks import PrunedTask, pruned_task
from romou.tuner.search.explorer import Explorer
from romou.tuner.search.tuning_options import TuningOptions
from tvm_patches.quiet import quiet_stderr

# (GPU, precision) -> the lowest hand-written number of each layer, in the order of `layers`. On Mali the numbers are
# instructions and cycles. A missing entry was not measured.
HAND_WRITTEN: Mapping[tuple[str, str], tuple[tuple[float, ...] | None, ...]] = {
    ("a630", "float32"): ((0.93,), (1.67,), (1.88,), (6.97,), (1.18,), (4.07,), (1.57,)),
    ("a630", "float16"): ((1.05,), None, (1.74,), None, None, None, (1.80,)),
    ("g76", "float32"): (
        (0.91, 0.83),
        (1.91, 1.68),
        (1.92, 1.72),
        (5.58, 3.94),
        (2.16, 1.90),
        (2.75, 3.75),
        (1.68, 1.50),
    ),
}
TIMEOUT_S = 60.0
# Configs that a search proposes for each one that the lowered kernel does not exclude, at most.
MOST_PROPOSED = 3


@dataclass(frozen=True, kw_only=True)
class Count:
    """The instruction counts of one config's kernels.

    instructions: for each needed multiply-add
    cycles: for 24 multiply-adds, on Bifrost, 0 elsewhere
    is_exact: see `static.instructions_of`
    by_trips: the instructions, by trip counts on every GPU
    vendor: see `by_vendor`
    """

    config: Mapping[str, Any]
    instructions: float
    cycles: float
    is_exact: bool
    by_trips: float
    spills: int
    registers: int
    vendor: str = ""

    def __str__(self) -> str:
        cycles = f"; {self.cycles:.2f}" if self.cycles else ""
        return (
            f"{'' if self.is_exact else '~'}{self.instructions:.2f}{cycles}{f' S{self.spills}' if self.spills else ''}"
            f" r{self.registers}{self.vendor}"
        )


def _bifrost_cycles(executed: Executed) -> float:
    """Return the cycles that the slowest unit of a Bifrost core takes.

    A core has 24 lanes of arithmetic. An image access takes half a cycle, a memory access one cycle (Mesa).
    """
    arithmetic, images, accesses = executed.units
    return max(arithmetic / 24, images / 2, float(accesses))


def count_of(kernels: list[InspectedKernel], made: list[KernelStatistics], needed: int) -> Count:
    """Add up the kernels of one config."""
    pairs = list(zip(kernels, made, strict=True))
    counted = [static.instructions_of(kernel, stats) for kernel, stats in pairs]
    total = functools.reduce(lambda sum_, executed: sum_.after(1, executed[0]), counted, Executed(0))
    return Count(
        config=dict(kernels[0].config),
        instructions=total.instructions / needed,
        cycles=24 * _bifrost_cycles(total) / needed,
        is_exact=all(is_exact for _, is_exact in counted),
        by_trips=sum(static.by_trips(kernel, stats)[0].instructions for kernel, stats in pairs) / needed,
        spills=sum(stats.spills or bool(stats.private_memory_bytes) for stats in made),
        registers=max(stats.registers for stats in made),
    )


def first_configs(task: PrunedTask, target: Target, count: int) -> list[Config]:
    """Return the configs that a search proposes before any measurement.

    They are the default, one of each algorithm, then the first by the estimate.
    """
    features = TaskFeatures(task.template, task.limits(target), target.spec, None)
    explorer = Explorer(
        task.space(target),
        task.default_config(target),
        TuningOptions(),
        np.random.default_rng([0, 0]),
        features=features,
    )
    explorer.start_with(task.starts(target)[1:])
    return explorer.propose(count, {})


def kernels_of(task: TunableTask, config: Config, target: Target) -> list[InspectedKernel]:
    """Return the kernels of a config, or none if it cannot be built."""
    try:
        with quiet_stderr():
            kernels = inspect_function(task.schedule(config, target)["main"], target, config=config)
        for kernel in kernels:
            task.check(kernel.lowered, config, target)
    except InvalidConfigError:
        return []
    return kernels


def first_kernels(model: Any, device: str, precision: str, candidates: int) -> list[list[InspectedKernel]]:
    """Return the kernels of the first `candidates` configs that can be built for a device, the default first."""
    target = Target(f"opencl -device={device}")
    with quiet_stderr():
        graph = import_onnx(model, None, Precision(kind=precision, is_quiet=True)).mod
        tasks = extract_tasks(fuse_operators(pack_channels(graph), target))[0]
    (task,) = (pruned_task(task.with_free_images(), target) for task in tasks if task.template.sums_products)
    # The default config needs no pruned space, which would take most of the time.
    default = [task.default_config(target)]
    proposed = default if candidates == 1 else first_configs(task, target, MOST_PROPOSED * candidates)
    kept = (kernels for config in proposed if (kernels := kernels_of(task, config, target)))
    return list(itertools.islice(kept, candidates))


def counts_of_all(layers: Sequence[tuple[list[list[InspectedKernel]], int]], gpu: str) -> list[tuple[list[Count], int]]:
    """Return `counts_of` of several layers, which Mesa's compiler compiles in one process: it starts in seconds.

    layers: `first_kernels` and the needed multiply-adds of each layer.
    """
    sources = [kernel.source for built, _ in layers for kernels in built for kernel in kernels]
    answers = iter(compile_all(sources, gpu, timeout_s=TIMEOUT_S))
    counts = []
    for built, needed in layers:
        made = [[next(answers) for _ in kernels] for kernels in built]
        fine = [
            (k, [m[0] for m in ms if isinstance(m, list)])
            for k, ms in zip(built, made, strict=True)
            if not any(isinstance(m, BuildError) for m in ms)
        ]
        own = [replace(count_of(k, s, needed), vendor=by_vendor(k, gpu)) for k, s in fine]
        counts.append((own, len(built) - len(fine)))
    return counts


def counts_of(
    model: Any, needed: int, gpu: str, device: str, precision: str, candidates: int
) -> tuple[list[Count], int]:
    """Return the counts of the first `candidates` configs that can be built for a device, the default first.

    The second result is the number of configs that Mesa's compiler rejected or gave up.
    """
    (counts,) = counts_of_all([(first_kernels(model, device, precision, candidates), needed)], gpu)
    return counts


def print_network(name: str, gpu: str, precision: PrecisionName, out: Console) -> None:
    """Print the instructions of each distinct kernel of a bundled network, in descending order.

    They are counted for all work-items of a kernel.
    """
    with quiet_stderr():
        kernels = romou.inspect(
            models.load(name), target=f"opencl -device={mobile_gpu(gpu).devices[-1]}", precision=precision
        )
    columns = ("millions of instructions", "of cycles", "registers", "spills")
    table = table_of_numbers("kernel", columns, title=f"{name}, {GPUS[gpu]}, {precision}, default configs")
    counts = []
    for kernel, made in zip(
        kernels, compile_all([kernel.source for kernel in kernels], gpu, timeout_s=TIMEOUT_S), strict=True
    ):
        if isinstance(made, list):
            vendor = by_vendor([kernel], gpu)
            counts.append((kernel, replace(count_of([kernel], made[:1], 1), vendor=vendor)))
    for kernel, count in sorted(counts, key=lambda pair: -pair[1].instructions):
        # `count_of` returns cycles for 24 multiply-adds.
        cycles = f"{count.cycles / 24e6:.2f}" if count.cycles else "-"
        table.add_row(
            kernel.name,
            f"{'' if count.is_exact else '~'}{count.instructions / 1e6:.2f}",
            cycles,
            str(count.registers),
            f"{count.spills}{count.vendor}",
        )
    out.print(table)
    out.print(
        f"{len(counts)} of {len(kernels)} kernels, {sum(count.instructions for _, count in counts) / 1e6:.1f} million"
        " instructions, each kernel once"
    )


@click.command()
@gpus_option(static.COMPARED)
@click.option(
    "--device", default=None, help="Kernels for this device. [default: the last one that a compiler stands for]"
)
@precisions_option
@click.option("--candidates", default=16, show_default=True, help="Configs of each layer, the default among them.")
@layers_option
@click.option("--configs", "shows_configs", is_flag=True, help="Print every config and its counts, too.")
@click.option(
    "--network",
    type=click.Choice(list(models.names())),
    help="Count every kernel of a bundled network instead of the layers.",
)
def main(
    gpus: tuple[str, ...],
    device: str | None,
    precisions: tuple[PrecisionName, ...],
    candidates: int,
    only: str,
    shows_configs: bool,
    network: str | None,
) -> None:
    """Print a table for each GPU and precision. In its cells, S stands for spills and r for registers."""
    find_compilers()
    out = Console(width=180)
    for gpu in gpus:
        for precision in precisions:
            if network is not None:
                print_network(network, gpu, precision, out)
                continue
            title = (
                f"{GPUS[gpu]}, Mesa's compiler {mesa_version()} (not the vendor's), {precision}: instructions per"
                f" multiply-add{'; cycles' * (gpu == 'g76')}"
            )
            table = table_of_numbers(
                "layer", ("hand-written", "default", "/ hand", "best", "/ hand", "refused"), "algorithms", title=title
            )
            by_name: list[tuple[str, float]] = []
            hand = HAND_WRITTEN.get((gpu, precision), (None,) * len(static.LAYERS | static.PRODUCTS))
            for (name, model, needed), theirs in zip(static.layers(), hand, strict=True):
                if only not in name:
                    continue
                counts, refused = counts_of(
                    model, needed, gpu, device or mobile_gpu(gpu).devices[-1], precision, candidates
                )
                clean = [count for count in counts if not count.spills]
                best = min(clean, key=lambda count: count.cycles or count.instructions, default=None)
                cells = ["; ".join(f"{number:.2f}" for number in theirs) if theirs else "-"]
                for count in (counts[0] if counts else None, best):
                    ratios = (
                        [
                            f"{ours / number:.2f}"
                            for ours, number in zip((count.instructions, count.cycles), theirs or (), strict=False)
                        ]
                        if count
                        else []
                    )
                    cells += ["-" if count is None else str(count), "; ".join(ratios) or "-"]
                if theirs and best is not None:
                    by_name.append((name, theirs[0] / best.instructions))
                algorithms = [
                    str(count.config.get("algorithm", "direct")) for count in (*counts[:1], best) if count is not None
                ]
                table.add_row(name, *cells, str(refused), ", ".join(algorithms))
                for count in counts if shows_configs else ():
                    out.print(f"{name}: {count} {count.config}", markup=False, highlight=False)
            out.print(table)
            if by_name:
                title = f"hand-written / best, instructions on {GPUS[gpu]} (Romou paper, figure 13)"
                out.print(ratios_by_category(by_name, title))


if __name__ == "__main__":
    main()
