"""The architecture as a picture, drawn from a report (as in the paper's figure 9).

It shows cores with ALUs and registers, caches, and memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archprobe.plots.curves import DARK, FILL, new_figure
from archprobe.report.document import CONCLUSIONS, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 12.0
_CHASE = "BufferCacheHierarchyPChase"


def draw(report: Report) -> Figure:
    """Draw the architecture as a matplotlib figure.

    Unknown numbers are question marks, and units that the device lacks are left out.
    """
    figure, axes = new_figure(9, 6.6)
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(0, 10.2)
    axes.axis("off")
    cores = _number(report, "Cores.CoreCount") or _number(report, "Device.SmCount")
    _box(axes, 0.6, 4.9, 10.8, 4.4, "core", "")
    _box(axes, 0.4, 5.0, 10.8, 4.4, "core", "")
    _box(axes, 0.2, 5.1, 10.8, 4.4, "core", "")
    axes.text(0.45, 9.2, f"core  × {_text(cores)}", fontsize=11, weight="bold", color=DARK, va="center")
    warp = _fact(report, "WarpSizeMethodB.WarpThreadCount", "WarpDivergence.WarpThreadCount")
    axes.text(10.8, 9.2, f"warp of {warp}", fontsize=9, ha="right", va="center", color=DARK)
    alus = _fact(report, f"{CONCLUSIONS}.AluCount", "Gflops.AluCount")
    _box(axes, 0.5, 7.6, 4.9, 1.2, "alu", f"{alus} ALUs\n{_flops(report)}")
    kind = _word(report, "RegCount.RegType")
    _box(
        axes,
        5.7,
        7.6,
        5.0,
        1.2,
        "register",
        f"registers: {_fact(report, 'RegCount.RegCount')} a work-item, {kind.lower()}\n{_pool(report)}",
    )
    local = _bytes(_number(report, "Device.MaxLocalMemSize"))
    _box(axes, 0.5, 5.4, 3.2, 1.8, "local", f"local memory\n{local}\n{_rate(report, 'LocalMemBandwidth.MaxBandwidth')}")
    aspect = "ImageCacheHierarchyPChase"
    texture = _level(report, f"{aspect}.CachePixelCountLv1", f"{aspect}.LatencyLv1", "ImageBandwidth.MaxBandwidth")
    _box(
        axes,
        4.0,
        5.4,
        3.2,
        1.8,
        "cache",
        f"texture L1\n{texture}\nline {_bytes(_number(report, 'ImageCachelineSize.ImgCachelineSize'))}",
    )
    _box(axes, 7.5, 5.4, 3.2, 1.8, "cache", _first_level(report))
    further = _further_levels(report)
    height = 1.5 / max(1, len(further))
    for row, text in enumerate(further):
        _box(axes, 0.2, 3.0 + (len(further) - 1 - row) * height, 11.2, height - 0.1, "cache", text)
    constant = (
        f"constant memory: {_bytes(_number(report, 'Device.MaxConstMemSize'))},"
        f" {_rate(report, 'ConstMemBandwidth.MaxBandwidth')}"
    )
    _box(axes, 0.2, 2.0, 11.2, 0.8, "local", constant)
    memory = (
        f"memory: reads {_rate(report, 'BufferBandwidth.MinBandwidth')}, copy"
        f" {_rate(report, 'BufferBandwidth.DramBandwidth')}"
    )
    _box(axes, 0.2, 0.5, 11.2, 1.2, "memory", memory)
    axes.text(0.2, 10.0, report.device_name, fontsize=13, weight="bold", color=DARK, va="center")
    axes.text(11.4, 0.2, "? : undecided or not measured", fontsize=7, ha="right", color=DARK)
    return figure


def _first_level(report: Report) -> str:
    """Return the text about the first-level cache of buffers, which some GPUs do not have."""
    if _number(report, f"{CONCLUSIONS}.BufferCacheSizeLv1") == 0:
        return "buffers: no level 1"
    first = _level(report, f"{_CHASE}.CacheVectorCountLv1", f"{_CHASE}.LatencyLv1", "BufferBandwidth.BandwidthLv1")
    line = _bytes(_number(report, "BufferCachelineSize.BufTopLevelCachelineSize"))
    return f"buffer level 1\n{first}\nline {line}"


def _further_levels(report: Report) -> list[str]:
    """Return a text for each cache beyond the first: the second one of the chip if buffers have no first."""
    if _number(report, f"{CONCLUSIONS}.BufferCacheSizeLv1") == 0:
        second = _level(report, f"{CONCLUSIONS}.CacheSizeLv2", f"{_CHASE}.LatencyLv1", f"{CONCLUSIONS}.BandwidthLv2")
        line = _bytes(_number(report, "BufferCachelineSize.BufTopLevelCachelineSize"))
        return [f"level 2: {second}, line {line}".replace("\n", ", ")]
    return [
        f"level {i}: "
        + _level(
            report, f"{_CHASE}.CacheVectorCountLv{i}", f"{_CHASE}.LatencyLv{i}", f"BufferBandwidth.BandwidthLv{i}"
        ).replace("\n", ", ")
        for i in range(2, 5)
        if _number(report, f"{_CHASE}.CacheVectorCountLv{i}")
    ]


def _box(axes: Axes, x: float, y: float, width: float, height: float, kind: str, text: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0.02,rounding_size=0.08",
            facecolor=FILL[kind],
            edgecolor=DARK,
            linewidth=0.8,
        )
    )
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9, color=DARK, linespacing=1.5)


def _number(report: Report, key: str) -> float | None:
    answer = report.answers().get(key)
    return None if answer is None or answer.is_declined else answer.number()


def _word(report: Report, key: str) -> str:
    answer = report.answers().get(key)
    return "?" if answer is None or answer.is_declined else str(answer.value)


def _fact(report: Report, *keys: str) -> str:
    return _text(next((n for n in (_number(report, key) for key in keys) if n is not None), None))


def _text(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "?"
    for size, unit in ((2**20, "MB"), (2**10, "KB")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g} B"


def _rate(report: Report, key: str) -> str:
    value = _number(report, key)
    return "? GB/s" if value is None else f"{value:.4g} GB/s" if value < 10000 else f"{value / 1000:.3g} TB/s"


def _level(report: Report, size: str, latency: str, rate: str) -> str:
    slow = _number(report, latency)
    return f"{_bytes(_number(report, size))}, {'?' if slow is None else f'{slow:.3g}'} ns\n{_rate(report, rate)}"


def _flops(report: Report) -> str:
    value = _number(report, "Gflops.FloatGflops")
    return f"fp32 {'?' if value is None else f'{value:,.0f}'} GFLOPS in all"


def _pool(report: Report) -> str:
    pool = _number(report, f"{CONCLUSIONS}.RegisterPool")
    return "pool of ? a core" if pool is None else f"pool of {pool:g} a core, values alone"
