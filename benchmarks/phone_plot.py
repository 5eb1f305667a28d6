"""A scatter plot of estimates and recorded times, one panel for each GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

# Panels in a row are this wide and high, in inches.
_INCHES = 4.0


def draw(points: Mapping[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Write a picture of the points of each GPU.

    points: GPU -> estimates and times of all configs, each over the best of its task
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_INCHES * len(points), _INCHES), layout="constrained", dpi=90)
    panels = np.ravel(figure.subplots(1, len(points), sharey=True, squeeze=False))
    for panel, (gpu, (estimates, times)) in zip(panels, points.items(), strict=True):
        panel.hexbin(estimates, times, gridsize=60, xscale="log", yscale="log", bins="log", cmap="Blues", linewidths=0)
        most = float(max(estimates.max(), times.max()))
        panel.plot((1, most), (1, most), color="0.6", linewidth=1)
        panel.set(title=f"{gpu}, {len(times)} configs", xlabel="estimate over the task's lowest")
    panels[0].set_ylabel("recorded time over the task's best")
    figure.savefig(path)
