"""Records: one finished trial as a line of JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from statistics import median
from typing import Any

from romou.base.errors import RecordError
from romou.base.outcome import Outcome
from romou.base.space import Config
from romou.base.version import __version__

# Incremented if a field changes its meaning. A new field has a default and keeps the number.
SCHEMA = 1
# Annotation of a field -> accepted types of its JSON value. A bool does not count as a number.
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "bool": (bool,),
    "Outcome": (str,),
    "tuple[float, ...]": (list,),
    "dict[str, Any]": (dict,),
    "dict[str, int | str | bool]": (dict,),
}


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

    task_key: str
    task_name: str
    config: dict[str, int | str | bool]
    device: dict[str, Any]
    outcome: Outcome
    times_s: tuple[float, ...] = ()
    build_s: float = 0.0
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

    @property
    def time_s(self) -> float | None:
        """The median of the repeats in seconds. None if there is no time."""
        return median(self.times_s) if self.outcome == Outcome.OK and self.times_s else None

    def to_line(self) -> str:
        """Return one line of JSON without its newline."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Return the record that `to_line` wrote. RecordError if the line is no record, or has a newer schema."""
        try:
            data = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"not JSON: {error}") from error
        if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
            raise RecordError("no record: it lacks the field 'schema'")
        schema = data.pop("schema")
        if schema > SCHEMA:
            raise RecordError(
                f"written by a newer Romou (schema {schema}, this one reads up to {SCHEMA})",
                hint="Update Romou, or use another work_dir.",
            )
        field_types = {field.name: str(field.type) for field in dataclasses.fields(cls)}
        fields = {name: value for name, value in data.items() if name in field_types}
        for name, value in fields.items():
            if not isinstance(value, _JSON_TYPES[field_types[name]]) or (
                isinstance(value, bool) and field_types[name] != "bool"
            ):
                raise RecordError(f"no record: {name} is {value!r}")
        if not all(isinstance(choice, int | str) for choice in fields.get("config", {}).values()):
            raise RecordError(f"no record: config is {fields['config']!r}")
        times = fields.get("times_s", [])
        if not all(
            isinstance(t, int | float) and not isinstance(t, bool) and math.isfinite(t) and t >= 0 for t in times
        ):
            raise RecordError(f"no record: times_s is {times!r}")
        try:
            return cls(
                **{**fields, "outcome": Outcome(fields.get("outcome")), "times_s": tuple(float(t) for t in times)}
            )
        except (TypeError, ValueError) as error:
            raise RecordError(f"no record: {error}") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


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
        """Return the origin stored in `record`."""
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
