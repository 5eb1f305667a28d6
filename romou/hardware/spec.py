"""What is known of a GPU, as numbers with units and sources: devices/*.json -> HardwareSpec.

One file per device, flat: every key carries its unit in its name and again in `unit`, and says where the number comes from:

    "l2_cache_bytes": {"value": 131072, "unit": "bytes", "source": "..."}

`value` null means not known; 0 bytes means known to be absent. Where a measurement gave a span, `value` is its lower end and
`range` holds both. A report of ArchProbe's may stand in place of a device file (`archprobe_report.py` reads it).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from romou.core.environment import variable
from romou.core.errors import UsageError, unknown_name
from romou.hardware import archprobe_report

_DEVICES = Path(__file__).parent / "devices"

_HEADER = ("name", "title", "facts")
_MAY_BE_ABSENT = ("bytes", "texels")
_MOST, _MOST_BYTES = 2**31 - 1, 2**40


def _fact(unit: str, *types: type, words: tuple[str, ...] = ()) -> Any:
    """A fact of a device file: its unit, the types of its value, and the words that a text may be."""
    return dataclasses.field(default=None, metadata={"schema": (unit, types), "words": words})


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardwareSpec:
    """Facts of one device; None where a fact is not known. Units are in the names. The one place that says what a device file holds.

    `register_file` "pooled": the work-items in flight share ``registers_per_core`` registers (fewer work-items, more registers
    each); "dedicated": each work-item owns ``registers_per_lane`` and no more.
    """

    name: str
    title: str
    shader_cores: int | None = _fact("count", int)
    alus_per_core: int | None = _fact("count", int)
    warp_sizes: tuple[int, ...] | None = _fact("work-items", list)
    register_file: str | None = _fact("pooled or dedicated", str, words=("pooled", "dedicated"))
    register_lanes_per_core: int | None = _fact("work-items", int)
    registers_per_lane: int | None = _fact("32-bit registers", int)
    max_work_group_size: int | None = _fact("work-items", int)
    l1_texture_cache_bytes: int | None = _fact("bytes", int)
    l1_texture_line_bytes: int | None = _fact("bytes", int)
    l1_buffer_cache_bytes: int | None = _fact("bytes", int)
    l2_cache_bytes: int | None = _fact("bytes", int)
    l2_line_bytes: int | None = _fact("bytes", int)
    local_mem_bytes: int | None = _fact("bytes", int)
    local_mem_place: str | None = _fact("on_chip or dram", str, words=("on_chip", "dram"))
    constant_mem_bytes: int | None = _fact("bytes", int)
    constant_mem_place: str | None = _fact("on_chip or dram", str, words=("on_chip", "dram"))
    max_image_width_texels: int | None = _fact("texels", int)
    max_image_height_texels: int | None = _fact("texels", int)
    l1_texture_bandwidth_gbps: float | None = _fact("GB/s", int, float)
    l1_buffer_bandwidth_gbps: float | None = _fact("GB/s", int, float)
    l2_bandwidth_gbps: float | None = _fact("GB/s", int, float)
    local_mem_bandwidth_gbps: float | None = _fact("GB/s", int, float)
    constant_mem_bandwidth_gbps: float | None = _fact("GB/s", int, float)
    dram_bandwidth_gbps: float | None = _fact("GB/s", int, float)
    buffer_write_bandwidth_gbps: float | None = _fact("GB/s", int, float)
    image_write_bandwidth_gbps: float | None = _fact("GB/s", int, float)
    fp32_peak_gflops: float | None = _fact("GFLOPS", int, float)
    clock_mhz: float | None = _fact("MHz", int, float)
    has_scalar_vector_broadcast: bool | None = _fact("yes or no", bool)
    has_half_arithmetic: bool | None = _fact("yes or no", bool)
    fp16_rate: float | None = _fact("fp16 multiply-adds for each of fp32", int, float)
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def registers_per_core(self) -> int | None:
        """32-bit registers of one shader core, or None where either factor is not known."""
        if self.register_lanes_per_core is None or self.registers_per_lane is None:
            return None
        return self.register_lanes_per_core * self.registers_per_lane

    def source_of(self, key: str) -> str:
        """Where the number `key` comes from, for messages; UsageError for a key that no device file has."""
        if key not in SCHEMA:
            raise unknown_name("hardware fact", key, SCHEMA)
        return self.sources.get(key, "not known")

    def filled_from(self, other: HardwareSpec) -> HardwareSpec:
        """This spec with every unknown fact taken from `other`, sources included; known facts stay."""
        gaps = {k: getattr(other, k) for k in SCHEMA if getattr(self, k) is None and getattr(other, k) is not None}
        sources = {**self.sources, **{k: other.source_of(k) for k in gaps}}
        return dataclasses.replace(self, **gaps, sources=sources)

    def to_dict(self) -> dict[str, Any]:
        """The device file's form; ``spec_from_dict`` reads it back."""
        facts: dict[str, Any] = {}
        for key, (unit, _) in SCHEMA.items():
            value = getattr(self, key)
            value = list(value) if isinstance(value, tuple) else value
            facts[key] = {"value": value, "unit": unit, "source": self.source_of(key)}
        return {"name": self.name, "title": self.title, "facts": facts}


# key -> (unit, accepted types)
SCHEMA: dict[str, tuple[str, tuple[type, ...]]] = {f.name: f.metadata["schema"] for f in dataclasses.fields(HardwareSpec) if "schema" in f.metadata}
_WORDS = {f.name: f.metadata["words"] for f in dataclasses.fields(HardwareSpec) if f.metadata.get("words")}


def known_devices() -> tuple[str, ...]:
    """Names that ``-device=`` accepts, sorted: the files in romou/hardware/devices and in the folder that ROMOU_DEVICES names."""
    return tuple(sorted(_device_files()))


def _device_files() -> dict[str, Path]:
    """Name -> file; one of the user's stands before a shipped one of the same name."""
    own = variable("ROMOU_DEVICES")
    if own is not None and not Path(own).is_dir():
        raise UsageError(f"ROMOU_DEVICES={own}: is no folder", hint="It holds a JSON file for each device, or leave it unset.")
    return {path.stem: path for folder in (_DEVICES, *([Path(own)] if own else [])) for path in folder.glob("*.json")}


def load_device(name: str) -> HardwareSpec:
    """The spec of a known device; UsageError that lists the known ones and the nearest name otherwise."""
    files = _device_files()
    if name not in files:
        raise unknown_name("device", name, files)
    return load_spec(files[name])


def load_spec(path: Path) -> HardwareSpec:
    """Read one device file or ArchProbe report; UsageError names the file and the first thing wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"device file {path} does not exist", path=str(path)) from error
    except OSError as error:
        raise UsageError(f"device file {path} cannot be read: {error}", path=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"device file {path} is not JSON: {error}", path=str(path)) from error
    if archprobe_report.is_report(data):
        try:
            title, facts = archprobe_report.facts_of(data, SCHEMA)
        except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            text = f"device file {path} is not a report as ArchProbe writes it: {type(error).__name__}: {error}"
            raise UsageError(text, hint="Measure the device again: `archprobe run`.", path=str(path)) from error
        data = {"name": path.stem, "title": title, "facts": facts}
    spec = spec_from_dict(data, origin=str(path))
    if spec.name != path.stem:
        raise UsageError(f"device file {path} describes {spec.name!r}; the name must be the file's name, {path.stem!r}", path=str(path))
    return spec


def spec_from_dict(data: Any, *, origin: str = "device data") -> HardwareSpec:
    """Check data of the device file's form and make a spec of it; `origin` names it in errors."""
    if not isinstance(data, dict):
        raise UsageError(f"{origin}: expected a JSON object, got {type(data).__name__}")
    _check_keys(data, _HEADER, "key", origin)
    facts = data["facts"]
    if not isinstance(facts, dict):
        raise UsageError(f"{origin}: 'facts' must be a JSON object, got {type(facts).__name__}")
    _check_keys(facts, SCHEMA, "fact", origin)
    values = {key: _checked_value(key, facts[key], origin) for key in SCHEMA}
    return HardwareSpec(
        name=str(data["name"]),
        title=str(data["title"]),
        sources={key: facts[key]["source"] for key in SCHEMA},
        **values,
    )


def _check_keys(data: Mapping[str, Any], wanted: Any, what: str, origin: str) -> None:
    for key in data:
        if key not in wanted:
            error = unknown_name(what, key, wanted)
            raise UsageError(f"{origin}: {error.message}", hint=error.hint, key=key)
    missing = [key for key in wanted if key not in data]
    if missing:
        raise UsageError(f"{origin}: missing {what} {', '.join(map(repr, missing))}", missing=missing)


def _checked_value(key: str, fact: Any, origin: str) -> Any:
    unit, types = SCHEMA[key]
    if not isinstance(fact, dict) or not {"value", "unit", "source"} <= set(fact) <= {"value", "unit", "source", "range"}:
        raise UsageError(f"{origin}: {key} must be an object with value, unit, source and at most range; got {fact!r}", key=key)
    if fact["unit"] != unit:
        raise UsageError(f"{origin}: {key} is given in {fact['unit']!r}; this key is in {unit!r}", key=key)
    if not isinstance(fact["source"], str) or not fact["source"].strip():
        raise UsageError(f"{origin}: {key} says no source for its value {fact['value']!r}", key=key)
    value = fact["value"]
    if value is None:
        return None
    # bool is an int to Python; a true core count is a mistake.
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(f"{origin}: {key} must be {' or '.join(t.__name__ for t in types)}, got {value!r}", key=key)
    if key in _WORDS and value not in _WORDS[key]:
        raise UsageError(f"{origin}: {key} must be {' or '.join(_WORDS[key])}, got {value!r}", key=key)
    numbers = value if isinstance(value, list) else [value]
    if isinstance(value, list) and (not value or any(isinstance(n, bool) or not isinstance(n, int) for n in value)):
        raise UsageError(f"{origin}: {key} must be a list of whole numbers, got {value!r}", key=key)
    # Nothing can be absent, as memory may be; there is no such thing as no cores, or no speed.
    lowest, most = 0 if unit in _MAY_BE_ABSENT else 1e-9, _MOST_BYTES if unit == "bytes" else _MOST
    if any(isinstance(n, (int, float)) and not isinstance(n, bool) and not lowest <= n <= most for n in numbers):
        what = (
            "must not be negative"
            if any(isinstance(n, (int, float)) and n < 0 for n in numbers)
            else f"must be {'at least' if lowest == 0 else 'above'} zero and at most {most}"
        )
        raise UsageError(f"{origin}: {key} {what}, got {_shown(value)}", key=key)
    return tuple(value) if isinstance(value, list) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
