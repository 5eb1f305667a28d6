#!/usr/bin/env python3
"""Are the kernels of every listed operator right: the default config and some random ones, built, run and compared with the CPU.

    python scripts/check_operators.py                                      all operators on the first OpenCL device, one random config each
    python scripts/check_operators.py --target cuda --configs 3            on an NVIDIA GPU
    python scripts/check_operators.py --target "cuda -device=nvidia_h200" --compile-only       without one: through NVRTC

The operators are the typical cases of every family, those of scripts/data, conv43.csv (batch 5) and paper_ops.csv (batch 1), and of operator_lists.py
attention and transposed convolutions; by themselves, in buffers or images as the target offers.
Configs are drawn from the whole spaces with a fixed seed. --seconds ends the run early and says what is left; --only and --skip choose.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator

import click
import numpy as np
from kernel_bench import fast_reference
from operator_lists import attention, conv43, paper_operators, transposed_convolutions, typical

from romou.core.errors import BuildError, InvalidConfigError, RomouError
from romou.core.outcome import Outcome
from romou.core.space import Config
from romou.measure import Candidate, LocalBuilder, LocalRunner, MeasureOptions, Toolchain
from romou.target import Target
from romou.tasks.build import build_task
from romou.tasks.operators import task_of
from romou.tasks.tunable import TunableTask

# A CPU takes long for a bad config of a large operator: only whether it is right counts here.
MEASURE = MeasureOptions(repeat=1, min_repeat_ms=0.0, build_timeout_s=300.0, run_timeout_s=300.0)
TOOLCHAIN = Toolchain(build_reference=f"kernel_bench:{fast_reference.__name__}")


def configs_of(task: TunableTask, target: Target, count: int, seed: int) -> list[Config]:
    """The default config and `count` random ones."""
    return [task.default_config(target), *task.space(target).sample(np.random.default_rng([seed, int(task.key, 16)]), count)]


def compiled(task: TunableTask, configs: list[Config], target: Target) -> Iterator[tuple[str, str | None]]:
    """(outcome, error) of each config, from the compiler alone."""
    from romou.backends.cuda.compiler import compile_cuda

    for config in configs:
        try:
            for kernels in build_task(task, config, target).imports:
                if target.kind == "cuda":
                    compile_cuda(kernels.inspect_source(), str(target.tvm_target.attrs["arch"]))
            yield Outcome.OK, None
        except InvalidConfigError as error:
            yield Outcome.INVALID, str(error)
        except BuildError as error:
            yield Outcome.BUILD_ERROR, str(error)


def measured(task: TunableTask, configs: list[Config], builder: LocalBuilder, runner: LocalRunner) -> Iterator[tuple[str, str | None]]:
    """(outcome, error) of each config, run on the device."""
    for built in builder.build([Candidate(task=task, config=config, trial=trial) for trial, config in enumerate(configs)]):
        if built.library is None:
            yield built.outcome, built.error
        for result in runner.run([built]) if built.library is not None else ():
            yield result.outcome, result.error


def check(names: tuple[str, str], target_text: str, count: int, seed: int, stop_at: float, is_compiled_only: bool) -> int:
    """Number of configs that failed."""
    only, skip = names
    asked = Target(target_text)
    works = (*conv43(), *paper_operators(), *attention(), *transposed_convolutions())
    listed = (*typical(asked), *(task_of(work, has_epilogue=False) for work in works))
    tasks = {task.key: task for task in (task.with_free_images() for task in listed)}
    chosen = [task for task in tasks.values() if only in task.name and not (skip and skip in task.name)]
    outcomes: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        if is_compiled_only:
            target = asked
        else:
            index = asked.backend.device_index(asked.device_name)
            target = asked.limited_to(asked.backend.facts(index))
            runner = stack.enter_context(contextlib.closing(LocalRunner(f"{asked.kind}:{index}", MEASURE, toolchain=TOOLCHAIN)))
            builder = stack.enter_context(contextlib.closing(LocalBuilder(target, MEASURE, toolchain=TOOLCHAIN)))
        for position, task in enumerate(chosen):
            if time.monotonic() > stop_at:
                print(f"out of time: {len(chosen) - position} of {len(chosen)} operators are left, from {task.name} on", flush=True)
                break
            started = time.monotonic()
            configs = configs_of(task, target, count, seed)
            found = compiled(task, configs, target) if is_compiled_only else measured(task, configs, builder, runner)
            results = list(found)
            outcomes.update(outcome for outcome, _ in results)
            print(f"{task.name}: {', '.join(outcome for outcome, _ in results)} ({time.monotonic() - started:.1f} s)", flush=True)
            for config, (outcome, error) in zip(configs, results, strict=True):
                if outcome != Outcome.OK:
                    print(f"    {outcome}: {config}\n    {error}", flush=True)
    print(f"{sum(outcomes.values())} configs: {', '.join(f'{n} {outcome}' for outcome, n in outcomes.most_common())}")
    return sum(outcomes.values()) - outcomes[Outcome.OK]


@click.command()
@click.option("--target", default="opencl", show_default=True)
@click.option("--configs", type=click.IntRange(min=0), default=1, show_default=True, help="Random ones, beside the default.")
@click.option("--only", default="", help="Operators whose name contains this.")
@click.option("--skip", default="", help="Not those whose name contains this.")
@click.option("--compile-only", "is_compiled_only", is_flag=True, help="Run nothing.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=float("inf"), help="Begin no operator after this time.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def main(target: str, configs: int, only: str, skip: str, is_compiled_only: bool, seconds: float, seed: int) -> None:
    """Print a line an operator; exit code 1 if a config failed."""
    try:
        failed = check((only, skip), target, configs, seed, time.monotonic() + seconds, is_compiled_only)
    except RomouError as error:
        raise SystemExit(f"{error}") from error
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
