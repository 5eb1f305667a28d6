"""The runner of candidates on a device of this machine."""

from __future__ import annotations

import dataclasses
import math
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from romou.base.device_lock import lock_path, saying_that_it_waits
from romou.base.errors import UsageError
from romou.base.outcome import Outcome
from romou.runtime.workers.child import ChildCrashError, ChildProcess, ChildTimeoutError, seconds_left
from romou.tuner.measure.fingerprint import DeviceFingerprint
from romou.tuner.measure.measure_options import MeasureOptions
from romou.tuner.measure.references import References
from romou.tuner.measure.run_job import RunSpec
from romou.tuner.measure.types import BuildResult, MeasureResult, RunReply, Toolchain

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask

_DEVICE_TIMEOUT_S = 60.0
# Share of run_timeout_s that the timed launches may take. Loading and the driver's compiler need the rest.
_TIMING_SHARE = 1 / 3
# Pause that lets a device change its clock, and the limit for all winners of a model together.
_PAUSE_S, _ALL_PAUSES_S = 0.2, 5.0
# Cores for each reference that is computed ahead, while candidates are built.
_CORES_OF_REFERENCE = 4


class CheckingRunner(ABC):
    """A runner that checks candidates against a reference.

    folder: folder of inputs and reference outputs, one file for each task. None: a temporary folder, removed by
        `close`
    """

    def __init__(self, options: MeasureOptions | None, toolchain: Toolchain | None, folder: Path | None) -> None:
        self._options = options or MeasureOptions()
        self._references = References(self._options, toolchain or Toolchain(), folder)

    @abstractmethod
    def _run_one(self, built: BuildResult, reference: str, best_s: float, stop_at: float | None) -> RunReply | None:
        """Run one candidate. Return None if `stop_at` came first."""

    def expect(self, tasks: Sequence[TunableTask]) -> None:
        """Compute the references of these tasks ahead. See `Runner.expect`."""
        self._references.expect(tasks, max(1, len(os.sched_getaffinity(0)) // _CORES_OF_REFERENCE))

    def run(
        self, batch: Sequence[BuildResult], *, best_s: float | None = None, stop_at: float | None = None
    ) -> Iterator[MeasureResult]:
        """Yield results. See `Runner.run`.

        Raises
        ------
        UsageError
            A candidate has no library.
        BuildError
            The reference of a task cannot be computed.
        DeviceError
            The device, or every server, is unreachable. The text names them.
        """
        best = math.inf if best_s is None else best_s
        for built in batch:
            reference = self._references.of(built.candidate.task, stop_at)
            reply = None if reference is None else self._run_one(built, reference, best, stop_at)
            if reply is None:
                return
            result = MeasureResult(candidate=built.candidate, seed=self._options.seed, **vars(reply))
            if result.times_s:
                best = min(best, median(result.times_s))
            yield result


class LocalRunner(CheckingRunner):
    """A runner for a device of this machine. It runs one candidate at a time in a process that owns the device.

    The process is reused. If a candidate hangs, the process is killed (TIMEOUT). If it crashes the process, the result
    is a RUN_ERROR with the signal. Then the next candidate starts a new process.

    If there are several processes, each may serve one thread that calls `run`. The driver compiles their candidates at
    the same time, and the device still runs one at a time.

    device: "opencl:0", "null:0"
    folder: see `CheckingRunner`
    processes: number of processes that load candidates and wait for the driver's compiler
    """

    def __init__(
        self,
        device: str,
        options: MeasureOptions | None = None,
        *,
        toolchain: Toolchain | None = None,
        folder: Path | None = None,
        processes: int = 1,
    ) -> None:
        super().__init__(options, toolchain, folder)
        self._device = device
        self._children = [ChildProcess("device") for _ in range(processes)]
        self._idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
        for child in self._children:
            self._idle.put(child)
        self._device_lock = threading.Lock()
        self._identified: tuple[DeviceFingerprint, str] | None = None

    @property
    def width(self) -> int:
        """Always 1: further processes only compile."""
        return 1

    def fingerprint(self) -> DeviceFingerprint:
        """Return name, driver and platform of the device. DeviceError if there is none."""
        return self._identify(self._children[0])[0]

    def _identify(self, child: ChildProcess) -> tuple[DeviceFingerprint, str]:
        if self._identified is None:
            self._identified = child.call(
                "romou.tuner.measure.run_job:open_device", self._device, timeout_s=_DEVICE_TIMEOUT_S
            )
        return self._identified

    def _take_device(self, child: ChildProcess, stop_at: float | None) -> Path | None:
        """Let `child` hold the device's lock until it has run a candidate. Return the lock's file or None."""
        fingerprint, identity = self._identify(child)
        path = lock_path(identity)
        if path is not None:
            with saying_that_it_waits(fingerprint.name, path):
                child.call("romou.tuner.measure.run_job:take_device", path, timeout_s=seconds_left(stop_at))
        return path

    def _run_one(self, built: BuildResult, reference: str, best_s: float, stop_at: float | None) -> RunReply | None:
        options = self._options
        spec = run_spec(built, reference, self._device, best_s, options)
        limit_s = min(options.run_timeout_s, seconds_left(stop_at))
        if limit_s <= 0:
            return None
        child = self._idle.get()
        start = time.monotonic()
        try:
            if len(self._children) > 1:
                child.call("romou.tuner.measure.run_job:compile_kernels", spec.library, self._device, timeout_s=limit_s)
            compile_s = time.monotonic() - start
            with self._device_lock:
                lock = self._take_device(child, stop_at)
                # Waiting for the device does not count as the candidate's time.
                limit_s, start = min(options.run_timeout_s, seconds_left(stop_at)), time.monotonic() - compile_s
                reply = child.call("romou.tuner.measure.run_job:run", spec, lock, timeout_s=limit_s)
        except ChildTimeoutError:
            if limit_s < options.run_timeout_s or not seconds_left(stop_at):
                return None
            reply = timed_out(options)
        except KeyboardInterrupt:
            # The process would hold the device's lock between calls.
            child.kill()
            raise
        except ChildCrashError as crash:
            reply = RunReply(outcome=Outcome.RUN_ERROR, error=str(crash))
        finally:
            self._idle.put(child)
        assert isinstance(reply, RunReply)
        return dataclasses.replace(reply, run_s=time.monotonic() - start)

    def close(self) -> None:
        """End the processes and remove the temporary folder."""
        for child in self._children:
            child.kill()
        self._references.close()


def run_spec(built: BuildResult, reference: str, device: str, best_s: float, options: MeasureOptions) -> RunSpec:
    """Return the data that a worker needs to run a built candidate. UsageError if it has no library."""
    if built.library is None:
        raise UsageError(
            f"trial {built.candidate.trial} was not built ({built.outcome}); only built candidates can run"
        )
    return RunSpec(
        library=built.library,
        entry=built.entry,
        scopes=built.scopes,
        names=tuple(str(parameter.name).removesuffix("_ptr") for parameter in built.candidate.task.func.params),
        stored=built.stored,
        reference=reference,
        device=device,
        repeat=options.winner_repeat if built.candidate.is_winner else options.repeat,
        min_repeat_ms=options.min_repeat_ms,
        # Winners are compared with each other, so none is cut short.
        skip_above_s=math.inf if built.candidate.is_winner else best_s * options.skip_ratio,
        race_above_s=math.inf if built.candidate.is_winner else best_s * options.race_ratio,
        timing_limit_s=options.run_timeout_s * _TIMING_SHARE,
        precision=built.candidate.task.precision(built.candidate.config),
        trust_runs=options.trust_runs if built.candidate.is_winner else 0,
        trust_s=min(options.trust_s, options.run_timeout_s * _TIMING_SHARE),
        hold_clock_s=options.hold_clock_ms / 1e3,
        trust_pause_s=min(_PAUSE_S, _ALL_PAUSES_S / built.candidate.winners),
    )


def timed_out(options: MeasureOptions) -> RunReply:
    """Return the reply of a candidate that exceeded the time limit."""
    return RunReply(
        outcome=Outcome.TIMEOUT,
        error=f"not loaded, run, checked and timed within run_timeout_s = {options.run_timeout_s:g} s",
    )
