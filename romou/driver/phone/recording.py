"""The recording of a phone: ArchProbe's quick set, and configs of real layers, timed while the clock is held up."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from romou.base.clock import timestamp
from romou.base.interpreter import child_environment, python_command
from romou.base.outcome import Outcome
from romou.compiler.operators.costs.estimate import estimable
from romou.driver.options import PhoneRecordOptions
from romou.driver.phone.layers import CONFIGS, ChosenConfig, choose, operators
from romou.driver.site import remote_runner
from romou.runtime.rpc import Address
from romou.runtime.rpc.keys import VARIABLE
from romou.tuner.measure import (
    Builder,
    BuildResult,
    Candidate,
    LocalBuilder,
    MeasureOptions,
    MeasureResult,
    RpcRunner,
    Runner,
)
from romou.tuner.pruning.tasks import pruned_task
from romou.tuner.records import Origin
from romou.tuner.records.recording import RecordedTrial, Recording, recordable_task
from romou.tuner.search.session import record_of

if TYPE_CHECKING:
    from romou.compiler.operators.workload import Workload
    from romou.compiler.task import TunableTask
    from romou.devices.targets import Target

# The clock is looked at around each candidate, so the runner need not pause.
MEASURE = MeasureOptions(hold_clock_ms=40.0, skip_ratio=8.0, race_ratio=3.0, cool_down_s=0.0, unreachable_s=30.0)
_METHOD = (
    "The reference kernel, arithmetic only, runs for hold_clock_ms before each timing, without a pause between them. It"
    " is timed right before and right after the timings of a candidate (clock_s). A candidate with a reference time of"
    " more than clock_limit times the best is measured again after a pause."
)
# Pauses before a candidate is measured again, and the share of the minutes that all pauses may take.
_PAUSES_S, _PAUSE_SHARE = (1.0, 4.0), 0.15
_ARCHPROBE_SHARE = 0.25
_SENSORS_EVERY_S = 10.0
# Shortest time of an operator. Its reference and its first builds take a part of it.
_LEAST_SHARE_S = 20.0


def record_phone(
    path: Path,
    options: PhoneRecordOptions,
    *,
    works: Mapping[str, Workload] | None = None,
    configs: int = CONFIGS,
    measure: MeasureOptions = MEASURE,
    say: Callable[[str], None] = lambda line: None,
) -> Recording:
    """Record the device at an address into a file, until all is measured or the minutes are over.

    A file that was begun is continued. What was measured is in the file whatever happens.

    works: name -> operator. None for `phone_operators.operators`
    configs: number of configs of each operator
    say: called with each line of progress

    Raises
    ------
    UsageError
        The target has to name the device.
    RecordError
        The file is something else, or of another device or version, or cannot be written.
    DeviceError
        Nothing answers at the address, or the device went away.
    """
    stop_at = time.monotonic() + 60 * options.minutes
    if path.exists() and path.stat().st_size:
        # Before the phone is looked for.
        Recording.load(path)
    address = options.address()
    with remote_runner(options.parsed_target(), measure, address) as (site, runner):
        target = estimable(site.target)
        origin = Origin.here(runner.fingerprint().to_dict())
        recording = Recording.begin(path, origin, _header(target, runner, measure, options.seed))
        if options.archprobe and not (recording.archprobe or {}).get("ArchProbe", {}).get("IsComplete"):
            _add_archprobe(recording, address, runner.device, 60 * options.minutes * _ARCHPROBE_SHARE, say)
        with contextlib.closing(LocalBuilder(target, measure)) as builder:
            recorder = PhoneRecorder(recording, target, builder, runner, sensors=runner.sensors, stop_at=stop_at)
            recorder.record(operators(target) if works is None else works, configs, options.seed, say)
    return recording


def _header(target: Target, runner: RpcRunner, measure: MeasureOptions, seed: int) -> dict[str, Any]:
    return {
        "target": str(target),
        "facts": runner.facts,
        "host": runner.host,
        "seed": seed,
        "timing": {"method": _METHOD, **dataclasses.asdict(measure)},
        "time": timestamp(),
    }


def _add_archprobe(
    recording: Recording, address: Address, device: str, limit_s: float, say: Callable[[str], None]
) -> None:
    """Run `archprobe run --quick` and keep its report, also an unfinished one. Without a report, say why."""
    with tempfile.TemporaryDirectory(prefix="romou-archprobe-") as folder:
        report = Path(folder) / "report.json"
        if recording.archprobe is not None:
            report.write_text(json.dumps(recording.archprobe), encoding="utf-8")
        arguments = ("--rpc", address.where, "--device", device, "--quick", "--output", str(report))
        # The key is in no command line, which other users can read.
        environment = child_environment(**{VARIABLE: address.key})
        how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": limit_s, "check": False}
        try:
            done = subprocess.run(python_command("archprobe", "run", *arguments), env=environment, **how)
            problem = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]
        except subprocess.TimeoutExpired:
            problem = "it was not finished in time"
        if report.is_file():
            recording.append(json.dumps({"archprobe": json.loads(report.read_text(encoding="utf-8"))}))
    count = 0 if recording.archprobe is None else len(recording.archprobe) - 1
    say(f"archprobe: {count} aspects" + (f"; {problem}" if problem else ""))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Prepared:
    """An operator whose missing configs are being built.

    missing: configs without a trial, each with its build
    """

    name: str
    task: TunableTask
    work: Workload
    missing: Sequence[tuple[ChosenConfig, Future[BuildResult | None]]]


class PhoneRecorder:
    """Measures configs of operators into a recording, each while the clock is up.

    sensors: returns the phone's clocks and temperatures
    stop_at, clock, sleep: by `time.monotonic`, and its stand-ins in tests
    """

    def __init__(
        self,
        recording: Recording,
        target: Target,
        builder: Builder,
        runner: Runner,
        *,
        sensors: Callable[[], Mapping[str, Mapping[str, int]]],
        stop_at: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._recording, self._target, self._builder, self._runner = recording, target, builder, runner
        self._stop_at, self._clock, self._sleep = stop_at, clock, sleep
        self._sensors: Callable[[], Mapping[str, Mapping[str, int]]] | None = sensors
        self._sensed_at: float | None = None
        # Load from other processes hides the clock of a CPU, and a pause changes nothing.
        is_cpu = recording.header.get("facts", {}).get("type") == "cpu"
        self._pause_left_s = 0.0 if is_cpu else _PAUSE_SHARE * (stop_at - clock())
        self._clock_limit = float(recording.header["timing"]["clock_limit"])
        self._device = recording.origin.device

    def record(self, works: Mapping[str, Workload], configs: int, seed: int, say: Callable[[str], None]) -> None:
        """Measure all configs that have no trial yet.

        Each operator gets an equal share of the time that is left, or so much that it is worth it.
        """
        for left, prepared in self._each(works, configs, seed):
            now = self._clock()
            if now >= self._stop_at:
                break
            self._record_operator(prepared, min(self._stop_at, now + max(_LEAST_SHARE_S, (self._stop_at - now) / left)))
            say(self._line(prepared, configs))
        self._sense(is_due=True)

    def _each(self, works: Mapping[str, Workload], configs: int, seed: int) -> Iterator[tuple[int, _Prepared]]:
        """Yield (operators left, operator). The next one is pruned and built while the last one is measured."""
        with ThreadPoolExecutor(1, thread_name_prefix="romou-prepare") as thread:
            futures: list[Future[_Prepared]] = []
            try:
                for position, (name, work) in enumerate(works.items()):
                    futures.append(thread.submit(self._prepare, name, work, configs, seed))
                    if position:
                        yield len(works) - position + 1, futures.pop(0).result()
                if futures:
                    yield 1, futures.pop(0).result()
            finally:
                for future in futures:
                    future.cancel()

    def _prepare(self, name: str, work: Workload, configs: int, seed: int) -> _Prepared:
        task, target = pruned_task(recordable_task(work.to_dict()), self._target), self._target
        known = {_identity(trial.record.task_key, trial.record.config) for trial in self._recording.trials}
        chosen = [
            each
            for each in choose(task, target, configs, seed)
            if known.isdisjoint(_identity(key, dict(each.config)) for key in (task.key, task.structure))
        ]
        candidates = [Candidate(task=task, config=each.config, trial=number) for number, each in enumerate(chosen)]
        self._runner.expect([task] if chosen else [])
        builds = self._builder.start(candidates, stop_at=self._stop_at)
        return _Prepared(name=name, task=task, work=work, missing=list(zip(chosen, builds, strict=True)))

    def _record_operator(self, prepared: _Prepared, until: float) -> None:
        best_s: float | None = None
        for position, (chosen, future) in enumerate(prepared.missing):
            built = future.result() if self._clock() < until else None
            measured = None if built is None else self._measure(built, best_s, until)
            if built is None or measured is None:
                for _, rest in prepared.missing[position:]:
                    rest.cancel()
                return
            result, attempts = measured
            trial = self._trial(prepared, chosen, built, result, attempts)
            self._recording.append(trial.to_line())
            if built.library is not None:
                Path(built.library).unlink(missing_ok=True)
            seconds = trial.record.time_s
            best_s = seconds if best_s is None or (seconds is not None and seconds < best_s) else best_s

    def _trial(
        self, prepared: _Prepared, chosen: ChosenConfig, built: BuildResult, result: MeasureResult, attempts: int
    ) -> RecordedTrial:
        task, best_s = prepared.task, self._recording.best_clock_s
        ratio = _clock_ratio(result, best_s)
        record = record_of(
            task,
            dataclasses.replace(result, clock_ratio=ratio),
            self._device,
            self._target,
            build_s=built.seconds,
            expected_s=chosen.expected_s,
        )
        return RecordedTrial(
            record=record,
            family=task.family,
            workload=prepared.work.to_dict(),
            chosen_by=chosen.chosen_by,
            clock_s=result.clock_s,
            attempts=attempts,
        )

    def _measure(self, built: BuildResult, best_s: float | None, until: float) -> tuple[MeasureResult, int] | None:
        """Return the measurement with the steadiest clock, and the number of measurements. None if there was no time.

        A candidate is measured again, after a pause, while the reference kernel is slower than its best time.
        """
        if built.outcome != Outcome.OK:
            return MeasureResult(candidate=built.candidate, outcome=built.outcome, error=built.error), 1
        results: list[MeasureResult] = []
        for pause_s in (0.0, *_PAUSES_S):
            if pause_s:
                if pause_s > self._pause_left_s or self._clock() + pause_s >= until:
                    break
                self._pause_left_s -= pause_s
                self._sleep(pause_s)
            self._sense()
            result = next(iter(self._runner.run([built], best_s=best_s, stop_at=until)), None)
            if result is None:
                break
            results.append(result)
            known_s = self._recording.best_clock_s
            ratios = [_clock_ratio(each, known_s) or 1.0 for each in results]
            if ratios[-1] <= self._clock_limit:
                break
        if not results:
            return None
        return results[ratios.index(min(ratios))], len(results)

    def _sense(self, *, is_due: bool = False) -> None:
        """Keep clocks and temperatures, unless that was done a moment ago or the phone lets nothing be read."""
        now = self._clock()
        if self._sensors is None or (
            not is_due and self._sensed_at is not None and now - self._sensed_at < _SENSORS_EVERY_S
        ):
            return
        values = self._sensors()
        self._sensed_at = now
        if any(values.values()):
            self._recording.append(json.dumps({"time": timestamp(), **values}))
        else:
            self._sensors = None

    def _line(self, prepared: _Prepared, configs: int) -> str:
        """Return one line about an operator."""
        keys = (prepared.task.key, prepared.task.structure)
        trials = [trial for trial in self._recording.trials if trial.record.task_key in keys]
        drifted = sum(1 for trial in trials if trial.clock_s and not self._recording.is_steady(trial))
        texts = [f"{len(trials)} of {configs} configs"]
        for name, origins in (("best", None), ("default", ("default",)), ("first ten", ("estimate",))):
            times = [t.record.time_s for t in trials if origins is None or t.chosen_by in origins]
            best_s = min((seconds for seconds in times if seconds is not None), default=None)
            if best_s is not None:
                texts.append(f"{name} {best_s * 1e3:.4g} ms")
        return f"{prepared.name}: {', '.join(texts)}" + (f"; {drifted} with a slow clock" if drifted else "")


def _clock_ratio(result: MeasureResult, known_s: float | None) -> float | None:
    """Return the slower reference time around a measurement relative to the best one so far. None if not timed."""
    if not result.clock_s:
        return None
    return max(result.clock_s) / min(result.clock_s if known_s is None else (known_s, *result.clock_s))


def _identity(task_key: str, config: Mapping[str, object]) -> str:
    return json.dumps([task_key, config], sort_keys=True)
