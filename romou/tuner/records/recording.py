"""A recording of a phone: a file of JSON lines with trials, clocks and temperatures, and ArchProbe's report.

    {"recording": 1, "origin": {...}, "target": ..., "facts": {...}, "timing": {...}}     the first line
    {"schema": 1, "task_key": ..., "clock_s": [before, after], ...}                        a trial, a line of records
    {"time": ..., "clocks": {...}, "temperatures": {...}}                                  what the phone's sensors say
    {"archprobe": {...}}                                                                   a report, the last one counts

Lines are appended as they are measured, so a run that is cut off loses nothing that was measured before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from romou.base.errors import RecordError, first_line
from romou.base.files import read_file, regular, replacing
from romou.base.foreign import parsed, refused
from romou.base.schema import Range, made_of, shown
from romou.compiler.operators.families import workload_of
from romou.compiler.single_operator import task_of
from romou.tuner.records.record import Origin, Record, record_data

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask

logger = logging.getLogger("romou")

RECORDING_SCHEMA = 1
START = b'{"recording": '


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedTrial:
    """A measured config of a recording.

    record: the measurement
    family, workload: the operator, which `task_of_trial` makes a task of
    chosen_by: "default", "estimate" or "random"
    clock_s: seconds of the reference kernel right before and right after the timings. Empty if the config did not work
    attempts: how often it was measured. The measurement with the steadiest clock is kept
    """

    record: Record
    family: str
    workload: Mapping[str, Any]
    chosen_by: str
    clock_s: tuple[Annotated[float, Range(1e-12)], ...] = ()
    attempts: int = 1

    def to_line(self) -> str:
        """Return one line of JSON without its newline. It is a line of records with more fields."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "record"}
        return json.dumps({**json.loads(self.record.to_line()), **own}, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str | bytes) -> RecordedTrial:
        """Return the trial that `to_line` wrote. RecordError if the line is none."""
        data = record_data(line)
        with refused(RecordError, "no trial"):
            return made_of(cls, {**data, "record": data})


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Timing:
    clock_limit: Annotated[float, Range(1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Header:
    """The schema of the first line, as far as it is read."""

    origin: Origin
    timing: _Timing
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sensors:
    """The schema of a line of sensors."""

    time: str
    clocks: dict[str, float]
    temperatures: dict[str, float]


@dataclasses.dataclass(kw_only=True)
class Recording:
    """The content of a file, and the file itself.

    origin: device and versions
    header: the whole first line: target, facts of the device, and how it was timed
    sensors: clocks and temperatures, as the phone has them, with the time
    archprobe: the report of ArchProbe. None if there is none
    """

    path: Path
    origin: Origin
    header: Mapping[str, Any]
    trials: list[RecordedTrial] = dataclasses.field(default_factory=list)
    sensors: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    archprobe: Mapping[str, Any] | None = None

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a file. A last line that was cut off is left out.

        RecordError if the file is no recording, is damaged, or has a newer schema.
        """
        with refused(RecordError, f"{path}: cannot read this as a recording of a phone"):
            first, *lines = [line for line in read_file(path).split(b"\n")[:-1] if line.strip()] or [b""]
        hint = "`romou phone record` writes recordings; give it another file."
        with refused(RecordError, f"{path} is no recording of a phone: its first line is no header", hint=hint):
            data = parsed(first)
            schema = made_of(int, data["recording"])
            if schema > RECORDING_SCHEMA:
                schemas = f"schema {shown(schema)}, this one reads up to {RECORDING_SCHEMA}"
                raise RecordError(f"{path}: written by a newer Romou ({schemas})", hint="Update Romou.")
            header = made_of(_Header, data)
        recording = cls(path=path, origin=header.origin, header=data)
        for number, line in enumerate(lines, 2):
            text = f"{path}, line {number}: no line of a recording"
            with refused(RecordError, text, line=number):
                try:
                    recording._take(line)
                except RecordError as error:
                    raise RecordError(f"{text}: {error.message}", line=number) from error
        return recording

    @classmethod
    def begin(cls, path: Path, origin: Origin, header: Mapping[str, Any]) -> Recording:
        """Return the recording in a file, which is made if there is none, so that lines can be appended.

        RecordError as in `load`, or if the file is of another device or version, or cannot be written.
        """
        try:
            if not path.exists() or path.stat().st_size == 0:
                first = {"recording": RECORDING_SCHEMA, "origin": dataclasses.asdict(origin), **header}
                with replacing(path) as partial:
                    partial.write_text(json.dumps(first, allow_nan=False) + "\n", encoding="utf-8")
            recording = cls.load(path)
            refusal = origin.refusal(recording.origin)
            if refusal is not None:
                raise RecordError(f"{path} cannot be continued: {refusal}", hint="Give another file.")
            content = read_file(path)
            # A line that was cut off would run into the next one.
            os.truncate(path, content.rfind(b"\n") + 1)
        except OSError as error:
            raise RecordError(f"{path}: cannot keep a recording here: {error}", hint="Give another file.") from error
        return recording

    def append(self, line: str) -> None:
        """Add a line to the file. RecordError if the disk is full or gone. Earlier lines stay."""
        try:
            with contextlib.closing(open(self.path, "ab", opener=regular)) as file:
                file.write(f"{line}\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            text = f"{self.path}: cannot write: {error}; the {len(self.trials)} configs before are kept"
            raise RecordError(text, hint="Free some space, then call it again.") from error
        self._take(line)

    def _take(self, line: str | bytes) -> None:
        data = parsed(line)
        if "archprobe" in data:
            self.archprobe = made_of(dict[str, dict[str, Any]], data["archprobe"])
        elif "schema" in data:
            self.trials.append(RecordedTrial.from_line(line))
        else:
            made_of(_Sensors, data)
            self.sensors.append(data)

    @property
    def best_clock_s(self) -> float | None:
        """The shortest time of the reference kernel. None if it was not timed."""
        return min((second for trial in self.trials for second in trial.clock_s), default=None)

    def clock_ratio(self, trial: RecordedTrial) -> float | None:
        """Return the slower time of the reference kernel around a trial, relative to the best of the recording."""
        best_s = self.best_clock_s
        return max(trial.clock_s) / best_s if trial.clock_s and best_s is not None else None

    def is_steady(self, trial: RecordedTrial) -> bool:
        """Return whether the clock was up around a trial, so that its time can be compared with others."""
        ratio = self.clock_ratio(trial)
        return ratio is not None and ratio <= float(self.header["timing"]["clock_limit"])

    def tasks(self) -> dict[str, TunableTask]:
        """Return task key -> task. Operators whose kernels are others in this version are left out."""
        tasks = {}
        for key, workload in {trial.record.task_key: trial.workload for trial in self.trials}.items():
            try:
                task = recordable_task(dict(workload))
            except Exception as error:  # TVM refuses the numbers of a wrong operator by many types of exceptions
                logger.warning("%s: operator %s is not in this version: %s", self.path, key, first_line(error))
                continue
            if key in (task.key, task.structure):
                tasks[key] = task
            else:
                logger.warning("%s: operator %s is not in this version", self.path, key)
        return tasks


def recordable_task(workload: dict[str, Any]) -> TunableTask:
    """Return the operator of `Workload.to_dict` as a task with bias and ReLU, whose tensors may lie in images."""
    return task_of(workload_of(workload)).with_free_images()
