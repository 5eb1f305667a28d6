"""Ranks recorded configs of phones by the counts of their kernels in the simulator of Adreno's machine code.

    python benchmarks/phone_executed.py adreno_autotvm.jsonl.gz                 8 configs of 8 tasks: minutes
    python benchmarks/phone_executed.py tuning.log --gpu adreno740 --least 50   a log of AutoTVM, measured on an Adreno 740

Only recorded kernels that Romou's space has too are built again (`phone_tasks.PhoneTask.equivalents`), if their registers
fit. Mesa's compiler for the phone's GPU compiles them, and the simulator executes some work groups. The times are of AutoTVM's kernels by
Qualcomm's compiler.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from bench_mobile_static import MOST_REGISTERS
from phone_judged import Judged, Judgement
from phone_tasks import PhoneTask, load_tasks
from romou.base.errors import BuildError
from romou.base.space import Config
from romou.devices.mobile_compilers import compile_all, find_compilers
from romou.devices.mobile_compilers.gpus import compiler_for
from romou.tools.inspection.execute import ExecutedKernel, count_kernel
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from romou.tools.report.table import table_of_numbers

_WORK_ITEMS = 1024
SCORES = ("estimate", "instructions", "lines", "instructions x lines")


def drawn_kernels(task: PhoneTask, count: int) -> dict[int, InspectedKernel]:
    """Return number and kernel of up to `count` timed configs that are in Romou's space, drawn at random."""
    equivalents, tunable = task.equivalents, task.recorded.task
    assert tunable is not None, "tasks without a template are left out"
    kernels: dict[int, InspectedKernel] = {}
    for index in np.random.default_rng(0).permutation(np.flatnonzero(task.is_timed)).tolist():
        config = equivalents[index]
        if isinstance(config, Config) and len(kernels) < count:
            (kernel,) = inspect_function(tunable.schedule(config, task.target)["main"], task.target, config=config)
            # Mesa takes minutes for spills.
            if kernel.registers.needed <= MOST_REGISTERS[gpu_of(task)]:
                kernels[index] = kernel
    return kernels


def gpu_of(task: PhoneTask) -> str:
    """Return the GPU that Mesa compiles a task's kernels for."""
    return compiler_for(task.target.device_name)


def executed_all(tasks: Sequence[tuple[PhoneTask, Mapping[int, InspectedKernel]]]) -> list[dict[int, ExecutedKernel]]:
    """Return config -> counts of its kernel, for each task. Kernels that the compiler refuses are left out."""
    executed: list[dict[int, ExecutedKernel]] = [{} for _ in tasks]
    # Starting a compiler takes longer than most of its work.
    for gpu in sorted({gpu_of(task) for task, _ in tasks}):
        places = [
            (at, *each) for at, (task, kernels) in enumerate(tasks) if gpu_of(task) == gpu for each in kernels.items()
        ]
        answers = compile_all([kernel.source for *_, kernel in places], gpu)
        for (at, index, kernel), answer in zip(places, answers, strict=True):
            if not isinstance(answer, BuildError):
                executed[at][index] = count_kernel(kernel, answer[0], most_items=_WORK_ITEMS)
    return executed


def correlations_of(judged: Judged, executed: Mapping[int, ExecutedKernel]) -> list[float]:
    """Return the rank correlation of each of `SCORES` with the recorded times."""
    chosen = list(executed)
    counts = [
        (done.of_grid(done.counts.issue_slots), done.of_grid(sum(done.counts.lines.values())))
        for done in executed.values()
    ]
    instructions, lines = np.array(counts).T
    scores = judged.seconds[chosen], instructions, lines, instructions * lines
    return [Judgement.of(-score, judged.task.time_s[chosen]).correlation for score in scores]


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpu", help="Only this GPU. It is the GPU of a log of AutoTVM, which does not name one.")
@click.option("--least", default=100, show_default=True, help="Fewest configs of a task in the file.")
@click.option(
    "--configs", default=8, show_default=True, help="Of each task. Tasks with fewer in Romou's space are out."
)
@click.option("--tasks", "count", default=8, show_default=True, help="Number of tasks, drawn at random.")
def main(file: Path, gpu: str | None, least: int, configs: int, count: int) -> None:
    """Print rank correlations with the recorded times for each task, and their medians."""
    find_compilers()
    tasks = [Judged(task) for task in load_tasks(file, gpu, least=least, default_gpu=gpu or "")]
    drawn: list[tuple[Judged, dict[int, InspectedKernel]]] = []
    for at in np.random.default_rng(0).permutation(len(tasks)).tolist():
        if len(drawn) < count and len(kernels := drawn_kernels(tasks[at].task, configs)) == configs:
            drawn.append((tasks[at], kernels))
    executed = executed_all([(judged.task, kernels) for judged, kernels in drawn])
    rows = {
        f"{judged.group[0]}, {judged.task.name}": correlations_of(judged, own)
        for (judged, _), own in zip(drawn, executed, strict=True)
    }
    table = table_of_numbers("task", ("configs", *SCORES), title="Rank correlation of executed counts")
    counts = [*map(len, executed), sum(map(len, executed))]
    rows[f"median of {len(rows)} tasks"] = np.median(list(rows.values()), axis=0).tolist()
    for (name, row), configs in zip(rows.items(), counts, strict=True):
        table.add_row(name, str(configs), *(f"{correlation:.2f}" for correlation in row))
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
