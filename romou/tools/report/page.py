"""A report as one HTML file that needs no network.

It contains the figures, their data, and the JavaScript that draws them (Vega, from the wheel vl-convert-python).
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

from romou.base.errors import UsageError
from romou.tools.report.evidence import Evidence, UnknownError
from romou.tools.report.figures import FIGURES
from romou.tools.report.figures.figure import ALL
from romou.tools.report.html_page import write_html
from romou.tools.report.overview import TEXTS, next_steps, tables
from romou.tools.report.table import device_lines, shapes_lines

_HINT = "pip install 'romou[report]'"


def write_page(evidence: Evidence, path: Path) -> Path:
    """Write the report and return its path.

    Raise UsageError if the file cannot be written, or vl-convert-python is missing.
    """
    figures = [_drawn(figure, evidence) for figure in FIGURES]
    if evidence.compared or (evidence.bench is not None and evidence.bench.about is not None):
        # Their times are in a table. Headings of figures without data would hide it.
        figures = [figure for figure in figures if not figure["unknown"]]
    layers = [
        ALL,
        *dict.fromkeys(
            str(row["layer"]) for figure in figures for row in figure["rows"] if row.get("layer", ALL) != ALL
        ),
    ]
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


def check_library() -> None:
    """Raise UsageError if the plotting library is missing, before hours of tuning."""
    _library()


def _drawn(figure: Any, evidence: Evidence) -> dict[str, Any]:
    """Return a figure in the form that the page's script reads. Without data, it has the reason instead."""
    labels = {name: getattr(figure, name) for name in ("name", "title", "note", "of_search")}
    try:
        rows, remark = figure.rows(evidence)
    except UnknownError as error:
        return {**labels, "spec": {}, "rows": [], "menus": {}, "values": {}, "remark": "", "unknown": str(error)}
    spec = dict(figure.spec)
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
        "menus": figure.menus(rows),
        "values": figure.values(rows),
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
    try:
        import vl_convert
    except ImportError as error:
        raise UsageError(
            "a report needs vl-convert-python, which holds the library that draws its figures", hint=_HINT
        ) from error
    # The type stub does not declare that the snippet is optional.
    bundle = vl_convert.javascript_bundle(None)  # type: ignore[arg-type]
    return str(bundle).replace("</script", "<\\/script")
