"""Records: one finished trial as a line of JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from romou.base.errors import RecordError
from romou.base.foreign import parsed, refused
from romou.base.outcome import Outcome
from romou.base.schema import FileName, Seconds, made_of
from romou.base.space import Config, renamed
from romou.base.version import __version__

# Incremented if a field changes its meaning. A new field has a default and keeps the number.
SCHEMA = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A candidate and its outcome.

    task_key, task_name: `Task.key` and `Task.name` of the kernel
    config: knob -> choice
    device: `DeviceFingerprint.to_dict()` of the device that ran it
    outcome: how the trial ended
    times_s: every repeat in seconds, each the mean of several launches. Empty unless the outcome is OK
    build_s: seconds of the build
    relative_l2_error, max_error: error against the reference. None if it was not compared
    error: shortened text. None for OK
    seed: seed of the inputs that it was checked with
    clock_ratio: time of a reference kernel shortly before, relative to its best on the device. Above 1 if the device
        throttles. None if it was not measured.
    expected_s: time that the cost model predicted when it proposed the candidate. None without a prediction
    l1: how the pruned space counted bytes against the first-level cache, a value of the option `l1` of `tune`. Empty
        without pruning.
    is_again: whether it is the second measurement, at the end of the search, which counts
    target, time, romou, tvm: target text, UTC time in ISO 8601, versions
    """

    task_key: FileName
    task_name: str
    config: dict[str, int | str | bool]
    device: dict[str, Any]
    outcome: Outcome
    times_s: tuple[Seconds, ...] = ()
    build_s: Seconds = 0.0
    relative_l2_error: float | None = None
    max_error: float | None = None
    error: str | None = None
    seed: int = 0
    clock_ratio: float | None = None
    expected_s: float | None = None
    l1: str = ""
    is_again: bool = False
    target: str = ""
    time: str = ""
    romou: str = ""
    tvm: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", dict(renamed(self.config)))

    @property
    def time_s(self) -> float | None:
        """The median of the repeats in seconds. None if there is no time."""
        return median(self.times_s) if self.outcome == Outcome.OK and self.times_s else None

    def to_line(self) -> str:
        """Return one line of JSON without its newline."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str | bytes) -> Record:
        """Return the record that `to_line` wrote. RecordError if the line is no record, or has a newer schema."""
        return cls.from_data(record_data(line))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Record:
        """Return the record in the fields of a line, with types and ranges checked. RecordError as in `from_line`."""
        with refused(RecordError, "no record"):
            return made_of(cls, data)


def record_data(line: str | bytes) -> dict[str, Any]:
    """Return the fields of a line of records, unchecked. RecordError if there are none, or if the schema is newer."""
    with refused(RecordError, "no record"):
        data = parsed(line)
    if not isinstance(data, dict) or type(data.get("schema")) is not int:
        raise RecordError("no record: it lacks the field 'schema'")
    if data["schema"] > SCHEMA:
        raise RecordError(
            f"written by a newer Romou (schema {data['schema']}, this one reads up to {SCHEMA})",
            hint="Update Romou, or use another work_dir.",
        )
    return data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """The device and versions of a measurement. Two times are comparable if their origins are equal.

    device: `DeviceFingerprint.to_dict()`, its driver included
    romou, tvm: versions
    """

    device: dict[str, Any]
    romou: str
    tvm: str

    @classmethod
    def of(cls, record: Record) -> Origin:
        return cls(device=record.device, romou=record.romou, tvm=record.tvm)

    @classmethod
    def here(cls, device: dict[str, Any]) -> Origin:
        """Return the origin of a device with the installed versions."""
        import tvm

        return cls(device=device, romou=__version__, tvm=tvm.__version__)

    def refusal(self, other: Origin) -> str | None:
        """Return the reason why times of `other` are not comparable. None if they are."""
        if other.device != self.device:
            mine, theirs = dict(self.device), dict(other.device)
            if {**theirs, "driver": ""} == {**mine, "driver": ""}:
                return f"measured with driver {theirs.get('driver')!r}, this one is {mine.get('driver')!r}"
            return f"measured on {_text(theirs)}, this device is {_text(mine)}"
        for name, ours, others in (("Romou", self.romou, other.romou), ("TVM", self.tvm, other.tvm)):
            if ours != others:
                return f"measured with {name} {others or 'of an unknown version'}, this is {ours}"
        return None


def _text(device: dict[str, Any]) -> str:
    return f"{device.get('name')!r} ({device.get('kind')}, {device.get('platform')}, driver {device.get('driver')})"


def fastest(records: Iterable[Record]) -> Record | None:
    """Return the fastest record. If a config was measured again, its last time counts. None if no record has a time."""
    last = {Config(record.config): record for record in records}
    timed = [record for record in last.values() if record.time_s is not None]
    return min(timed, key=lambda record: record.time_s or 0.0, default=None)
