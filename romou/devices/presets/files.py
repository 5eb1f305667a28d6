"""Preset files: romou/devices/presets/*.json -> `romou.base.preset.Preset`.

A file holds sections of numbers. Each number has a unit, the observation that it was fitted to, and a source:

    "max_unrolled_products": {"value": 576, "unit": "...", "fitted_to": "...", "source": "..."}

A preset inherits all other numbers from the preset that it is `like`. Numbers of mathematics, of an API, or of a knob
space (which all devices share) are not fitted and stay in the code.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from romou.base.errors import UsageError, check_names, unknown_name
from romou.base.files import read_file
from romou.base.preset import Preset
from romou.base.schema import made_of
from romou.devices.hardware import HardwareSpec, families_of

_FOLDER = Path(__file__).parent
Sections: TypeAlias = dict[str, dict[str, Mapping[str, Any]]]
_HEADER, _NUMBER = ("name", "title", "numbers", "like"), ("value", "unit", "fitted_to", "source")


@functools.cache
def known_presets() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def preset_for(spec: HardwareSpec) -> Preset:
    """Return the preset of a device.

    It is the preset of its family or of the nearest ancestor, else "mobile" for a mobile GPU, "cpu" for a device
    without warps, or whose warps are not known, and "gpu" for any other.
    """
    presets = known_presets()
    for family in families_of(spec.family):
        if family in presets:
            return load_preset(family)
    if spec.is_phone_gpu:
        return load_preset("mobile")
    return load_preset("gpu" if min(spec.warp_sizes or (1,)) > 1 else "cpu")


@functools.cache
def load_preset(name: str) -> Preset:
    """Return a preset by name. UsageError if there is none, or if its file is wrong."""
    if name not in known_presets():
        raise unknown_name("preset", name, known_presets())
    return preset_from_dict(numbers_of(name), name)


def numbers_of(name: str) -> Sections:
    """Return section -> key -> number of a preset, inherited numbers included."""
    like = read_preset(name).get("like")
    sections = {} if like is None else numbers_of(like)
    for section, numbers in own_numbers_of(name).items():
        sections[section] = {**sections.get(section, {}), **numbers}
    return sections


def own_numbers_of(name: str) -> Sections:
    """Return section -> key -> number of a preset's file: value, unit, fitted_to and source."""
    sections: Sections = read_preset(name)["numbers"]
    for section, numbers in sections.items():
        for key, number in numbers.items():
            if set(number) != set(_NUMBER) or not all(str(number[part]).strip() for part in _NUMBER):
                raise UsageError(f"preset {name}: {section}.{key} needs {', '.join(_NUMBER)}; got {number!r}", key=key)
    return sections


def read_preset(name: str) -> dict[str, Any]:
    """Return the content of a preset's file."""
    data: dict[str, Any] = json.loads(read_file(_FOLDER / f"{name}.json"))
    check_names(data, _HEADER, "key", f"preset {name}")
    return data


def preset_from_dict(sections: Sections, name: str) -> Preset:
    """Check sections of numbers and return them as a preset. UsageError names the first thing that is wrong."""
    origin = f"preset {name}"
    values = {
        section: {key: number["value"] for key, number in numbers.items()} for section, numbers in sections.items()
    }
    try:
        preset = made_of(Preset, {"name": name, **values})
    except ValueError as error:
        raise UsageError(f"{origin}: {error}") from None
    known = dataclasses.asdict(preset)
    check_names(values, known, "section", origin)
    for section, numbers in values.items():
        check_names(numbers, known[section], "number", f"{origin}: {section}")
        for key, value in numbers.items():
            if not isinstance(value, str | None) and value < 0:
                raise UsageError(f"{origin}: {section}.{key} is {value}; expected at least 0", key=key)
    return preset
