"""How candidates are built, run, checked and timed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from romou.base.errors import UsageError, unknown_name

_Options = TypeVar("_Options", bound="CheckedOptions")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedOptions:
    """Base of option classes: `_positive` fields must be numbers above zero; None is allowed where it is the default."""  # noqa: E501

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            lowest = field.metadata.get("lowest")
            value = getattr(self, field.name)
            if lowest is None or (value is None and field.default is None):
                continue
            is_whole = field.metadata["is_whole"]
            is_number = (
                isinstance(value, int if is_whole else (int, float))
                and not isinstance(value, bool)
                and math.isfinite(value)
            )
            is_high_enough = is_number and (value > 0 if lowest == "above 0" else value >= lowest)
            if not is_high_enough:
                limit = lowest if lowest == "above 0" else f"at least {lowest}"
                raise UsageError(
                    f"{field.name}={value!r}: must be a {'whole ' if is_whole else ''}number, {limit}",
                    option=field.name,
                    value=value,
                )

    @classmethod
    def from_dict(cls: type[_Options], values: Mapping[str, Any]) -> _Options:
        """Options from a mapping; UsageError with the nearest name for an unknown key."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise unknown_name(f"{cls.__name__} key", name, known)
        return cls(**values)


def number(default: float | None, *, lowest: Any = "above 0") -> Any:
    """A field that holds a checked number."""
    return dataclasses.field(default=default, metadata={"lowest": lowest, "is_whole": False})


def whole(default: int | None, *, lowest: int = 1) -> Any:
    """A field that holds a checked whole number."""
    return dataclasses.field(default=default, metadata={"lowest": lowest, "is_whole": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureOptions(CheckedOptions):
    """Limits and repeats of a measurement.

    build_timeout_s       one candidate's build, from TIR to a library file
    build_workers         build processes; None: one a CPU core, at most 8
    run_timeout_s         one candidate on the device: load, run, check and time together
    reference_timeout_s   the reference result of one task on the CPU, once a session
    repeat                timings kept of a candidate
    min_repeat_ms         launches are repeated until one timing takes this long, within a third of run_timeout_s for all of them
    skip_ratio            a candidate whose first launch takes this many times the best is not timed any further
    race_ratio            one whose first timing is this many times the best keeps only that one
    winner_repeat         timings kept of a candidate that is measured again at the end, as it may be the result
    trust_runs            runs of a winner before it is kept, on two sets of inputs in turns: its outputs must not change in a bit; 0: none
    trust_s               at most so long, where a run takes long
    seed                  of the input data

    For devices behind a connection:

    connect_timeout_s     until a server answers
    upload_timeout_s      one candidate's library
    unreachable_s         without any device before the run ends
    clock_every_s         how long the speed of a device's clock is taken for unchanged
    clock_limit           a reference kernel this many times slower than at its best lets the device cool down
    cool_down_s           at most so long at a time; 0: never. CPUs, whose clock others' work hides, never do
    """  # noqa: E501

    build_timeout_s: float = number(30.0)
    build_workers: int | None = whole(None)
    run_timeout_s: float = number(15.0)
    reference_timeout_s: float = number(300.0)
    repeat: int = whole(3)
    min_repeat_ms: float = number(20.0, lowest=0)
    skip_ratio: float = number(3.0, lowest=1)
    race_ratio: float = number(1.25, lowest=1)
    winner_repeat: int = whole(9)
    trust_runs: int = whole(64, lowest=0)
    trust_s: float = number(2.0)
    seed: int = whole(0, lowest=0)
    connect_timeout_s: float = number(20.0)
    upload_timeout_s: float = number(60.0)
    unreachable_s: float = number(120.0)
    clock_every_s: float = number(10.0, lowest=0)
    clock_limit: float = number(1.15, lowest=1)
    cool_down_s: float = number(60.0, lowest=0)
