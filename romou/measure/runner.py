"""Runs candidates on a device of this machine."""

from __future__ import annotations

import dataclasses
import math
import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from romou.errors import BuildError, UsageError
from romou.measure.child import ChildBugError, ChildCrashError, ChildProcess, ChildTimeoutError, seconds_left
from romou.measure.fingerprint import DeviceFingerprint
from romou.measure.options import MeasureOptions
from romou.measure.run_job import RunReply, RunSpec
from romou.measure.types import BuildResult, MeasureResult, TaskLike, Toolchain

_DEVICE_TIMEOUT_S = 60.0
# Of run_timeout_s, how much the timed launches may take; loading and the driver's compiler need the rest.
_TIMING_SHARE = 1 / 3


class LocalRunner:
    """`Runner` with one process that holds the device, one candidate at a time.

    The process lives on between candidates. One that hangs is killed ("timeout"), one that takes the process down is a "run_error"
    naming the signal; the next candidate starts a new process.

    With several processes `run` may be called by as many threads: the driver compiles their candidates at the same time, and the device
    still runs one at a time.

    Parameters
    ----------
    device
        "opencl:0", "cpu:0".
    folder
        Where inputs and reference outputs are kept (one file a task); a temporary folder, removed by `close`, where None.
    processes
        That load candidates and wait for the driver's compiler.
    """

    def __init__(
        self, device: str, options: MeasureOptions | None = None, *, toolchain: Toolchain | None = None, folder: Path | None = None, processes: int = 1
    ) -> None:
        self._device = device
        self._options = options or MeasureOptions()
        self._toolchain = toolchain or Toolchain()
        self._children = [ChildProcess("device") for _ in range(processes)]
        self._idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
        for child in self._children:
            self._idle.put(child)
        self._device_lock = threading.Lock()
        self._reference_lock = threading.Lock()
        # The reference has a process of its own: it is trusted code, and must not die with a candidate.
        self._reference_child = ChildProcess("reference")
        self._temporary = None if folder is not None else tempfile.TemporaryDirectory(prefix="romou-run-")
        self._folder = folder if folder is not None else Path(self._temporary.name)  # type: ignore[union-attr]
        self._references: dict[str, str] = {}
        self._fingerprint: DeviceFingerprint | None = None

    def fingerprint(self) -> DeviceFingerprint:
        """Name, driver and platform of the device; DeviceError where there is none."""
        if self._fingerprint is None:
            found = self._children[0].call("romou.measure.fingerprint:device_fingerprint", self._device, timeout_s=_DEVICE_TIMEOUT_S)
            assert isinstance(found, DeviceFingerprint)
            self._fingerprint = found
        return self._fingerprint

    def run(self, batch: Sequence[BuildResult], *, best_s: float | None = None, stop_at: float | None = None) -> Iterator[MeasureResult]:
        """See `Runner.run`.

        Raises
        ------
        UsageError
            A candidate without a library.
        BuildError
            The reference of a task cannot be computed.
        DeviceError
            The device is gone.
        """
        best = math.inf if best_s is None else best_s
        for built in batch:
            if built.library is None:
                raise UsageError(f"trial {built.candidate.trial} was not built ({built.outcome}); only built candidates can run")
            with self._reference_lock:
                reference = self._reference(built.candidate.task, stop_at)
            reply = None if reference is None else self._run_one(built.library, built.scopes, reference, best, stop_at)
            if reply is None:
                return
            result = MeasureResult(candidate=built.candidate, seed=self._options.seed, **{f.name: getattr(reply, f.name) for f in dataclasses.fields(reply)})
            if result.times_s:
                best = min(best, median(result.times_s))
            yield result

    def _run_one(self, library: str, scopes: tuple[str, ...], reference: str, best_s: float, stop_at: float | None) -> RunReply | None:
        options = self._options
        limit_s = min(options.run_timeout_s, seconds_left(stop_at))
        if limit_s <= 0:
            return None
        spec = RunSpec(
            library=library,
            scopes=scopes,
            reference=reference,
            device=self._device,
            repeat=options.repeat,
            min_repeat_ms=options.min_repeat_ms,
            skip_above_s=best_s * options.skip_ratio,
            timing_limit_s=options.run_timeout_s * _TIMING_SHARE,
        )
        child = self._idle.get()
        start = time.monotonic()
        try:
            if len(self._children) > 1:
                child.call("romou.measure.run_job:compile_kernels", library, self._device, timeout_s=limit_s)
            compile_s = time.monotonic() - start
            with self._device_lock:
                # Waiting for the device is no part of the candidate's time.
                limit_s, start = min(options.run_timeout_s, seconds_left(stop_at)), time.monotonic() - compile_s
                reply = child.call("romou.measure.run_job:run", spec, timeout_s=limit_s)
        except ChildTimeoutError:
            if limit_s < options.run_timeout_s:
                return None
            reply = RunReply(outcome="timeout", error=f"not loaded, run, checked and timed within run_timeout_s = {options.run_timeout_s:g} s")
        except ChildCrashError as crash:
            reply = RunReply(outcome="run_error", error=str(crash))
        finally:
            self._idle.put(child)
        assert isinstance(reply, RunReply)
        return dataclasses.replace(reply, run_s=time.monotonic() - start)

    def _reference(self, task: TaskLike, stop_at: float | None) -> str | None:
        """The file with inputs and reference of `task`; None where `stop_at` came first."""
        if task.key in self._references:
            return self._references[task.key]
        limit_s = min(self._options.reference_timeout_s, seconds_left(stop_at))
        arguments = (self._toolchain, task.to_json(), self._options.seed, str(self._folder))
        try:
            path = self._reference_child.call("romou.measure.run_job:prepare", *arguments, timeout_s=limit_s)
        except ChildTimeoutError:
            if limit_s < self._options.reference_timeout_s:
                return None
            raise BuildError(
                f"{task.name}: its reference result took longer than reference_timeout_s = {limit_s:g} s", task=task.name, hint="Raise reference_timeout_s."
            ) from None
        except ChildCrashError as crash:
            raise ChildBugError(f"{task.name}: computing the reference on the CPU failed: {crash}") from crash
        self._references[task.key] = str(path)
        return self._references[task.key]

    def close(self) -> None:
        """End the processes and remove the temporary folder."""
        for child in self._children:
            child.kill()
        self._reference_child.kill()
        if self._temporary is not None:
            self._temporary.cleanup()
