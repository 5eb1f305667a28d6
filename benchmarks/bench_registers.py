"""Compares Romou's estimate of registers with Mesa's compiler for Adreno 630, on random configs of all families.
Nothing is executed.

    python benchmarks/bench_registers.py                                  200 configs: ten minutes of two cores, most of them Mesa's
    python benchmarks/bench_registers.py --configs 40 --seed 3 --json result.json
    python benchmarks/bench_registers.py --cache DIR                      keeps Mesa's results in DIR: the next run takes a minute

docs/evidence/benchmarks.md describes the method and the output.
"""  # noqa: E501

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from scipy import stats

from romou.base.errors import BuildError, RomouError
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.single_operator import conv, task_of
from romou.devices.mobile_compilers import compile_all, find_compilers, mesa_version
from romou.devices.targets import Target
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning import KernelUsage, judge

GPU = "a630"
# Adreno 630's device file lacks the largest image size. The file of its sibling has it.
TARGET = Target("opencl -device=adreno640")
DEVICE = Target("opencl -device=adreno630")
WAVE = 64
# Kernels of one start of the compiler. Most kernels take seconds, those with spills minutes.
BATCH, TIMEOUT_S = 5, 600
SAME = (1, 1, 1, 1)
OPERATORS: tuple[Conv2d | Dense, ...] = (
    conv(64, (28, 28), 128, (1, 1)),
    conv(256, (14, 14), 512, (1, 1)),
    conv(64, (28, 28), 64, (3, 3), padding=SAME),
    conv(32, (56, 56), 64, (3, 3), padding=SAME, stride=(2, 2)),
    conv(3, (112, 112), 64, (7, 7), padding=(3, 3, 3, 3), stride=(2, 2)),
    conv(192, (17, 17), 192, (7, 1), padding=(3, 0, 3, 0)),
    conv(16, (28, 28), 32, (5, 5), padding=(2, 2, 2, 2)),
    conv(64, (28, 28), 64, (3, 3), padding=SAME, groups=4),
    conv(64, (56, 56), 64, (3, 3), padding=SAME, groups=64),
    conv(96, (28, 28), 96, (5, 5), padding=(2, 2, 2, 2), groups=96),
    conv(128, (28, 28), 128, (3, 3), padding=SAME, stride=(2, 2), groups=128),
    conv(12, (28, 28), 12, (3, 3), padding=SAME, groups=4),
    conv(24, (14, 14), 48, (3, 3), padding=SAME, groups=24),
    Dense(m=1, k=1024, n=1000, dtype="float32"),
    Dense(m=64, k=768, n=768, dtype="float32"),
    Dense(m=16, k=300, n=128, dtype="float32"),
)


def random_kernels(count: int, seed: int) -> Iterator[tuple[str, InspectedKernel, KernelUsage]]:
    """Yield `count` kernels, equally distributed over the operators except for the remainder."""
    rng = np.random.default_rng(seed)
    left = count
    for index, work in enumerate(OPERATORS):
        task = task_of(work).with_free_images()
        wanted = -(-left // (len(OPERATORS) - index))
        left -= wanted
        # Configs with several kernels are skipped: they have no single register count to compare.
        for config in task.space(TARGET).sample(rng, 12 * wanted):
            if not wanted:
                break
            try:
                kernels = inspect_function(task.schedule(config, TARGET)["main"], TARGET, config=config)
            except (RomouError, RuntimeError):
                continue  # a config that cannot be built is none
            if len(kernels) > 1:
                continue
            registers = kernels[0].registers
            usage = replace(task.usage_of(config, TARGET), registers=registers.live, needed_registers=registers.needed)
            yield task.name, kernels[0], usage
            wanted -= 1


def ask_mesa(sources: Sequence[str], cache: Path | None, jobs: int) -> dict[str, dict[str, Any]]:
    """Compile each source by Mesa's compiler and return its "registers", "spills" and "waves", or its "error".

    The cache keeps errors, too.
    """
    version = mesa_version()
    answers: dict[str, dict[str, Any]] = {}

    def cache_file(source: str) -> Path | None:
        return (
            None
            if cache is None
            else cache / f"{hashlib.sha256(f'{version} {GPU} {source}'.encode()).hexdigest()}.json"
        )

    def compile_batch(batch: Sequence[str]) -> None:
        for source, made in zip(batch, compile_all(batch, GPU, timeout_s=TIMEOUT_S), strict=True):
            if isinstance(made, BuildError):
                answers[source] = {"error": str(made).splitlines()[0]}
            else:
                (said,) = made
                answers[source] = {"registers": said.registers, "spills": said.spills, "waves": said.waves or 0}
            if (file := cache_file(source)) is not None:
                file.write_text(json.dumps(answers[source]), encoding="utf-8")
        click.echo(f"{len(answers)} of {len(wanted)}", err=True)

    wanted = list(dict.fromkeys(sources))
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
    for source in wanted:
        if (file := cache_file(source)) is not None and file.is_file():
            answers[source] = json.loads(file.read_text(encoding="utf-8"))
    left = [source for source in wanted if source not in answers]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(compile_batch, [left[start : start + BATCH] for start in range(0, len(left), BATCH)]))
    return answers


@click.command()
@click.option("--configs", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the configs.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
@click.option(
    "--cache", type=click.Path(path_type=Path), default=None, help="Folder for what Mesa said of each source."
)
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Compilers at a time.")
def main(configs: int, seed: int, output: Path | None, cache: Path | None, jobs: int) -> None:
    """Print ranks and confusion table. The exit code is 1 if a spilling config is below another in 10% of pairs."""
    find_compilers()
    kernels = list(random_kernels(configs, seed))
    # Shuffled, so that the slow kernels are not in one batch.
    kernels = [kernels[int(i)] for i in np.random.default_rng(seed).permutation(len(kernels))]
    answers = ask_mesa([kernel.source for _, kernel, _ in kernels], cache, jobs)
    rows: list[dict[str, Any]] = []
    for name, kernel, usage in kernels:
        said = answers[kernel.source]
        if "error" in said:
            click.echo(f"{name}: {said['error']}", err=True)
            continue
        verdict = judge(usage, DEVICE.spec)["registers"]
        is_bad = bool(said["spills"]) or said["waves"] * WAVE < int(usage.work_group_size)
        row = {
            "operator": name,
            "config": dict(kernel.config),
            "estimate": usage.registers,
            "mesa": said["registers"],
            "spills": said["spills"],
        }
        rows.append({**row, "waves": said["waves"], "is_rejected": not verdict.keep, "is_bad": is_bad})
    if output is not None:
        output.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    most = DEVICE.spec.registers_per_lane
    assert most is not None, "the device file knows it"
    estimate, mesa = (np.minimum([row[key] for row in rows], most) for key in ("estimate", "mesa"))
    correlation = float(stats.spearmanr(estimate, mesa).statistic)
    out = Console(width=160)
    title = f"Registers on {GPU}, Mesa {mesa_version()} (not the vendor's compiler)"
    table = table_of_numbers("", ("spills or holds no group", "neither"), title=title)
    for name, rejected in (("rejected", True), ("kept", False)):
        counts = [sum(row["is_rejected"] == rejected and row["is_bad"] == bad for row in rows) for bad in (True, False)]
        table.add_row(name, *map(str, counts))
    out.print(table)
    has_spills = np.array([row["spills"] > 0 for row in rows])
    live = np.array([row["estimate"] for row in rows])
    above = np.mean([np.mean(one > live[~has_spills]) for one in live[has_spills]] or [1.0])
    out.print(
        f"{len(rows)} configs; rank correlation {correlation:.3f}; of {has_spills.sum()} that spill,"
        f" {sum(row['is_rejected'] for row in rows if row['spills'])} are rejected; a config that spills has more"
        f" registers than one that does not in {above:.1%} of pairs"
    )
    raise SystemExit(0 if above >= 0.9 else 1)


if __name__ == "__main__":
    main()
