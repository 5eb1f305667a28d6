"""Device files -> HardwareSpec: romou/devices/hardware/devices/*.json, and the user's files.

A file may name a family, a file of the same form in romou/devices/hardware/families. It holds the facts that a
generation of devices has in common, and fills the gaps of the device's file. An ArchProbe report may take the place of
a file (`archprobe_report.py` reads it).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from romou.base.environment import variable
from romou.base.errors import UsageError, unknown_name
from romou.base.files import read_file
from romou.base.foreign import parsed, refused
from romou.base.schema import shown
from romou.devices.hardware import archprobe_report
from romou.devices.hardware.similar import filled
from romou.devices.hardware.spec import SCHEMA, HardwareSpec, checked_header, spec_from_dict

_DEVICES, _FAMILIES = (Path(__file__).parent / folder for folder in ("devices", "families"))
_INHERITED = ("family", "nearest")
# Names that drivers give a GPU, in lower case -> its name. Mesa says "FD630", a Rockchip's driver "Mali-LODX".
_CALLED = (
    (r"\((tm|r)\)", " "),
    (r"\bimmortalis(?=-g\d)", "mali"),
    (r"\bfd(?=\d{3}\b)", "adreno "),
    (r"\bmali-lodx\b", "mali-g610"),
)


def known_devices() -> tuple[str, ...]:
    """Return the names that ``-device=`` accepts, sorted: shipped files, and files in the folder ROMOU_DEVICES."""
    return tuple(sorted(_device_files()))


def known_shipped_devices() -> tuple[str, ...]:
    """Return the names of the device files that Romou ships, sorted."""
    return tuple(sorted(path.stem for path in _DEVICES.glob("*.json")))


def known_families() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FAMILIES.glob("*.json")))


def _device_files() -> dict[str, Path]:
    """Return name -> file. A file of the user replaces a shipped one of the same name."""
    own = variable("ROMOU_DEVICES")
    if own is not None and not Path(own).is_dir():
        raise UsageError(
            f"ROMOU_DEVICES={own}: is no folder", hint="It holds a JSON file for each device, or leave it unset."
        )
    return {path.stem: path for folder in (_DEVICES, *([Path(own)] if own else [])) for path in folder.glob("*.json")}


def device_called(text: str) -> str | None:
    """Return the known device that a driver's text names, or None.

    "QUALCOMM Adreno(TM) 740"               ->      adreno740
    "Mali-G715-Immortalis MC11 r1p2"        ->      mali_g715
    """
    text = text.lower()
    for pattern, plain in _CALLED:
        text = re.sub(pattern, plain, text)
    matches = [name for name in known_devices() if _pattern(name).search(text)]
    return max(matches, key=len, default=None)


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    """Return a pattern for a device's name, however its words are joined. A name without a number matches nothing."""
    words = re.findall(r"[a-z]+|\d+", name.lower())
    return re.compile(r"(?<![a-z\d])" + r"[\W_]*".join(words) + r"(?![a-z\d])" if re.search(r"\d", name) else r"(?!)")


def load_device(name: str) -> HardwareSpec:
    """Return the spec of a device, by the name of its file or by its driver's name for it.

    UsageError lists the known names and the nearest one.
    """
    files = _device_files()
    called = name if name in files else device_called(name)
    if called is None:
        raise unknown_name("device", name, files)
    return load_spec(files[called])


def load_spec(path: Path) -> HardwareSpec:
    """Read one device file or ArchProbe report. UsageError names the file and its first fault."""
    data = _read(path)
    if archprobe_report.is_report(data):
        text, hint = f"device file {path} is not a report as ArchProbe writes it", "Measure it again: `archprobe run`."
        with refused(UsageError, text, hint=hint, path=str(path)):
            try:
                title, facts = archprobe_report.facts_of(data, SCHEMA)
            except UsageError as error:
                raise UsageError(f"device file {path}: {error.message}", hint=error.hint, path=str(path)) from error
            family = _named_family(title) or archprobe_report.family_of(data)
        spec = spec_from_dict({"name": path.stem, "title": title, "facts": facts} | family, origin=str(path))
        return filled(spec, _relatives(spec), str(path))
    spec = spec_from_dict(_with_family(data, path), origin=str(path))
    if spec.name != path.stem:
        raise UsageError(
            f"device file {path} describes {shown(spec.name)}; the name must be the file's name, {path.stem!r}",
            path=str(path),
        )
    return spec


def _relatives(spec: HardwareSpec) -> Iterator[HardwareSpec]:
    """Yield the shipped devices that share the oldest ancestor of the spec's family."""
    root = families_of(spec.family)[-1:]
    for path in sorted(_DEVICES.glob("*.json")) if root else ():
        data = _read(path)
        if not archprobe_report.is_report(data) and families_of(data.get("family"))[-1:] == root:
            yield spec_from_dict(_with_family(data, path), origin=str(path))


def _named_family(title: str) -> dict[str, str]:
    """Return {"family": name} if a report's title names a known device of a family, else {}."""
    called = device_called(title)
    data = {} if called is None else _read(_device_files()[called])
    return {"family": data["family"]} if "family" in data else {}


def _read(path: Path) -> Any:
    with refused(UsageError, f"device file {path} cannot be read", path=str(path)):
        return parsed(read_file(path))


def families_of(name: str | None) -> tuple[str, ...]:
    """Return a family and its ancestors, nearest first: ("adreno_7xx", "adreno")."""
    return () if name is None else (name, *families_of(load_family(name).get("family")))


@functools.cache
def load_family(name: str) -> dict[str, Any]:
    """Return the content of a family's file. UsageError with the nearest name if there is none."""
    if name not in known_families():
        raise unknown_name("family of devices", name, known_families())
    data: dict[str, Any] = _read(_FAMILIES / f"{name}.json")
    return data


def _with_family(data: Any, path: Path) -> Any:
    """Return a file's content, with unknown facts taken from its family and the family's ancestors."""
    if not isinstance(data, dict) or "family" not in data:
        return data
    facts = checked_header(data, str(path), _INHERITED)
    family = _with_family(load_family(data["family"]), _FAMILIES / f"{data['family']}.json")
    merged = {**family, **data}
    if merged.get("nearest") == merged["name"]:
        del merged["nearest"]
    return {
        **merged,
        # A fact without a value gives way to the family's. Its source says why there is none.
        "facts": {**facts, **family["facts"], **{key: fact for key, fact in facts.items() if _says_something(fact)}},
    }


def _says_something(fact: Any) -> bool:
    return not isinstance(fact, Mapping) or fact.get("value") is not None
