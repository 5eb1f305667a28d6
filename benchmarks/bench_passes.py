#!/usr/bin/env python3
"""Measures the effect of each of Romou's techniques, separately and combined.

The operators are the 20 convolutions of benchmarks/data/paper_ops_sample.csv.

    python benchmarks/bench_passes.py                                integer operations inside loops; no device needed
    python benchmarks/bench_passes.py --time --json result.json      with kernel times on the first OpenCL device
    python benchmarks/bench_passes.py --figure17 --time              the four of figure 17, as speedups over TVM

docs/evidence/benchmarks.md describes the method and the output.
"""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import tvm
from rich.console import Console
from rich.table import Table

from bench_mobile_static import SAMPLE, model_of, name_of
from operator_lists import conv_of_row
from romou.base.errors import RomouError
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_reference, build_task
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.operators.workload import Conv2d
from romou.compiler.pipeline import fuse_operators
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tools.inspection.breakdown import TECHNIQUES, without
from romou.tools.inspection.kernels import inspect_function
from romou.tools.report.table import table_of_numbers
from tvm_patches.runtime import device_tensor
from tvm_peer import Tvm

VARIANTS = ("none", "images", *TECHNIQUES, "all")
TOLERANCE = 1e-4
TVM = "TVM"
# Height, width, input and output channels of the 1x1 convolutions of figure 17.
FIGURE_17 = ((64, 64, 512, 256), (18, 18, 128, 768), (56, 56, 128, 128), (28, 28, 256, 256))


def rows_of(*, is_figure_17: bool, only: str) -> list[dict[str, str]]:
    """Return the operators as rows of the sample, either its own or those of figure 17, whose names hold `only`."""
    if is_figure_17:
        plain = {"kernel_h": 1, "kernel_w": 1, "stride": 1, "groups": 1}
        pads = dict.fromkeys(("pad_top", "pad_left", "pad_bottom", "pad_right"), 0)
        rows = []
        for h, w, inputs, outputs in FIGURE_17:
            sizes = {"in_h": h, "in_w": w, "out_h": h, "out_w": w, "in_channels": inputs, "out_channels": outputs}
            rows.append({key: str(value) for key, value in {"op": "conv1x1", **sizes, **plain, **pads}.items()})
    else:
        with SAMPLE.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    return [row for row in rows if only in name_of(row)]


def task_of(row: Mapping[str, str], target: Target) -> TunableTask:
    """Return the operator's task, without the tasks that pack and unpack channels. Its activations may be images."""
    tasks, _ = extract_tasks(fuse_operators(pack_channels(import_onnx(model_of(row)).mod), target))
    (task,) = (task for task in tasks if task.template.sums_products)
    return task.with_free_images()


def config_of(task: TunableTask, target: Target, *, in_images: bool) -> Config:
    """Return the default config, with every image replaced by a buffer unless `in_images`."""
    space, default = task.space(target), task.default_config(target)
    images = {n: "image" for n in ("data", "weight", "output") if "image" in space.knobs[n]}
    rows = {"pixels": "rows"} if "rows" in space.knobs.get("pixels", ()) else {}
    return default.replace(**rows, **(images if in_images else dict.fromkeys(images, "buffer")))


def left_out(variant: str) -> list[str]:
    """Return the names of the passes that a variant leaves out."""
    return without(*(technique for technique in TECHNIQUES if variant not in (technique, "all")))


def count(task: TunableTask, target: Target) -> dict[str, dict[str, int]]:
    """Return each variant's integer operations and divisions inside loops."""
    counts = {}
    for variant in VARIANTS:
        config = config_of(task, target, in_images=variant in ("images", "all"))
        kernels = inspect_function(task.schedule(config, target)["main"], target, without=left_out(variant))
        counts[variant] = {
            "integer_operations": sum(k.operations.in_loops_weighted for k in kernels),
            "divisions": sum(
                k.operations.divisions_in_loops
                + k.text_operations.divisions_in_loops
                + k.text_operations.modulos_in_loops
                for k in kernels
            ),
        }
    return counts


def measure(task: TunableTask, work: Conv2d, target: Target, device: tvm.runtime.Device, rounds: int) -> dict[str, Any]:
    """Return each variant's median time in ms, or None if its output is wrong."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(d) for d in p.shape]).astype(str(p.dtype)) for p in task.func.params]
    names = [str(p.name) for p in task.func.params]
    on_cpu = [tvm.runtime.tensor(a) for a in arrays]
    build_reference(task)["main"](*on_cpu)
    expected = on_cpu[-1].numpy().astype(np.float64)
    ready: dict[str, Any] = {}
    for variant in VARIANTS:
        config = config_of(task, target, in_images=variant in ("images", "all"))
        scopes = task.image_scopes(config, target)
        with tvm.transform.PassContext(disabled_pass=left_out(variant)):
            module = build_task(task, config, target)
        arrays[-1][:] = np.nan
        tensors = [
            device_tensor(a, device, scopes.get(n, "global"))
            for n, a in zip(names, task.arguments(arrays, config), strict=True)
        ]
        module["main"](*tensors)
        error = np.linalg.norm(tensors[-1].numpy() - expected) / np.linalg.norm(expected)
        ready[variant] = (module, tensors) if error < TOLERANCE else None
    times: dict[str, list[float]] = {v: [] for v in (*VARIANTS, TVM)}
    peer = Tvm(target, device)
    theirs = [peer.timer(call) for call in peer.calls(work).values()]
    for _ in range(rounds):
        for variant, pair in ready.items():
            if pair is not None:
                timing = pair[0].time_evaluator("main", device, number=10, repeat=1)(*pair[1])
                times[variant].append(timing.results[0] * 1e3)
        times[TVM].extend(timer() * 1e3 for timer in theirs)
    return {v: statistics.median(t) if t else None for v, t in times.items()}


def print_tables(rows: list[dict[str, Any]], title: str, out: Console) -> None:
    """Print the integer operations of each variant.

    If times were measured, print them and the speedups over "none" as well.
    """
    table = table_of_numbers(
        "operator",
        (*VARIANTS, "none -> all", "divisions"),
        title=f"integer operations in loops of one work-item, {title}",
    )
    for row in rows:
        numbers = [row["counts"][v]["integer_operations"] for v in VARIANTS]
        divisions = f"{row['counts']['none']['divisions']} -> {row['counts']['all']['divisions']}"
        table.add_row(row["name"], *map(str, numbers), f"{numbers[-1] / max(numbers[0], 1) - 1:+.0%}", divisions)
    out.print(table)
    totals = {v: sum(row["counts"][v]["integer_operations"] for row in rows) for v in VARIANTS}
    out.print(f"all {len(rows)}: {totals['none']} -> {totals['all']} ({totals['all'] / totals['none'] - 1:+.1%})")
    timed = [row for row in rows if "ms" in row]
    if not timed:
        return
    out.print(time_table(timed, "none", VARIANTS[1:], title))
    out.print(time_table(timed, TVM, VARIANTS, title))


def time_table(timed: list[dict[str, Any]], base_name: str, variants: tuple[str, ...], title: str) -> Table:
    """Return the milliseconds of one side, and the speedups of the variants over it (Romou paper, figure 17)."""
    title = f"kernel time, {title}: ms of {base_name}, then speedup over it"
    table = table_of_numbers("operator", (f"{base_name} ms", *variants), title=title)
    speedups: dict[str, list[float]] = {v: [] for v in variants}
    for row in timed:
        base = row["ms"][base_name]
        cells = []
        for variant in variants:
            ms = row["ms"][variant]
            if base and ms:
                speedups[variant].append(base / ms)
            cells.append(f"{base / ms:.2f}x" if base and ms else "wrong")
        table.add_row(row["name"], f"{base:.4f}" if base else "wrong", *cells)
    table.add_row(
        "geometric mean", "", *(f"{statistics.geometric_mean(s):.2f}x" if s else "-" for s in speedups.values())
    )
    return table


@click.command()
@click.option(
    "--target",
    default="opencl -device=adreno640",
    show_default=True,
    help="The default config and its limits are this target's.",
)
@click.option("--time", "is_timed", is_flag=True, help="Also run every variant on the first OpenCL device.")
@click.option("--figure17", "is_figure_17", is_flag=True, help="The paper's four 1x1 convolutions instead of the 20.")
@click.option("--rounds", default=11, show_default=True)
@click.option("--only", default="", help="Only operators whose name holds this text.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(target: str, is_timed: bool, is_figure_17: bool, rounds: int, only: str, output: Path | None) -> None:
    """Print the tables that the file's docstring describes."""
    console = Console(width=160)
    try:
        wanted, title = Target(target), target
        device = None
        if is_timed:
            index = wanted.backend.device_index(None)
            facts = wanted.backend.facts(index)
            wanted, device, title = (
                wanted.limited_to(facts),
                wanted.backend.device(index),
                f"{target} on {facts['name']}",
            )
        rows = []
        for operator in rows_of(is_figure_17=is_figure_17, only=only):
            task = task_of(operator, wanted)
            row: dict[str, Any] = {"name": task.name, "counts": count(task, wanted)}
            if device is not None:
                row["ms"] = measure(task, conv_of_row(operator), wanted, device, rounds)
            rows.append(row)
            if output is not None:
                output.write_text(
                    json.dumps({"target": target, "title": title, "rows": rows}, indent=1), encoding="utf-8"
                )
        print_tables(rows, title, console)
    except RomouError as error:
        raise SystemExit(f"bench_passes: {error}") from error


if __name__ == "__main__":
    main()
