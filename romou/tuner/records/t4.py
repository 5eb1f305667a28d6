"""Records in T4, the results format of Kernel Tuner, in one file for each task and origin.

Source: https://github.com/odgaard/TuningSchema, schema 1.0.0.

T4 has no fields for the kernel, the device and the meaning of knobs. They are stored in the file's metadata under
"romou", where T4's schema allows anything. A file of another tool lacks them, so its reader has to give them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from romou.base.errors import RecordError
from romou.base.files import read_file, replacing
from romou.base.foreign import parsed, refused
from romou.base.outcome import Outcome
from romou.base.schema import Matching, NotNegative, made_of, shown
from romou.tuner.records.record import SCHEMA, Origin, Record

T4_VERSION = "1.0.0"
# Our outcome -> T4's "invalidity".
_INVALIDITY = {
    Outcome.OK: "correct",
    Outcome.INVALID: "constraints",
    Outcome.BUILD_ERROR: "compile",
    Outcome.RUN_ERROR: "runtime",
    Outcome.TIMEOUT: "timeout",
    Outcome.UNSTABLE: "correctness",
    Outcome.WRONG_RESULT: "correctness",
}
OUTCOME_OF = {invalidity: outcome for outcome, invalidity in _INVALIDITY.items()}
_MS = 1e3


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Times:
    """The times of a result. Kernel Tuner names its compile time without "_time".

    runtimes: Kernel Tuner leaves the repeats out if it has only their mean.
    """

    compilation_time: NotNegative | None = None
    compilation: NotNegative = 0.0
    runtimes: tuple[NotNegative, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measurement:
    name: str
    value: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Result:
    configuration: dict[str, int | str | bool]
    times: _Times
    invalidity: Literal["correct", "constraints", "compile", "runtime", "timeout", "correctness"]
    timestamp: str = ""
    measurements: tuple[_Measurement, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Metadata:
    timeunit: Literal["milliseconds"] = "milliseconds"
    romou: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Document:
    """The schema of a T4 file."""

    schema_version: Annotated[str, Matching(r"1\..*", f"results in T4's schema {T4_VERSION}")]
    results: tuple[_Result, ...]
    metadata: _Metadata | None = None


# Fields that T4 stores as measurements beside the time.
_MEASURED = ("relative_l2_error", "max_error", "error", "seed", "clock_ratio")


def to_t4(records: Sequence[Record]) -> dict[str, Any]:
    """Return a T4 document. Times are in milliseconds, as Kernel Tuner writes them.

    RecordError if there are no records, or if they are of several tasks, devices or versions.
    """
    if not records:
        raise RecordError("there are no records to write")
    first = records[0]
    for record in records:
        if record.task_key != first.task_key:
            raise RecordError(
                f"records of two kernels, {first.task_key} and {record.task_key}, do not fit in one T4 file"
            )
        refusal = Origin.of(first).refusal(Origin.of(record))
        if refusal:
            raise RecordError(f"records of two origins do not fit in one T4 file: {refusal}")
    own = {
        "schema": SCHEMA,
        "task_key": first.task_key,
        "task_name": first.task_name,
        "target": first.target,
        **dataclasses.asdict(Origin.of(first)),
    }
    own["knobs"] = _explained({name for record in records for name in record.config})
    return {
        "schema_version": T4_VERSION,
        "metadata": {"timeunit": "milliseconds", "romou": own},
        "results": [_result(r) for r in records],
    }


def _explained(names: set[str]) -> dict[str, dict[str, Any]]:
    """Return the declarations of the knobs with these names that this version has."""
    from romou.compiler.operators.families import declared_knobs  # imported here: it takes a second

    return {
        name: {"choices": list(knob.choices), "default": knob.default, "help": knob.help}
        for name, knob in declared_knobs().items()
        if name in names
    }


def _result(record: Record) -> dict[str, Any]:
    measurements = [{"name": "time", "value": record.time_s * _MS, "unit": "ms"}] if record.time_s is not None else []
    values = {name: getattr(record, name) for name in _MEASURED}
    measurements += [{"name": name, "value": value, "unit": ""} for name, value in values.items() if value is not None]
    return {
        "timestamp": record.time,
        "configuration": dict(record.config),
        "objectives": ["time"],
        "times": {"compilation_time": record.build_s * _MS, "runtimes": [t * _MS for t in record.times_s]},
        "invalidity": _INVALIDITY[record.outcome],
        "correctness": float(record.outcome == Outcome.OK),
        "measurements": measurements,
    }


def from_t4(
    data: Mapping[str, Any],
    *,
    task_key: str | None = None,
    origin: Origin | None = None,
    name: str = "this T4 document",
) -> list[Record]:
    """Return the records of a T4 document.

    task_key, origin: required kernel and origin. They are taken over if the document has none. None: the document's.
    name: the document's name in error texts

    Raises
    ------
    RecordError
        It is no T4 document, or has another schema, kernel or origin.
    """
    with refused(RecordError, f"{name}: no T4 document"):
        document = made_of(_Document, data)
        own = None if document.metadata is None else document.metadata.romou
        if own is None:
            if task_key is None or origin is None:
                raise RecordError(
                    f"{name}: does not say which kernel, device and versions its results belong to",
                    hint="Give the task's key and the origin.",
                )
            own = {"schema": SCHEMA, "task_key": task_key, **dataclasses.asdict(origin)}
        schema = own.get("schema")
        if type(schema) is not int or schema > SCHEMA:
            text = f"{name}: its records are of schema {shown(schema)}, this Romou reads up to {SCHEMA}"
            raise RecordError(text, hint="Update Romou.")
        if task_key is not None and own["task_key"] != task_key:
            raise RecordError(f"{name}: results of kernel {own['task_key']}, not of {task_key}")
        theirs = made_of(Origin, own)
        refusal = origin.refusal(theirs) if origin is not None else None
        if refusal:
            raise RecordError(f"{name}: {refusal}")
        shared = {
            "task_key": own["task_key"],
            "task_name": own.get("task_name", ""),
            "target": own.get("target", ""),
            **dataclasses.asdict(theirs),
        }
        return [made_of(Record, {**_fields(result), **shared}) for result in document.results]


def _fields(result: _Result) -> dict[str, Any]:
    """Return the fields of a record that a result has."""
    times = result.times
    measured = {m.name: m.value for m in result.measurements}
    outcome = OUTCOME_OF[result.invalidity]
    build_ms = times.compilation if times.compilation_time is None else times.compilation_time
    runs_ms = times.runtimes or ((made_of(float, measured["time"]),) if outcome == Outcome.OK else ())
    return {
        "config": result.configuration,
        "outcome": outcome,
        "times_s": [t / _MS for t in runs_ms],
        "build_s": build_ms / _MS,
        "time": result.timestamp,
        **{name: measured[name] for name in _MEASURED if name in measured},
    }


def export_t4(records: Iterable[Record], folder: Path) -> dict[Path, int]:
    """Write a T4 file for each task and origin, named by the task's key. Return path -> number of its results.

    Further origins of a task get a number. Second measurements at the end of a search are left out: the format has one
    result for each config.

    RecordError if the folder cannot be written.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in (r for r in records if not r.is_again):
        origin = json.dumps(dataclasses.asdict(Origin.of(record)), sort_keys=True)
        groups.setdefault((record.task_key, origin), []).append(record)
    written: dict[Path, int] = {}
    try:
        for (key, _), group in groups.items():
            count = sum(path.name.startswith(key) for path in written)
            path = folder / f"{key}{f'-{count + 1}' if count else ''}.t4.json"
            with replacing(path) as partial:
                partial.write_text(json.dumps(to_t4(group), indent=1, allow_nan=False), encoding="utf-8")
            written[path] = len(group)
    except OSError as error:
        raise RecordError(f"{folder}: cannot write: {error}") from error
    return written


def import_t4(path: Path, *, task_key: str | None = None, origin: Origin | None = None) -> list[Record]:
    """Return the records of a T4 file. See `from_t4`. RecordError also if the file cannot be read."""
    with refused(RecordError, f"{path}: no T4 document"):
        data = parsed(read_file(path))
    return from_t4(data, task_key=task_key, origin=origin, name=str(path))
