"""The analytical estimate of a kernel's time, from its usage and the device's facts: it ranks configs.

A core issues instructions, waits for loads in each iteration, and moves bytes out of its caches. The estimate is the
Euclidean norm of these times, so the longest one dominates. Only ratios between configs are meaningful: what all
configs of an operator share is left out. `call_parts` adds it, so that operators and networks compare. What each term
costs is a preset of the device's family (`romou.base.preset.Estimate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from romou.base.preset import Estimate
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.tir.primitives import LANES
from romou.devices.hardware import HardwareSpec
from romou.devices.presets import preset_for
from romou.devices.targets import Target

# Multiply-adds of a tensor core relative to an ALU: mma.sync.m16n8k16 on Hopper, 1024 in a cycle of a core.
_TENSOR_CORE_RATE = 8
# Fewest registers of any kernel.
_LEAST_REGISTERS = 32
# Registers of a Mali that a kernel cannot use. Under Mesa's compiler for Mali-G76, 24 of 34 random kernels with more
# than 57 live registers spill, and 7 of 59 with fewer: unrolled windows, whose conditions and coordinates stay live.
_KEPT_BY_COMPILER = 7
_TEXEL_BYTES = 16
_NEEDED = ("shader_cores", "alus_per_core", "clock_mhz", "l2_bandwidth_gbps", "warp_sizes")


def can_estimate(spec: HardwareSpec) -> bool:
    """Return whether enough facts of the device are known. CPUs are not estimated: their drivers differ too much."""
    return _needed(spec) is not None


def missing_facts(spec: HardwareSpec) -> tuple[str, ...]:
    """Return the facts without which nothing can be estimated. Empty if none is missing, and for a CPU."""
    is_cpu = spec.warp_sizes == (1,)
    return () if is_cpu else tuple(key for key in _NEEDED if getattr(spec, key) is None)


def estimable(target: Target) -> Target:
    """Return the target, with facts of the nearest known device if nothing can be estimated without them."""
    return target.with_options(facts="nearest") if missing_facts(target.spec) and target.spec.nearest else target


def spec_to_rank_by(target: Target) -> HardwareSpec:
    """Return the facts by which a search ranks configs.

    Unknown facts of an attached GPU are those of a measured GPU of its architecture, if the backend has one. Default
    configs and criteria keep to what is known of the GPU itself.
    """
    spec = target.spec
    is_guessed = not can_estimate(spec) and target.backend.trusts_nearest and spec.nearest is not None
    return target.with_options(facts="nearest").spec if is_guessed else spec


def _needed(spec: HardwareSpec) -> tuple[int, int, float, float, int] | None:
    """Return cores, ALUs of a core, clock in Hz, L2 bandwidth in bytes per second, and warp size."""
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
    """Return the estimated seconds of one launch, comparable between configs of one operator.

    None if facts are missing.

    Fields of the usage may be arrays that broadcast.
    """
    cycles = estimate_cycles(usage, spec)
    return None if cycles is None or spec.clock_mhz is None else cycles["all"] / (spec.clock_mhz * 1e6)


def call_parts(usage: KernelUsage, spec: HardwareSpec, operand_bytes: int) -> Mapping[str, Any] | None:
    """Return the seconds of one call in a network, which are the sum of these parts. None if facts are missing.

    launch: launches of the kernel, and of those around it
    memory: each byte of the operands once through memory
    kernel: the estimate, and what slows it down that the formulas do not know

    operand_bytes: bytes of inputs, weights and output. A kernel that reads less of them moves less.
    """
    seconds, l2 = estimate_seconds(usage, spec), spec.l2_bandwidth_gbps
    if seconds is None or l2 is None:
        return None
    costs = _costs(spec)
    read = (usage.unshared_buffer_bytes + usage.unshared_image_bytes) * usage.iterations * usage.work_groups
    moved = np.where(read > 0, np.minimum(operand_bytes, read + usage.output_bytes), operand_bytes)
    launches = np.where(usage.transform_bytes > 0, 3, 1)
    return {
        "launch": launches * costs.launch_us / 1e6,
        "memory": moved / _memory_rate(spec, l2 * 1e9),
        "kernel": costs.slowdown * seconds,
    }


def estimate_cycles(usage: KernelUsage, spec: HardwareSpec) -> Mapping[str, Any] | None:
    """Return the cycles of one launch, term by term. None without enough facts.

    The parts are as in `estimate_parts`. "transforms", "spill" and "unrolled" are added to their norm: cycles of the
    kernels around this one, of registers that do not fit, and of long iterations. "all" is the sum.
    """
    needed, parts = _needed(spec), estimate_parts(usage, spec)
    if needed is None or parts is None:
        return None
    cores, alus, hertz, l2, _ = needed
    costs, norm = _costs(spec), np.sqrt(sum(part * part for part in parts.values()))
    # The transforms before and after move data. If it does not fit into the cache, it goes through memory.
    is_cached = usage.transform_bytes <= (spec.l2_cache_bytes or np.inf)
    through = np.where(is_cached, l2, _rate(spec.dram_bandwidth_gbps, l2))
    transforms = usage.transform_bytes / (through / hertz) + 2 * costs.group_start * (usage.transform_bytes > 0)
    transforms = transforms + costs.moved_number * usage.transform_bytes / usage.element_bytes / (cores * alus)
    cycles = norm + transforms
    spill, registers = np.zeros_like(cycles), needed_registers(usage, spec)
    if registers is not None:
        filled = registers[0] / (costs.max_register_fill * registers[1])
        spill = np.where(filled > 1, (costs.spill + costs.spill_growth * (filled - 1)) * cycles, 0.0)
    doublings = np.log2(np.maximum(usage.multiply_adds / costs.max_iteration, 1))
    unrolled = ((1 + costs.iteration_growth) ** doublings - 1) * (cycles + spill)
    added = {"transforms": transforms, "spill": spill, "unrolled": unrolled}
    return {**parts, **added, "all": cycles + spill + unrolled}


def needed_registers(usage: KernelUsage, spec: HardwareSpec) -> tuple[Any, Any] | None:
    """Return the registers that a work-item needs to avoid spills, and its limit. None if the facts are missing.

    Dedicated register files, as on Mali, are so small that compilers move no load ahead.
    """
    if spec.registers_per_lane is None:
        return None
    if spec.register_file == "dedicated":
        return usage.registers_as_written, spec.registers_per_lane - _KEPT_BY_COMPILER
    return usage.needed_registers, spec.registers_per_lane


def estimate_parts(usage: KernelUsage, spec: HardwareSpec) -> Mapping[str, Any] | None:
    """Return the cycles of each part of a launch, as if it ran without the others. None without enough facts.

    issuing, waiting: a core's cycles for instructions and for loads
    buffers, images, l2: cycles for bytes out of the first-level caches, and out of the second-level cache, or of the
        memory if no other group reads them
    output: cycles for the written bytes
    """
    needed, occupied = _needed(spec), occupancy(usage, spec)
    if needed is None or occupied is None:
        return None
    (cores, alus, hertz, l2, _), (in_flight, groups, items) = needed, occupied
    costs = _costs(spec)
    size = np.maximum(usage.work_group_size, 1)

    # A load is one instruction for up to four numbers of any type. Tensor cores load 16 bytes of fp16. Local memory
    # holds numbers of the type that is summed.
    texel_bytes = np.where(usage.on_tensor_cores, _TEXEL_BYTES, LANES * usage.element_bytes)
    local_bytes = np.where(usage.multiplies_fp16, texel_bytes, _TEXEL_BYTES)
    texel = size * texel_bytes * usage.access_width / LANES
    from_buffers, from_images, from_local = (
        usage.unshared_buffer_bytes / texel,
        usage.unshared_image_bytes / texel,
        usage.local_loads / local_bytes,
    )
    rate = np.where(
        usage.on_tensor_cores,
        _TENSOR_CORE_RATE / usage.matrix_instructions,
        np.where(usage.multiplies_fp16, spec.fp16_rate or 1, 1),
    )
    iteration = usage.multiply_adds / rate + costs.load_issue * (from_buffers + from_images + from_local)
    item_iterations = groups * items * usage.iterations
    issuing = item_iterations * iteration / alus

    loads = from_buffers + from_images
    latency = (
        (costs.buffer_latency * from_buffers + costs.image_latency * from_images)
        / np.maximum(loads, 1e-9)
        * np.sqrt(np.maximum(loads / costs.loads_in_flight, 1))
    )
    # Copies ahead have more iterations to arrive. A prefetch through registers stalls if it takes longer than one
    # iteration.
    one_iteration = np.where(
        usage.is_prefetched, np.maximum(latency, iteration), latency / (1 + usage.iterations_ahead) + iteration
    )
    waiting = np.ceil(groups / in_flight) * (costs.group_start + usage.iterations * one_iteration)

    def cycles_of(moved: Any, bytes_per_second: Any) -> Any:
        return moved / (bytes_per_second / hertz)

    of_buffers = _rate(spec.l1_buffer_bandwidth_gbps if spec.l1_buffer_cache_bytes != 0 else None, l2)
    into_buffers = _rate(spec.buffer_write_bandwidth_gbps, l2)
    first_level = item_iterations * cores * texel_bytes
    shared_bytes = (usage.buffer_bytes + usage.image_bytes) * usage.iterations * usage.work_groups
    return {
        "issuing": issuing,
        "waiting": waiting,
        "buffers": cycles_of(first_level * costs.moved_buffer_fraction * from_buffers, of_buffers),
        "images": cycles_of(
            first_level * costs.moved_image_fraction * from_images, _rate(spec.l1_texture_bandwidth_gbps, of_buffers)
        ),
        "l2": cycles_of(costs.moved_shared_fraction * shared_bytes, _shared_rate(usage, spec, shared_bytes, l2)),
        "output": cycles_of(
            usage.output_bytes,
            np.where(usage.images["output"], _rate(spec.image_write_bandwidth_gbps, into_buffers), into_buffers),
        ),
    }


def _costs(spec: HardwareSpec) -> Estimate:
    return preset_for(spec).estimate


def _shared_rate(usage: KernelUsage, spec: HardwareSpec, shared_bytes: Any, l2: float) -> Any:
    """Return the bandwidth of a work group's distinct bytes: the second-level cache's, or the memory's.

    Data that only neighbours share, at the edges of windows, is gone from a small cache before they read it.
    """
    is_cached = usage.is_data_shared | (shared_bytes <= (spec.l2_cache_bytes or 0))
    return np.where(is_cached, l2, _memory_rate(spec, l2))


def _memory_rate(spec: HardwareSpec, l2: float) -> float:
    return _rate(spec.dram_bandwidth_gbps, _costs(spec).memory_share * l2)


def _rate(gigabytes_per_second: float | None, otherwise: float) -> float:
    return gigabytes_per_second * 1e9 if gigabytes_per_second else otherwise


def texture_bytes(usage: KernelUsage) -> Any:
    """Return the bytes that all work-items of a launch read from images.

    Every load counts, as in the roofline of the Romou paper (section 3.2, figure 11).
    """
    return usage.unshared_image_bytes * usage.iterations * usage.work_groups


def occupancy(usage: KernelUsage, spec: HardwareSpec) -> tuple[Any, Any, Any] | None:
    """Return a core's work groups in flight, all of its work groups, and the work-items of a group in whole warps.

    None without enough facts. The first two are at least 1.
    """
    needed = _needed(spec)
    if needed is None:
        return None
    cores, _, _, _, warp = needed
    items = -(-np.maximum(usage.work_group_size, 1) // warp) * warp
    return _groups_in_flight(usage, spec, items), np.maximum(np.ceil(usage.work_groups / cores), 1), items


def _groups_in_flight(usage: KernelUsage, spec: HardwareSpec, items: Any) -> Any:
    """Return the number of work groups that fit into a core's registers, at least one."""
    if spec.register_lanes_per_core is None:
        return np.asarray(1)
    lanes: Any = spec.register_lanes_per_core
    if spec.register_file == "pooled" and spec.registers_per_core is not None:
        lanes = int(_costs(spec).register_pool * spec.registers_per_core) // np.clip(
            usage.registers, min(_LEAST_REGISTERS, spec.registers_per_lane or 1), spec.registers_per_lane
        )
    return np.maximum(lanes // items, 1)
