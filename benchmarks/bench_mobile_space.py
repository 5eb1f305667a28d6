"""Checks whether pruning keeps the leanest configs of seven layers, under Mesa's compilers for Adreno 630 and Mali-G76.
It prints one table. Nothing is executed.

    python benchmarks/bench_mobile_space.py                          2,000 random configs of each layer's whole space, both compilers: many hours
    python benchmarks/bench_mobile_space.py --most 16                16 of these: the eight that issue the least by formulas, and eight others
    python benchmarks/bench_mobile_space.py --only 1x1 --gpu a630

The results of Mesa's compiler are kept in `--cache`, so that a later run continues. docs/evidence/benchmarks.md describes the
method and the output.
"""  # noqa: E501

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

import bench_mobile_layers as bench
import bench_mobile_static as static
from mobile_options import layers_option
from processes import mapping
from romou.base.errors import BuildError, InvalidConfigError, RomouError
from romou.base.space import Config
from romou.compiler.frontend.precision import Precision
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.importing import import_onnx
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.costs.criteria import judge
from romou.compiler.operators.costs.estimate import estimate_parts
from romou.compiler.pipeline import fuse_operators
from romou.compiler.task import TunableTask
from romou.devices.mobile_compilers import GPUS, compile_all, find_compilers, mesa_version, mobile_gpu
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning.tasks import PrunedTask, pruned_space, pruned_task
from tvm_patches.quiet import quiet_stderr

# The kept space has to hold a config whose count is at most this factor times the whole space's best.
ALLOWED = 1.05
# Configs that are compiled together: Mesa's compiler starts once for all of them.
AT_ONCE = 8
TIMEOUT_S = 30.0
# In Romou's estimate, which models Adreno. Mesa's compiler for Mali fits kernels into 64 registers even if the estimate
# is twice that or more.
MOST_REGISTERS = {gpu: 2 * most for gpu, most in static.MOST_REGISTERS.items()}
# The first configs of a search on the pruned space.
FIRST = 6
# The compared measure: instructions on Adreno, cycles of the busiest unit on Mali.
MEASURE = {gpu: "cycles" if gpu == "g76" else "instructions" for gpu in static.COMPARED}


def task_of_layer(name: str, precision: str, target: Target) -> TunableTask:
    """Return the layer's task, with data and output free to be images."""
    model = next(model for other, model, _ in static.layers() if other == name)
    with quiet_stderr():
        graph = import_onnx(model, None, Precision(kind=precision, is_quiet=True)).mod
        tasks = extract_tasks(fuse_operators(pack_channels(graph), target))[0]
    (task,) = (task.with_free_images() for task in tasks if task.template.sums_products)
    return task


def source_of_counts(task: TunableTask, gpu: str) -> str:
    """Return a short key of everything except the config that its counts depend on: the function, the GPU, Mesa.
    Another version of Romou needs another cache.
    """
    return hashlib.sha256(f"{task.key} {gpu} {mesa_version()}".encode()).hexdigest()[:16]


def counted(name: str, gpu: str, precision: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Compile some configs of a layer by Mesa's compiler and return their counts, in order.

    A config that cannot be built or compiled has an error instead.
    """
    target = Target(f"opencl -device={mobile_gpu(gpu).devices[-1]}")
    task = task_of_layer(name, precision, target)
    pruned = pruned_task(task, target)
    needed = next(needed for other, _, needed in static.layers() if other == name)
    counts: dict[str, dict[str, Any]] = {}
    built = {}
    for key in keys:
        config = Config(json.loads(key))
        try:
            with quiet_stderr():
                kernels = inspect_function(task.schedule(config, target)["main"], target, config=config)
        except (RomouError, RuntimeError) as error:
            counts[key] = {"error": str(error).splitlines()[0]}
            continue
        if max(kernel.registers.needed for kernel in kernels) > MOST_REGISTERS[gpu]:
            counts[key] = {"error": "needs far more registers than a work-item has"}
            continue
        built[key] = kernels
        counts[key] = {"passes": passes(pruned, kernels, config, target)}
    answers = iter(
        compile_all([kernel.source for kernels in built.values() for kernel in kernels], gpu, timeout_s=TIMEOUT_S)
    )
    for key, kernels in built.items():
        made = [next(answers) for _ in kernels]
        errors = [answer for answer in made if isinstance(answer, BuildError)]
        if errors:
            counts[key] = {"error": str(errors[0]).splitlines()[0]}
            continue
        count = bench.count_of(kernels, [answer[0] for answer in made if isinstance(answer, list)], needed)
        counts[key] |= {
            "instructions": count.instructions,
            "cycles": count.cycles,
            "spills": count.spills,
            "registers": count.registers,
        }
    return [counts[key] for key in keys]


def passes(pruned: PrunedTask, kernels: Sequence[Any], config: Config, target: Target) -> bool:
    """Return whether the lowered kernels pass pruning.

    The formulas only bound registers, so their verdict may differ.
    """
    try:
        for kernel in kernels:
            pruned.check(kernel.lowered, config, target)
    except InvalidConfigError:
        return False
    return True


def drawn(task: TunableTask, target: Target, count: int, most: int, seed: int) -> list[Config]:
    """Draw at most `most` of `count` random configs, half of them the configs that issue the least by formulas.

    The first configs of a search follow.
    """
    rng = np.random.default_rng([seed, 0])
    sample = task.space(target).sample(rng, count)
    if len(sample) > most:
        usage = task.template.form(target.limits).usage(columns_of(sample))
        issued = (estimate_parts(usage, target.spec) or {})["issuing"]
        order = np.argsort(np.broadcast_to(issued, len(sample)), kind="stable")
        sample = [
            sample[index]
            for index in [*order[: most // 2], *rng.choice(order[most // 2 :], size=most - most // 2, replace=False)]
        ]
    return list(dict.fromkeys([*sample, *bench.first_configs(pruned_task(task, target), target, FIRST)]))


def batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split keys into batches that one process compiles."""
    return (keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE))


def best_of(counts: Mapping[str, Mapping[str, Any]], keys: Sequence[str], measure: str) -> str | None:
    """Return the leanest config without spills, or None if there is none."""
    fine = [key for key in keys if "error" not in counts[key] and not counts[key]["spills"]]
    return min(fine, key=lambda key: float(counts[key][measure]), default=None)


@click.command()
@click.option(
    "--gpu", "gpus", type=click.Choice(static.COMPARED), multiple=True, default=static.COMPARED, show_default=True
)
@click.option("--precision", type=click.Choice(["float32", "float16"]), default="float32", show_default=True)
@click.option("--configs", default=2000, show_default=True, help="Random configs of each whole space.")
@click.option(
    "--most",
    type=int,
    default=None,
    help="Compile so many of them: half of them those that issue the least by formulas. [default: all]",
)
@layers_option
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    default=Path("build/mobile_space.jsonl"),
    show_default=True,
    help="Counts of earlier runs; it grows.",
)
def main(
    gpus: tuple[str, ...], precision: str, configs: int, most: int | None, only: str, seed: int, jobs: int, cache: Path
) -> None:
    """Print a table for each GPU.

    The exit code is 1 if the best kept config is more than 5% worse than the best config of all.
    """
    find_compilers()
    cache.parent.mkdir(parents=True, exist_ok=True)
    cached: dict[tuple[str, str], dict[str, Any]] = {}
    for line in cache.read_text(encoding="utf-8").splitlines() if cache.exists() else ():
        entry = json.loads(line)
        cached[entry["of"], entry["config"]] = entry["count"]
    out, is_lean = Console(width=180), True
    with mapping(jobs) as mapped:
        for gpu in gpus:
            target = Target(f"opencl -device={mobile_gpu(gpu).devices[-1]}")
            measure = MEASURE[gpu]
            title = f"{GPUS[gpu]}, Mesa's compiler {mesa_version()} (not the vendor's), {precision}: {measure}"
            table = table_of_numbers(
                "layer",
                ("counted", "best of all", "best kept", "/ best", "kept of those within 5%"),
                "the best is excluded by",
                title=title,
            )
            for name in (name for name, _, _ in static.layers() if only in name):
                task = task_of_layer(name, precision, target)
                of = source_of_counts(task, gpu)
                every = [config.key for config in drawn(task, target, configs, most or configs, seed)]
                missing = [list(part) for part in batches([key for key in every if (of, key) not in cached])]
                arguments = [[value] * len(missing) for value in (name, gpu, precision)]
                for part, counts in zip(missing, mapped(counted, *arguments, missing), strict=True):
                    with cache.open("a", encoding="utf-8") as file:
                        for key, count in zip(part, counts, strict=True):
                            cached[of, key] = count
                            file.write(
                                json.dumps({"of": of, "layer": name, "gpu": gpu, "config": key, "count": count}) + "\n"
                            )
                counts_of = {key: cached[of, key] for key in every}
                space = pruned_space(task, target)
                kept = [
                    key for key in every if counts_of[key].get("passes") and space.is_valid(Config(json.loads(key)))
                ]
                best, best_kept = best_of(counts_of, every, measure), best_of(counts_of, kept, measure)
                is_lean &= best is None or (
                    best_kept is not None and counts_of[best_kept][measure] <= ALLOWED * counts_of[best][measure]
                )
                table.add_row(
                    name, *row_of(task, target, space.choices, counts_of, every, kept, (best, best_kept), measure)
                )
            out.print(table)
    raise SystemExit(0 if is_lean else 1)


def row_of(
    task: Any,
    target: Target,
    choices: Any,
    counts: Mapping[str, Any],
    every: Sequence[str],
    kept: Sequence[str],
    bests: Any,
    measure: str,
) -> list[str]:
    """Return the cells of a layer."""
    best, best_kept = bests
    fine = [key for key in every if "error" not in counts[key]]
    if best is None or best_kept is None:
        return [str(len(fine)), *(str(round(counts[key][measure], 2)) if key else "-" for key in bests), "-", "-", "-"]
    near = [
        key for key in fine if not counts[key]["spills"] and counts[key][measure] <= ALLOWED * counts[best][measure]
    ]
    ratio = counts[best_kept][measure] / counts[best][measure]
    excluded = [
        n
        for n, v in judge(task.usage_of(json.loads(best), target), target.spec, choices=choices).items()
        if not np.all(v.keep)
    ]
    cells = [
        str(len(fine)),
        f"{counts[best][measure]:.2f}",
        f"{counts[best_kept][measure]:.2f}",
        f"{ratio:.2f}",
        f"{len(set(near) & set(kept))} of {len(near)}",
    ]
    return [*cells, ", ".join(excluded) or ("-" if best in kept else "the lowered kernel")]


if __name__ == "__main__":
    main()
