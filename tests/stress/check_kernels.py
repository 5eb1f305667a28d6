#!/usr/bin/env python3
"""Compares kernels of every operator family with the CPU, on any OpenCL platform or in Oclgrind, which checks each
access to memory.

    python tests/stress/check_kernels.py --configs 200                                     the first OpenCL device
    python tests/stress/check_kernels.py --configs 200 --platform "Intel(R) OpenCL"        a device by its platform or name
    python tests/stress/check_kernels.py --configs 500 --oclgrind --jobs 2                 data races, bounds, uninitialised values, API use

Configs cycle through the families' typical cases, in fp32 and fp16: the default one first, then random ones of the
whole spaces, in buffers and images, with random sets of optional passes left out. A number means the same config in
every run with the same seed, and --first begins with that number. Oclgrind comes with `apt-get install oclgrind`. Each
config has a separate process and log, and every entry of the log is a fault. Oclgrind does not follow uninitialised
values through images. Code that `watched_images.py` adds to the kernels does.
"""  # noqa: E501

from __future__ import annotations

import concurrent.futures
import faulthandler
import functools
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import click

import watched_images

OCLGRIND = "/usr/lib/oclgrind/liboclgrind-rt.so"
# Races between work-items that write the same value are races, too. With Oclgrind's own limit of errors, faults of
# later kernels would not be reported.
WATCH = {
    f"OCLGRIND_{what}": "1" for what in ("DATA_RACES", "UNIFORM_WRITES", "UNINITIALIZED", "CHECK_API", "NUM_THREADS")
}
WATCH |= {"OCLGRIND_MAX_ERRORS": "10000000"}
# Not optimized: an optimizer removes reads that change nothing, and adds instructions (freeze) that end the search for
# uninitialised values.
PLAIN = {"ROMOU_OPENCL_BUILD_OPTIONS": "-cl-opt-disable"}
# Passes that only change how a kernel is written. A kernel is wrong without the others.
OPTIONAL_PASSES = ("eliminate_addresses", "share_loads", "vectorize_pointers", "spell_arithmetic")
DTYPES = ("float32", "float16")
# A phone's kernels read images, a CPU's do not.
PHONE, HOST = "opencl -device=adreno640", "opencl -device=host"
# For each round through the cases: target, whether configs are the default ones, and the type of the first case. Every
# other case has the other type. Later rounds repeat these with random configs.
ROUNDS = (
    (PHONE, True, 0),
    (HOST, False, 1),
    (PHONE, False, 1),
    (HOST, True, 1),
    (HOST, False, 0),
    (PHONE, False, 0),
    (PHONE, True, 1),
    (HOST, True, 0),
)


# (Number of a config, part of a task's name) -> (name of the config, its fault). Both are None for another task.
Run = Callable[[int, str], tuple[str | None, str | None]]


def watched(library: str) -> dict[str, str]:
    """Return the environment of a process that runs kernels in Oclgrind."""
    # It offers fp16, but stops at conversions of vectors of fp16.
    without_fp16 = {"OCLGRIND_BUILD_OPTIONS": "-Ucl_khr_fp16"}
    return {"ROMOU_OPENCL_LIBRARY": library, "ROMOU_OPENCL_DEVICE": "", **WATCH, **PLAIN, **without_fp16}


class Log:
    """Oclgrind's log of this process. It is empty without Oclgrind."""

    def __init__(self, folder: str | None) -> None:
        self.path = Path(folder) / f"{os.getpid()}.log" if folder else None
        self._length = 0
        if self.path is not None:
            # Read when the library is opened, at the first query for a device.
            os.environ.update(OCLGRIND_LOG=str(self.path))

    def news(self) -> list[str]:
        """Return the faults that were added since the last call."""
        if self.path is None or not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._length)
            added = file.read()
        self._length += len(added)
        # Messages end with an empty line.
        return [text.strip() for text in added.decode(errors="replace").split("\n\n") if text.strip()]


def watch(edit: Callable[[str], str] = str) -> None:
    """Add checks that Oclgrind lacks to all kernels built from now on. `edit` changes each source first."""
    import tvm_ffi

    tvm_ffi.register_global_func(
        "tvm_callback_opencl_postproc", lambda source, _target: watched_images.watched(edit(source))
    )


def check(numbers: range, seed: int, only: str, avoid: str, folder: str | None) -> list[str]:
    """Run the configs of these numbers. Print a line for each, and return the lines of failed configs. folder: of the
    logs, if Oclgrind runs.
    """
    run: Run
    if folder is None:
        run = runner(seed, avoid, facts())
    else:
        watch()
        run = functools.partial(_run_alone, runner(seed, avoid, alone(facts)), folder)
    failed = []
    for number in numbers:
        started = time.monotonic()
        name, fault = run(number, only)
        if name is None:
            continue
        line = f"{number} {name}: {fault or 'ok'} ({time.monotonic() - started:.2f} s)"
        print(line, flush=True)
        failed += [line] if fault else []
    return failed


def _run_alone(run: Run, folder: str, number: int, only: str) -> tuple[str | None, str | None]:
    """Run a config in a new process. If a buffer reuses the address of a released one, Oclgrind keeps the old one's
    state up to its size.
    """

    def watched_run() -> tuple[str | None, str | None]:
        log = Log(folder)
        name, fault = run(number, only)
        if news := log.news():
            fault = f"{fault or ''}\n{len(news)} faults, the first: {news[0]}"
        return name, fault if name is None or Path(str(log.path)).exists() else "it left no log: Oclgrind did not run"

    try:
        found: tuple[str | None, str | None] = alone(watched_run)
        return found
    except EOFError:
        return str(number), "its process died"


def alone(function: Callable[[], Any]) -> Any:
    """Return a function's result from a fork of this process, which has not opened a device yet. EOFError if the fork
    died.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        # A crash is a result, and pytest would print a trace of it.
        faulthandler.disable()
        sender.send(function())

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def facts() -> dict[str, Any]:
    """Return the facts of the device."""
    from romou.devices.targets import Target

    return Target(PHONE).backend.facts(0)


class Drawn(NamedTuple):
    """A config that a number stands for.

    place: number of the task among those of a type.
    without: optional passes left out.
    """

    task: Any
    place: int
    dtype: str
    target: Any
    config: Mapping[str, Any]
    without: Sequence[str]

    @property
    def name(self) -> str:
        return f"{self.task.name} {self.dtype} on {self.target}, {self.config}, without {self.without}"


def drawer(seed: int, avoid: str, device_facts: Mapping[str, Any] | None, only: str = "") -> Callable[[int], Any]:
    """Return a function from a number to its `Drawn`, or to None if the task's name does not hold `only`.

    device_facts: facts of the device that limits the configs. None for no device.
    """
    # A process that only starts others does not need TVM.
    import numpy as np

    from romou.base.space import Config, Space
    from romou.compiler.typical import typical_tasks
    from romou.devices.targets import Target

    targets = {name: Target(name) for name in (PHONE, HOST)}
    limited = {
        name: target if device_facts is None else target.limited_to(device_facts) for name, target in targets.items()
    }
    tasks = {dtype: [task.with_free_images() for task in typical_tasks(limited[PHONE], dtype)] for dtype in DTYPES}

    def draw(space: Space, rng: np.random.Generator) -> Config:
        while True:
            (config,) = space.sample(rng, 1)
            if avoid not in (f"{name}={value}" for name, value in config.items()):
                return config

    def drawn(number: int) -> Drawn | None:
        turn, place = divmod(number, len(tasks[DTYPES[0]]))
        wanted, is_default, parity = ROUNDS[turn % len(ROUNDS)]
        dtype = DTYPES[(parity + place) % len(DTYPES)]
        task, target = tasks[dtype][place], limited[wanted]
        if only not in task.name:
            return None
        rng, is_default = np.random.default_rng([seed, number]), is_default and turn < len(ROUNDS)
        config = task.default_config(target) if is_default else draw(task.space(target), rng)
        without = [] if is_default else [name for name in OPTIONAL_PASSES if rng.random() < 0.25]
        return Drawn(task, place, dtype, target, config, without)

    return drawn


def runner(seed: int, avoid: str, device_facts: Mapping[str, Any]) -> Run:
    """Return a function that runs configs on the device with those facts. Its first call opens the device."""
    import numpy as np
    import tvm

    from romou.compiler.assembly.kernel import build_reference, build_task
    from romou.tuner.measure import verify
    from tvm_patches.runtime import device_tensor

    draw_of = functools.cache(lambda only: drawer(seed, avoid, device_facts, only))
    kept: dict[tuple[int, str], tuple[list[np.ndarray], np.ndarray]] = {}

    def case(drawn: Drawn) -> tuple[list[np.ndarray], np.ndarray]:
        if (key := (drawn.place, drawn.dtype)) in kept:
            return kept[key]
        task = drawn.task
        inputs, output = verify.make_inputs(task, seed), tvm.runtime.tensor(verify.poison(*verify.output_spec(task)))
        build_reference(task)["main"](*map(tvm.runtime.tensor, inputs), output)
        return kept.setdefault(key, (inputs, output.numpy()))

    def run(number: int, only: str) -> tuple[str | None, str | None]:
        drawn = draw_of(only)(number)
        if drawn is None:
            return None, None
        (inputs, expected), name = case(drawn), drawn.name
        task, target, config = drawn.task, drawn.target, drawn.config
        scopes = task.image_scopes(config, target)
        arrays = [*task.arguments(inputs, config), verify.poison(*verify.output_spec(task))]
        device = target.backend.device()
        try:
            with tvm.transform.PassContext(disabled_pass=drawn.without):
                module = build_task(task, config, target)
            names = [str(parameter.name) for parameter in task.func.params]
            tensors = [
                device_tensor(array, device, scopes.get(n, "global")) for n, array in zip(names, arrays, strict=True)
            ]
            module["main"](*tensors)
            found = tensors[-1].numpy()
        except Exception as error:  # whatever a driver answers is the finding
            return name, f"{type(error).__name__}: {error}"
        return name, verify.compare(found, expected).problem

    return run


@click.command()
@click.option(
    "--configs",
    type=click.IntRange(min=1),
    default=48,
    show_default=True,
    help="How many, the default configs among them.",
)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first one.")
@click.option(
    "--step",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="From one number to the next: few configs go through all rounds.",
)
@click.option("--only", default="", help="Operators whose name contains this.")
@click.option("--avoid", default="", metavar="KNOB=VALUE", help="Draw no random config with this.")
@click.option("--platform", default=None, help="Part of the name of a platform or device; see ROMOU_OPENCL_DEVICE.")
@click.option("--oclgrind", "is_watched", is_flag=True, help="Run kernels in Oclgrind.")
@click.option("--library", default=OCLGRIND, show_default=True, help="Oclgrind's.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def main(
    configs: int,
    first: int,
    step: int,
    only: str,
    avoid: str,
    platform: str | None,
    is_watched: bool,
    library: str,
    jobs: int,
    seed: int,
) -> None:
    """Print a line for each config. The exit code is 1 if one failed or its process died."""
    if is_watched and not Path(library).exists():
        raise SystemExit(f"{library} is missing: apt-get install oclgrind (Debian, Ubuntu), or give --library")
    # Read by the processes that are started below, when they look for devices.
    os.environ.update({"ROMOU_OPENCL_DEVICE": platform} if platform else {}, **(watched(library) if is_watched else {}))
    failed: list[str] = []
    with (
        tempfile.TemporaryDirectory() as logs,
        concurrent.futures.ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1
        ) as pool,
    ):
        numbers = range(first, first + configs * step, step)
        parts = [
            pool.submit(check, numbers[i::jobs], seed, only, avoid, logs if is_watched else None) for i in range(jobs)
        ]
        for part in parts:
            try:
                failed += part.result()
            except BrokenProcessPool:
                failed.append("a process died of the config behind its last line")
        pages = [path.name for path in Path(logs).iterdir()]
    print(
        *failed, f"{configs} configs, {len(failed)} failed" + (f"; logs: {len(pages)}" if is_watched else ""), sep="\n"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
