"""The figures of a report, in the order of the page. To add one, write a module with a FIGURE and list it here."""

from romou.tools.report.figures import (
    convergence,
    device,
    funnel,
    histogram,
    knobs,
    layers,
    memory,
    passes,
    registers,
    roofline,
)
from romou.tools.report.figures.figure import Figure

FIGURES: tuple[Figure, ...] = tuple(
    module.FIGURE
    for module in (layers, roofline, memory, convergence, funnel, histogram, knobs, registers, passes, device)
)
