"""The known devices of the same family that are most similar to a measured one. They fill the gaps of a report."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from romou.devices.hardware.spec import SCHEMA, HardwareSpec

logger = logging.getLogger("romou")

# Numbers of two devices agree within this factor: ArchProbe's runs of one device do.
_ALIKE = 1.25
# A neighbour has at least this many numbers that agree, more than those that do not.
_FEWEST = 4
_MOST_ASKED = 3
# Origins of the logged messages: each is logged once.
_told: set[str] = set()


def nearest_of(spec: HardwareSpec, candidates: Iterable[HardwareSpec]) -> list[tuple[HardwareSpec, int, int]]:
    """Return the most similar candidates, the nearest first: each with its numbers that agree, and all that both have.

    A number that agrees counts for a candidate, any other one against it. Of two with the same count, the one with the
    least mean |log2(a / b)| is nearer. The mean is no measure: it favours devices of which little is known.
    """
    ranked = []
    for other in candidates:
        octaves = _differences(spec, other)
        agreeing = sum(octave <= math.log2(_ALIKE) for octave in octaves)
        surplus = 2 * agreeing - len(octaves)
        if agreeing >= _FEWEST and surplus > 0:
            ranked.append((-surplus, sum(octaves) / len(octaves), other.name, other, agreeing, len(octaves)))
    return [entry[3:] for entry in sorted(ranked)[:_MOST_ASKED]]


def _differences(spec: HardwareSpec, other: HardwareSpec) -> list[float]:
    """Return |log2(a / b)| of each number that both devices have."""
    pairs = [(getattr(spec, key), getattr(other, key)) for key in SCHEMA]
    return [abs(math.log2(a / b)) for a, b in pairs if _is_number(a) and _is_number(b)]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def filled(spec: HardwareSpec, candidates: Iterable[HardwareSpec], origin: str) -> HardwareSpec:
    """Return the spec with unknown facts from the nearest candidates, which the log says once for each `origin`.

    A fact comes from the nearest candidate that knows it. Limits stay unknown: kernels might not run.
    """
    taken = []
    for other, agreeing, common in nearest_of(spec, candidates):
        complete = spec.guessed_from(other)
        gained = [key for key in spec.unknown_facts() if getattr(complete, key) is not None]
        if gained:
            taken.append(f"{', '.join(gained)} from {other.title} ({agreeing} of {common} numbers agree)")
        spec = complete
    if taken and origin not in _told:
        _told.add(origin)
        logger.warning(
            "%s: what the report does not hold is taken from the nearest devices of its family: %s",
            origin,
            "; ".join(taken),
        )
    return spec
