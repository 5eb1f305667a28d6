"""A report as one HTML file that needs no network.

It contains the figures, their data, and the JavaScript that draws them (Vega, from the wheel vl-convert-python).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from romou.base.compat import optional_module
from romou.tools.report.evidence import Evidence, UnknownError
from romou.tools.report.figures import FIGURES
from romou.tools.report.figures.figure import ALL, Figure
from romou.tools.report.html_page import write_html
from romou.tools.report.overview import TEXTS, next_steps, tables
from romou.tools.report.table import device_lines, shapes_lines

_HINT = "pip install 'romou[report]'"


def write_page(evidence: Evidence, path: Path) -> Path:
    """Write the report and return its path.

    Raise UsageError if the file cannot be written, or vl-convert-python is missing.
    """
    figures, layers = _figures(evidence)
    if evidence.compared or (evidence.bench is not None and evidence.bench.about is not None):
        # Their times are in a table. Headings of figures without data would hide it.
        figures = [figure for figure in figures if not figure["unknown"]]
    return write_html(
        "report.html",
        path,
        title=evidence.title,
        about=_about(evidence),
        tables=list(tables(evidence)),
        texts=TEXTS,
        steps=next_steps(evidence) if len(evidence.models) == 1 else [],
        library=_library(),
        data={"figures": figures, "layers": layers},
    )


def altair_charts(evidence: Evidence) -> dict[str, Any]:
    """Return name -> chart of Altair of each figure that has data. UsageError if Altair is not installed."""
    altair = optional_module(
        "altair", "altair is not installed", "pip install altair; `romou report` draws a page without it."
    )
    figures, layers = _figures(evidence)
    charts = {}
    for figure in figures:
        if figure["rows"]:
            charts[figure["name"]] = chart = altair.Chart.from_dict(_chart(figure, layers))
            chart.data = altair.Data(values=figure["rows"])
    return charts


def _chart(figure: Mapping[str, Any], layers: list[str]) -> dict[str, Any]:
    """Return the specification of a figure, menus included, that is right by Vega-Lite's schema."""
    menus = {"layer": layers, **figure["menus"]}
    parameters = [{"name": "layer", "value": ALL}, {"name": "short", "value": {}}, *figure["spec"].get("params", ())]
    for one in parameters:
        if one["name"] in menus:
            one["bind"] = {"input": "select", "options": menus[one["name"]]}
    signals: dict[str, str] = {}
    spec = _without_signals(figure["spec"], signals)
    title = figure["title"]
    if signals:
        title = {"text": {"expr": f"'{title}' + " + " + ".join(f"', {axis}: ' + {of}" for axis, of in signals.items())}}
    return {**spec, "title": title, "data": {"values": []}, "params": parameters}


def _without_signals(part: Any, signals: dict[str, str]) -> Any:
    """Return a specification without titles of axes that follow a menu, which the schema lacks. Collect them."""
    if isinstance(part, list):
        return [_without_signals(one, signals) for one in part]
    if not isinstance(part, dict):
        return part
    for axis, channel in part.items():
        if isinstance(channel, dict) and isinstance(channel.get("title"), dict):
            signals[axis] = channel["title"]["signal"]
            part = {**part, axis: {**channel, "title": None}}
    return {name: _without_signals(one, signals) for name, one in part.items()}


def check_library() -> None:
    """Raise UsageError if the plotting library is missing, before hours of tuning."""
    _library()


def _figures(evidence: Evidence) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the figures, and the entries of the menu of layers."""
    figures = [_drawn(figure, evidence) for figure in FIGURES]
    named = (str(row["layer"]) for figure in figures for row in figure["rows"] if row.get("layer", ALL) != ALL)
    return figures, [ALL, *dict.fromkeys(named)]


def _drawn(figure: Figure, evidence: Evidence) -> dict[str, Any]:
    """Return a figure in the form that the page's script reads. Without data, it has the reason instead."""
    labels = {name: getattr(figure, name) for name in ("name", "title", "note", "of_search")}
    try:
        rows, remark = figure.rows(evidence)
    except UnknownError as error:
        return {**labels, "spec": {}, "rows": [], "menus": {}, "remark": "", "unknown": str(error)}
    spec, menus, values = dict(figure.spec), figure.menus(rows), figure.values(rows)
    first = values | {name: entries[0] for name, entries in menus.items() if entries}
    if "params" in spec:
        spec["params"] = [{**one, "value": first.get(one["name"], one["value"])} for one in spec["params"]]
    if "layer" in spec:
        # Vega draws unbounded axes for a layer of marks without rows.
        needed = [(layer, layer.get("needs")) for layer in spec["layer"]]
        drawn = [
            layer for layer, column in needed if column is None or any(row.get(column) is not None for row in rows)
        ]
        spec["layer"] = [{name: part for name, part in layer.items() if name != "needs"} for layer in drawn]
    return {
        **labels,
        "spec": spec,
        "rows": [_finite(_with_kernel(row, evidence)) for row in rows],
        "menus": menus,
        "remark": remark,
        "unknown": "",
    }


def _with_kernel(row: dict[str, Any], evidence: Evidence) -> dict[str, Any]:
    """Return a row of a layer with the name of its kernel at the end, unless that is the layer's name."""
    kernels = {label: evidence.kernels[key] for key, label in evidence.labels.items()}
    kernel = kernels.get(row.get("layer", ""), row.get("layer"))
    return row if kernel == row.get("layer") else {**row, "kernel": kernel}


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _about(evidence: Evidence) -> str:
    summary, records = evidence.summary, evidence.records
    device = (summary.device if summary else "") or (str(records[0].device.get("name", "")) if records else "")
    parts = [
        f"target {evidence.target}" if evidence.target else "",
        device,
        f"{len(records)} records" if records else "",
    ]
    if (bench := evidence.bench) is not None and bench.time_ms is not None:
        parts.append(f"{bench.time_ms:.3f} ms a run on {(bench.device or {}).get('name', 'its device')} (bench)")
    if summary is not None and summary.default_ms and summary.tuned_ms:
        parts.append(summary.sentence)
    if summary is not None and summary.relative_l2_error is not None:
        parts.append(f"relative L2 error {summary.relative_l2_error:.1e} against onnxruntime")
    if summary is not None:
        parts += [f"{row.text}: {row.sentence}" for row in summary.shapes]
        parts += [*shapes_lines(summary), *device_lines(summary)]
    return "; ".join(part for part in parts if part)


@functools.cache
def _library() -> str:
    text = "a report needs vl-convert-python, which holds the library that draws its figures"
    bundle = optional_module("vl_convert", text, _HINT).javascript_bundle(None)
    return str(bundle).replace("</script", "<\\/script")
