"""The facts of a device, with units and sources: HardwareSpec.

A device file is flat. Each key has its unit in the name and again in `unit`, and a source:

    "l2_cache_bytes": {"value": 131072, "unit": "bytes", "source": "..."}

A fact that is left out, or whose `value` is null, is not known. 0 bytes means known to be absent. If a measurement
gave an interval, `value` is its lower end and `range` holds both ends. `romou.devices.hardware.files` finds the files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from romou.base.errors import UsageError, check_names, unknown_name
from romou.base.schema import shown

_HEADER, _OPTIONAL_HEADER = ("name", "title", "facts"), ("nearest", "family")
_MAY_BE_ABSENT = ("bytes", "texels")
_MOST, _MOST_BYTES = 2**31 - 1, 2**40
# Relative difference of two measurements of one device, for rates without an interval.
_NOISE = 0.05


def _fact(unit: str, *types: type, words: tuple[str, ...] = (), is_limit: bool = False) -> Any:
    """Declare a fact: its unit, the types of its value, the words of a text, and whether kernels fail beyond it."""
    return dataclasses.field(default=None, metadata={"schema": (unit, types), "words": words, "is_limit": is_limit})


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardwareSpec:
    """Facts of one device: the schema of a device file. Units are in the names, and None is "not known".

    register_file: "pooled" if the work-items in flight share ``registers_per_core`` registers, so that fewer of them
        have more each. "dedicated" if each work-item has ``registers_per_lane`` and no more.
    is_mobile: whether it is the GPU of a phone, a tablet or a laptop that shares memory with the CPU. If unknown, see
        `is_phone_gpu`.
    image_pitch_texels: if images over a buffer exist (cl_ext_image_from_buffer), the texels that a row's pitch is a
        multiple of.
    nearest: name of the most similar device that was measured more, if there is one.
    family: name of the device's family (romou/devices/hardware/families), if the file names one.
    ranges: fact -> the ends of its measured interval, for facts that have one.
    """

    name: str
    title: str
    shader_cores: int | None = _fact("count", int)
    alus_per_core: int | None = _fact("count", int)
    warp_sizes: tuple[int, ...] | None = _fact("work-items", list)
    sub_group_size: int | None = _fact("work-items", int, is_limit=True)
    has_sub_group_reductions: bool | None = _fact("yes or no", bool, is_limit=True)
    has_sub_group_shuffles: bool | None = _fact("yes or no", bool, is_limit=True)
    register_file: str | None = _fact("pooled or dedicated", str, words=("pooled", "dedicated"))
    register_lanes_per_core: int | None = _fact("work-items", int)
    registers_per_lane: int | None = _fact("32-bit registers", int)
    max_work_group_size: int | None = _fact("work-items", int, is_limit=True)
    max_storage_buffers: int | None = _fact("buffers of a Vulkan kernel", int, is_limit=True)
    max_buffer_bytes: int | None = _fact("bytes", int, is_limit=True)
    l1_texture_cache_bytes: int | None = _fact("bytes", int)
    l1_texture_line_bytes: int | None = _fact("bytes", int)
    l1_buffer_cache_bytes: int | None = _fact("bytes", int)
    instruction_cache_bytes: int | None = _fact("bytes", int)
    l2_cache_bytes: int | None = _fact("bytes", int)
    l2_line_bytes: int | None = _fact("bytes", int)
    local_mem_bytes: int | None = _fact("bytes", int, is_limit=True)
    local_mem_place: str | None = _fact("on_chip or dram", str, words=("on_chip", "dram"))
    constant_mem_bytes: int | None = _fact("bytes", int, is_limit=True)
    constant_mem_place: str | None = _fact("on_chip or dram", str, words=("on_chip", "dram"))
    max_image_width_texels: int | None = _fact("texels", int, is_limit=True)
    max_image_height_texels: int | None = _fact("texels", int, is_limit=True)
    max_image_layers: int | None = _fact("layers of a Vulkan image", int, is_limit=True)
    image_pitch_texels: int | None = _fact("texels", int, is_limit=True)
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
    has_half_arithmetic: bool | None = _fact("yes or no", bool, is_limit=True)
    has_cooperative_matrices: bool | None = _fact("yes or no", bool, is_limit=True)
    compute_capability: int | None = _fact("tenths of CUDA's versions", int)
    dot_products: str | None = _fact("signed or mixed", str, words=("signed", "mixed"))
    fp16_rate: float | None = _fact("fp16 multiply-adds for each of fp32", int, float)
    is_mobile: bool | None = _fact("yes or no", bool)
    best_access_lanes: int | None = _fact("32-bit numbers of a load", int)
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    ranges: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    nearest: str | None = None
    family: str | None = None

    @property
    def is_cpu(self) -> bool:
        """Return whether the device is a CPU. Its work-items run one by one."""
        return self.warp_sizes == (1,)

    @property
    def is_phone_gpu(self) -> bool:
        """Return whether the device is a mobile GPU.

        If its file leaves that out, a GPU that reads images faster than buffers counts as mobile: neither CPUs nor
        NVIDIA's GPUs do.
        """
        return not self.is_cpu and (self.prefers_images if self.is_mobile is None else self.is_mobile)

    @property
    def registers_per_core(self) -> int | None:
        """Return the 32-bit registers of one shader core. None if a factor is not known."""
        if self.register_lanes_per_core is None or self.registers_per_lane is None:
            return None
        return self.register_lanes_per_core * self.registers_per_lane

    @property
    def peak_gflops(self) -> float | None:
        """Return the fp32 peak: measured, or two operations of each ALU in each cycle. None if it is not known."""
        if self.fp32_peak_gflops:
            return float(self.fp32_peak_gflops)
        if self.shader_cores is None or self.alus_per_core is None or self.clock_mhz is None:
            return None
        return 2e-3 * self.shader_cores * self.alus_per_core * self.clock_mhz

    @property
    def instructions_per_byte(self) -> float | None:
        """Return the fp32 multiply-adds that all cores issue at their peak while the memory delivers a byte.

        None if a rate is not known.
        """
        if self.fp32_peak_gflops is None or self.dram_bandwidth_gbps is None:
            return None
        return self.fp32_peak_gflops / 2 / self.dram_bandwidth_gbps

    @property
    def prefers_images(self) -> bool:
        """Return whether images are read faster than buffers.

        Either the first-level cache serves images only, or it serves them at a higher rate, beyond the noise.
        """
        if self.l1_buffer_cache_bytes == 0:
            return self.l1_texture_cache_bytes != 0
        images, buffers = self.interval("l1_texture_bandwidth_gbps"), self.interval("l1_buffer_bandwidth_gbps")
        return images is not None and buffers is not None and images[0] > buffers[1]

    def source_of(self, key: str) -> str:
        """Return the source of a fact, for messages. UsageError if no device file has the key."""
        if key not in SCHEMA:
            raise unknown_name("hardware fact", key, SCHEMA)
        return self.sources.get(key, "not known")

    def interval(self, key: str) -> tuple[float, float] | None:
        """Return the interval of a number: the measured one, else 5% to either side. None if it is not known."""
        value: float | None = getattr(self, key)
        if value is None:
            return None
        return self.ranges.get(key, (value * (1 - _NOISE), value * (1 + _NOISE)))

    def unknown_facts(self) -> tuple[str, ...]:
        """Return the unknown facts, in the order of a device file."""
        return tuple(key for key in SCHEMA if getattr(self, key) is None)

    def filled_from(self, other: HardwareSpec) -> HardwareSpec:
        """Return this spec with unknown facts and their sources taken from `other`."""
        return self._filled(other, {key: other.source_of(key) for key in self.unknown_facts()})

    def guessed_from(self, other: HardwareSpec) -> HardwareSpec:
        """Return this spec with unknown facts taken from a similar device, which their sources name.

        Limits stay unknown, because kernels might not run. So does whether autobroadcast pays, by which a criterion
        halves the space: only the device's own measurements settle it.
        """
        return self._filled(
            other,
            {
                key: f"{other.name}, the nearest GPU that has it: {other.source_of(key)}"
                for key in self.unknown_facts()
                if key not in LIMITS and key != "has_scalar_vector_broadcast"
            },
        )

    def _filled(self, other: HardwareSpec, sources: Mapping[str, str]) -> HardwareSpec:
        gaps = {key: getattr(other, key) for key in sources if getattr(other, key) is not None}
        sources = {**self.sources, **{key: sources[key] for key in gaps}}
        return dataclasses.replace(self, **gaps, sources=sources, family=self.family or other.family)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a device file, which ``spec_from_dict`` reads."""
        facts: dict[str, Any] = {}
        for key, (unit, _) in SCHEMA.items():
            value = getattr(self, key)
            value = list(value) if isinstance(value, tuple) else value
            facts[key] = {"value": value, "unit": unit, "source": self.source_of(key)}
            if key in self.ranges:
                facts[key]["range"] = list(self.ranges[key])
        return (
            {"name": self.name, "title": self.title}
            | {key: name for key, name in (("nearest", self.nearest), ("family", self.family)) if name}
            | {"facts": facts}
        )


# key -> (unit, accepted types)
SCHEMA: dict[str, tuple[str, tuple[type, ...]]] = {
    f.name: f.metadata["schema"] for f in dataclasses.fields(HardwareSpec) if "schema" in f.metadata
}
# Facts beyond which kernels fail, and not only become slow.
LIMITS = frozenset(f.name for f in dataclasses.fields(HardwareSpec) if f.metadata.get("is_limit"))
_WORDS = {f.name: f.metadata["words"] for f in dataclasses.fields(HardwareSpec) if f.metadata.get("words")}


def spec_from_dict(data: Any, *, origin: str = "device data") -> HardwareSpec:
    """Return the spec in a device file's content. UsageError names `origin` and the first fault."""
    facts = checked_header(data, origin, _OPTIONAL_HEADER)
    values = {key: _checked_value(key, facts[key], origin) for key in SCHEMA if key in facts}
    sources = {key: facts[key]["source"] for key in values}
    return HardwareSpec(
        name=str(data["name"]),
        title=str(data["title"]),
        nearest=data.get("nearest"),
        family=data.get("family"),
        sources=sources,
        ranges={key: _checked_range(key, facts[key], origin) for key in values if "range" in facts[key]},
        **values,
    )


def _checked_range(key: str, fact: Mapping[str, Any], origin: str) -> tuple[float, float]:
    ends = fact["range"]
    is_pair = isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, (int, float)) for end in ends)
    if not is_pair or not ends[0] <= ends[1]:
        raise UsageError(f"{origin}: the range of {key} must be [lowest, highest], got {shown(ends)}", key=key)
    return float(ends[0]), float(ends[1])


def checked_header(data: Any, origin: str, optional: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the facts of a device file's content, with only their names checked. UsageError if the form is wrong."""
    if not isinstance(data, dict):
        raise UsageError(f"{origin}: expected a JSON object, got {type(data).__name__}")
    check_names(data, (*_HEADER, *optional), "key", origin)
    missing = [key for key in _HEADER if key not in data]
    if missing:
        raise UsageError(f"{origin}: missing key {', '.join(map(repr, missing))}", missing=missing)
    for key in optional:
        if key in data and not isinstance(data[key], str):
            raise UsageError(f"{origin}: {key!r} must be a name, got {shown(data[key])}", key=key)
    facts = data["facts"]
    if not isinstance(facts, dict):
        raise UsageError(f"{origin}: 'facts' must be a JSON object, got {type(facts).__name__}")
    check_names(facts, SCHEMA, "fact", origin)
    return facts


def _checked_value(key: str, fact: Any, origin: str) -> Any:
    unit, types = SCHEMA[key]
    if not isinstance(fact, dict) or not {"value", "unit", "source"} <= set(fact) <= {
        "value",
        "unit",
        "source",
        "range",
    }:
        raise UsageError(
            f"{origin}: {key} must be an object with value, unit, source and at most range; got {shown(fact)}", key=key
        )
    if fact["unit"] != unit:
        raise UsageError(f"{origin}: {key} is given in {shown(fact['unit'])}; this key is in {unit!r}", key=key)
    if not isinstance(fact["source"], str) or not fact["source"].strip():
        raise UsageError(f"{origin}: {key} says no source for its value {shown(fact['value'])}", key=key)
    value = fact["value"]
    if value is None:
        return None
    # In Python a bool is an int, but a core count of true is a mistake.
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(
            f"{origin}: {key} must be {' or '.join(t.__name__ for t in types)}, got {shown(value)}", key=key
        )
    if key in _WORDS and value not in _WORDS[key]:
        raise UsageError(f"{origin}: {key} must be {' or '.join(_WORDS[key])}, got {shown(value)}", key=key)
    numbers = value if isinstance(value, list) else [value]
    if isinstance(value, list) and (not value or any(isinstance(n, bool) or not isinstance(n, int) for n in value)):
        raise UsageError(f"{origin}: {key} must be a list of whole numbers, got {shown(value)}", key=key)
    # Memory may be absent, and is 0 then. Cores and rates are not.
    lowest, most = 0 if unit in _MAY_BE_ABSENT else 1e-9, _MOST_BYTES if unit == "bytes" else _MOST
    if any(isinstance(n, (int, float)) and not isinstance(n, bool) and not lowest <= n <= most for n in numbers):
        what = (
            "must not be negative"
            if any(isinstance(n, (int, float)) and n < 0 for n in numbers)
            else f"must be {'at least' if lowest == 0 else 'above'} zero and at most {most}"
        )
        raise UsageError(f"{origin}: {key} {what}, got {shown(value)}", key=key)
    return tuple(value) if isinstance(value, list) else value
