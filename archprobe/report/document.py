"""This package's report: the keys of Microsoft's report, and the details that a reader needs to trust a number.

    {"ArchProbe": {"Format": 1, "Version": ..., "Date": ..., "IsQuick": ..., "IsComplete": ..., "Driver": {...},
    "Software": {...}},
     "RegCount": {"Done": true, "RegCount": 182, "RegType": "Pooled", ...,
                  "Details": {"State", "Reason", "Method", "Seconds", "Answers": {key: value, unit, confidence, low,
                  high, ...}, "Curves"}},
     ...}

A key with a declined answer is omitted beside "Done", as in the original. Its entry in "Answers" gives the reason. The
last aspect of a complete report, "Conclusions", has the facts that follow from several numbers.
`schema.json` beside this file is the same in JSON Schema.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from archprobe.analysis.answer import Answer
from archprobe.analysis.conclusions import conclusions
from archprobe.curve import Findings
from archprobe.devices.base import Facts
from archprobe.errors import ReportError
from archprobe.extras import module
from archprobe.report.original import read_json

FORMAT = 1
HEADER, CONCLUSIONS = "ArchProbe", "Conclusions"
_SCHEMA = Path(__file__).parent / "schema.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Findings by aspect, in running order, and a header with device, date and software."""

    header: Mapping[str, Any]
    aspects: Mapping[str, Findings]

    @property
    def device_name(self) -> str:
        return str(self.header["Driver"]["name"])

    def answers(self) -> dict[str, Answer]:
        """Return every answer by "Aspect.Key"."""
        return {
            f"{aspect}.{key}": answer
            for aspect, findings in self.aspects.items()
            for key, answer in findings.answers.items()
        }

    def unknowns(self) -> dict[str, str]:
        """Return the reason of each answer without a value, and of each aspect that was not measured."""
        aspects = {aspect: f for aspect, f in self.aspects.items() if f.state != "done"}
        return {key: answer.reason for key, answer in self.answers().items() if answer.is_declined} | {
            aspect: f"{findings.state.replace('_', ' ')}: {findings.reason}" for aspect, findings in aspects.items()
        }

    def with_aspect(self, aspect: str, findings: Findings) -> Report:
        return dataclasses.replace(self, aspects={**self.aspects, aspect: findings})

    def finished(self) -> Report:
        """Return the report as complete, with what its answers allow to conclude as a last aspect."""
        answers = self.answers()

        def number(key: str) -> Any:
            return answers[key].value if key in answers else None

        found = conclusions(number, is_cpu=bool(self.header["Driver"]["is_cpu"]))
        complete = dataclasses.replace(self, header={**self.header, "IsComplete": True})
        if not found:
            return complete
        return complete.with_aspect(CONCLUSIONS, Findings(answers=found, method="concluded from several numbers"))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, which ``report_from_dict`` reads back."""
        data: dict[str, Any] = {HEADER: dict(self.header)}
        for aspect, findings in self.aspects.items():
            values = {key: answer.value for key, answer in findings.answers.items() if not answer.is_declined}
            data[aspect] = {"Done": findings.state == "done", **values, "Details": findings.to_dict()}
        return data

    def save(self, path: Path) -> None:
        """Write the whole file or nothing: a run may be cut off at any moment."""
        partial = path.with_name(path.name + ".partial")
        # Put each list of numbers on one line: a curve is not meant to be read line by line.
        text = re.sub(
            r"\[[-+.\deE,\s]*\]", lambda match: " ".join(match[0].split()), json.dumps(self.to_dict(), indent=1)
        )
        partial.write_text(text + "\n", encoding="utf-8")
        os.replace(partial, path)


def new_report(facts: Facts, *, is_quick: bool) -> Report:
    """Start an empty report of a device, dated now."""
    from archprobe import __version__

    software = {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("numpy", "apache-tvm" if facts.is_remote else "pyopencl")},
    }
    header = {
        "Format": FORMAT,
        "Version": __version__,
        "Date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "IsQuick": is_quick,
        "IsComplete": False,
        "Driver": {**dataclasses.asdict(facts), "extensions": list(facts.extensions)},
        "Software": software,
    }
    return Report(header=header, aspects={})


def load_report(path: Path) -> Report:
    """Read and check a report of this package. ReportError, with the file and its first fault, if it is not valid."""
    return report_from_dict(read_json(path, "report"), origin=str(path))


def report_from_dict(data: Any, *, origin: str = "report") -> Report:
    """Check data of the report's form and make a report of it. Errors call the data `origin`."""
    check(data, origin=origin)
    aspects = {name: Findings.from_dict(section["Details"]) for name, section in data.items() if name != HEADER}
    return Report(header=data[HEADER], aspects=aspects)


def check(data: Any, *, origin: str = "report") -> None:
    """Raise ReportError if `data` does not follow the shipped schema."""
    if not isinstance(data, dict) or not isinstance(data.get(HEADER), dict):
        raise ReportError(
            f"{origin} has no {HEADER!r} header: it is no report of this tool (for Microsoft's curves there is"
            " `archprobe analyse`)"
        )
    if data[HEADER].get("Format") != FORMAT:
        raise ReportError(f"{origin} is of format {data[HEADER].get('Format')!r}; this version reads format {FORMAT}")
    jsonschema = module("jsonschema")
    try:
        jsonschema.validate(data, schema())
    except jsonschema.ValidationError as error:
        raise ReportError(
            f"{origin}: {'.'.join(map(str, error.absolute_path)) or 'the whole'}: {error.message}"
        ) from error


def schema() -> dict[str, Any]:
    """Return the JSON Schema that reports follow."""
    return dict(json.loads(_SCHEMA.read_text(encoding="utf-8")))
