"""The measured configs of a space in one file. Searches are compared on it without a device."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from romou.base.errors import RecordError, UsageError
from romou.base.files import read_file, regular, replacing
from romou.base.foreign import parsed, refused, unzipped
from romou.base.outcome import Outcome
from romou.base.schema import NotNegative, Range, made_of, shown
from romou.base.space import Space

# Incremented if a field changes its meaning.
SPACE_SCHEMA = 1
_SUFFIX = ".json.gz"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedConfig:
    """A measured config.

    index       index of the config in the space (`Space.at`)
    outcome     how it ended
    times_s     repeats in seconds. A single one if the candidate was cut short because it was slow
    build_s     seconds of the build
    run_s       seconds on the device: load, check and time
    error       text. None for OK
    again_s     repeats of a second measurement, during which nothing else used the machine. Empty if there was none
    """

    index: Annotated[int, Range(0)]
    outcome: Outcome
    times_s: tuple[NotNegative, ...] = ()
    build_s: NotNegative = 0.0
    run_s: NotNegative = 0.0
    error: str | None = None
    again_s: tuple[NotNegative, ...] = ()

    @property
    def time_s(self) -> float | None:
        """Median of the repeats, of the second measurement if there was one. None if the config did not work."""
        times = self.again_s or self.times_s
        return median(times) if self.outcome == Outcome.OK and times else None

    def to_list(self) -> list[Any]:
        """Return a JSON-ready row with rounded seconds: times to 0.1 ns, durations to 0.1 ms."""
        times, again = ([round(t, 10) for t in repeats] for repeats in (self.times_s, self.again_s))
        return [self.index, self.outcome, times, round(self.build_s, 4), round(self.run_s, 4), self.error, again]

    @classmethod
    def from_list(cls, row: Sequence[Any]) -> RecordedConfig:
        """Return the config that `to_list` wrote. ValueError if the row is none."""
        names = (field.name for field in dataclasses.fields(cls))
        return made_of(cls, dict(zip(names, row, strict=True)))


@dataclasses.dataclass(kw_only=True)
class RecordedSpace:
    """The measured configs of one task on one device.

    name        name of the operator, and of the file
    task        data that restores the task: its workload, key, name and flops
    knobs       name -> choices, in the order that numbers the configs
    device      `DeviceFingerprint.to_dict()`
    context     target, limits, versions, time, and how it was measured
    configs     index -> measured config
    """

    name: str
    task: dict[str, Any]
    knobs: dict[str, tuple[int | str | bool, ...]]
    device: dict[str, Any]
    context: dict[str, Any]
    configs: dict[int, RecordedConfig] = dataclasses.field(default_factory=dict)

    @staticmethod
    def path_in(folder: Path, name: str) -> Path:
        """Return the file of an operator."""
        return folder / f"{name}{_SUFFIX}"

    def space(self) -> Space:
        """Return the knobs without constraints: `at` and `index_of` translate between configs and their numbers."""
        space = Space()
        for name, choices in self.knobs.items():
            space.define_knob(name, choices)
        return space

    def start(self, path: Path) -> None:
        """Write the file anew, in one piece: the previous content is replaced as a whole or not at all."""
        with replacing(path) as partial:
            partial.write_bytes(_packed([self.header(), *(c.to_list() for c in self.configs.values())]))

    def append(self, path: Path, configs: Iterable[RecordedConfig]) -> None:
        """Add configs to the file. A config that the file has already is replaced by the later one.

        The configs form a separate gzip member: a writer that is killed loses nothing that was appended before.
        """
        rows = list(configs)
        self.configs.update((c.index, c) for c in rows)
        if rows:
            with open(path, "ab", opener=regular) as file:
                file.write(_packed([c.to_list() for c in rows]))

    @classmethod
    def load(cls, path: Path) -> RecordedSpace:
        """Read a file.

        A last member that was cut off is left out. RecordError if the file is no recorded space, or has a newer schema.
        """
        with refused(RecordError, f"{path}: cannot read this as a recorded space"):
            first, *lines = unzipped(read_file(path), is_cut_off=True).splitlines() or [b""]
            header = parsed(first)
            schema = made_of(int, header["schema"])
            if schema > SPACE_SCHEMA:
                raise RecordError(
                    f"{path}: written by a newer Romou (schema {shown(schema)}, this one reads up to {SPACE_SCHEMA})",
                    hint="Update Romou.",
                )
            configs = {c.index: c for c in map(RecordedConfig.from_list, map(parsed, lines))}
            recorded = made_of(cls, {**header, "configs": configs})
            try:
                recorded.space()
            except UsageError as error:
                raise ValueError(error.message) from error
            return recorded

    def header(self) -> dict[str, Any]:
        """Return everything but the configs, JSON-ready."""
        fields = {name: getattr(self, name) for name in ("name", "task", "knobs", "device", "context")}
        return {"schema": SPACE_SCHEMA, **fields}


def _packed(rows: Iterable[Any]) -> bytes:
    text = "".join(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n" for row in rows)
    # Without the time of writing, equal contents give equal files.
    return gzip.compress(text.encode(), mtime=0)
