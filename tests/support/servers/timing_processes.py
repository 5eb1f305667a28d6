"""Processes that time kernels on one device, for the tests of its lock.

    python -m support.servers.timing_processes KIND COUNT

They log the start and end of each timing in the folder LOG.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from romou.devices.targets import Target
from romou.runtime.module.machine import Machine
from romou.runtime.workers.child import ChildProcess
from romou.tuner.measure import Candidate, LocalBuilder, LocalRunner, MeasureOptions, Toolchain, run_job
from support.devices import faulty_kernels

ROUNDS = 3
OPTIONS = MeasureOptions(build_workers=1, min_repeat_ms=20)


@contextlib.contextmanager
def logged(*, is_locked: bool) -> Iterator[None]:
    start = time.monotonic()
    yield
    with Path(os.environ["LOG"], "in_turns" if is_locked else "beside").open("a") as log:
        log.write(json.dumps([start, time.monotonic(), os.environ["WHO"]]) + "\n")


def run(spec: run_job.RunSpec, lock: Path | None) -> Any:
    """Log and call `run_job.run`, in the process of the device."""
    real = run_job.check_and_time

    def check_and_time(*arguments: Any) -> Any:
        with logged(is_locked=lock is not None):
            return real(*arguments)

    run_job.check_and_time = check_and_time
    try:
        return run_job.run(spec, lock)
    finally:
        run_job.check_and_time = real


def rounds(count: int) -> Iterator[None]:
    """Yield ROUNDS times with the device's lock, then ROUNDS times without it. Each half begins when all `count`
    processes are ready.
    """
    folder = Path(os.environ["LOG"])
    for lock in "10":
        (folder / f"ready-{lock}-{os.getpid()}").touch()
        while len(list(folder.glob(f"ready-{lock}-*"))) < count:
            time.sleep(0.01)
        os.environ["ROMOU_DEVICE_LOCK"] = lock
        for _ in range(ROUNDS):
            yield


def tune(count: int) -> None:
    """Measure one candidate repeatedly."""
    call = ChildProcess.call

    def redirected(self: ChildProcess, function: str, *arguments: Any, **options: Any) -> Any:
        return call(
            self,
            "support.servers.timing_processes:run" if function == "romou.tuner.measure.run_job:run" else function,
            *arguments,
            **options,
        )

    ChildProcess.call = redirected  # type: ignore[method-assign]
    toolchain = Toolchain(build="support.devices.faulty_kernels:build")
    target = Target("opencl")
    with (
        contextlib.closing(LocalBuilder(target, OPTIONS, toolchain=toolchain)) as builder,
        contextlib.closing(LocalRunner("opencl:0", OPTIONS)) as runner,
    ):
        (built,) = builder.build([Candidate(task=faulty_kernels.task(), config=faulty_kernels.config(), trial=0)])
        runner.fingerprint()
        for _ in rounds(count):
            (result,) = runner.run([built])
            assert result.outcome == "ok", result.error
            assert len(result.times_s) == OPTIONS.repeat


def bench(count: int) -> None:
    """Time a model repeatedly."""
    import romou
    from support.models.small_networks import NetworkBuilder

    wall_ms = Machine._wall_ms

    def logged_ms(self: Machine, launch: Any) -> float:
        with logged(is_locked=os.environ["ROMOU_DEVICE_LOCK"] == "1"):
            time.sleep(0.05)
            return wall_ms(self, launch)

    graph = NetworkBuilder({"x": (1, 8, 9, 9)})
    model = romou.compile(graph.model(graph.conv("x", 8, 8)), target="opencl", verify=False)
    model.times(1, capture=False)
    Machine._wall_ms = logged_ms  # type: ignore[method-assign]
    for _ in rounds(count):
        assert len(model.times(2, clock="wall", capture=False)) == 2


if __name__ == "__main__":
    {"tune": tune, "bench": bench}[sys.argv[1]](int(sys.argv[2]))
