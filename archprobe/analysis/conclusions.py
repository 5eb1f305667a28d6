"""Facts that no single number of a report states, concluded from several of them.

Each conclusion carries a confidence and a reason. The rules are the paper's (Romou, MobiCom 2022, sections 3.1 and 6).

    BufferCacheSizeLv1      0 if the first level of buffers is the second level of images
    CacheSizeLv2, and rates levels that differ by less than 1.5 times are one. The driver's cache is the second
    AluCount                lanes that run at once with all registers (figures 5 and 8), in each core
    RegisterLanes           work-items of a core that may have all registers at once
    RegisterPool            32-bit registers of a core, if its work-items share them
    ClockFrequency          peak / (2 x ALUs x cores), if the driver states none
    PeakOfAlus              measured peak over 2 x ALUs x clock x cores: the paper's check of ALUs against the peak
    ScalarBroadcast         scalar GPUs multiply a vector by a scalar without a vector of copies (section 4.1)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from archprobe.analysis.answer import Answer

# Sizes that differ by less belong to one level of the hierarchy: a size is read off a slope.
_ONE_LEVEL = 1.5
# Rates that differ by less may be noise.
_NOISE = 1.1
# A memory this many times as fast as DRAM is on the chip.
_ON_CHIP = 1.5
_LEVELS = 4
_LV1, _LV2 = "BufferCacheSizeLv1", "CacheSizeLv2"
_COUNT, _YES, _REGISTERS = "count", "yes or no", "32-bit registers"
# The measured peak misses the one that ALUs and clock give by no more than this factor, if both are right: a phone's
# clock under load differs from the driver's.
_PEAK = 1.15
_CONTRADICTED = 0.5

Numbers: TypeAlias = Callable[[str], Any]
"""Returns what a report states at "Aspect.Key"; None if it does not."""
Conclusions: TypeAlias = Iterator[tuple[str, Answer]]


def conclusions(number: Numbers, *, is_cpu: bool) -> Mapping[str, Answer]:
    """Return key -> answer, for the facts that the report's numbers settle.

    A CPU has neither warps nor textures that count.
    """
    levels = dict(_buffer_levels(number, is_cpu=is_cpu))
    if is_cpu:
        return levels
    return levels | dict(_arithmetic(number)) | dict(_registers(number)) | dict(_places(number))


def _conclusion(value: Any, unit: str, confidence: float, reason: str, *notes: str) -> Answer:
    return Answer(value=value, unit=unit, confidence=confidence, reason=reason, notes=notes)


def _levels(number: Numbers, key: str) -> list[tuple[int, float]]:
    """Return (number in the report, size) of each level, from the smallest.

    Microsoft's report calls every bend of a slope a level. Sizes of one level are merged into the first.
    """
    levels: list[tuple[int, float]] = []
    for at in range(1, _LEVELS + 1):
        size = number(f"{key}{at}")
        if size and (not levels or size >= _ONE_LEVEL * levels[-1][1]):
            levels.append((at, size))
    return levels


def _is_one_level(a: float, b: float) -> bool:
    return max(a, b) < _ONE_LEVEL * min(a, b)


def _buffer_levels(number: Numbers, *, is_cpu: bool) -> Conclusions:
    """Yield the caches behind buffers, and their rates.

    A single level is the second one of the chip if the driver or the chase through an image says so, and if images
    have a smaller level before it. Then buffers bypass the first-level cache (paper, figure 6 and section 3.3).
    """
    chase = "BufferCacheHierarchyPChase.CacheVectorCountLv"
    buffers = _levels(number, chase)
    stated = number("Device.CacheSize")
    if not buffers:
        if stated:
            yield _LV2, _bytes(stated, 0.8, "the driver says so (Device.CacheSize)")
        return
    (at, size), (last, largest) = buffers[0], buffers[-1]
    is_first = len(buffers) > 1
    if is_first:
        yield _LV1, _bytes(size, 0.9, f"{chase}{at}, the first of {len(buffers)} levels")
        yield _LV2, _bytes(largest, 0.9, f"{chase}{last}, the last of {len(buffers)} levels")
    elif stated and stated >= _ONE_LEVEL * size:
        is_first = True
        reason = f"{chase}{at}, the only level, smaller than the driver's cache of {stated:g} bytes"
        yield _LV1, _bytes(size, 0.8, reason)
        yield _LV2, _bytes(stated, 0.8, "the driver says so (Device.CacheSize)")
    else:
        yield from _passed_by(number, size, stated, is_cpu=is_cpu)
        of_driver = bool(stated and _is_one_level(stated, size))
        reason = (
            "the driver says so (Device.CacheSize), and a chase sees it"
            if of_driver
            else f"{chase}{at}, the only level"
        )
        yield _LV2, _bytes(stated if of_driver else size, 0.9, reason)
    for key, level in (
        ("BufferBandwidthLv1", at if is_first else 0),
        ("BandwidthLv2", last if len(buffers) > 1 or not is_first else 0),
    ):
        rate = number(f"BufferBandwidth.BandwidthLv{level}") if level else None
        if rate:
            yield key, _conclusion(rate, "GB/s", 0.9, f"BufferBandwidth.BandwidthLv{level}")
        elif level == at and (peak := number("BufferBandwidth.MaxBandwidth")):
            yield key, _conclusion(peak, "GB/s", 0.8, "BufferBandwidth.MaxBandwidth, in the first level")


def _bytes(size: float, confidence: float, reason: str) -> Answer:
    return _conclusion(round(size), "bytes", confidence, reason)


def _passed_by(number: Numbers, size: float, stated: float | None, *, is_cpu: bool) -> Conclusions:
    """Yield the conclusion that buffers bypass the first-level cache, if they do. size: of buffers' only level."""
    images = [] if is_cpu else _levels(number, "ImageCacheHierarchyPChase.CachePixelCountLv")
    if not images or size < _ONE_LEVEL * images[0][1]:
        return
    witnesses = [
        *(["the driver's cache"] if stated and _is_one_level(stated, size) else []),
        *(["the second level behind images"] if len(images) > 1 and _is_one_level(images[1][1], size) else []),
        *(["images being read faster"] if _reads_images_faster(number) else []),
    ]
    if witnesses:
        reason = (
            f"the first level behind a buffer, {size:g} bytes, is the chip's second one, by {' and '.join(witnesses)};"
            f" the first, {images[0][1]:g} bytes, serves images only"
        )
        yield _LV1, _bytes(0, min(0.6 + 0.13 * len(witnesses), 0.99), reason)


def _reads_images_faster(number: Numbers) -> bool:
    images, buffers = number("ImageBandwidth.MaxBandwidth"), number("BufferBandwidth.MaxBandwidth")
    return bool(images and buffers and images > _NOISE * buffers)


def _arithmetic(number: Numbers) -> Conclusions:
    """Yield ALUs, clock, the rate of fp16, and whether a scalar factor needs no vector of copies."""
    peak = number("Gflops.FloatGflops")
    yield from _alus(number, peak)
    half = number("Gflops.HalfGflops")
    if half:
        yield "HasHalf", _conclusion(True, _YES, 0.95, f"fp16 was computed, at {half:.4g} GFLOPS")
        if peak:
            reason = "Gflops.HalfGflops / Gflops.FloatGflops"
            yield "HalfRate", _conclusion(max(1, round(half / peak)), "fp16 of each fp32", 0.9, reason)
    # A report that compared both spellings of a product has the answer (Gflops.BroadcastPays).
    has_compared = any(number(f"Gflops.{key}") is not None for key in ("Autobroadcast", "BroadcastPays"))
    if number("Gflops.FloatArch") == "SISD" and not has_compared:
        reason = "vectors compute no faster than scalars: a scalar factor needs no vector of copies (Gflops.FloatArch)"
        yield "ScalarBroadcast", _conclusion(True, _YES, 0.8, reason)


def _alus(number: Numbers, peak: float | None) -> Conclusions:
    """Yield the ALUs of a core, a clock that the driver does not state, and the check of both against the peak.

    An ALU ends a multiply-add, two operations, in a cycle (paper, section 6).
    """
    cores, clock = number("Cores.CoreCount") or number("Device.SmCount"), number("Device.ClockFrequency")
    counted, by_clock = _counted_alus(number), _alus_by_clock(number, peak, clock, cores)
    # The order of work-items is surer than the clock, the time of registers less sure.
    alus = max((a for a in (by_clock, counted) if a is not None), key=lambda a: a.confidence, default=None)
    if counted is not None and peak and clock and cores:
        expected = 2e-3 * counted.number() * clock * cores
        share = peak / expected
        agrees = 1 / _PEAK <= share <= _PEAK
        verdict = "agree" if agrees else "contradict each other: the ALUs or the clock under load are others"
        reason = (
            f"{peak:.4g} GFLOPS measured; 2 x {counted.value} ALUs x {clock:g} MHz x {cores:g} cores are"
            f" {expected:.4g}: they {verdict}"
        )
        yield "PeakOfAlus", _conclusion(round(share, 3), "ratio", 0.9, reason)
        if agrees or alus is counted:
            alus = dataclasses.replace(counted, confidence=0.95 if agrees else _CONTRADICTED).with_notes(reason)
    if alus is None:
        return
    yield "AluCount", alus
    if not clock and peak and cores:
        found = round(peak * 1e3 / (2 * alus.number() * cores))
        yield "ClockFrequency", _conclusion(found, "MHz", 0.7, "peak / (2 x ALUs x cores)")


def _counted_alus(number: Numbers) -> Answer | None:
    """Return the ALUs of a core, counted without its clock. None if the report does not show them."""
    if running := number("RunningOrder.ParallelWorkItems"):
        return _conclusion(round(running), _COUNT, 0.9, "work-items that start before any has ended (Listing 3)")
    if (lanes := _register_lanes(number)) and number("RegCount.RegType") == "Pooled":
        reason = "work-items of a core that run at once with all registers: up to there time does not grow (figure 5)"
        return _conclusion(lanes, _COUNT, 0.7, reason)
    return None


def _alus_by_clock(number: Numbers, peak: float | None, clock: float | None, cores: float | None) -> Answer | None:
    """Return the ALUs that the peak and the driver's clock give. They agree with the peak whatever the clock is."""
    if alus := number("Gflops.AluCount"):
        return _conclusion(round(alus), _COUNT, 0.8, "Gflops.AluCount")
    if not (peak and clock and cores):
        return None
    return _conclusion(round(peak * 1e3 / (2 * clock * cores)), _COUNT, 0.8, "peak / (2 x clock x cores)")


def _register_lanes(number: Numbers) -> int | None:
    """Return the work-items of a core that may have all registers at once, if the report says so.

    A group of the probe is one work-item, and takes the registers of a warp.
    """
    groups = number("RegCount.FullRegConcurWorkgroupCount")
    cores, warp = number("Cores.CoreCount") or number("Device.SmCount"), number("WarpSizeMethodB.WarpThreadCount")
    return round(groups / cores * warp) if groups and cores and warp else None


def _registers(number: Numbers) -> Conclusions:
    """Yield the work-items that may have all registers, and the pool that they share."""
    lanes, count = _register_lanes(number), number("RegCount.RegCount")
    if lanes is not None:
        reason = "RegCount.FullRegConcurWorkgroupCount / cores x warp"
        yield "RegisterLanes", _conclusion(lanes, "work-items", 0.8, reason)
    if pool := number("RegCount.RegPool"):
        yield "RegisterPool", _conclusion(round(pool), _REGISTERS, 0.9, "RegCount.RegPool")
    elif lanes is not None and count and number("RegCount.RegType") == "Pooled":
        reason = f"{lanes} work-items of a core have {round(count)} registers each (RegisterLanes x RegCount.RegCount)"
        yield "RegisterPool", _conclusion(lanes * round(count), _REGISTERS, 0.7, reason)


def _places(number: Numbers) -> Conclusions:
    """Yield the places of local and constant memory: DRAM for a memory at DRAM's rate, else the chip."""
    dram = number("BufferBandwidth.DramBandwidth") or number("BufferBandwidth.MinBandwidth")
    for memory in ("LocalMem", "ConstMem"):
        rate = number(f"{memory}Bandwidth.MaxBandwidth")
        if rate and dram:
            is_on_chip = rate > _ON_CHIP * dram
            reason = f"{rate:.4g} GB/s beside DRAM's {dram:.4g} GB/s"
            place, confidence = ("on_chip", 0.9) if is_on_chip else ("dram", 0.7)
            yield f"{memory}Place", _conclusion(place, "on_chip or dram", confidence, reason)
