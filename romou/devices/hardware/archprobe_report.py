"""ArchProbe's reports, this project's and Microsoft's, as facts of a device.

Both hold {aspect: {key: number}}. A number that was not decided is missing, and so is the fact. Facts that follow from
several numbers are ArchProbe's conclusions; of a report without any they are concluded here, by the same function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from archprobe.analysis.conclusions import conclusions
from romou.base.errors import UsageError
from romou.base.schema import made_of, shown

# Fact -> its keys in a report. The first one that is there counts.
_PLACES: dict[str, tuple[str, ...]] = {
    "shader_cores": ("Cores.CoreCount", "Device.SmCount"),
    "registers_per_lane": ("RegCount.RegCount",),
    "max_work_group_size": ("Device.LogicThreadCount",),
    "best_access_lanes": ("BufferVecWidth.BufferVecSize",),
    "l1_texture_cache_bytes": ("ImageCacheHierarchyPChase.CachePixelCountLv1",),
    "l1_texture_line_bytes": ("ImageCachelineSize.ImgCachelineSize",),
    "l2_line_bytes": ("Device.CachelineSize",),
    "local_mem_bytes": ("Device.MaxLocalMemSize",),
    "constant_mem_bytes": ("Device.MaxConstMemSize",),
    "max_image_width_texels": ("Device.MaxImageWidth",),
    "max_image_height_texels": ("Device.MaxImageHeight",),
    "l1_texture_bandwidth_gbps": ("ImageBandwidth.MaxBandwidth",),
    "local_mem_bandwidth_gbps": ("LocalMemBandwidth.MaxBandwidth",),
    "constant_mem_bandwidth_gbps": ("ConstMemBandwidth.MaxBandwidth",),
    "dram_bandwidth_gbps": ("BufferBandwidth.DramBandwidth", "BufferBandwidth.MinBandwidth"),
    "buffer_write_bandwidth_gbps": ("WriteSpeed.BufferWriteBandwidth",),
    "image_write_bandwidth_gbps": ("WriteSpeed.ImageWriteBandwidth",),
    "fp32_peak_gflops": ("Gflops.FloatGflops",),
    "clock_mhz": ("Device.ClockFrequency",),
    "has_scalar_vector_broadcast": ("Gflops.BroadcastPays",),
}
# Fact -> its key among ArchProbe's conclusions. A measured number goes before a conclusion.
_CONCLUDED = {
    "l1_buffer_cache_bytes": "BufferCacheSizeLv1",
    "l2_cache_bytes": "CacheSizeLv2",
    "l1_buffer_bandwidth_gbps": "BufferBandwidthLv1",
    "l2_bandwidth_gbps": "BandwidthLv2",
    "alus_per_core": "AluCount",
    "register_lanes_per_core": "RegisterLanes",
    "clock_mhz": "ClockFrequency",
    "has_half_arithmetic": "HasHalf",
    "fp16_rate": "HalfRate",
    "has_scalar_vector_broadcast": "ScalarBroadcast",
    "local_mem_place": "LocalMemPlace",
    "constant_mem_place": "ConstMemPlace",
}
_HEADER, _CONCLUSIONS = "ArchProbe", "Conclusions"
_Value: Any = int | float | str | bool | None
# Warps of Mali GPUs from Valhall on. Bifrost's have 4 or 8 work-items.
_VALHALL_WARP = 16


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve of an aspect: times or rates over sizes, and the knees that were found in it.

    marks: name -> place on the x axis
    """

    name: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    marks: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"curve {shown(self.name)} has {len(self.x)} x and {len(self.y)} y; expected equally many")


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A number that was decided, or a conclusion."""

    value: int | float | str | bool | None = None
    low: float | None = None
    high: float | None = None
    confidence: float = 0.0
    reason: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Details:
    """The schema of an aspect's `Details`, as far as it is read."""

    Curves: tuple[Curve, ...] = ()
    Answers: Mapping[str, _Answer] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Driver:
    name: str = ""
    vendor: str = ""
    driver: str = ""
    is_cpu: bool = False
    extensions: list[str] | str | None = None


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The schema of the aspect ArchProbe, which Microsoft's reports lack."""

    Version: str = ""
    Date: str = ""
    IsComplete: bool = False
    Driver: _Driver = _Driver()


def is_report(data: Any) -> bool:
    """Return whether `data` is a report and not a device file."""
    return isinstance(data, Mapping) and "facts" not in data and ("RegCount" in data or _HEADER in data)


def curves_of(data: Mapping[str, Any]) -> Iterator[tuple[str, Curve]]:
    """Yield (aspect, curve) of a report. ValueError if it is damaged."""
    for aspect in data:
        for curve in _details(data, aspect).Curves:
            yield aspect, curve


def _details(data: Mapping[str, Any], aspect: str) -> _Details:
    return made_of(_Details, made_of(dict[str, Any], data.get(aspect, {})).get("Details", {}))


def facts_of(data: Mapping[str, Any], schema: Mapping[str, tuple[str, tuple[type, ...]]]) -> tuple[str, dict[str, Any]]:
    """Return a report's title, and its facts in the form of a device file: one for each key of `schema`.

    UsageError if ArchProbe has not ended the report: no second run has confirmed its numbers. ValueError if it is
    damaged.
    """
    header = made_of(_Header, data.get(_HEADER, {}))
    if data.get(_HEADER) and not header.IsComplete:
        raise UsageError(
            "it is an unfinished report of ArchProbe, whose numbers no second run has confirmed",
            hint="`archprobe run` with the same --device and --output goes on where it was cut off.",
        )
    driver = header.Driver
    title = driver.name or "a device that Microsoft's ArchProbe measured"
    maker = (
        f"archprobe {header.Version}, {header.Date}, driver {driver.driver}"
        if header.Version
        else "report of Microsoft's ArchProbe"
    )
    measured: dict[str, tuple[Any, str]] = {}
    for fact, paths in _PLACES.items():
        path = next((p for p in paths if _value(data, p) is not None), None)
        if path:
            measured[fact] = (_value(data, path), path)
    measured |= _warps(data, is_cpu=driver.is_cpu) | _register_file(data)
    measured = _conclusions(data, is_cpu=driver.is_cpu) | measured
    if driver.extensions is not None:
        measured["has_half_arithmetic"] = ("cl_khr_fp16" in driver.extensions, "the driver's extensions")
    facts = {}
    for fact, (unit, types) in schema.items():
        value, source = measured.get(fact, (None, ""))
        if isinstance(value, float) and float not in types:
            value = round(value)
        facts[fact] = {"value": value, "unit": unit, "source": f"{maker}: {source}" if source else "not known"}
        ends = _interval(data, source)
        if ends is not None and isinstance(value, (int, float)):
            facts[fact]["range"] = ends
    return title, facts


def family_of(data: Mapping[str, Any]) -> dict[str, str]:
    """Return {"family": name} of the measured device, by its maker and its warps, or {}."""
    driver = made_of(_Header, data.get(_HEADER, {})).Driver
    made_by = f"{driver.vendor} {driver.name}".lower()
    # A page size under this key is what Qualcomm's drivers have.
    if "qualcomm" in made_by or "adreno" in made_by or _value(data, "Device.PageSize_QCOM") is not None:
        return {"family": "adreno"}
    if "mali" in made_by:
        warp = _value(data, "WarpSizeMethodB.WarpThreadCount")
        return {"family": "mali" if warp is None else "mali_valhall" if warp >= _VALHALL_WARP else "mali_bifrost"}
    return {}


def _value(data: Mapping[str, Any], path: str) -> Any:
    """Return what a report states. Of an aspect that was cut off, a key holds a value in between, and is left out."""
    aspect, _, key = path.partition(".")
    section = made_of(dict[str, Any], data.get(aspect, {}))
    return made_of(_Value, section.get(key)) if section.get("Done") else None


def _interval(data: Mapping[str, Any], path: str) -> list[float] | None:
    """Return the ends of a measured number's interval, or None."""
    aspect, _, key = path.partition(".")
    answer = _details(data, aspect).Answers.get(key)
    return None if answer is None or answer.low is None or answer.high is None else [answer.low, answer.high]


def _warps(data: Mapping[str, Any], *, is_cpu: bool) -> dict[str, tuple[Any, str]]:
    paths = [
        p for p in ("WarpSizeMethodB.WarpThreadCount", "WarpSizeMethodA.WarpThreadCount") if _value(data, p) is not None
    ]
    if paths:
        return {"warp_sizes": (sorted({int(_value(data, p)) for p in paths}), ", ".join(paths))}
    return {"warp_sizes": ([1], "a CPU's driver runs the work-items of a group one by one")} if is_cpu else {}


def _register_file(data: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    kind = _value(data, "RegCount.RegType")
    return {} if kind is None else {"register_file": (str(kind).lower(), "RegCount.RegType")}


def _conclusions(data: Mapping[str, Any], *, is_cpu: bool) -> dict[str, tuple[Any, str]]:
    """Return fact -> (value, source) of what follows from several numbers, and how sure that is."""
    answers = (
        _details(data, _CONCLUSIONS).Answers
        if data.get(_CONCLUSIONS)
        else made_of(
            dict[str, _Answer],
            {key: answer.to_dict() for key, answer in conclusions(partial(_value, data), is_cpu=is_cpu).items()},
        )
    )
    found = {}
    for fact, key in _CONCLUDED.items():
        answer = answers.get(key)
        if answer is not None and answer.value is not None:
            source = f"concluded ({answer.confidence:.2f} sure): {'; '.join((answer.reason, *answer.notes))}"
            found[fact] = (answer.value, source)
    return found
