"""A picture for each curve, with its points and a line at each finding of the analysis.

The parts that all pictures share are also defined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from archprobe.curve import Curve, Findings
from archprobe.extras import module

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREY, DARK = "#1f5a96", "#c0392b", "#9aa0a6", "#202124"
FILL = {
    "core": "#e8f0fa",
    "alu": "#cfe2f7",
    "register": "#fbe9d0",
    "local": "#e3f1df",
    "cache": "#f3e3f1",
    "memory": "#eceff1",
}


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Make (figure, axes) of a size in inches."""
    figure: Figure = module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def draw(curve: Curve, title: str = "") -> Figure:
    """Draw one curve as a matplotlib figure. Marks with a position on the x axis are drawn, others (rates, ratios)
    are not.
    """
    figure, axes = new_figure(7.2, 3.6)
    axes.plot(curve.x, curve.y, color=BLUE, marker="." if len(curve.x) < 160 else None, linewidth=1.2, markersize=4)
    if curve.is_log_x:
        axes.set_xscale("log", base=2)
        if len(curve.x) <= 16:
            axes.set_xticks(curve.x, [_short(x) for x in curve.x])
        else:
            axes.xaxis.set_major_formatter(lambda x, _: _short(x))
    if min(curve.y) > 0 and max(curve.y) > 30 * min(curve.y):
        axes.set_yscale("log")
    for name, (position, _) in curve.knees.items():
        axes.axvline(position, color=RED, linewidth=1, linestyle="--")
        where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top", "ha": "right"}
        axes.annotate(f"{name} = {_short(position)}", (position, 0.97), fontsize=7, color=RED, **where)
    _finish(axes, curve, f"{title}: {curve.name}" if title else curve.name)
    return figure


def draw_together(curves: Sequence[Curve], title: str = "") -> Figure:
    """Draw the curves of one picture over the same axes, each with its name, as the paper's figures 5 and 6."""
    figure, axes = new_figure(7.2, 4.2)
    for curve in curves:
        axes.plot(curve.x, curve.y, marker="." if len(curve.x) < 160 else None, linewidth=1.2, label=curve.name)
    axes.legend(fontsize=7, ncols=2)
    first = curves[0]
    _finish(axes, first, f"{title}: {first.picture}" if title else first.picture)
    return figure


def caption(curve: Curve, findings: Findings) -> str:
    """Return a sentence with the knees of a curve, or with the reason why it has none."""
    if curve.knees:
        knees = [
            f"{key} = {_short(x)} ({curve.x_label}), where {curve.y_label} is {y:.4g}"
            for key, (x, y) in curve.knees.items()
        ]
        return f"{curve.name}: knee at {'; '.join(knees)}."
    declined = [f"{key}: {answer.reason}" for key, answer in findings.answers.items() if answer.is_declined]
    return f"{curve.name}: no knee. {'; '.join(declined) or 'Its answers are levels or ratios'}."


def _finish(axes: Axes, curve: Curve, title: str) -> None:
    axes.set_xlabel(curve.x_label)
    axes.set_ylabel(curve.y_label)
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(color=GREY, linewidth=0.4, alpha=0.5)


def _short(value: float) -> str:
    """Format a number for an axis: 4096 is 4K, 2097152 is 2M."""
    for size, letter in ((2**30, "G"), (2**20, "M"), (2**10, "K")):
        if value >= 4 * size or (value >= size and value % size == 0):
            return f"{value / size:.4g}{letter}"
    return f"{value:.5g}"
