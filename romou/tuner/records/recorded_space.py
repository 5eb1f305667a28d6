"""A space whose configs were measured one after another, kept in one file: what searches are compared on without a
device.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from romou.base.errors import RecordError
from romou.base.files import read_file, regular, replacing
from romou.base.outcome import Outcome
from romou.base.space import Space

# Raised when a field changes its meaning.
SPACE_SCHEMA = 1
_SUFFIX = ".json.gz"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedConfig:
    """One measured config.

    index       of the config in the space (`Space.at`)
    outcome     how it ended
    times_s     repeats in seconds; a single one where the candidate was cut short because it was slow
    build_s     seconds of the build
    run_s       seconds on the device: load, check and time
    error       text; None for OK
    again_s     repeats of a second measurement in which nothing else used the machine; empty where there was none
    """

    index: int
    outcome: Outcome
    times_s: tuple[float, ...] = ()
    build_s: float = 0.0
    run_s: float = 0.0
    error: str | None = None
    again_s: tuple[float, ...] = ()

    @property
    def time_s(self) -> float | None:
        """Median of the repeats, of the second measurement where there was one; None where the config did not work."""
        times = self.again_s or self.times_s
        return median(times) if self.outcome == Outcome.OK and times else None

    def to_list(self) -> list[Any]:
        """JSON-ready, seconds rounded: times to 0.1 ns, durations to 0.1 ms."""
        times, again = ([round(t, 10) for t in repeats] for repeats in (self.times_s, self.again_s))
        return [self.index, self.outcome, times, round(self.build_s, 4), round(self.run_s, 4), self.error, again]

    @classmethod
    def from_list(cls, row: Sequence[Any]) -> RecordedConfig:
        """Inverse of `to_list`."""
        index, outcome, times, build_s, run_s, error, again = row
        return cls(
            index=int(index),
            outcome=Outcome(outcome),
            times_s=tuple(times),
            build_s=build_s,
            run_s=run_s,
            error=error,
            again_s=tuple(again),
        )


@dataclasses.dataclass(kw_only=True)
class RecordedSpace:
    """The measured configs of one task on one device.

    name        of the operator, and of the file
    task        what the task is made of again: its workload, key, name and flops
    knobs       name -> choices, in the order by which configs are numbered
    device      `DeviceFingerprint.to_dict()`
    context     target, limits, versions, time, and how it was measured
    configs     index -> what was measured
    """

    name: str
    task: dict[str, Any]
    knobs: dict[str, tuple[int | str | bool, ...]]
    device: dict[str, Any]
    context: dict[str, Any]
    configs: dict[int, RecordedConfig] = dataclasses.field(default_factory=dict)

    @staticmethod
    def path_in(folder: Path, name: str) -> Path:
        """The file of an operator."""
        return folder / f"{name}{_SUFFIX}"

    def space(self) -> Space:
        """The knobs without constraints: `at` and `index_of` translate between configs and their numbers."""
        space = Space()
        for name, choices in self.knobs.items():
            space.define_knob(name, choices)
        return space

    def is_same_space(self, other: RecordedSpace) -> bool:
        """Whether configs of both may stand in one file: the same task, knobs and device."""
        ours, theirs = (
            json.dumps([getattr(s, n) for n in ("name", "task", "knobs", "device")], sort_keys=True)
            for s in (self, other)
        )
        # The order of knobs numbers the configs.
        return ours == theirs and list(self.knobs) == list(other.knobs)

    def start(self, path: Path) -> None:
        """Write the file anew, in one piece: what was there is replaced as a whole or not at all."""
        with replacing(path) as partial:
            partial.write_bytes(_packed([self.header(), *(c.to_list() for c in self.configs.values())]))

    def append(self, path: Path, found: Iterable[RecordedConfig]) -> None:
        """Add configs to the file; one that is there already is replaced by the later one.

        They are a gzip member of their own: a writer that is killed loses nothing of what was appended before.
        """
        rows = list(found)
        self.configs.update((c.index, c) for c in rows)
        if rows:
            with open(path, "ab", opener=regular) as file:
                file.write(_packed([c.to_list() for c in rows]))

    @classmethod
    def load(cls, path: Path) -> RecordedSpace:
        """Read a file; a last member that was cut off is left out. RecordError for what is no such file, or one of a
        newer schema.
        """
        try:
            lines = _unpacked(read_file(path)).splitlines()
            header: Mapping[str, Any] = json.loads(lines[0])
            schema = header["schema"]
            if schema > SPACE_SCHEMA:
                raise RecordError(
                    f"{path}: written by a newer Romou (schema {schema}, this one reads up to {SPACE_SCHEMA})",
                    hint="Update Romou.",
                )
            configs = {c.index: c for c in map(RecordedConfig.from_list, map(json.loads, lines[1:]))}
            return cls(
                name=header["name"],
                task=header["task"],
                knobs={name: tuple(choices) for name, choices in header["knobs"].items()},
                device=header["device"],
                context=header["context"],
                configs=configs,
            )
        except (OSError, IndexError, KeyError, TypeError, ValueError) as error:
            raise RecordError(
                f"{path}: cannot read this as a recorded space: {type(error).__name__}: {error}"
            ) from error

    def header(self) -> dict[str, Any]:
        """All but the configs, JSON-ready."""
        fields = {name: getattr(self, name) for name in ("name", "task", "knobs", "device", "context")}
        return {"schema": SPACE_SCHEMA, **fields}


def _packed(rows: Iterable[Any]) -> bytes:
    text = "".join(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n" for row in rows)
    # Without the time of writing: equal contents are equal files.
    return gzip.compress(text.encode(), mtime=0)


def _unpacked(data: bytes) -> str:
    """The text of all whole gzip members."""
    parts = []
    while data:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            text = member.decompress(data)
        except zlib.error as error:
            raise ValueError(f"damaged: {error}") from error
        if not member.eof:
            break
        parts.append(text)
        data = member.unused_data
    return b"".join(parts).decode()
