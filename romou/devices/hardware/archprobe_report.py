"""ArchProbe's reports, this project's and Microsoft's, as facts of a device.

Both hold {aspect: {key: number}}. A number that was not decided is missing, and so is the fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from romou.devices.hardware.conclusions import conclusions, register_lanes

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
_HEADER = "ArchProbe"
# Warps of Mali GPUs from Valhall on. Bifrost's have 4 or 8 work-items.
_VALHALL_WARP = 16


def is_report(data: Any) -> bool:
    """Return whether `data` is a report and not a device file."""
    return isinstance(data, Mapping) and "facts" not in data and ("RegCount" in data or _HEADER in data)


def facts_of(data: Mapping[str, Any], schema: Mapping[str, tuple[str, tuple[type, ...]]]) -> tuple[str, dict[str, Any]]:
    """Return a report's title, and its facts in the form of a device file: one for each key of `schema`."""
    header = data.get(_HEADER, {})
    driver = header.get("Driver", {})
    title = str(driver.get("name", "a device that Microsoft's ArchProbe measured"))
    maker = (
        f"archprobe {header['Version']}, {header['Date']}, driver {driver['driver']}"
        if header
        else "report of Microsoft's ArchProbe"
    )
    measured: dict[str, tuple[Any, str]] = {}
    for fact, paths in _PLACES.items():
        path = next((p for p in paths if _value(data, p) is not None), None)
        if path:
            measured[fact] = (_value(data, path), path)
    measured |= _warps(data) | _registers(data)
    concluded = conclusions(partial(_value, data), is_cpu=bool(driver.get("is_cpu")))
    measured |= {
        fact: (conclusion.value, conclusion.source) for fact, conclusion in concluded.items() if fact not in measured
    }
    if "extensions" in driver:
        measured["has_half_arithmetic"] = ("cl_khr_fp16" in driver["extensions"], "the driver's extensions")
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
    driver = data.get(_HEADER, {}).get("Driver", {})
    made_by = f"{driver.get('vendor', '')} {driver.get('name', '')}".lower()
    # A page size under this key is what Qualcomm's drivers have.
    if "qualcomm" in made_by or "adreno" in made_by or _value(data, "Device.PageSize_QCOM") is not None:
        return {"family": "adreno"}
    if "mali" in made_by:
        warp = _value(data, "WarpSizeMethodB.WarpThreadCount")
        return {"family": "mali" if warp is None else "mali_valhall" if warp >= _VALHALL_WARP else "mali_bifrost"}
    return {}


def _value(data: Mapping[str, Any], path: str) -> Any:
    aspect, _, key = path.partition(".")
    return data.get(aspect, {}).get(key)


def _interval(data: Mapping[str, Any], path: str) -> list[float] | None:
    """Return the ends of a measured number's interval, or None."""
    aspect, _, key = path.partition(".")
    answer = data.get(aspect, {}).get("Details", {}).get("Answers", {}).get(key, {})
    low, high = answer.get("low"), answer.get("high")
    return None if low is None or high is None else [low, high]


def _warps(data: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    paths = [
        p for p in ("WarpSizeMethodB.WarpThreadCount", "WarpSizeMethodA.WarpThreadCount") if _value(data, p) is not None
    ]
    return {"warp_sizes": (sorted({int(_value(data, p)) for p in paths}), ", ".join(paths))} if paths else {}


def _registers(data: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    kind, lanes = _value(data, "RegCount.RegType"), register_lanes(partial(_value, data))
    registers: dict[str, tuple[Any, str]] = {}
    if kind is not None:
        registers["register_file"] = (str(kind).lower(), "RegCount.RegType")
    if lanes is not None:
        registers["register_lanes_per_core"] = (lanes, "RegCount.FullRegConcurWorkgroupCount / cores x warp")
    return registers
