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
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from romou.base.errors import UsageError, unknown_name
from romou.base.files import read_file
from romou.base.preset import Preset
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
    _check_keys(data, _HEADER, "key", name)
    return data


def preset_from_dict(sections: Sections, name: str) -> Preset:
    """Check sections of numbers and return them as a preset. UsageError names the first thing that is wrong."""
    kinds = dict(_section_types())
    _check_keys(sections, kinds, "section", name)
    made = {}
    for section, kind in kinds.items():
        if section in sections:
            values = {key: number["value"] for key, number in sections[section].items()}
            made[section] = _checked(kind, values, f"preset {name}: {section}")
    missing = [field.name for field in dataclasses.fields(Preset) if _is_required(field, {"name", *made})]
    if missing:
        raise UsageError(f"preset {name}: missing section {', '.join(missing)}", missing=missing)
    return Preset(name=name, **made)


def _section_types() -> Iterator[tuple[str, Any]]:
    """Yield each section of a preset with its dataclass."""
    for key, hint in typing.get_type_hints(Preset).items():
        if key != "name":
            yield key, next((choice for choice in typing.get_args(hint) if choice is not type(None)), hint)


def _checked(kind: Any, values: Mapping[str, Any], origin: str) -> Any:
    """Return a section as its dataclass. UsageError for a value of a wrong type. A whole number is a float, too."""
    hints = typing.get_type_hints(kind)
    _check_keys(values, hints, "number", origin)
    missing = [field.name for field in dataclasses.fields(kind) if _is_required(field, values)]
    if missing:
        raise UsageError(f"{origin}: missing {', '.join(missing)}", missing=missing)
    for key, value in values.items():
        if not _is_of(value, hints[key]):
            raise UsageError(f"{origin}.{key} must be {_spelled(hints[key])}, got {value!r}", key=key)
    return kind(**values)


def _is_required(field: dataclasses.Field[Any], keys: Collection[str]) -> bool:
    return field.default is dataclasses.MISSING and field.name not in keys


def _is_of(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    kinds = typing.get_args(hint) or (hint,)
    if isinstance(value, bool):
        return bool in kinds
    if value is None:
        return type(None) in kinds
    return isinstance(value, int if float not in kinds else (int, float)) and value >= 0


def _spelled(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    words = {int: "a whole number", float: "a number, zero or more", bool: "true or false", type(None): "none"}
    return " or ".join(words[kind] for kind in typing.get_args(hint) or (hint,))


def _check_keys(keys: Collection[str], known: Collection[str], what: str, origin: str) -> None:
    for key in keys:
        if key not in known:
            error = unknown_name(what, key, known)
            raise UsageError(f"{origin}: {error.message}", hint=error.hint, key=key)
