"""Facts that no single number of an ArchProbe report states, concluded from several of them.

Each conclusion carries a confidence and a reason, which become the fact's source. The rules are the paper's (Romou,
MobiCom 2022, section 3.1). They need neither a clock nor a vendor's word.

    l1_buffer_cache_bytes   0 if the first level of buffers is the second level of images
    l1 and l2 of buffers    levels that differ by less than 1.5 times are one. The driver's cache is the second
    alus_per_core           lanes that run at once with all registers (figures 5 and 8)
    clock_mhz               peak / (2 x ALUs x cores)
    scalar GPUs             multiply a vector by a scalar without a vector of copies (autobroadcast, section 4.1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

# Sizes that differ by less belong to one level of the hierarchy: a size is read off a slope.
_ONE_LEVEL = 1.5
# Rates that differ by less may be noise.
_NOISE = 1.1
# A memory this many times as fast as DRAM is on the chip.
_ON_CHIP = 1.5
_LEVELS = 4


@dataclass(frozen=True)
class Conclusion:
    """A fact's value, its confidence from 0 to 1, and the reason."""

    value: Any
    confidence: float
    reason: str

    @property
    def source(self) -> str:
        return f"concluded ({self.confidence:.2f} sure): {self.reason}"


Numbers: TypeAlias = Callable[[str], Any]
"""Returns what a report states at "Aspect.Key"; None if it does not."""


def conclusions(number: Numbers, *, is_cpu: bool) -> Mapping[str, Conclusion]:
    """Return fact -> conclusion, for the facts that the report's numbers settle.

    A CPU has neither warps nor textures that count.
    """
    levels = dict(_buffer_levels(number, is_cpu=is_cpu))
    if is_cpu:
        return levels | {
            "warp_sizes": Conclusion([1], 0.99, "a CPU's driver runs the work-items of a group one by one")
        }
    return levels | dict(_arithmetic(number)) | dict(_places(number))


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


def _buffer_levels(number: Numbers, *, is_cpu: bool) -> Iterator[tuple[str, Conclusion]]:
    """Yield the caches behind buffers, and their rates.

    A single level is the second one of the chip if the driver or the chase through an image says so, and if images
    have a smaller level before it. Then buffers bypass the first-level cache (paper, figure 6 and section 3.3).
    """
    chase = "BufferCacheHierarchyPChase.CacheVectorCountLv"
    buffers = _levels(number, chase)
    stated = number("Device.CacheSize")
    if not buffers:
        if stated:
            yield "l2_cache_bytes", Conclusion(round(stated), 0.8, "the driver says so (Device.CacheSize)")
        return
    (at, size), (last, largest) = buffers[0], buffers[-1]
    is_first = len(buffers) > 1
    if is_first:
        yield "l1_buffer_cache_bytes", Conclusion(round(size), 0.9, f"{chase}{at}, the first of {len(buffers)} levels")
        yield "l2_cache_bytes", Conclusion(round(largest), 0.9, f"{chase}{last}, the last of {len(buffers)} levels")
    elif stated and stated >= _ONE_LEVEL * size:
        is_first = True
        reason = f"{chase}{at}, the only level, smaller than the driver's cache of {stated:g} bytes"
        yield "l1_buffer_cache_bytes", Conclusion(round(size), 0.8, reason)
        yield "l2_cache_bytes", Conclusion(round(stated), 0.8, "the driver says so (Device.CacheSize)")
    else:
        yield from _passed_by(number, size, stated, is_cpu=is_cpu)
        of_driver = bool(stated and _is_one_level(stated, size))
        reason = (
            "the driver says so (Device.CacheSize), and a chase sees it"
            if of_driver
            else f"{chase}{at}, the only level"
        )
        yield "l2_cache_bytes", Conclusion(round(stated if of_driver else size), 0.9, reason)
    for fact, level in (("l1_buffer", at if is_first else 0), ("l2", last if len(buffers) > 1 or not is_first else 0)):
        rate = number(f"BufferBandwidth.BandwidthLv{level}") if level else None
        if rate:
            yield f"{fact}_bandwidth_gbps", Conclusion(rate, 0.9, f"BufferBandwidth.BandwidthLv{level}")
        elif level == at and (peak := number("BufferBandwidth.MaxBandwidth")):
            yield f"{fact}_bandwidth_gbps", Conclusion(peak, 0.8, "BufferBandwidth.MaxBandwidth, in the first level")


def _passed_by(number: Numbers, size: float, stated: float | None, *, is_cpu: bool) -> Iterator[tuple[str, Conclusion]]:
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
        yield "l1_buffer_cache_bytes", Conclusion(0, min(0.6 + 0.13 * len(witnesses), 0.99), reason)


def _reads_images_faster(number: Numbers) -> bool:
    images, buffers = number("ImageBandwidth.MaxBandwidth"), number("BufferBandwidth.MaxBandwidth")
    return bool(images and buffers and images > _NOISE * buffers)


def _arithmetic(number: Numbers) -> Iterator[tuple[str, Conclusion]]:
    """Yield ALUs, clock, the rate of fp16, and whether a scalar factor needs no vector of copies."""
    cores = number("Cores.CoreCount") or number("Device.SmCount")
    peak, clock = number("Gflops.FloatGflops"), number("Device.ClockFrequency")
    alus = number("RunningOrder.ParallelWorkItems")
    if alus:
        yield "alus_per_core", Conclusion(round(alus), 0.9, "work-items that start before any has ended (Listing 3)")
    elif alus := number("Gflops.AluCount"):
        yield "alus_per_core", Conclusion(round(alus), 0.9, "Gflops.AluCount")
    elif peak and clock and cores:
        alus = round(peak * 1e3 / (2 * clock * cores))
        yield "alus_per_core", Conclusion(alus, 0.8, "peak / (2 x clock x cores)")
    elif (lanes := register_lanes(number)) and number("RegCount.RegType") == "Pooled":
        alus = lanes
        reason = "work-items of a core that run at once with all registers: up to there time does not grow (figure 5)"
        yield "alus_per_core", Conclusion(alus, 0.7, reason)
    if not clock and peak and alus and cores:
        yield "clock_mhz", Conclusion(round(peak * 1e3 / (2 * alus * cores)), 0.7, "peak / (2 x ALUs x cores)")
    half = number("Gflops.HalfGflops")
    if half:
        yield "has_half_arithmetic", Conclusion(True, 0.95, f"fp16 was computed, at {half:.4g} GFLOPS")
        if peak:
            yield "fp16_rate", Conclusion(max(1, round(half / peak)), 0.9, "Gflops.HalfGflops / Gflops.FloatGflops")
    # A report that compared both spellings of a product has the answer (Gflops.BroadcastPays).
    has_compared = any(number(f"Gflops.{key}") is not None for key in ("Autobroadcast", "BroadcastPays"))
    if number("Gflops.FloatArch") == "SISD" and not has_compared:
        reason = "vectors compute no faster than scalars: a scalar factor needs no vector of copies (Gflops.FloatArch)"
        yield "has_scalar_vector_broadcast", Conclusion(True, 0.8, reason)


def register_lanes(number: Numbers) -> int | None:
    """Return the work-items of a core that may have all registers at once, if the report says so.

    A group of the probe is one work-item, and takes the registers of a warp.
    """
    groups = number("RegCount.FullRegConcurWorkgroupCount")
    cores = number("Cores.CoreCount") or number("Device.SmCount")
    warp = number("WarpSizeMethodB.WarpThreadCount")
    return round(groups / cores * warp) if groups and cores and warp else None


def _places(number: Numbers) -> Iterator[tuple[str, Conclusion]]:
    """Yield the places of local and constant memory: DRAM for a memory at DRAM's rate, else the chip."""
    dram = number("BufferBandwidth.DramBandwidth") or number("BufferBandwidth.MinBandwidth")
    for fact, aspect in (("local_mem_place", "LocalMemBandwidth"), ("constant_mem_place", "ConstMemBandwidth")):
        rate = number(f"{aspect}.MaxBandwidth")
        if rate and dram:
            is_on_chip = rate > _ON_CHIP * dram
            reason = f"{rate:.4g} GB/s beside DRAM's {dram:.4g} GB/s"
            yield fact, Conclusion("on_chip" if is_on_chip else "dram", 0.9 if is_on_chip else 0.7, reason)
