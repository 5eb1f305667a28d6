#!/usr/bin/env python3
"""Checks the kernels of every listed operator: the default config and some random ones are built, run and compared with
the CPU.

    python tests/stress/check_operators.py                                      all operators on the first OpenCL device, one random config each
    python tests/stress/check_operators.py --target cuda --configs 3            on an NVIDIA GPU
    python tests/stress/check_operators.py --target "cuda -device=nvidia_h200" --compile-only       without one: through NVRTC
    python tests/stress/check_operators.py --targets opencl,cuda,vulkan         the same config on all available ones, compared with each other and with the CPU
    python tests/stress/check_operators.py --target cuda --dtype float16 --where multiply_add=mma --configs 4         random ones with a choice of a knob

The operators are the typical cases of every family, the lists conv43.csv (batch 5), boda_layers.csv (batch 1, 5 and 20) and paper_ops.csv (batch 1) of
benchmarks/data, and attention and transposed convolutions of operator_lists.py. Each runs as a single operator, in
buffers or images as the target offers. Configs are drawn from the whole spaces with a fixed seed. With --targets the
configs are the same on all targets, except for knobs that only some of them have, and the size of sub-groups. --seconds
ends the run early and lists the rest. --only and --skip select operators. --dtype float16 checks the tensor core
kernels. With --where no default config is drawn, and operators without that choice are left out.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import numpy as np

# The operator lists and references are the benchmarks' own.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from cross_backends import cross, places_of
from kernel_references import fast_reference
from operator_lists import attention, boda_layers, conv43, paper_operators, transposed_convolutions
from romou.base.errors import BuildError, InvalidConfigError, RomouError, UsageError
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_task
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask
from romou.compiler.typical import typical_tasks
from romou.devices.targets import Target
from romou.tuner.measure import Candidate, LocalBuilder, LocalRunner, MeasureOptions, Toolchain

# A CPU takes long for a bad config of a large operator. Only correctness counts here.
CORES = len(os.sched_getaffinity(0))
MEASURE = MeasureOptions(repeat=1, min_repeat_ms=0.0, build_timeout_s=300.0, build_workers=CORES, run_timeout_s=300.0)
# While one operator runs, others are built, and their references are computed.
AT_ONCE = max(1, CORES // 4)
TOOLCHAIN = Toolchain(build_reference=f"kernel_references:{fast_reference.__name__}")


def configs_of(
    task: TunableTask, target: Target, count: int, seed: int, where: tuple[str, str] | None = None
) -> list[Config]:
    """Return the default config and `count` random ones.

    With `where`, a knob and its choice as text, all configs are random ones with that choice. There are none if the
    task never has it.
    """
    space, rng = task.space(target), np.random.default_rng([seed, int(task.key, 16)])
    if where is None:
        return [task.default_config(target), *space.sample(rng, count)]
    knob, text = where
    chosen = [choice for choice in space.knobs.get(knob, ()) if str(choice) == text]
    return [config for choice in chosen for config in space.sample(rng, count, where={knob: choice})]


def compiled(task: TunableTask, configs: list[Config], target: Target) -> Iterator[tuple[str, str | None]]:
    """Yield (outcome, error) of each config, from the compiler only."""
    from romou.devices.backends.cuda.nvrtc import compile_cuda

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


def measured(
    task: TunableTask, configs: list[Config], builder: LocalBuilder, runner: LocalRunner
) -> Iterator[tuple[str, str | None]]:
    """Yield (outcome, error) of each config, run on the device."""
    for built in builder.build(
        [Candidate(task=task, config=config, trial=trial) for trial, config in enumerate(configs)]
    ):
        if built.library is None:
            yield built.outcome, built.error
        for result in runner.run([built]) if built.library is not None else ():
            yield result.outcome, result.error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listed:
    """A selection of the listed operators.

    only, skip: a name contains `only` and not `skip`
    dtype: the type of the numbers
    where: a knob and the choice that the configs must have
    """

    only: str
    skip: str
    dtype: str = "float32"
    where: tuple[str, str] | None = None


def tasks_of(asked: Target, listed: Listed) -> list[TunableTask]:
    """Return the listed operators, each once."""
    only, skip = listed.only, listed.skip
    works = (
        dataclasses.replace(work, dtype=listed.dtype)
        for work in (*conv43(), *boda_layers(), *paper_operators(), *attention(), *transposed_convolutions())
    )
    every = (*typical_tasks(asked, listed.dtype), *(task_of(work, has_epilogue=False) for work in works))
    tasks = {task.key: task for task in (task.with_free_images() for task in every)}
    return [task for task in tasks.values() if only in task.name and not (skip and skip in task.name)]


def check(listed: Listed, target_text: str, count: int, seed: int, stop_at: float, is_compiled_only: bool) -> int:
    """Run the listed operators and return the number of failed configs."""
    asked = Target(target_text)
    chosen = tasks_of(asked, listed)
    outcomes: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        if is_compiled_only:
            target = asked
        else:
            index = asked.backend.device_index(asked.device_name)
            target, device = asked.limited_to(asked.backend.facts(index)), f"{asked.kind}:{index}"
            runner = stack.enter_context(
                contextlib.closing(LocalRunner(device, MEASURE, toolchain=TOOLCHAIN, processes=AT_ONCE))
            )
            compile_for = None if runner.fingerprint().is_host_cpu else device
            builder = stack.enter_context(
                contextlib.closing(LocalBuilder(target, MEASURE, toolchain=TOOLCHAIN, compile_for=compile_for))
            )
        threads = stack.enter_context(ThreadPoolExecutor(1 if is_compiled_only else AT_ONCE))
        stack.callback(threads.shutdown, cancel_futures=True)

        def results_of(task: TunableTask, configs: list[Config]) -> tuple[list[tuple[str, str | None]], float] | None:
            if time.monotonic() > stop_at:
                return None
            started = time.monotonic()
            found = compiled(task, configs, target) if is_compiled_only else measured(task, configs, builder, runner)
            return list(found), time.monotonic() - started

        left: list[str] = []
        drawn = ((task, configs_of(task, target, count, seed, listed.where)) for task in chosen)
        jobs = [(task, configs, threads.submit(results_of, task, configs)) for task, configs in drawn if configs]
        for task, configs, job in jobs:
            done = job.result()
            if done is None:
                left.append(task.name)
                continue
            results, seconds = done
            outcomes.update(outcome for outcome, _ in results)
            print(f"{task.name}: {', '.join(outcome for outcome, _ in results)} ({seconds:.1f} s)", flush=True)
            for config, (outcome, error) in zip(configs, results, strict=True):
                if outcome != Outcome.OK:
                    print(f"    {outcome}: {config}\n    {error}", flush=True)
    if left:
        print(f"out of time: {len(left)} of {len(jobs)} operators are left, from {left[0]} on", flush=True)
    if not jobs:
        raise UsageError(
            "no listed operator has a config like that", hint="Look at --only, --skip, --dtype and --where."
        )
    print(f"{sum(outcomes.values())} configs: {', '.join(f'{n} {outcome}' for outcome, n in outcomes.most_common())}")
    return sum(outcomes.values()) - outcomes[Outcome.OK]


def check_across(listed: Listed, texts: list[str], count: int, seed: int, stop_at: float) -> int:
    """Return the number of configs that failed on some target or differ between targets.

    It is at least 1 if fewer than two of the targets are available, since nothing is compared then.
    """
    places, absent = places_of(texts)
    missing = "".join(f"; {text} is NOT HERE: {reason}" for text, reason in absent.items())
    print(
        f"{len(places)} of {len(texts)} targets:"
        f" {', '.join(f'{p.text} ({p.name})' for p in places) or 'none'}{missing}",
        flush=True,
    )
    if len(places) < 2:
        print("nothing to compare: two of --targets have to be here")
        return 1
    done, failed = 0, 0
    left_out: Counter[str] = Counter()
    chosen = tasks_of(places[0].target, listed)
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.callback(place.close)
        for position, task in enumerate(chosen):
            if time.monotonic() > stop_at:
                print(
                    f"out of time: {len(chosen) - position} of {len(chosen)} operators are left, from {task.name} on",
                    flush=True,
                )
                break
            missed: Counter[str] = Counter()
            found = list(cross(task, places, count, seed, missed))
            left_out.update(missed)
            done, failed = done + len(found), failed + sum(bool(one.problems) for one in found) + (not found)
            worst = {
                name: max(one.errors.get(name, 0.0) for one in found)
                for name in dict.fromkeys(name for one in found for name in one.errors)
            }
            print(
                f"{task.name}: {len(found)} configs;"
                f" {', '.join(f'{name} {error:.1e}' for name, error in worst.items()) or 'NO COMMON CONFIG'}",
                flush=True,
            )
            if len(found) < 1 + count:
                print(
                    f"    {1 + count - len(found)} fewer than asked for: of those drawn, {missed.total()} were"
                    " left out",
                    flush=True,
                )
            for one in found:
                for problem in one.problems:
                    print(f"    {problem}\n    {one.configs[0]}", flush=True)
    if left_out:
        print(
            f"{left_out.total()} configs that were drawn were left out:"
            f" {'; '.join(f'{n} as {reason}' for reason, n in left_out.most_common(8))}",
            flush=True,
        )
    print(f"{done} configs on {' and '.join(place.text for place in places)}: {failed} failed or differ{missing}")
    return failed


@click.command()
@click.option("--target", default="opencl", show_default=True)
@click.option("--targets", default="", help="Several with commas: the same config on all of them that are here.")
@click.option(
    "--configs", type=click.IntRange(min=0), default=1, show_default=True, help="Random ones, beside the default."
)
@click.option("--only", default="", help="Operators whose name contains this.")
@click.option("--skip", default="", help="Not those whose name contains this.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="Type of the numbers in memory.",
)
@click.option(
    "--where", default="", metavar="KNOB=CHOICE", help="Random configs with this choice, and no default ones."
)
@click.option("--compile-only", "is_compiled_only", is_flag=True, help="Run nothing.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=float("inf"),
    help="Begin no operator after this time.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def main(
    target: str,
    targets: str,
    configs: int,
    only: str,
    skip: str,
    dtype: str,
    where: str,
    is_compiled_only: bool,
    seconds: float,
    seed: int,
) -> None:
    """Print a line for each operator. The exit code is 1 if a config failed."""
    texts = [text.strip() for text in targets.split(",") if text.strip()]
    try:
        if texts and is_compiled_only:
            raise UsageError("--compile-only gives no outputs that --targets could compare")
        stop_at = time.monotonic() + seconds
        knob, separator, choice = where.partition("=")
        if where and (texts or not separator):
            raise UsageError("--where takes KNOB=CHOICE, and no --targets beside it")
        listed = Listed(only=only, skip=skip, dtype=dtype, where=(knob, choice) if where else None)
        if texts:
            raise SystemExit(1 if check_across(listed, texts, configs, seed, stop_at) else 0)
        failed = check(listed, target, configs, seed, stop_at, is_compiled_only)
    except RomouError as error:
        raise SystemExit(f"{error}") from error
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
