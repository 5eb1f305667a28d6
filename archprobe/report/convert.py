"""Converts the files of Microsoft's ArchProbe to a report of this package.

Its curves are analysed anew, and its values for the driver's limits are kept.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archprobe.analysis.answer import Answer, answered
from archprobe.curve import Curve, Findings
from archprobe.report import original
from archprobe.report.document import FORMAT, Report

_REPORT = "ArchProbeReport.json"
_BYTES, _TEXELS = "bytes", "texels"
# Limits that a driver states, without a curve.
_LIMITS = {
    "CacheSize": _BYTES,
    "CachelineSize": _BYTES,
    "LogicThreadCount": "work-items",
    "MaxBufferSize": _BYTES,
    "MaxConstMemSize": _BYTES,
    "MaxImageHeight": _TEXELS,
    "MaxImageWidth": _TEXELS,
    "MaxLocalMemSize": _BYTES,
    "PageSize_QCOM": _BYTES,
    "SmCount": "count",
}


def converted(folder: Path, name: str) -> Report:
    """Return this package's report of the device `name`, which Microsoft's ArchProbe measured into `folder`.

    Raises
    ------
    ReportError
        A file is missing or malformed.
    UsageError
        The folder holds no curve.
    """
    from archprobe import __version__

    answers, drawn = original.analyse(folder), original.curves(folder)
    stated = original.read_report(folder / _REPORT).get("Device", {})
    limits = {
        key: answered(stated[key], unit, 0.9, "the driver says so, by Microsoft's ArchProbe")
        for key, unit in _LIMITS.items()
        if key in stated
    }
    # Only Qualcomm's drivers have a page size under this key.
    vendor = "QUALCOMM" if "PageSize_QCOM" in stated else "not recorded"
    driver: dict[str, Any] = {
        "name": name,
        "vendor": vendor,
        "driver": "not recorded",
        "platform": "not recorded",
        "version": "not recorded",
        "is_cpu": False,
    }
    date = datetime.datetime.fromtimestamp((folder / _REPORT).stat().st_mtime, datetime.timezone.utc)
    header = {
        "Format": FORMAT,
        "Version": __version__,
        "Date": date.isoformat(timespec="seconds"),
        "IsQuick": False,
        "IsComplete": False,
        "Driver": driver,
        "Software": {"measured by": "Microsoft's ArchProbe"},
    }
    return Report(
        header=header,
        aspects={
            "Device": Findings(answers=limits),
            **{aspect: Findings(answers=own, curves=_marked(drawn[aspect], own)) for aspect, own in answers.items()},
        },
    ).finished()


def _marked(curves: Sequence[Curve], answers: Mapping[str, Answer]) -> tuple[Curve, ...]:
    """Return the curves with the answers that are positions on them: of a series, and in the unit of the x axis."""
    marked = []
    for curve in curves:
        series = curve.name if len(curves) > 1 else ""
        own = {key: a for key, a in answers.items() if series in key and a.unit.rpartition(" ")[2] in curve.x_label}
        marked.append(curve.marked(own))
    return tuple(marked)
