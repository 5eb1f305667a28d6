"""Reads the files of Microsoft's ArchProbe.

They are its report, and one CSV of raw times for each aspect, which this package analyses.

The CSVs hold the calibration as well as the measurement. Calibration rows come first, have fewer iterations than the
last row, and are left out. Units follow the files: ranges in bytes, times in microseconds, bandwidths in GB/s.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archprobe.analysis import bandwidth, cache, registers, throughput, warp
from archprobe.analysis.answer import Answer, declined
from archprobe.curve import Curve
from archprobe.errors import ReportError, UsageError

# The Gflops file holds only times. The report's 889.891 and 890.087 GFLOPS are, to all digits, this many operations for
# each iteration over the times of the widest vectors.
_OPERATIONS = 2.0**27

# Aspect -> keys of its conclusions. Each aspect also has "Done".
KEYS: dict[str, tuple[str, ...]] = {
    "Device": (
        *("CacheSize", "CachelineSize", "LogicThreadCount", "MaxBufferSize", "MaxConstMemSize"),
        *("MaxImageHeight", "MaxImageWidth", "MaxLocalMemSize", "PageSize_QCOM", "SmCount"),
    ),
    "RegCount": ("RegCount", "RegType", "FullRegConcurWorkgroupCount", "HalfRegConcurWorkgroupCount"),
    "BufferCacheHierarchyPChase": tuple(f"CacheVectorCountLv{i}" for i in range(1, 5)),
    "ImageCacheHierarchyPChase": tuple(f"CachePixelCountLv{i}" for i in range(1, 5)),
    "BufferCachelineSize": ("BufTopLevelCachelineSize",),
    "ImageCachelineSize": (
        "ImgCachelineDim",
        "ImgCachelineSize",
        "ImgMinTimeConcurThreadCountX",
        "ImgMinTimeConcurThreadCountY",
    ),
    "BufferBandwidth": ("MaxBandwidth", "MinBandwidth"),
    "ImageBandwidth": ("MaxBandwidth", "MinBandwidth"),
    "LocalMemBandwidth": ("MaxBandwidth", "MinBandwidth"),
    "ConstMemBandwidth": ("MaxBandwidth", "MinBandwidth"),
    "BufferVecWidth": ("BufferVecSize",),
    "Gflops": ("FloatArch", "FloatGflops", "FloatVecComponentCount", "HalfArch", "HalfGflops", "HalfVecComponentCount"),
    "WarpSizeMethodA": ("WarpThreadCount",),
    "WarpSizeMethodB": ("WarpThreadCount",),
}


def read_json(path: Path, what: str = "") -> Any:
    """Read a JSON file. ReportError if it is missing or not JSON. The message starts with `what`."""
    name = f"{what} {path}".strip()
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ReportError(f"{name} does not exist", path=str(path)) from error
    except ValueError as error:
        raise ReportError(f"{name} is not JSON: {error}", path=str(path)) from error


def read_report(path: Path) -> dict[str, dict[str, Any]]:
    """Read a report, {aspect: {key: value}}. ReportError if it is not JSON of that form.

    Aspects without `Done` are kept: their keys hold the values at the time when the tool was stopped.
    """
    data = read_json(path)
    if not isinstance(data, dict) or not set(data) & set(KEYS) or not all(isinstance(v, dict) for v in data.values()):
        raise ReportError(
            f"{path} is no ArchProbe report: it must map aspects such as {', '.join(list(KEYS)[:3])} to their"
            " conclusions",
            path=str(path),
        )
    return data


def read_curve(path: Path) -> dict[str, np.ndarray]:
    """Read the columns of one CSV, without calibration rows.

    The keys are the first words of the headings ("range", "t", "bandwidth").
    """
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except FileNotFoundError as error:
        raise ReportError(f"{path} does not exist", path=str(path)) from error
    if len(rows) < 2:
        raise ReportError(f"{path} holds no measurement: a heading and at least one row are needed", path=str(path))
    names = [heading.split(" ")[0] for heading in rows[0]]
    try:
        table = np.array(rows[1:], float)
    except ValueError as error:
        raise ReportError(f"{path}: every row must hold {len(names)} numbers ({error})", path=str(path)) from error
    if table.shape[1] != len(names):
        raise ReportError(f"{path}: {table.shape[1]} columns under {len(names)} headings", path=str(path))
    columns = dict(zip(names, table.T, strict=True))
    if "niter" in columns:
        kept = _measured(columns)
        columns = {name: values[kept] for name, values in columns.items()}
    return columns


def _measured(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Select the rows of the measurement.

    They are the rows with the last iteration count of their series (image axis, float width).
    """
    iterations = columns["niter"]
    series = columns.get("dim", columns.get("float", np.zeros(iterations.size)))
    kept = np.zeros(iterations.size, bool)
    for value in np.unique(series):
        own = series == value
        kept |= own & (iterations == iterations[own][-1])
    return kept


def analyse(folder: Path) -> dict[str, dict[str, Answer]]:
    """Analyse the raw curves in `folder`: {aspect: {key: answer}}, without aspects that have no file."""
    answers: dict[str, dict[str, Answer]] = {}
    for aspect, analysis in _ANALYSES.items():
        path = folder / f"{aspect}.csv"
        if path.is_file():
            try:
                answers[aspect] = analysis(read_curve(path))
            except KeyError as error:
                raise ReportError(f"{path} has no column {error}", path=str(path)) from error
    if not answers:
        raise UsageError(f"{folder} holds no curve of ArchProbe; expected files such as RegCount.csv", path=str(folder))
    return _across(answers)


def curves(folder: Path) -> dict[str, tuple[Curve, ...]]:
    """Return the measured curves in `folder` by aspect, without aspects that have no file.

    Of several times at one position the last is taken, as in the analysis. Of chases, the shortest stride is shown.
    """
    drawn = {}
    for aspect, axes in _AXES.items():
        path = folder / f"{aspect}.csv"
        if path.is_file():
            columns = read_curve(path)
            series = columns.get(axes.series, np.zeros(columns[axes.x].size))
            names = _NAMES.get(axes.series, {series.min(): aspect})
            drawn[aspect] = tuple(_curve(name, columns, series == value, axes) for value, name in names.items())
    return drawn


def _curve(name: str, columns: Mapping[str, np.ndarray], rows: np.ndarray, axes: _Axes) -> Curve:
    y = columns[axes.y] * (1e3 / columns["niter"] if axes.y_label == _NS_OF_A_READ else 1)
    last = dict(zip(columns[axes.x][rows].tolist(), y[rows].tolist(), strict=True))
    x = tuple(sorted(last))
    y_of = tuple(last[at] for at in x)
    return Curve(name=name, x_label=axes.x_label, y_label=axes.y_label, x=x, y=y_of, is_log_x="bytes" in axes.x_label)


def doubts(conclusions: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Mapping[str, Answer]]) -> list[str]:
    """Return a sentence for each number of a report's `conclusions` that the curves do not support.

    answers: this package's answers from the curves.

    A number is doubted if it is more than 5% outside the answer's interval, if a word differs, or if the analysis
    declined.
    """
    doubtful = []
    for aspect, keys in answers.items():
        for key, value in conclusions.get(aspect, {}).items():
            if key not in KEYS.get(aspect, ()):
                continue
            answer = keys.get(key, declined("", "the curve shows no such level"))
            is_number = isinstance(value, (int, float)) and answer.low is not None and answer.high is not None
            if answer.is_declined:
                doubtful.append(f"{aspect}.{key} is {value}, which the curve does not support: {answer.reason}")
            elif is_number and not 0.95 * (answer.low or 0) <= value <= 1.05 * (answer.high or 0):
                doubtful.append(
                    f"{aspect}.{key} is {value}, but the curve gives {answer.value:.6g} ({answer.low:.6g} to"
                    f" {answer.high:.6g}): {answer.reason}"
                )
            elif not is_number and value != answer.value:
                doubtful.append(f"{aspect}.{key} is {value}, but the curve gives {answer.value}: {answer.reason}")
    return doubtful


def _across(answers: dict[str, dict[str, Answer]]) -> dict[str, dict[str, Answer]]:
    """Add the answers that need two aspects: a texture line is the cache size divided by the rows that fit."""
    if "ImageCachelineSize" in answers and "ImageCacheHierarchyPChase" in answers:
        own = answers["ImageCachelineSize"]
        level = answers["ImageCacheHierarchyPChase"].get("CachePixelCountLv1", declined("bytes", "no level was found"))
        own["ImgCachelineSize"] = cache.texture_line(
            own["ImgMinTimeConcurThreadCountX"], own["ImgMinTimeConcurThreadCountY"], level
        )
        own["ImgCachelineDim"] = cache.texture_axis(
            own["ImgMinTimeConcurThreadCountX"], own["ImgMinTimeConcurThreadCountY"]
        )
    return answers


def _registers(c: dict[str, np.ndarray]) -> dict[str, Answer]:
    is_one_group = c["ngrp"] == 1
    # The sweep over registers comes first. Later rows of one group belong to the sweeps over groups.
    last = int(np.argmax(c["nreg"])) + 1
    sweep = is_one_group & (np.arange(is_one_group.size) < last)
    count = registers.register_count(c["nreg"][sweep], c["t"][sweep])
    rest = np.arange(is_one_group.size) >= last
    of_use = [rest & (c["nreg"] == use) for use in np.unique(c["nreg"][rest])[::-1]]
    groups = [registers.concurrent_groups(c["ngrp"][own], c["t"][own], is_stopped_at_jump=True) for own in of_use]
    full, half, *_ = *groups, *[declined("work-groups", "the file holds no sweep over work-groups")] * 2
    return {
        "RegCount": count,
        "RegType": registers.register_file(full, half),
        "FullRegConcurWorkgroupCount": full,
        "HalfRegConcurWorkgroupCount": half,
    }


def _levels(prefix: str, c: dict[str, np.ndarray]) -> dict[str, Answer]:
    shortest = c["stride"] == c["stride"].min()
    levels = cache.cache_levels(c["range"][shortest], c["t"][shortest] * 1e3 / c["niter"][shortest])
    return {f"{prefix}{i}": level.size for i, level in enumerate(levels, 1)}


def _bandwidth(c: dict[str, np.ndarray]) -> dict[str, Answer]:
    return {
        "MaxBandwidth": bandwidth.peak(c["range"], c["bandwidth"]),
        "MinBandwidth": bandwidth.floor(c["range"], c["bandwidth"]),
    }


def _image_line(c: dict[str, np.ndarray]) -> dict[str, Answer]:
    counts = {
        axis: cache.concurrent_reads(c["nthread"][c["dim"] == i], c["t"][c["dim"] == i], is_stopped_at_jump=True)
        for i, axis in enumerate("XY")
    }
    return {f"ImgMinTimeConcurThreadCount{axis}": count for axis, count in counts.items()}


def _gflops(c: dict[str, np.ndarray]) -> dict[str, Answer]:
    answers = {}
    for bits, name in ((32, "Float"), (16, "Half")):
        own = c["float"] == bits
        # The first row of a width repeats another one.
        widths, first = np.unique(c["ncomp"][own][::-1], return_index=True)
        rates = 1 / c["t"][own][::-1][first]
        kind, components = throughput.architecture(widths, rates / rates.max())
        answers[f"{name}Arch"], answers[f"{name}VecComponentCount"] = kind, components
        gflops = c["niter"][own][0] * _OPERATIONS / (c["t"][own][::-1][first] * 1e3)
        answers[f"{name}Gflops"] = throughput.peak_rate(widths, gflops)
    return answers


def _vector(c: dict[str, np.ndarray]) -> dict[str, Answer]:
    words, first_rows = np.unique(c["size"] / 4, return_index=True)
    return {"BufferVecSize": throughput.vector_width(words, c["t"][first_rows])}


_NS_OF_A_READ = "time of a read (ns)"


class _Axes(NamedTuple):
    """Columns and labels of a curve, and the column that tells series apart."""

    x: str
    x_label: str
    y: str
    y_label: str
    series: str = ""


_AXES = {
    "RegCount": _Axes("nreg", "registers of a work-item", "t", "time (us)", "ngrp"),
    "BufferCacheHierarchyPChase": _Axes("range", "range (bytes)", "t", _NS_OF_A_READ, "stride"),
    "ImageCacheHierarchyPChase": _Axes("range", "range (bytes)", "t", _NS_OF_A_READ, "stride"),
    "BufferCachelineSize": _Axes("stride", "stride (bytes)", "t", "time (us)"),
    "ImageCachelineSize": _Axes("nthread", "work-items, a texel each", "t", "time (us)", "dim"),
    "BufferBandwidth": _Axes("range", "range (bytes)", "bandwidth", "GB/s"),
    "ImageBandwidth": _Axes("range", "range (bytes)", "bandwidth", "GB/s"),
    "LocalMemBandwidth": _Axes("range", "range (bytes)", "bandwidth", "GB/s"),
    "ConstMemBandwidth": _Axes("range", "range (bytes)", "bandwidth", "GB/s"),
    "BufferVecWidth": _Axes("size", "size of a load (bytes)", "t", "time (us)"),
    "Gflops": _Axes("ncomp", "vector components", "t", "time (us)", "float"),
    "WarpSizeMethodA": _Axes("nthread", "work-items of a group", "nascend", "work-items that drew in order"),
    "WarpSizeMethodB": _Axes("nthread", "work-items of a group", "time", "time (us)"),
}
# Series that are curves of their own, each with its name in the keys of answers. Of the others, the first is shown.
_NAMES: dict[str, dict[float, str]] = {"dim": {0: "X", 1: "Y"}, "float": {16: "Half", 32: "Float"}}

_ANALYSES: dict[str, Callable[[dict[str, np.ndarray]], dict[str, Answer]]] = {
    "RegCount": _registers,
    "BufferCacheHierarchyPChase": lambda c: _levels("CacheVectorCountLv", c),
    "ImageCacheHierarchyPChase": lambda c: _levels("CachePixelCountLv", c),
    "BufferCachelineSize": lambda c: {
        "BufTopLevelCachelineSize": cache.first_jump_stride(c["stride"], c["t"], is_stopped_at_jump=True)
    },
    "ImageCachelineSize": _image_line,
    "BufferBandwidth": _bandwidth,
    "ImageBandwidth": _bandwidth,
    "LocalMemBandwidth": _bandwidth,
    "ConstMemBandwidth": _bandwidth,
    "BufferVecWidth": _vector,
    "Gflops": _gflops,
    "WarpSizeMethodA": lambda c: {"WarpThreadCount": warp.warp_by_first_break(c["nthread"], c["nascend"])},
    "WarpSizeMethodB": lambda c: {
        "WarpThreadCount": warp.warp_by_time(c["nthread"], c["time"], is_stopped_at_jump=True)
    },
}
