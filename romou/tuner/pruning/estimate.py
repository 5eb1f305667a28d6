"""The analytical estimate of a kernel's time, from what it uses and what ArchProbe measured of the device: good enough
to put configs in order.

A core issues instructions, waits for loads in one iteration after another, and moves bytes out of its caches. The
estimate is the Euclidean norm of these, so the longest rules and the others show. Only ratios mean something: the
epilogue, the launch and what a driver makes of the code are left out. On the recorded spaces of benchmarks/data the
rank correlation with the measured times is 0.6 to 0.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from romou.compiler.tir.primitives import LANES
from romou.devices.hardware import HardwareSpec
from romou.tuner.analysis.usage import KernelUsage

# Multiply-adds that a load keeps a work-item from issuing.
_ISSUED = 8.0
# Multiply-adds of a tensor core for each of an ALU: mma.sync.m16n8k16 on Hopper, 1024 of a core in a cycle.
_TENSOR_CORE_RATE = 8
# Neighbours of a warp read the same texel more often than not: a load moves this share of its bytes.
_MOVED = 0.25
# Cycles until loads of the first-level cache are there; images alias nothing, so a compiler moves more of their loads
# ahead. So many loads do not wait for each other.
_BUFFER_LATENCY, _IMAGE_LATENCY, _UNDER_WAY = 130.0, 60.0, 3
# Cycles that work groups take to begin and to end.
_STARTED = 1500.0
# No kernel gets by with fewer, whatever the formula's lower bound says.
_LEAST_REGISTERS = 32
# Of the registers of a Mali, those that a kernel has no use of. Under Mesa's compiler for Mali-G76, of 34 random
# kernels with more than 57 live 24 spill. Of 59 with fewer 7 do: windows that it writes out, whose conditions and
# coordinates it keeps.
_KEPT_BY_COMPILER = 7
# A kernel that spills runs so many times longer.
_SPILLED = 1.5
_TEXEL_BYTES = 16
_NEEDED = ("shader_cores", "alus_per_core", "clock_mhz", "l2_bandwidth_gbps", "warp_sizes")


def can_estimate(spec: HardwareSpec) -> bool:
    """Return whether enough is known of the device. A CPU is not estimated: what it does with work groups is up to its
    driver.
    """
    return _needed(spec) is not None


def missing_facts(spec: HardwareSpec) -> tuple[str, ...]:
    """The facts for want of which nothing can be estimated; empty where something can, and for a CPU."""
    is_cpu = spec.warp_sizes == (1,)
    return () if is_cpu else tuple(key for key in _NEEDED if getattr(spec, key) is None)


def _needed(spec: HardwareSpec) -> tuple[int, int, float, float, int] | None:
    """Cores, ALUs of a core, clock in Hz, bandwidth of the second-level cache in bytes per second, warp size."""
    cores, alus, clock, l2, warps = (
        spec.shader_cores,
        spec.alus_per_core,
        spec.clock_mhz,
        spec.l2_bandwidth_gbps,
        spec.warp_sizes,
    )
    return (
        None
        if not (cores and alus and clock and l2 and warps) or warps == (1,)
        else (cores, alus, clock * 1e6, l2 * 1e9, min(warps))
    )


def estimate_seconds(usage: KernelUsage, spec: HardwareSpec) -> Any | None:
    """Return the seconds of one launch, to be compared with those of other configs of the same operator; None where too
    little is known of the device.

    Fields of the usage may be arrays that broadcast.
    """
    needed, parts = _needed(spec), estimate_parts(usage, spec)
    if needed is None or parts is None:
        return None
    _, _, hertz, l2, _ = needed
    cycles = np.sqrt(sum(part * part for part in parts.values()))
    # Transforms only move, before and after; where they do not fit into the cache, through the memory.
    is_cached = usage.transform_bytes <= (spec.l2_cache_bytes or np.inf)
    through = np.where(is_cached, l2, _rate(spec.dram_bandwidth_gbps, l2))
    cycles = cycles + usage.transform_bytes / (through / hertz) + 2 * _STARTED * (usage.transform_bytes > 0)
    registers = needed_registers(usage, spec)
    if registers is not None:
        cycles = np.where(registers[0] > registers[1], _SPILLED * cycles, cycles)
    return cycles / hertz


def needed_registers(usage: KernelUsage, spec: HardwareSpec) -> tuple[Any, Any] | None:
    """Return the registers without which a work-item would spill, and those that it can have; None where the device's
    are not known.

    Where each work-item has registers of its own, as on Mali, they are so few that compilers move no load ahead.
    """
    if spec.registers_per_lane is None:
        return None
    if spec.register_file == "dedicated":
        return usage.registers_as_written, spec.registers_per_lane - _KEPT_BY_COMPILER
    return usage.needed_registers, spec.registers_per_lane


def estimate_parts(usage: KernelUsage, spec: HardwareSpec) -> Mapping[str, Any] | None:
    """Return the cycles that a launch would take if it did one thing alone; None where too little is known of the
    device.

    issuing, waiting: a core's cycles for instructions and for loads.
    buffers, images, l2: cycles for what moves out of the first-level caches, and out of the second-level cache.
    output: cycles for what is written.
    """
    needed, occupied = _needed(spec), occupancy(usage, spec)
    if needed is None or occupied is None:
        return None
    (cores, alus, hertz, l2, _), (in_flight, groups, items) = needed, occupied
    size = np.maximum(usage.work_group_size, 1)

    # A load is one instruction for four numbers of any type, and for fewer lanes; tensor cores load 16 bytes of fp16.
    # Local memory holds what is summed.
    texel_bytes = np.where(usage.on_tensor_cores, _TEXEL_BYTES, LANES * usage.element_bytes)
    local_bytes = np.where(usage.multiplies_fp16, texel_bytes, _TEXEL_BYTES)
    texel = size * texel_bytes * usage.access_width / LANES
    from_buffers, from_images, from_local = (
        usage.unshared_buffer_bytes / texel,
        usage.unshared_image_bytes / texel,
        usage.local_loads / local_bytes,
    )
    rate = np.where(usage.on_tensor_cores, _TENSOR_CORE_RATE, np.where(usage.multiplies_fp16, spec.fp16_rate or 1, 1))
    iteration = usage.multiply_adds / rate + _ISSUED * (from_buffers + from_images + from_local)
    item_iterations = groups * items * usage.iterations
    issuing = item_iterations * iteration / alus

    loads = from_buffers + from_images
    latency = (
        (_BUFFER_LATENCY * from_buffers + _IMAGE_LATENCY * from_images)
        / np.maximum(loads, 1e-9)
        * np.sqrt(np.maximum(loads / _UNDER_WAY, 1))
    )
    # What is copied ahead has been under way for so many iterations more. What travels through registers is waited for
    # where it takes longer than one.
    one_iteration = np.where(
        usage.is_prefetched, np.maximum(latency, iteration), latency / (1 + usage.iterations_ahead) + iteration
    )
    waiting = np.ceil(groups / in_flight) * (_STARTED + usage.iterations * one_iteration)

    def cycles_of(moved: Any, bytes_per_second: Any) -> Any:
        return moved / (bytes_per_second / hertz)

    of_buffers = _rate(spec.l1_buffer_bandwidth_gbps if spec.l1_buffer_cache_bytes != 0 else None, l2)
    into_buffers = _rate(spec.buffer_write_bandwidth_gbps, l2)
    first_level = item_iterations * cores * _MOVED * texel_bytes
    return {
        "issuing": issuing,
        "waiting": waiting,
        "buffers": cycles_of(first_level * from_buffers, of_buffers),
        "images": cycles_of(first_level * from_images, _rate(spec.l1_texture_bandwidth_gbps, of_buffers)),
        "l2": cycles_of((usage.buffer_bytes + usage.image_bytes) * usage.iterations * usage.work_groups, l2),
        "output": cycles_of(
            usage.output_bytes,
            np.where(usage.images["output"], _rate(spec.image_write_bandwidth_gbps, into_buffers), into_buffers),
        ),
    }


def _rate(gigabytes_per_second: float | None, otherwise: float) -> float:
    return gigabytes_per_second * 1e9 if gigabytes_per_second else otherwise


def occupancy(usage: KernelUsage, spec: HardwareSpec) -> tuple[Any, Any, Any] | None:
    """Return a core's work groups in flight, its work groups in all, at least 1 each, and the work-items of one in
    whole warps.

    None where too little is known of the device.
    """
    needed = _needed(spec)
    if needed is None:
        return None
    cores, _, _, _, warp = needed
    items = -(-np.maximum(usage.work_group_size, 1) // warp) * warp
    return _groups_in_flight(usage, spec, items), np.maximum(np.ceil(usage.work_groups / cores), 1), items


def _groups_in_flight(usage: KernelUsage, spec: HardwareSpec, items: Any) -> Any:
    """Work groups of a core that its registers have room for; at least one."""
    if spec.register_lanes_per_core is None:
        return np.asarray(1)
    lanes: Any = spec.register_lanes_per_core
    if spec.register_file == "pooled" and spec.registers_per_core is not None:
        lanes = spec.registers_per_core // np.clip(
            usage.registers, min(_LEAST_REGISTERS, spec.registers_per_lane or 1), spec.registers_per_lane
        )
    return np.maximum(lanes // items, 1)
