"""A probe: a name, the report's aspect that it fills, and a function from a meter to findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from archprobe.curve import Findings
from archprobe.meter import Meter

NO_TEXTURES = "a CPU has no texture units: its driver reads images from memory like buffers"
Measure = Callable[[Meter], Findings]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """A question about a device.

    `measure` runs the sweep and its analysis. `method` describes them in a sentence and goes into the report.

    is_repeated: whether a second run has to confirm the answers of the first
    not_on_cpu: the reason why the question has no meaning on a CPU, empty if it has one
    """

    name: str
    aspect: str
    title: str
    method: str
    measure: Measure
    not_on_cpu: str = ""
    needs_images: bool = False
    is_for_opencl: bool = False
    is_repeated: bool = True


def probe(aspect: str, title: str, method: str, **conditions: Any) -> Callable[[Measure], Probe]:
    """Make a `Probe` of the decorated function, with the function's name. `conditions` are its other fields."""
    return lambda measure: Probe(
        name=measure.__name__, aspect=aspect, title=title, method=method, measure=measure, **conditions
    )
