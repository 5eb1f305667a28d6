#!/usr/bin/env python3
"""Measures thousands of configs of eight operators on the attached device and keeps them.

Searches can then be compared without the device.

    python benchmarks/record_spaces.py --out FOLDER                                   2000 configs an operator, all operators
    python benchmarks/record_spaces.py --out FOLDER --operators conv1x1,dense --configs 500 --jobs 8 --seconds 300

docs/evidence/benchmarks.md describes the method and the output.
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click
import numpy as np
import tvm

import romou
from romou.base.clock import timestamp
from romou.base.errors import RomouError, UsageError, unknown_name
from romou.base.space import Config, Space
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tuner.measure import Candidate, LocalBuilder, LocalRunner, MeasureOptions
from romou.tuner.pruning.tasks import pruned_space
from romou.tuner.records.recorded_space import RecordedConfig, RecordedSpace

# Shapes of MobileNetV1 and V2, ResNet-18, Inception v3 and AlexNet, in fp32 with bias and ReLU.
OPERATORS: dict[str, Conv2d | Dense] = {
    "conv1x1": conv(256, (28, 28), 256, (1, 1)),
    "conv3x3": conv(64, (56, 56), 64, (3, 3), padding=(1, 1, 1, 1)),
    "depthwise3x3": conv(144, (56, 56), 144, (3, 3), padding=(1, 1, 1, 1), groups=144),
    "dense": Dense(m=1, k=1280, n=1000, dtype="float32"),
    "conv7x1_prime": conv(192, (17, 17), 192, (7, 1), padding=(3, 0, 3, 0)),
    "conv3x3_grouped": conv(384, (13, 13), 384, (3, 3), padding=(1, 1, 1, 1), groups=2),
    "conv3x3_stride2": conv(128, (28, 28), 256, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1)),
    # A first layer, of four channels. It takes the longest to build, so it comes last and uses the seconds that the
    # others leave.
    "conv7x7_stride2": conv(4, (224, 224), 64, (7, 7), stride=(2, 2), padding=(3, 3, 3, 3)),
}
# Operators with fewer recorded configs, for training the cost model (benchmarks/pretrain_cost_model.py).
MORE: dict[str, Conv2d | Dense] = {
    "more1x1_56": conv(64, (56, 56), 256, (1, 1)),
    "more1x1_28": conv(512, (28, 28), 128, (1, 1)),
    "more1x1_14": conv(1024, (14, 14), 256, (1, 1)),
    "more1x1_7": conv(320, (7, 7), 1280, (1, 1)),
    "more1x1_narrow": conv(96, (56, 56), 24, (1, 1)),
    "more3x3_28": conv(128, (28, 28), 128, (3, 3), padding=(1, 1, 1, 1)),
    "more3x3_14": conv(256, (14, 14), 256, (3, 3), padding=(1, 1, 1, 1)),
    "more3x3_7": conv(512, (7, 7), 512, (3, 3), padding=(1, 1, 1, 1)),
    "more3x3_stride2": conv(64, (56, 56), 128, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1)),
    "more3x3_first": conv(4, (224, 224), 32, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1)),
    "more3x3_grouped": conv(128, (28, 28), 128, (3, 3), padding=(1, 1, 1, 1), groups=4),
    "more1x7": conv(128, (17, 17), 128, (1, 7), padding=(0, 3, 0, 3)),
    "more5x5": conv(48, (35, 35), 64, (5, 5), padding=(2, 2, 2, 2)),
    "more_depthwise_14": conv(512, (14, 14), 512, (3, 3), padding=(1, 1, 1, 1), groups=512),
    "more_depthwise_stride2": conv(96, (112, 112), 96, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1), groups=96),
    "more_dense": Dense(m=1, k=2048, n=1000, dtype="float32"),
}
MEASURE = MeasureOptions(
    repeat=3, min_repeat_ms=1.0, skip_ratio=5.0, race_ratio=5.0, build_timeout_s=30.0, run_timeout_s=10.0
)
AGAIN = dataclasses.replace(MEASURE, repeat=7, min_repeat_ms=5.0, skip_ratio=20.0, race_ratio=20.0)
# The number of fastest configs to time again, and the share of an operator's seconds kept for that.
AGAIN_CONFIGS, AGAIN_SHARE = 48, 0.15
FLUSH_S, TELL_S = 2.0, 10.0
ERROR_CHARS = 160


def is_same_space(one: RecordedSpace, other: RecordedSpace) -> bool:
    """Return whether one file may hold the configs of both: the task, knobs and device are equal."""
    first, second = (
        json.dumps([getattr(s, n) for n in ("name", "task", "knobs", "device")], sort_keys=True) for s in (one, other)
    )
    # The order of knobs determines the numbers of the configs.
    return first == second and list(one.knobs) == list(other.knobs)


class Recorder:
    """Measures the configs of one operator into its file."""

    def __init__(
        self,
        name: str,
        folder: Path,
        target: Target,
        facts: dict[str, Any],
        runner: LocalRunner,
        configs: int,
        seed: int,
        pruned: Space | None = None,
    ) -> None:
        work = {**OPERATORS, **MORE}[name]
        self.task: TunableTask = task_of(work).with_free_images()
        self.space = self.task.space(target)
        self.path = RecordedSpace.path_in(folder, name)
        limits = target.limits
        self.recorded = RecordedSpace(
            name=name,
            task={
                "key": self.task.key,
                "name": self.task.name,
                "family": self.task.family,
                "flops": self.task.flops,
                "workload": work.to_dict(),
            },
            knobs=self.space.knobs,
            device=runner.fingerprint().to_dict(),
            context={
                "target": str(target),
                "limits": dataclasses.asdict(limits),
                "facts": facts,
                "size": self.space.size,
                "default": self.space.index_of(self.task.default_config(target)),
                "seed": seed,
                "measure": dataclasses.asdict(MEASURE),
                "again": dataclasses.asdict(AGAIN),
                "time": timestamp(),
                "romou": romou.__version__,
                "tvm": tvm.__version__,
            },
        )
        if self.path.exists():
            before = RecordedSpace.load(self.path)
            if not is_same_space(before, self.recorded):
                raise UsageError(f"{self.path} holds another task, space or device", hint="Give another folder.")
            self.recorded.configs = before.configs
        # Also removes an incomplete end that a killed writer left.
        self.recorded.start(self.path)
        rng = np.random.default_rng([seed, int(self.task.key, 16)])
        self.drawn_from = pruned or self.space
        self.wanted = list(dict.fromkeys([self.recorded.context["default"], *self._drawn(rng, configs)]))
        self.best_s = self._best()

    def _drawn(self, rng: np.random.Generator, count: int) -> list[int]:
        """Draw the indices of `count` random configs, or fewer if the space has no more."""
        drawn: dict[str, Config] = {}
        # If constraints leave little of the product, one call does not find enough.
        while configs := self.drawn_from.sample(rng, count - len(drawn), exclude=drawn):
            drawn.update((config.key, config) for config in configs)
            if len(drawn) == count:
                break
        return [self.space.index_of(config) for config in drawn.values()]

    def _best(self) -> float | None:
        return min((c.time_s for c in self.recorded.configs.values() if c.time_s is not None), default=None)

    def candidate(self, index: int) -> Candidate:
        return Candidate(task=self.task, config=self.space.at(index), trial=index)

    def measure(self, index: int, builder: LocalBuilder, runner: LocalRunner, stop_at: float) -> RecordedConfig | None:
        """Build, check and time one config. None if `stop_at` comes first."""
        results = builder.build([self.candidate(index)], stop_at=stop_at)
        if not results:
            return None
        built = results[0]
        if built.library is None:
            return RecordedConfig(index=index, outcome=built.outcome, build_s=built.seconds, error=_short(built.error))
        try:
            measured = list(runner.run([built], best_s=self.best_s, stop_at=stop_at))
        finally:
            Path(built.library).unlink(missing_ok=True)
        if not measured:
            return None
        result = measured[0]
        if result.times_s:
            self.best_s = min(statistics.median(result.times_s), self.best_s or math.inf)
        return RecordedConfig(
            index=index,
            outcome=result.outcome,
            times_s=result.times_s,
            build_s=built.seconds,
            run_s=result.run_s,
            error=_short(result.error),
        )

    def measure_all(self, builder: LocalBuilder, runner: LocalRunner, jobs: int, stop_at: float) -> None:
        """Measure all configs that have no result yet, `jobs` at a time."""
        left = [i for i in self.wanted if i not in self.recorded.configs]
        done, reported_at = 0, time.monotonic()
        start = reported_at
        pool = ThreadPoolExecutor(jobs)
        try:
            waiting: set[Future[RecordedConfig | None]] = {
                pool.submit(self.measure, i, builder, runner, stop_at) for i in left
            }
            while waiting:
                finished, waiting = wait(waiting, timeout=FLUSH_S)
                configs = [c for c in (future.result() for future in finished) if c is not None]
                self.recorded.append(self.path, configs)
                done += len(configs)
                if time.monotonic() - reported_at > TELL_S:
                    reported_at = time.monotonic()
                    best = "nothing works yet" if self.best_s is None else f"best {self.best_s * 1e3:.4f} ms"
                    print(
                        f"{self.recorded.name}: {done} of {len(left)}, {done / (reported_at - start):.1f} configs/s,"
                        f" {best}",
                        flush=True,
                    )
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def measure_again(self, builder: LocalBuilder, runner: LocalRunner, stop_at: float) -> None:
        """Measure the fastest configs and the default once more, one after another, after all builds."""
        timed = sorted((c.time_s, c.index) for c in self.recorded.configs.values() if c.time_s is not None)
        wanted = dict.fromkeys(
            [i for _, i in timed[:AGAIN_CONFIGS]] + [i for _, i in timed if i == self.recorded.context["default"]]
        )
        left = [i for i in wanted if not self.recorded.configs[i].again_s]
        again = []
        for built in builder.build([self.candidate(i) for i in left], stop_at=stop_at):
            if built.library is None:
                continue
            for result in runner.run([built], stop_at=stop_at):
                # A config that ran before and fails now does not work reliably: it counts as failed.
                before = self.recorded.configs[built.candidate.trial]
                again.append(
                    dataclasses.replace(
                        before, outcome=result.outcome, again_s=result.times_s, error=_short(result.error)
                    )
                )
            Path(built.library).unlink(missing_ok=True)
        self.recorded.append(self.path, again)
        self.recorded.start(self.path)

    def tell(self, seconds: float) -> None:
        """Print one line about the results."""
        configs = self.recorded.configs.values()
        outcomes = ", ".join(
            f"{count} {outcome}" for outcome, count in Counter(c.outcome for c in configs).most_common()
        )
        default = self.recorded.configs.get(self.recorded.context["default"])
        best_s, default_s = self._best(), default.time_s if default else None
        ratios = [statistics.median(c.again_s) / statistics.median(c.times_s) for c in configs if c.again_s]
        again = (
            f"; again / first: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
            if ratios
            else ""
        )
        best = "nothing works" if best_s is None else f"best {best_s * 1e3:.4f} ms"
        reference = "" if default_s is None else f", default {default_s * 1e3:.4f} ms"
        print(
            f"{self.recorded.name}: {len(configs)} of {self.space.size} ({outcomes}); {best}{reference}{again};"
            f" {seconds:.0f} s, {self.path}",
            flush=True,
        )


def _short(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())[:ERROR_CHARS]


def record(
    names: Sequence[str], folder: Path, target: Target, configs: int, jobs: int, seconds: float, seed: int, prune: bool
) -> None:
    """Record all operators, one after another."""
    index = target.backend.device_index(target.device_name)
    facts = target.backend.facts(index)
    here = target.limited_to(facts)
    device = f"{target.kind}:{index}"
    stop_at = time.monotonic() + seconds
    tasks = {name: task_of({**OPERATORS, **MORE}[name]).with_free_images() for name in names}
    spaces: dict[str, Space] = {name: pruned_space(task, here) for name, task in tasks.items()} if prune else {}
    with ExitStack() as stack:
        builder = stack.enter_context(closing(LocalBuilder(here, dataclasses.replace(MEASURE, build_workers=jobs))))
        runner = stack.enter_context(closing(LocalRunner(device, MEASURE, processes=jobs)))
        quiet = stack.enter_context(closing(LocalRunner(device, AGAIN)))
        for position, name in enumerate(names):
            start = time.monotonic()
            share = max(0.0, stop_at - start) / (len(names) - position)
            recorder = Recorder(name, folder, here, facts, runner, configs, seed, spaces.get(name))
            recorder.measure_all(builder, runner, jobs, start + share * (1 - AGAIN_SHARE))
            recorder.measure_again(builder, quiet, start + share)
            recorder.tell(time.monotonic() - start)


@click.command()
@click.option(
    "--out", "folder", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where the files go."
)
@click.option("--operators", default=",".join(OPERATORS), show_default=True, help="Which ones, with commas.")
@click.option(
    "--configs",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    help="Of each operator, beside the default.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=os.cpu_count() or 1,
    show_default="one a core",
    help="Configs at a time.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=math.inf,
    show_default=True,
    help="For all operators together.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--target", default="opencl", show_default=True)
@click.option("--prune", is_flag=True, help="Draw from what the criteria leave by the facts of the target's device.")
def main(
    folder: Path, operators: str, configs: int, jobs: int, seconds: float, seed: int, target: str, prune: bool
) -> None:
    """Record spaces as the file's docstring describes."""
    # A time limit from outside ends the worker processes as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = [name.strip() for name in operators.split(",") if name.strip()]
    try:
        for name in names:
            if name not in OPERATORS and name not in MORE:
                raise unknown_name("operator", name, [*OPERATORS, *MORE])
        record(names, folder, Target(target), configs, jobs, seconds, seed, prune)
    except RomouError as error:
        raise SystemExit(f"record_spaces: {error}") from error


if __name__ == "__main__":
    main()
