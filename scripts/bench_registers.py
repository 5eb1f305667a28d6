"""Romou's estimate of registers against Mesa's compiler for Adreno 630, on random configs of all families. Nothing is executed.

    python scripts/bench_registers.py                                  200 configs: minutes
    python scripts/bench_registers.py --configs 40 --seed 3 --json result.json

It is Mesa's compiler and not the vendor's, which phones run. Printed are

    the rank correlation (Spearman) of the two numbers of registers, both counted up to the registers that the device file gives a work-item: a
    compiler that runs out of registers takes all there are
    the confusion table: configs that the criterion `registers` (of `romou.pruning`) rejects for their work group's size on Adreno 630, against
    those that in Mesa's hands spill, or leave registers for fewer waves than their work group has
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from romou.schedules.workload import Conv2d, Dense

from romou.errors import BuildError, RomouError
from romou.inspection.kernels import InspectedKernel, inspect_function
from romou.mobile_compilers import compile_all, find_compilers, mesa_version
from romou.operators import conv, task_of
from romou.pruning import KernelUsage, judge, read_usage
from romou.target import Target

GPU = "a630"
# Adreno 630's file does not know how large images may be; its sibling's does.
TARGET = Target("opencl -device=adreno640")
DEVICE = Target("opencl -device=adreno630")
WAVE = 64
BATCH = 10
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
    """`count` kernels, equally many of each operator but for the remainder."""
    rng = np.random.default_rng(seed)
    left = count
    for index, work in enumerate(OPERATORS):
        task = task_of(work).with_free_images()
        wanted = -(-left // (len(OPERATORS) - index))
        left -= wanted
        # Of several kernels none is the one that a compiler would be asked about.
        for config in task.space(TARGET).sample(rng, 12 * wanted):
            if not wanted:
                break
            try:
                kernels = inspect_function(task.schedule(config, TARGET)["main"], TARGET, config=config)
            except (RomouError, RuntimeError):
                continue  # a config that cannot be built is none
            if len(kernels) > 1:
                continue
            yield task.name, kernels[0], read_usage([kernels[0].lowered], task.template, config)
            wanted -= 1


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values with their mean."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[places]


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


@click.command()
@click.option("--configs", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the configs.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(configs: int, seed: int, output: Path | None) -> None:
    """Print correlation and confusion table; exit code 1 below a correlation of 0.9."""
    find_compilers()
    kernels = list(random_kernels(configs, seed))
    # In another order, so that the slow ones do not come together.
    kernels = [kernels[int(i)] for i in np.random.default_rng(seed).permutation(len(kernels))]
    rows: list[dict[str, Any]] = []
    for start in range(0, len(kernels), BATCH):
        batch = kernels[start : start + BATCH]
        for (name, kernel, usage), made in zip(batch, compile_all([k.source for _, k, _ in batch], GPU, timeout_s=300), strict=True):
            if isinstance(made, BuildError):
                click.echo(f"{name}: {str(made).splitlines()[0]}", err=True)
                continue
            (said,) = made
            verdict = judge(usage, DEVICE.spec)["registers"]
            is_bad = bool(said.spills) or (said.waves or 0) * WAVE < usage.work_group_size
            row = {"operator": name, "config": dict(kernel.config), "estimate": usage.registers, "mesa": said.registers, "spills": said.spills}
            rows.append({**row, "waves": said.waves, "is_rejected": not verdict.keep, "is_bad": is_bad})
        if output is not None:
            output.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        click.echo(f"{min(start + BATCH, len(kernels))} of {len(kernels)}", err=True)
    most = DEVICE.spec.registers_per_lane
    assert most is not None, "the device file knows it"
    estimate, mesa = (np.minimum([row[key] for row in rows], most) for key in ("estimate", "mesa"))
    correlation = rank_correlation(estimate, mesa)
    out = Console(width=160)
    table = Table(title=f"Registers on {GPU}, Mesa {mesa_version()} (not the vendor's compiler)")
    for column in ("", "spills or holds no group", "neither"):
        table.add_column(column, justify="right")
    for title, rejected in (("rejected", True), ("kept", False)):
        counts = [sum(row["is_rejected"] == rejected and row["is_bad"] == bad for row in rows) for bad in (True, False)]
        table.add_row(title, *map(str, counts))
    out.print(table)
    spilled = [row for row in rows if row["spills"]]
    out.print(f"{len(rows)} configs; rank correlation {correlation:.3f}; of {len(spilled)} that spill, {sum(r['is_rejected'] for r in spilled)} are rejected")
    raise SystemExit(0 if correlation >= 0.9 else 1)


if __name__ == "__main__":
    main()
