"""What makes a kernel not worth trying on a device: Table 1 of the Romou paper, one function a row, and beside it what
measurements showed.

A criterion looks at a `KernelUsage` and a `HardwareSpec` and gives a `Verdict`; None where the device's number is not
known, or means nothing there. Fields of the usage may be arrays, so the same function judges one kernel off its TIR and
a whole space off its closed form.

To add a criterion, write its function under `@criterion` in this file, at the place where it should give way: where
criteria would leave too few configs of a space, the first one in this file gives way first. Ours come before those of
the paper, and of those last what a device punishes hardest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from romou.base.errors import UsageError
from romou.base.limits import LOCAL_MEMORY_ALPHA
from romou.compiler.tir.primitives import LANES
from romou.devices.hardware import HardwareSpec
from romou.tuner.analysis.usage import KernelUsage
from romou.tuner.pruning.estimate import estimate_seconds, needed_registers

PAPER = "Romou paper, section 4.2"
# Multiply-adds of one tensor core instruction for each of its 32 work-items, at least: mma.sync.m16n8k8.
_OF_TENSOR_CORE = 32


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a person may choose about the criteria.

    count_per_work_item: count bytes as the paper does, a work-item's times the group's size, and weigh the output's
    place like the inputs'. Otherwise bytes
        that work-items share count once, and kernels that only pass data on to local memory, or read it once, are not
        held to the cache's size.
    local_memory_alpha: local memory is excluded above this many work-items per ALU of a core (the paper's alpha; 3
    there).
    access_width: lanes of one access that give the best cache bandwidth. None: as the device's report says
    (`best_access_lanes`), else 4, as on the mobile GPUs of the paper.
    most_padding: largest accepted share of work for nothing, relative to the work that is needed.
    longest_iteration: most multiply-adds that an iteration of the reduction loop may spell out, instructions of tensor
    cores counted once.
    slowest: how many times longer than the fastest config of the space a config may take, by the estimate.

    UsageError where a number is not above zero.
    """

    count_per_work_item: bool = False
    local_memory_alpha: float = LOCAL_MEMORY_ALPHA
    access_width: int | None = None
    most_padding: float = 0.75
    longest_iteration: int = 8192
    slowest: float = 3.0

    def __post_init__(self) -> None:
        for name in ("local_memory_alpha", "access_width", "most_padding", "longest_iteration", "slowest"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above zero, got {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the operator's template leaves open at all: a kernel is not blamed for what no config could do better.

    images: which of "data", "weight", "output" can lie in an image.
    access_width: widest access of any config, in lanes.
    fastest_s: bytes that an algorithm's transforms move, by which it is known
        ->  estimated seconds of its fastest config; empty where nothing can be
        estimated.
    default_s: the same -> estimated seconds of the default config, for its algorithm.
    """

    images: frozenset[str] = frozenset()
    access_width: int = 4
    fastest_s: Mapping[int, float] = field(default_factory=dict)
    default_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one criterion says of a kernel, or of many.

    used, limit: the kernel's number and the device's, in `unit`; arrays for many kernels.
    source: where the limit comes from.
    is_upper: whether `limit` is the most, else the least.
    """

    criterion: str
    used: Any
    limit: Any
    unit: str
    source: str
    is_upper: bool = True

    @property
    def keep(self) -> Any:
        """Whether the kernel stays."""
        return self.keep_within(1)

    def keep_within(self, factor: float) -> Any:
        """Whether the kernel would stay if the limit were that many times looser; a limit of 0 counts as 1 when it is
        loosened.
        """
        if self.is_upper:
            return self.used <= (self.limit if factor == 1 else np.maximum(self.limit, 1) * factor)
        return self.used * factor >= self.limit

    def __str__(self) -> str:
        relation = "within" if self.keep else "beyond"
        bound = "at most" if self.is_upper else "at least"
        return (
            f"{self.criterion}: {self.used:g}, {relation} the limit of {bound} {self.limit:g} {self.unit}"
            f" ({self.source})"
        )


Criterion: TypeAlias = Callable[[KernelUsage, HardwareSpec, Rules, Choices], Verdict | None]

# Name -> function, in the order in which they give way where too few configs would be left.
CRITERIA: dict[str, Criterion] = {}
# Criteria that look at registers, of which formulas give a lower bound: what they keep is judged again by the lowered
# kernel.
BOUNDED: set[str] = set()


def criterion(judged: Criterion) -> Criterion:
    """Add a function to CRITERIA, behind those that are there."""
    CRITERIA[judged.__name__] = judged
    return judged


def bounded(judged: Criterion) -> Criterion:
    """Note that a criterion looks at registers."""
    BOUNDED.add(judged.__name__)
    return judged


@criterion
def padding(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: tiles that do not divide the output compute what nobody stores; no fact of the device is needed."""
    return _verdict("padding", usage.padding, rules.most_padding, "of the work", "Rules.most_padding")


@criterion
def cores(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: so few work groups that more than half of the shader cores idle; fewer idle ones may be outweighed by
    larger groups.
    """
    if spec.shader_cores is None:
        return None
    return _verdict(
        "cores", usage.work_groups, spec.shader_cores / 2, "work groups", _source(spec, "shader_cores"), is_upper=False
    )


@criterion
def code(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: a loop body so long that drivers take tens of seconds to compile it, and instruction caches do not hold it.

    Of 24 operators recorded on an NVIDIA H200 none had a config beyond the default limit within 1.6 times its best
    one's time.
    """
    used = usage.multiply_adds / np.where(usage.on_tensor_cores, _OF_TENSOR_CORE, 1)
    return _verdict("code", used, rules.longest_iteration, "multiply-adds in one iteration", "Rules.longest_iteration")


@criterion
def estimate(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: so much slower than another config of the same algorithm, by `estimate_seconds`, that even a bad estimate
    leaves no hope.

    Between algorithms the estimate only says what is tried first: it knows loops better than launches. Nor does it
    exclude what it puts before the default config, which compilers show to be lean on phones: it tells how far the
    estimate errs. On Mali-G76 that is up to 4 times the fastest's time.
    """
    seconds = estimate_seconds(usage, spec)
    if seconds is None or not choices.fastest_s:
        return None
    is_algorithm = [usage.transform_bytes == moved for moved in choices.fastest_s]
    fastest_s = np.select(is_algorithm, list(choices.fastest_s.values()), np.inf)
    # As `used` is divided: no rounding puts the default beyond its own limit.
    limit = np.select(
        is_algorithm,
        [max(rules.slowest, choices.default_s.get(moved, 0) / fastest) for moved, fastest in choices.fastest_s.items()],
    )
    return _verdict(
        "estimate",
        seconds / fastest_s,
        limit,
        "times the fastest config's time, estimated",
        "Rules.slowest, or that of the default config",
    )


@criterion
def broadcast(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: copy a scalar into a vector where the device multiplies scalars with vectors as they are (paper, section
    4.1, autobroadcast).
    """
    if not spec.has_scalar_vector_broadcast:
        return None
    return _verdict(
        "broadcast",
        usage.has_copies * 1,
        0,
        "scalars copied into vectors",
        _source(spec, "has_scalar_vector_broadcast"),
    )


@criterion
@bounded
def occupancy(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: so many registers that the work groups in flight leave ALUs of a core idle."""
    if spec.register_file != "pooled" or spec.registers_per_core is None or spec.alus_per_core is None or _is_cpu(spec):
        return None
    size = np.maximum(usage.work_group_size, 1)
    in_flight = spec.registers_per_core // np.maximum(usage.needed_registers * size, 1) * size
    # One group that needs the whole file runs all the same; `registers` judges it.
    return _verdict(
        "occupancy",
        in_flight,
        spec.alus_per_core,
        "work-items in flight",
        _source(spec, "alus_per_core"),
        is_upper=False,
    )


@criterion
def staging(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: stage data in local memory that is slower than the cache it would be read from (paper, section 3.3: 146
    against 190 GB/s). A difference inside the noise of the two measurements excludes nothing.
    """
    has_own_cache = bool(spec.l1_buffer_cache_bytes)
    local = spec.interval("local_mem_bandwidth_gbps")
    of_buffers = spec.interval("l1_buffer_bandwidth_gbps" if has_own_cache else "l2_bandwidth_gbps")
    of_images = spec.interval("l1_texture_bandwidth_gbps") or of_buffers
    if local is None or _is_cpu(spec) or of_images is None:
        return None
    buffers_gbps, images_gbps = (of_buffers or of_images)[0], of_images[0]
    # The slower one of what the kernel reads: there staging has most to win.
    rate = np.where(usage.buffer_bytes > 0, min(buffers_gbps, images_gbps), images_gbps)
    used = np.where(usage.is_staged, rate, 0.0)
    source = _source(spec, "local_mem_bandwidth_gbps")
    return _verdict("staging", used, local[1], "GB/s without local memory", source)


@criterion
def local_memory(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: use local memory when work group size > alpha * ALUs: then there is parallelism enough without."""
    if spec.alus_per_core is None or _is_cpu(spec):
        return None
    limit = rules.local_memory_alpha * spec.alus_per_core
    used = usage.work_group_size * (usage.local_memory_bytes > 0)
    return _verdict("local_memory", used, limit, "work-items", _source(spec, "alus_per_core"))


@criterion
def access_width(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: use inefficient data access width, which is any below the best one that the operator allows."""
    if not spec.warp_sizes or _is_cpu(spec):
        return None
    limit = min(rules.access_width or spec.best_access_lanes or LANES, choices.access_width)
    return _verdict("access_width", usage.access_width, limit, "lanes", PAPER, is_upper=False)


@criterion
def l1_cache(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: access more data in one loop iteration than L1 cache, what streams by left out. Images against the
    texture cache, buffers against theirs.

    What no later iteration reads again streams by, and no cache has to hold it: weights, and without a window the data
    too. Under Mesa's compiler for Adreno 630 the leanest kernels of 1x1 convolutions read more than the cache holds.
    """
    texture, buffer = spec.l1_texture_cache_bytes, spec.l1_buffer_cache_bytes
    is_held = np.logical_not(usage.is_staged)
    of_images = usage.unshared_image_bytes if rules.count_per_work_item else usage.reread_image_bytes * is_held
    of_buffers = usage.unshared_buffer_bytes if rules.count_per_work_item else usage.reread_buffer_bytes * is_held
    # A cache that is not there cannot overflow.
    both = ((of_images, texture, "l1_texture_cache_bytes"), (of_buffers, buffer, "l1_buffer_cache_bytes"))
    loads: list[tuple[Any, Any, str]] = [load for load in both if load[1]]
    if not loads:
        return None
    used, limit, _ = loads[0]
    for more, size, _ in loads[1:]:
        # The fuller of the two decides.
        is_tighter = more * limit > used * size
        used, limit = np.where(is_tighter, more, used), np.where(is_tighter, size, limit)
    return _verdict("l1_cache", used, limit, "bytes", _source(spec, *(key for _, _, key in loads)))


@criterion
def buffers(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: use buffer type when L1 cache is for texture only. Counts tensors in buffers that could be images; what
    is written passes no cache.
    """
    if spec.l1_texture_cache_bytes == 0 or spec.l1_buffer_cache_bytes != 0:
        return None
    tensors = choices.images if rules.count_per_work_item else choices.images - {"output"}
    used = sum((1 - usage.images[name] * 1 for name in sorted(tensors)), start=np.asarray(0))
    return _verdict("buffers", used, 0, "tensors in buffers", _source(spec, "l1_buffer_cache_bytes"))


@criterion
def warp(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: work group size < warp size; of several sizes, the smallest.

    Where the launch has less than a warp for each core, small groups that use all cores are better than full ones on a
    few.
    """
    if not spec.warp_sizes or _is_cpu(spec):
        return None
    size = min(spec.warp_sizes)
    limit = np.where(usage.work_groups * usage.work_group_size <= size * (spec.shader_cores or 0), 1, size)
    return _verdict("warp", usage.work_group_size, limit, "work-items", _source(spec, "warp_sizes"), is_upper=False)


@criterion
@bounded
def registers(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: overuse available registers for the work group size. A pooled file is shared by the group, a dedicated
    one is not.

    A group that waits at barriers is there as a whole, in the largest warps. Under Mesa's compiler for Adreno these
    come in pairs: kernels of 128 work-items get half as many registers on Adreno 660 as kernels of 64.
    """
    most, found = spec.registers_per_lane, needed_registers(usage, spec)
    if most is None or found is None or spec.register_file is None:
        return None
    needed, limit = found
    if spec.register_file == "pooled" and spec.registers_per_core is not None:
        limit = np.minimum(limit, spec.registers_per_core // np.maximum(_resident(usage, spec), 1))
    # Groups of transforms are small: each of their work-items has all registers that it can have. The tighter one
    # decides.
    is_tighter = usage.transform_registers * limit > needed * most
    used, limit = np.where(is_tighter, usage.transform_registers, needed), np.where(is_tighter, most, limit)
    return _verdict(
        "registers", used, limit, "registers", _source(spec, "registers_per_lane", "register_lanes_per_core")
    )


def _resident(usage: KernelUsage, spec: HardwareSpec) -> Any:
    """Work-items that a core holds registers for while it computes a work group."""
    size, warps = usage.work_group_size, spec.warp_sizes or (1,)
    waits = (usage.local_memory_bytes > 0) & (size > min(warps))
    return np.where(waits, np.maximum(size, 2 * max(warps)), size)


def judge(
    usage: KernelUsage, spec: HardwareSpec, *, rules: Rules | None = None, choices: Choices | None = None
) -> dict[str, Verdict]:
    """Return the verdicts of all criteria that have a meaning on the device, by name."""
    verdicts = {name: c(usage, spec, rules or Rules(), choices or Choices()) for name, c in CRITERIA.items()}
    return {name: verdict for name, verdict in verdicts.items() if verdict is not None}


def _is_cpu(spec: HardwareSpec) -> bool:
    return spec.warp_sizes == (1,)


def _source(spec: HardwareSpec, *keys: str) -> str:
    return "; ".join(f"{key}: {spec.source_of(key)}" for key in keys)


def _verdict(criterion: str, used: Any, limit: Any, unit: str, source: str, *, is_upper: bool = True) -> Verdict:
    used, limit = (
        v.item() if np.ndim(v) == 0 and isinstance(v, (np.generic, np.ndarray)) else v for v in (used, limit)
    )
    return Verdict(criterion=criterion, used=used, limit=limit, unit=unit, source=source, is_upper=is_upper)
