"""What all pictures share: colours, and a figure that belongs to no window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archprobe.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREY, DARK = "#1f5a96", "#c0392b", "#9aa0a6", "#202124"
FILL = {"core": "#e8f0fa", "alu": "#cfe2f7", "register": "#fbe9d0", "local": "#e3f1df", "cache": "#f3e3f1", "memory": "#eceff1"}


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Make (figure, axes) of a size in inches; UsageError where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("pictures need matplotlib; `pip install matplotlib`") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()
