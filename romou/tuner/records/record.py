"""One finished trial, as a line of JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from statistics import median
from typing import Any

from romou.base.errors import RecordError
from romou.base.outcome import Outcome
from romou.base.version import __version__

# Raised when a field changes its meaning; a field that is added keeps the number and has a default.
SCHEMA = 1
# Annotation of a field -> what JSON holds for it. True is no number here, though it is one to Python.
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
    """A candidate and how it ended.

    task_key, task_name   which kernel (`Task.key`, `Task.name`)
    config                knob -> choice
    device                `DeviceFingerprint.to_dict()`: where it ran
    outcome               how it ended
    times_s               every repeat in seconds, each the mean of several launches; empty unless the outcome is OK
    build_s               seconds of the build
    relative_l2_error, max_error   against the reference; None where it was not compared
    error                 text, shortened; None for OK
    seed                  of the inputs that it was checked with
    clock_ratio           time of a reference kernel shortly before, over its best on the same device: above 1 where the device throttles;
                          None where it was not measured
    expected_s            time that the cost model expected when it proposed the candidate; None where it had no say
    is_again              measured a second time, when the search was over: the time that counts
    target, time, romou, tvm       context: target text, UTC time in ISO 8601, versions
    """  # noqa: E501

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
    is_again: bool = False
    target: str = ""
    time: str = ""
    romou: str = ""
    tvm: str = ""

    @property
    def time_s(self) -> float | None:
        """Median of the repeats in seconds; None where there is no timing."""
        return median(self.times_s) if self.outcome == Outcome.OK and self.times_s else None

    def to_line(self) -> str:
        """One line of JSON, without its newline."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Inverse of `to_line`; RecordError where the line is no record, or one of a newer schema."""
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
        known = {field.name: str(field.type) for field in dataclasses.fields(cls)}
        fields = {name: value for name, value in data.items() if name in known}
        for name, value in fields.items():
            if not isinstance(value, _JSON_TYPES[known[name]]) or (isinstance(value, bool) and known[name] != "bool"):
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
    """What has to be equal for two timings to be comparable.

    device   `DeviceFingerprint.to_dict()`, its driver included
    romou, tvm   versions
    """

    device: dict[str, Any]
    romou: str
    tvm: str

    @classmethod
    def of(cls, record: Record) -> Origin:
        """That of a record."""
        return cls(device=record.device, romou=record.romou, tvm=record.tvm)

    @classmethod
    def here(cls, device: dict[str, Any]) -> Origin:
        """A device with the versions that are installed."""
        import tvm

        return cls(device=device, romou=__version__, tvm=tvm.__version__)

    def refusal(self, other: Origin) -> str | None:
        """Why timings of `other` say nothing here; None where they do."""
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
