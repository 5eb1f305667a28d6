"""Faults of drivers and the rules that avoid them: quirks.json.

A quirk applies to a device if all conditions of its `when` hold for the facts that `Backend.list_devices` returns:

    device, platform, driver          regular expressions for the device's name and version, the platform, the driver
    compiler_from, compiler_before    versions of the driver's compiler, "E031.47": from the first on, before the second

ROMOU_QUIRKS_OFF switches quirks off by name.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from romou.base.environment import from_environment
from romou.base.errors import UsageError, unknown_name

_FILE = Path(__file__).with_name("quirks.json")
_CONDITIONS = ("device", "platform", "driver", "compiler_from", "compiler_before")
_COMPILER = re.compile(r"Compiler (?P<version>[A-Z]+\d+(\.\d+)*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriverRules:
    """Workarounds for a driver.

    without                       knob -> choices that spaces leave out
    stores_fp16_only              kernels do not compute in fp16
    compiles_in_order             one thread compiles a model's programs, always in the same order
    compiles_as_one               kernels whose programs are not cached are compiled as one program
    compiles_apart                programs outside the cache are first compiled in a child process
    keeps_no_programs             compiled programs are not cached, so the driver is never given a binary
    lists_launches                Romou records a run as a list of launches, the driver does not
    build_options                 what the compiler is told besides, separated by spaces
    profiling_queue_above_bytes   if a buffer has at least this size, all commands go to a queue with profiling
    """

    without: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    stores_fp16_only: bool = False
    compiles_in_order: bool = False
    compiles_as_one: bool = False
    compiles_apart: bool = False
    keeps_no_programs: bool = False
    lists_launches: bool = False
    build_options: str = ""
    profiling_queue_above_bytes: int | None = None

    def target_options(self) -> dict[str, str]:
        """Return the rules for kernels as options of a target."""
        left_out = "+".join(f"{knob}:{choice}" for knob, choices in sorted(self.without.items()) for choice in choices)
        return ({"without": left_out} if left_out else {}) | ({"half": "storage"} if self.stores_fp16_only else {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quirk:
    """An entry of quirks.json.

    seen_on: names of the only devices that showed it. Empty: all that fulfil the conditions.
    drivers: the drivers of the conditions in words.
    """

    name: str
    symptom: str
    workaround: str
    source: str
    when: Mapping[str, str]
    rules: Mapping[str, Any]
    seen_on: tuple[str, ...] = ()
    drivers: str = ""

    def __post_init__(self) -> None:
        rule_names = [field.name for field in dataclasses.fields(DriverRules)]
        for entries, names in ((self.when, _CONDITIONS), (self.rules, rule_names)):
            for key in entries:
                if key not in names:
                    raise unknown_name(f"key of the quirk {self.name}", key, names)
        if not self.when or not self.rules or not self.source:
            raise UsageError(f"the quirk {self.name} needs a condition, a rule and a source")

    def is_seen_on(self, title: str) -> bool:
        """Return whether a device with this name showed the fault, or may."""
        return not self.seen_on or any(re.search(rf"\b{re.escape(name)}\b", title) for name in self.seen_on)

    def describe(self) -> str:
        """Return a line with the symptom, the workaround, the source and the way to switch the quirk off."""
        return f"{self.symptom}; so {self.workaround} ({self.source}). ROMOU_QUIRKS_OFF={self.name} leaves that out"

    def applies_to(self, facts: Mapping[str, Any]) -> bool:
        """Return whether a device has the quirk."""
        texts = {
            "device": f"{facts.get('name', '')} {facts.get('version', '')}",
            "platform": f"{facts.get('platform', '')} {facts.get('vendor', '')}",
            "driver": str(facts.get("driver", "")),
        }
        if not all(re.search(self.when[key], text, re.IGNORECASE) for key, text in texts.items() if key in self.when):
            return False
        lowest, above = self.when.get("compiler_from"), self.when.get("compiler_before")
        if lowest is None and above is None:
            return True
        version = compiler_version(facts)
        if version is None:
            return False
        # Versions with other letters belong to another compiler.
        return all(_letters(bound) == _letters(version) for bound in (lowest, above) if bound) and (
            (lowest is None or _numbers(version) >= _numbers(lowest))
            and (above is None or _numbers(version) < _numbers(above))
        )


def compiler_version(facts: Mapping[str, Any]) -> str | None:
    """Return the compiler's version in a driver's version, "E031.47.18.49", or None."""
    match = _COMPILER.search(f"{facts.get('driver', '')} {facts.get('version', '')}")
    return None if match is None else match["version"]


def known_quirks() -> tuple[Quirk, ...]:
    return _read(_FILE)


def quirks_of(facts: Mapping[str, Any]) -> tuple[Quirk, ...]:
    """Return a device's quirks without ROMOU_QUIRKS_OFF's. UsageError if that variable names an unknown quirk."""
    quirks = known_quirks()
    names = [quirk.name for quirk in quirks]
    off = from_environment().quirks_off
    for name in off:
        if name not in names:
            raise unknown_name("quirk in ROMOU_QUIRKS_OFF", name, names)
    return tuple(quirk for quirk in quirks if quirk.name not in off and quirk.applies_to(facts))


def rules_for(facts: Mapping[str, Any]) -> DriverRules:
    """Return the rules of all quirks of a device together."""
    merged: dict[str, Any] = {}
    without: dict[str, tuple[str, ...]] = {}
    for quirk in quirks_of(facts):
        for knob, choices in quirk.rules.get("without", {}).items():
            without[knob] = tuple(dict.fromkeys((*without.get(knob, ()), *choices)))
        merged |= {key: value for key, value in quirk.rules.items() if key != "without"}
    return DriverRules(without=without, **merged)


@functools.cache
def _read(path: Path) -> tuple[Quirk, ...]:
    return tuple(
        Quirk(**{**entry, "seen_on": tuple(entry.get("seen_on", ()))})
        for entry in json.loads(path.read_text(encoding="utf-8"))
    )


def _letters(version: str) -> str:
    return re.sub(r"[\d.]", "", version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
