#!/usr/bin/env python3
"""How fast candidates are built on the workers of a dask scheduler, beside processes of this machine: real worker
processes on the loopback.

    python scripts/bench_builders.py                                       squeezenet1_0 for adreno640: 1, 2 and 4 workers, 48 candidates each
    python scripts/bench_builders.py --workers 1,2,4,8,16 --count 256      on a larger machine
    python scripts/bench_builders.py --kill                                one worker is killed in the middle of each run

No device is needed. Every worker is warm when the clock starts. Each run builds the same candidates; their kernels and
libraries have to be the same, byte for byte, as those of the first run, and all of them have to be there. What a build
takes by itself (build ms) grows where workers share cores.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import distributed
import numpy as np
from rich.console import Console
from rich.table import Table

from romou import models
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.frontend import Precision
from romou.devices.targets import Target
from romou.driver.site import as_target
from romou.tuner.measure import BuildResult, Candidate, LocalBuilder, MeasureOptions
from romou.tuner.measure.builder import FolderBuilder
from romou.tuner.measure.dask_builder import DaskBuilder


def candidates_of(model: str, target: Target, count: int, seed: int) -> list[Candidate]:
    """Random configs of a network's tasks in turns."""
    graph = Compilation.of(
        import_model(models.load(model), None, Precision.checked("float32", None, None)), target
    ).with_default_kernels()
    tasks = [task for task in graph.tasks if task.template.sums_products]
    rng = np.random.default_rng(seed)
    each = -(-count // len(tasks))
    drawn = [(task, config) for task in tasks for config in task.space(target).sample(rng, each)]
    return [Candidate(task=task, config=config, trial=trial) for trial, (task, config) in enumerate(drawn[:count])]


@contextlib.contextmanager
def here(workers: int, target: Target) -> Iterator[FolderBuilder]:
    """Processes of this machine."""
    with contextlib.closing(LocalBuilder(target, MeasureOptions(build_workers=workers))) as builder:
        yield builder


@contextlib.contextmanager
def on_dask(workers: int, target: Target) -> Iterator[FolderBuilder]:
    """Worker processes of a dask scheduler on the loopback, a build at a time each."""
    cluster = distributed.LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
    with (
        cluster,
        contextlib.closing(DaskBuilder(str(cluster.scheduler_address).replace("tcp://", "dask://"), target)) as builder,
    ):
        yield builder


def kill_one(address: str) -> None:
    """Kill a worker of the scheduler at `address`; its nanny starts another one."""
    with distributed.Client(address.replace("dask://", "tcp://"), set_as_default=False) as client:
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)


def digest(built: Sequence[BuildResult]) -> str:
    """Depends on how each candidate ended, and on every byte of the libraries."""
    libraries = [Path(b.library).read_bytes() if b.library is not None else b"" for b in built]
    return hashlib.sha256(
        b"".join(str(b.outcome).encode() + library for b, library in zip(built, libraries, strict=True))
    ).hexdigest()[:12]


def run(how: str, workers: int, target: Target, candidates: list[Candidate], *, is_killing: bool) -> dict[str, Any]:
    """Build all candidates once."""
    with (here if how == "processes" else on_dask)(workers, target) as builder:
        # The first build of a process imports TVM.
        builder.build(candidates[:1] * (2 * workers))
        start = time.monotonic()
        if is_killing and isinstance(builder, DaskBuilder):
            threading.Timer(1.0, kill_one, [builder.address]).start()
        built = builder.build(candidates)
        seconds = time.monotonic() - start
        build_s = [b.seconds for b in built]
        ended = {
            str(outcome): sum(b.outcome == outcome for b in built) for outcome in sorted({b.outcome for b in built})
        }
        return {
            "how": how,
            "workers": workers,
            "seconds": seconds,
            "build_s": build_s,
            "outcomes": ended,
            "digest": digest(built),
        }


@click.command()
@click.option("--model", default="squeezenet1_0", show_default=True, help="A bundled network.")
@click.option("--target", "text", default="opencl -device=adreno640", show_default=True, help="What to build for.")
@click.option("--workers", default="1,2,4", show_default=True, help="How many workers, separated by commas.")
@click.option("--count", type=click.IntRange(min=1), default=48, show_default=True, help="Candidates.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the candidates.")
@click.option("--kill", is_flag=True, help="Kill a worker a second into each run on dask.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(model: str, text: str, workers: str, count: int, seed: int, kill: bool, output: Path | None) -> None:
    """Print the table; fails where two runs built different things."""
    target = as_target(text)
    candidates = candidates_of(model, target, count, seed)
    rows = []
    for number in map(int, workers.split(",")):
        for how in ("processes", "dask"):
            rows.append(run(how, number, target, candidates, is_killing=kill))
            click.echo(f"{how}, {number}: {rows[-1]['seconds']:.1f} s", err=True)
    table = Table(title=f"{len(candidates)} candidates of {model} for {target}; {os.cpu_count()} cores")
    for name in ("built by", "workers", "seconds", "candidates/s", "build ms, median", "ended", "libraries"):
        table.add_column(name, justify="left" if name in ("built by", "ended", "libraries") else "right")
    for row in rows:
        ended = ", ".join(f"{n} {outcome}" for outcome, n in row["outcomes"].items())
        median_ms = f"{statistics.median(row['build_s']) * 1e3:.0f}"
        table.add_row(
            row["how"],
            str(row["workers"]),
            f"{row['seconds']:.1f}",
            f"{len(candidates) / row['seconds']:.2f}",
            median_ms,
            ended,
            row["digest"],
        )
    Console(width=160).print(table)
    if output is not None:
        output.write_text(
            json.dumps(
                {
                    "model": model,
                    "target": str(target),
                    "count": len(candidates),
                    "cores": os.cpu_count(),
                    "rows": rows,
                },
                indent=1,
            )
        )
    if len({row["digest"] for row in rows}) > 1:
        raise SystemExit("the runs built different libraries")


if __name__ == "__main__":
    main()
