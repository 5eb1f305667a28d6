"""What executed waves did: instructions, active lanes, lines of memory, bank conflicts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from romou.devices.mobile_compilers.ir3.caches import LINE_BYTES, Caches, is_first, longer
from romou.devices.mobile_compilers.ir3.instructions import Array

# Banks of local memory with 4 bytes each
_BANKS = 32
# What changes no value in the simulator
NO_OPERATION = re.compile(r"nop|fence\..*|ccinv|sleep\..*|(un)?lock|shps|shpe")
# Above the numbers of lines in a wave or a work group
_LINE_BITS = np.int64(44)
_OWNER = np.int64(1) << _LINE_BITS


@dataclass(kw_only=True)
class Counts:
    """What the executed waves did.

    executed: mnemonic -> times that a wave executed it, repetitions included.
    active_lanes: mnemonic -> lanes that were active then, summed.
    issue_slots: of all waves, the compiler's waits included, as `LoopStatistics.instructions` counts them.
    divergent_branches: branches after which lanes of a wave continue at two places.
    lines: "buffer" and "image" -> distinct lines of 64 bytes that each load of a wave touches, summed. The texels of an
        image count as if its rows followed one another: how a phone tiles them is not known.
    group_lines: the distinct lines of all loads of a work group, summed over groups.
    bytes_from: "l1", "l2" and "memory" -> bytes that loads take from each level of the caches, see `Caches.served`.
    bank_conflicts: times that a wave's access to local memory waits for a bank of 4 bytes, of 32.
    waves, groups: executed.
    """

    executed: dict[str, int] = field(default_factory=dict)
    active_lanes: dict[str, int] = field(default_factory=dict)
    issue_slots: int = 0
    divergent_branches: int = 0
    lines: dict[str, int] = field(default_factory=dict)
    group_lines: dict[str, int] = field(default_factory=dict)
    bytes_from: dict[str, int] = field(default_factory=dict)
    bank_conflicts: int = 0
    waves: int = 0
    groups: int = 0

    @property
    def instructions(self) -> int:
        """Instructions that waves executed, repetitions included, without waits."""
        return sum(count for name, count in self.executed.items() if not NO_OPERATION.fullmatch(name))

    @property
    def lanes(self) -> float:
        """Active lanes of a wave, the mean over its instructions."""
        active = sum(count for name, count in self.active_lanes.items() if not NO_OPERATION.fullmatch(name))
        return active / max(self.instructions, 1)

    def add(self, other: Counts) -> None:
        """Add the counts of other work groups."""
        for name in ("executed", "active_lanes", "lines", "group_lines", "bytes_from"):
            mine = getattr(self, name)
            for key, count in getattr(other, name).items():
                mine[key] = mine.get(key, 0) + count
        for name in ("issue_slots", "divergent_branches", "bank_conflicts", "waves", "groups"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(kw_only=True)
class LineCounter:
    """Counts the lines and bank conflicts of some work groups.

    wave_of, group_of: of each lane.
    caches: what loads go through.
    """

    wave_of: Array
    group_of: Array
    caches: Caches
    lines: dict[str, int] = field(default_factory=dict)
    bank_conflicts: int = 0
    _of_groups: dict[str, list[Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._group_of_wave = self.group_of[np.flatnonzero(np.diff(self.wave_of, prepend=-1))]

    def load(self, what: str, lanes: Array, addresses: Array) -> None:
        """Count a load from "buffer" or "image".

        addresses: bytes that each active lane loads, (lanes,), or the first and the last one, (2, lanes).
        """
        size = self.caches.line_bytes
        keys = np.sort(((self.wave_of[lanes] << _LINE_BITS) + addresses // size).ravel())
        keys = keys[is_first(keys)]
        waves, lines = keys >> _LINE_BITS, keys & (_OWNER - 1)
        self.caches.load(what, waves, lines)
        lines, waves = longer(lines, waves, LINE_BYTES // size)
        self.lines[what] = self.lines.get(what, 0) + len(lines)
        self._of_groups.setdefault(what, []).append((self._group_of_wave[waves] << _LINE_BITS) + lines)

    def local(self, lanes: Array, words: Array) -> None:
        """Count the conflicts of an access to local memory. Lanes that access the same word do not conflict."""
        distinct = np.unique(self.wave_of[lanes] * _OWNER + words)
        banks, counts = np.unique(distinct // _OWNER * _BANKS + distinct % _BANKS, return_counts=True)
        starts = np.flatnonzero(np.diff(banks // _BANKS, prepend=-1))
        self.bank_conflicts += int(np.maximum.reduceat(counts, starts).sum()) - len(starts) if len(counts) else 0

    def group_lines(self) -> dict[str, int]:
        """Return `Counts.group_lines`."""
        return {what: len(np.unique(np.concatenate(parts))) for what, parts in self._of_groups.items()}
