"""Writes the pictures of a report into a folder, as SVG, and one HTML page with the pictures and every answer."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archprobe.analysis.answer import Answer
from archprobe.curve import Curve, Findings
from archprobe.plots import curves, overview
from archprobe.report.document import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #202124; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100%; margin: .5rem 0 1rem }}
td, th {{ border-bottom: 1px solid #dadce0; padding: .3rem .6rem; text-align: left; vertical-align: top }}
figure {{ margin: 0 0 1rem }} figcaption {{ color: #5f6368; font-size: 13px }} td.n {{ white-space: nowrap; font-variant-numeric: tabular-nums }} .off {{ color: #80868b }} svg {{ max-width: 100%; height: auto }}
</style></head><body><h1>{name}</h1><p>{about}</p>
{overview}
{unknowns}
{sections}
</body></html>
"""  # noqa: E501


def write_page(report: Report, folder: Path) -> Path:
    """Write ``index.html``, ``architecture.svg`` and one SVG for each curve into `folder`. Return the page's path.

    The page lists what is not known of the device, and the knees below each picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    picture = _save(overview.draw(report), folder / "architecture.svg")
    sections = []
    for aspect, findings in report.aspects.items():
        drawn = [
            _captioned(
                _save(curves.draw(curve, aspect), folder / f"{aspect}_{_plain(curve.name)}.svg"), findings, [curve]
            )
            for curve in findings.curves
            if not curve.picture
        ]
        for picture_name in dict.fromkeys(curve.picture for curve in findings.curves if curve.picture):
            together = [curve for curve in findings.curves if curve.picture == picture_name]
            file = folder / f"{aspect}_{_plain(picture_name)}.svg"
            drawn.append(_captioned(_save(curves.draw_together(together, aspect), file), findings, together))
        sections.append(_section(aspect, findings, drawn))
    head = report.header
    driver = head["Driver"]
    about = f"{driver['platform']}, driver {driver['driver']}; {head['Date']}; archprobe {head['Version']}" + (
        ", quick run" if head["IsQuick"] else ""
    )
    page = folder / "index.html"
    name = html.escape(report.device_name)
    page.write_text(
        _PAGE.format(
            name=name,
            about=html.escape(about),
            overview=picture,
            unknowns=_unknowns(report),
            sections="\n".join(sections),
        ),
        encoding="utf-8",
    )
    return page


def _captioned(picture: str, findings: Findings, drawn: Sequence[Curve]) -> str:
    """Return a picture with the knees of its curves."""
    captions = "<br>".join(html.escape(curves.caption(curve, findings)) for curve in drawn)
    return f"<figure>{picture}<figcaption>{captions}</figcaption></figure>"


def _unknowns(report: Report) -> str:
    """Return a list of what is not known of the device, each with its reason."""
    if not (unknowns := report.unknowns()):
        return ""
    entries = "".join(f"<li>{html.escape(name)}: {html.escape(reason)}</li>" for name, reason in unknowns.items())
    return f"<h2>Not known of this device</h2><ul>{entries}</ul>"


def _save(figure: Figure, path: Path) -> str:
    """Write a figure as SVG. Return its text, to be embedded in a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    path.write_text(text.getvalue(), encoding="utf-8")
    # Several pictures share the page, so their ids must differ.
    drawing = text.getvalue()[text.getvalue().index("<svg") :]
    mark = _plain(path.stem)
    return re.sub(r'(id="|url\(#|href="#)', lambda match: f"{match[1]}{mark}_", drawing)


def _section(aspect: str, findings: Findings, pictures: list[str]) -> str:
    rows = "".join(_row(key, answer) for key, answer in findings.answers.items())
    note = (
        f'<p class="off">{html.escape(findings.state.replace("_", " "))}: {html.escape(findings.reason)}</p>'
        if findings.state != "done"
        else ""
    )
    table = (
        f"<table><tr><th>key</th><th>value</th><th>interval</th><th>confidence</th><th>how</th></tr>{rows}</table>"
        if rows
        else ""
    )
    return f"<h2>{html.escape(aspect)}</h2><p>{html.escape(findings.method)}</p>{note}{table}{''.join(pictures)}"


def _row(key: str, answer: Answer) -> str:
    how = html.escape("; ".join((answer.reason, *answer.notes)))
    if answer.is_declined:
        return f'<tr class="off"><td>{html.escape(key)}</td><td>undecided</td><td></td><td></td><td>{how}</td></tr>'
    value = f"{answer.value:.5g}" if isinstance(answer.value, float) else html.escape(str(answer.value))
    interval = "" if answer.low is None or answer.high is None else f"{answer.low:.5g} – {answer.high:.5g}"
    cells = "".join(
        f'<td class="n">{cell}</td>'
        for cell in (f"{value} {html.escape(answer.unit)}", interval, f"{answer.confidence:.2f}")
    )
    return f"<tr><td>{html.escape(key)}</td>{cells}<td>{how}</td></tr>"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name)
