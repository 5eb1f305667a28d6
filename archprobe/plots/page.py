"""Writes the pictures of a report into a folder, as SVG, and one HTML page with the pictures and every answer."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from archprobe import __version__
from archprobe.analysis.answer import Answer
from archprobe.curve import Curve
from archprobe.pages import render
from archprobe.plots import curves, overview
from archprobe.report.document import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_page(report: Report, folder: Path) -> Path:
    """Write ``index.html``, ``architecture.svg`` and one SVG for each curve into `folder`. Return the page's path.

    The page lists what is not known of the device, and the knees below each picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    architecture = _save(overview.draw(report), folder / "architecture.svg")
    sections = []
    for aspect, findings in report.aspects.items():
        groups: dict[tuple[str, str], list[Curve]] = {}
        for curve in findings.curves:
            groups.setdefault((curve.picture, "" if curve.picture else curve.name), []).append(curve)
        pictures = []
        for (picture, name), together in groups.items():
            figure = curves.draw_together(together, aspect) if picture else curves.draw(together[0], aspect)
            drawing = _save(figure, folder / f"{aspect}_{_plain(picture or name)}.svg")
            pictures.append((drawing, [curves.caption(curve, findings) for curve in together]))
        sections.append(
            {
                "aspect": aspect,
                "method": findings.method,
                "state": "" if findings.state == "done" else f"{findings.state.replace('_', ' ')}: {findings.reason}",
                "rows": [_row(key, answer) for key, answer in findings.answers.items()],
                "pictures": pictures,
            }
        )
    head = report.header
    driver = head["Driver"]
    about = f"{driver['platform']}, driver {driver['driver']}; {head['Date']}; archprobe {head['Version']}" + (
        ", quick run" if head["IsQuick"] else ""
    )
    page = folder / "index.html"
    text = render(
        "device.html",
        title=report.device_name,
        about=about,
        architecture=architecture,
        unknowns=[f"{name}: {reason}" for name, reason in report.unknowns().items()],
        sections=sections,
        version=__version__,
    )
    page.write_text(text, encoding="utf-8")
    return page


def _save(figure: Figure, path: Path) -> str:
    """Write a figure as SVG. Return its text, to be embedded in a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    path.write_text(text.getvalue(), encoding="utf-8")
    # Several pictures share the page, so their ids must differ.
    drawing = text.getvalue()[text.getvalue().index("<svg") :]
    mark = _plain(path.stem)
    return re.sub(r'(id="|url\(#|href="#)', lambda match: f"{match[1]}{mark}_", drawing)


def _row(key: str, answer: Answer) -> tuple[str, ...]:
    """Return (key, value, interval, confidence, how it was found)."""
    how = "; ".join((answer.reason, *answer.notes))
    if answer.is_declined:
        return key, "undecided", "", "", how
    value = f"{answer.value:.5g}" if isinstance(answer.value, float) else str(answer.value)
    interval = "" if answer.low is None or answer.high is None else f"{answer.low:.5g} – {answer.high:.5g}"
    return key, f"{value} {answer.unit}", interval, f"{answer.confidence:.2f}", how


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name)
