"""Caches of a simulated Adreno: which level the lines of a load come from.

Each level evicts the line that was used least recently. Images are read through the first level, which a core's
resident waves share, and then through the second level, which all cores share. Stores are left out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from romou.devices.mobile_compilers.ir3.instructions import Array

# Bytes of the lines that are counted for a wave and a work group
LINE_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class Level:
    """Size and line of a cache in bytes. ways: lines of a set, None if any line may be kept anywhere."""

    bytes: int
    line_bytes: int
    ways: int | None = None


class Cache:
    """The lines that a cache holds."""

    def __init__(self, level: Level) -> None:
        self.line_bytes = level.line_bytes
        lines = max(1, level.bytes // level.line_bytes)
        self._ways = min(lines, level.ways or lines)
        self._sets: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(max(1, lines // self._ways))]

    def missing(self, lines: Sequence[int]) -> list[int]:
        """Access lines in order, and return those that the cache did not hold."""
        missing, sets, count, ways = [], self._sets, len(self._sets), self._ways
        for line in lines:
            kept = sets[line % count]
            if line in kept:
                kept.move_to_end(line)
                continue
            missing.append(line)
            kept[line] = None
            if len(kept) > ways:
                kept.popitem(last=False)
        return missing


@dataclass(kw_only=True)
class Caches:
    """The levels of a device. A level of None is not known: loads are not followed below it.

    first: the level that images are read through.
    second: the level below, which serves buffers too.
    buffers_in_first: whether buffers are read through the first level as well.
    resident_waves: waves of a core, which share a first level.
    served: level -> bytes that it delivers: "l1" and "l2" whole lines that are asked for, "memory" what the last level
        lacks.
    """

    first: Level | None = None
    second: Level | None = None
    buffers_in_first: bool = False
    resident_waves: int = 16
    served: dict[str, int] = field(default_factory=dict)
    _firsts: dict[int, Cache] = field(default_factory=dict)
    _second: Cache | None = None

    def __post_init__(self) -> None:
        self._second = Cache(self.second) if self.second is not None else None

    @property
    def line_bytes(self) -> int:
        """Return the smallest line, at most LINE_BYTES."""
        return min([LINE_BYTES, *(level.line_bytes for level in (self.first, self.second) if level is not None)])

    def load(self, what: str, waves: Array, lines: Array) -> None:
        """Load lines of `line_bytes` from "image" or "buffer". waves: of each line, ascending."""
        if what == "image" or self.buffers_in_first:
            if self.first is None:
                return
            lines, waves = longer(lines, waves, self.first.line_bytes // self.line_bytes)
            self._serve("l1", len(lines) * self.first.line_bytes)
            cores = waves // self.resident_waves
            starts = np.flatnonzero(is_first(cores)).tolist()
            missing: list[int] = []
            for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
                core = int(cores[start])
                if core not in self._firsts:
                    self._firsts[core] = Cache(self.first)
                missing += self._firsts[core].missing(lines[start:end].tolist())
            size = self.first.line_bytes
        else:
            missing, size = lines.tolist(), self.line_bytes
        if self._second is None:
            return
        self._serve("l2", len(missing) * size)
        below = self._second.line_bytes
        parts = range(0, size, min(size, below))
        missed = self._second.missing([(line * size + part) // below for line in missing for part in parts])
        self._serve("memory", len(missed) * below)

    def _serve(self, level: str, amount: int) -> None:
        self.served[level] = self.served.get(level, 0) + amount


def longer(lines: Array, waves: Array, factor: int) -> tuple[Array, Array]:
    """Return the distinct lines of `factor` times the length, and their waves. Lines ascend within a wave."""
    if factor == 1:
        return lines, waves
    lines = lines // factor
    chosen = is_first(lines) | is_first(waves)
    return lines[chosen], waves[chosen]


def is_first(values: Array) -> Array:
    """Return where a value differs from the one before it."""
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first
