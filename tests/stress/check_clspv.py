#!/usr/bin/env python3
"""Compiles kernels by clspv, which newer Exynos phones compile OpenCL with, and checks its SPIR-V by spirv-val.

    python tests/stress/check_clspv.py                                   every default kernel of the bundled networks
    python tests/stress/check_clspv.py squeezenet1_0 --run               and runs them by Vulkan against onnxruntime
    python tests/stress/check_clspv.py --configs 500 --seed 7            random configs of every operator family instead
    python tests/stress/check_clspv.py --graphs 16 --seed 7              runs random graphs of fuzz_graphs.py instead

Networks and graphs are compiled in fp32 and fp16, with images as for an Adreno 640 and with buffers as for a Mali-G76.
--run launches the same kernels on the first Vulkan device (lavapipe: VK_DRIVER_FILES). There, reads with a sampler are
fetches.

Random configs and graphs find faults of clspv itself: it crashes, or writes invalid SPIR-V, for some kernels that other
compilers accept. Such a graph is not right, and only a wrong result makes the exit code 1.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter

import click

import check_kernels
import clspv_kernels as clspv
from fuzz_graphs import REFUSED, RIGHT, WRONG, problem_of
from graph_cases import Case
from random_graphs import case
from romou import models
from romou.base.errors import RomouError
from romou.compiler.frontend.precision import TOLERANCE
from romou.driver.options import PrecisionName
from romou.tools.inspection.kernels import inspect_function

DEVICES = ("adreno640", "mali_g76")
# Relative L2 error of an output.
LIMITS: dict[PrecisionName, float] = {"float32": 1e-4, "float16": TOLERANCE}


def check_networks(names: tuple[str, ...], *, is_run: bool) -> int:
    """Print a line for each network, device and precision. Return the number of faults."""
    faults = 0
    for name, device, (precision, limit) in itertools.product(names, DEVICES, LIMITS.items()):
        started, model = time.monotonic(), models.load(name)
        compilation, kernels = clspv.opencl_kernels(model, device, precision)
        said = Counter(fault for kernel in kernels if (fault := clspv.fault_of(kernel.source)) is not None)
        line = f"{name} {device} {precision}: {len(kernels) - said.total()} of {len(kernels)} kernels pass"
        faults += said.total()
        if is_run:
            error = clspv.run_error(model, clspv.vulkan_model(compilation, kernels))
            faults += not error <= limit
            line += f"; relative L2 error {error:.1e} ({'right' if error <= limit else 'WRONG'})"
        print(f"{line} ({time.monotonic() - started:.0f} s)", *said, sep="\n  ", flush=True)
    return faults


def check_configs(configs: int, seed: int) -> int:
    """Print the faults of random configs, and return their number."""
    draw, faults = check_kernels.drawer(seed, "", None), 0
    for number in range(configs):
        drawn = draw(number)
        scheduled = drawn.task.schedule(drawn.config, drawn.target)["main"]
        kernels = inspect_function(scheduled, drawn.target, config=drawn.config, without=drawn.without)
        for fault in filter(None, (clspv.fault_of(kernel.source) for kernel in kernels)):
            print(f"{number} {drawn.name}: {fault}", flush=True)
            faults += 1
    print(f"{configs} configs of seed {seed}, {faults} faults")
    return faults


def outcome_of(graph: Case, device: str, precision: PrecisionName) -> tuple[str, str]:
    """Run a random graph. Return the outcome and its reason: right, wrong, refused by Romou, or clspv's own fault."""
    try:
        compilation, kernels = clspv.opencl_kernels(graph.model(), device, precision)
        fault = next(filter(None, (clspv.fault_of(kernel.source) for kernel in kernels)), None)
        if fault is not None:
            return fault if fault == clspv.CRASH else "clspv's SPIR-V is invalid", fault
        model = clspv.vulkan_model(compilation, kernels)
    except RomouError as error:
        return REFUSED, f"{type(error).__name__}: {error}"
    problem = problem_of(graph, model, "vulkan", is_fp16=precision == "float16")
    return (RIGHT, "") if problem is None else (WRONG, problem)


def check_graphs(graphs: int, seed: int) -> int:
    """Print the outcomes of random graphs, and each graph that is not right. Return the number of wrong graphs."""
    total = Counter[str]()
    for device, precision in itertools.product(DEVICES, LIMITS):
        outcomes = Counter[str]()
        for number in range(graphs):
            graph = case(seed, number, special=precision == "float32", dtypes=("float32",))
            outcome, reason = outcome_of(graph, device, precision)
            outcomes[outcome] += 1
            if outcome != RIGHT:
                print(f"{number} ({graph.operators()}), {device} {precision}: {outcome}: {reason}", flush=True)
        print(f"{device} {precision}: {', '.join(f'{n} {what}' for what, n in outcomes.items())}", flush=True)
        total += outcomes
    print(f"{graphs} graphs of seed {seed}: {', '.join(f'{n} {what}' for what, n in total.items())}")
    return total[WRONG]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(models.names()))
@click.option("--run", "is_run", is_flag=True, help="Also run the networks by Vulkan.")
@click.option("--configs", type=click.IntRange(min=1), help="Random configs, the default ones first, not networks.")
@click.option("--graphs", type=click.IntRange(min=1), help="Random graphs, not networks.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def main(names: tuple[str, ...], is_run: bool, configs: int | None, graphs: int | None, seed: int) -> None:
    """Print what passes and every fault. The exit code is 1 if there is one."""
    if not clspv.is_installed():
        raise SystemExit(clspv.NOT_INSTALLED)
    if graphs is not None:
        faults = check_graphs(graphs, seed)
    elif configs is not None:
        faults = check_configs(configs, seed)
    else:
        faults = check_networks(names or models.names(), is_run=is_run)
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
