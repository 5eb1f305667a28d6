"""The known device of the same family that is most similar to a measured one. It fills the gaps of a report."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from romou.devices.hardware.spec import SCHEMA, HardwareSpec

logger = logging.getLogger("romou")

# Devices are compared by at least this many numbers.
_FEWEST = 4
# Origins of the logged messages: each is logged once.
_told: set[str] = set()


def nearest_of(spec: HardwareSpec, candidates: Iterable[HardwareSpec]) -> HardwareSpec | None:
    """Return the candidate with the least distance from the spec. None if none shares enough numbers.

    The distance is the mean of |log2(a / b)| over the facts that both devices have.
    """
    distances = {(distance(spec, other), other.name): other for other in candidates}
    comparable = [key for key in distances if math.isfinite(key[0])]
    return distances[min(comparable)] if comparable else None


def distance(spec: HardwareSpec, other: HardwareSpec) -> float:
    """Return the difference of two devices in octaves. Infinite if they share too few numbers."""
    pairs = [(getattr(spec, key), getattr(other, key)) for key in SCHEMA]
    ratios = [abs(math.log2(a / b)) for a, b in pairs if _is_number(a) and _is_number(b)]
    return sum(ratios) / len(ratios) if len(ratios) >= _FEWEST else math.inf


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def filled(spec: HardwareSpec, candidates: Iterable[HardwareSpec], origin: str) -> HardwareSpec:
    """Return the spec with unknown facts from the nearest candidate, which the log says once for each `origin`.

    Limits stay unknown: kernels might not run.
    """
    other = nearest_of(spec, candidates)
    if other is None:
        return spec
    complete = spec.guessed_from(other)
    gained = [key for key in spec.unknown_facts() if getattr(complete, key) is not None]
    if gained and origin not in _told:
        _told.add(origin)
        logger.warning(
            "%s: the report holds no %s; taken from %s, the nearest device of its family",
            origin,
            ", ".join(gained),
            other.title,
        )
    return complete
