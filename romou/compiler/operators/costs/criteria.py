"""Criteria that exclude kernels not worth trying on a device.

Each row of Table 1 of the Romou paper has one function. Criteria marked "Ours" are not in the paper but come from
measurements.

A criterion compares a `KernelUsage` with a `HardwareSpec` and returns a `Verdict`, or None if the device's number is
unknown or meaningless. Fields of the usage may be arrays, so one function judges a single kernel and a whole space.

To add a criterion, write its function under `@criterion(gives_way=...)` in this file. If criteria would leave too few
configs of a space, the criterion with the lowest number gives way first. Ours come before the paper's. The criteria
whose violation costs most on a device come last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from romou.base.errors import UsageError
from romou.base.limits import LOCAL_MEMORY_ALPHA
from romou.base.space import Space
from romou.compiler.operators.analysis.form import Form, columns_of
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.costs.estimate import estimate_seconds, needed_registers
from romou.compiler.tir.primitives import LANES
from romou.devices.hardware import HardwareSpec

PAPER = "Romou paper, section 4.2"
# Multiply-adds of one tensor core instruction for each of its 32 work-items, at least: mma.sync.m16n8k8.
_OF_TENSOR_CORE = 32
# Bytes of a multiply-add on Adreno, and the most code of an iteration, in instruction caches.
_INSTRUCTION_BYTES, _MOST_CODE = 8, 4
# Share of a warp's lanes that a work group has to fill.
_FULL_WARP = 0.75


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Parameters of the criteria.

    count_per_work_item: count bytes as the paper does: a work-item's times the group's size, the output like the
        inputs. If false, bytes that work-items share count once, and the cache's size does not limit kernels that stage
        their data or read it once.
    local_memory_alpha: local memory is excluded above this many work-items per ALU of a core (the paper's alpha, 3)
    access_width: lanes of one access that give the best cache bandwidth. None: `best_access_lanes` of the device's
        report, else 4, as on the mobile GPUs of the paper.
    most_padding: largest accepted share of padding, relative to the needed work
    longest_iteration: most unrolled multiply-adds in one iteration of the reduction loop. An instruction of tensor
        cores counts once.
    slowest: longest accepted estimated time, relative to the fastest config of the space

    UsageError if a number is not above zero.
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

    @property
    def l1(self) -> str:
        """The key of `L1_RULES` that counts bytes as these rules do."""
        return next(name for name, rules in L1_RULES.items() if rules.count_per_work_item == self.count_per_work_item)


# Value of the option `l1` -> rules. "paper" is the criterion of the Romou paper, section 4.2, to the letter.
L1_RULES: Mapping[str, Rules] = {"reread": Rules(), "paper": Rules(count_per_work_item=True)}


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The best values among all configs of a space. A kernel is not excluded if no config is better.

    An algorithm is identified by the bytes that its transforms move.

    images: the tensors of "data", "weight", "output" that can be stored in an image
    access_width: widest access of any config, in lanes
    fastest_s: algorithm -> estimated seconds of its fastest config. Empty if nothing can be estimated
    default_s: algorithm of the default config -> estimated seconds of the default config
    """

    images: frozenset[str] = frozenset()
    access_width: int = 4
    fastest_s: Mapping[int, float] = field(default_factory=dict)
    default_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of one criterion for one kernel, or for many.

    used, limit: the kernel's number and the device's, in `unit`. Arrays for many kernels
    source: origin of the limit
    is_upper: whether `limit` is an upper bound, else a lower one
    """

    criterion: str
    used: Any
    limit: Any
    unit: str
    source: str
    is_upper: bool = True

    @property
    def keep(self) -> Any:
        """True if the kernel is kept."""
        return self.keep_within(1)

    def keep_within(self, factor: float) -> Any:
        """Return whether the kernel is kept if the limit is loosened by a factor. A limit of 0 is loosened from 1."""
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


def choices_of(
    form: Form,
    space: Space,
    spec: HardwareSpec,
    usages: Iterable[KernelUsage] | None = None,
    default: Mapping[str, Any] | None = None,
) -> Choices:
    """Return the best that any config of the space can do on the device.

    form: the formulas of the operator
    usages: of all valid configs, if they were computed before
    default: the default config, whose estimate shows the estimate's error
    """
    images = frozenset(name for name in ("data", "weight", "output") if "image" in space.knobs.get(name, ()))
    width, fastest = 1, dict[int, float]()
    for usage in map(form.usage_of_valid, space.blocks()) if usages is None else usages:
        width = max(width, int(np.max(usage.access_width)))
        seconds, moved = estimate_seconds(usage, spec), usage.transform_bytes
        if seconds is not None:
            for algorithm in map(int, np.unique(moved)):
                least = float(np.min(seconds, where=moved == algorithm, initial=np.inf))
                fastest[algorithm] = min(fastest.get(algorithm, math.inf), least)
    default_s: dict[int, float] = {}
    if default is not None:
        usage = form.usage(columns_of([default]))
        seconds = estimate_seconds(usage, spec)
        default_s = {} if seconds is None else {int(np.max(usage.transform_bytes)): float(np.max(seconds))}
    return Choices(images=images, access_width=width, fastest_s=fastest, default_s=default_s)


Criterion: TypeAlias = Callable[[KernelUsage, HardwareSpec, Rules, Choices], Verdict | None]

# Name -> function, in the order of giving way if too few configs would be left.
CRITERIA: dict[str, Criterion] = {}
_GIVES_WAY: dict[str, int] = {}
# Criteria on registers. Formulas give a lower bound of registers, so kept kernels are judged again after lowering.
BOUNDED: set[str] = set()


def criterion(*, gives_way: int) -> Callable[[Criterion], Criterion]:
    """Return a decorator that adds a function to CRITERIA.

    gives_way: position in the order of giving way, the lowest number first. Numbers must differ.
    """

    def add(judged: Criterion) -> Criterion:
        name = judged.__name__
        same = next((other for other in CRITERIA if _GIVES_WAY[other] == gives_way and other != name), None)
        if same is not None:
            raise UsageError(f"criterion {name!r} gives way at {gives_way}, as {same!r} does; give it another number")
        _GIVES_WAY[name] = gives_way
        ordered = sorted({**CRITERIA, name: judged}.items(), key=lambda item: _GIVES_WAY[item[0]])
        CRITERIA.clear()
        CRITERIA.update(ordered)
        return judged

    return add


def bounded(judged: Criterion) -> Criterion:
    """Mark a criterion on registers."""
    BOUNDED.add(judged.__name__)
    return judged


@criterion(gives_way=10)
def padding(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: tiles that do not divide the output compute surplus elements, which are not stored.
    Needs no fact of the device.
    """
    return _verdict("padding", usage.padding, rules.most_padding, "of the work", "Rules.most_padding")


@criterion(gives_way=20)
def cores(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: launch fewer work groups than half of the shader cores, so more than half of the cores idle.
    Launches with fewer idle cores are kept, because their larger groups may outweigh the idle cores.
    """
    if spec.shader_cores is None:
        return None
    return _verdict(
        "cores", usage.work_groups, spec.shader_cores / 2, "work groups", _source(spec, "shader_cores"), is_upper=False
    )


@criterion(gives_way=30)
def code(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: a loop body so long that drivers compile it for tens of seconds and instruction caches do not hold it.

    On 24 operators recorded on an NVIDIA H200, no config beyond the default limit came within 1.6 times the best time.
    If the instruction cache's size is known, the multiply-adds may fill it four times. Default configs of 24 layers in
    fp16 fill it at most 1.2 times with all of their code, under Mesa's compiler for Adreno 630.
    """
    used = usage.multiply_adds / np.where(usage.on_tensor_cores, _OF_TENSOR_CORE, 1)
    limit, source = rules.longest_iteration, "Rules.longest_iteration"
    if spec.instruction_cache_bytes:
        held = _MOST_CODE * spec.instruction_cache_bytes // _INSTRUCTION_BYTES
        limit, source = min((limit, source), (held, _source(spec, "instruction_cache_bytes")))
    return _verdict("code", used, limit, "multiply-adds in one iteration", source)


@criterion(gives_way=40)
def estimate(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: much slower than another config of the same algorithm by `estimate_seconds`, beyond the estimate's error.

    Algorithms are not compared with each other: the estimate is better for loops than for launches. A config with a
    lower estimate than the default config stays. Mobile compilers show the default to be lean, so its estimated time
    shows the estimate's error: on Mali-G76 up to 4 times the fastest time.
    """
    seconds = estimate_seconds(usage, spec)
    if seconds is None or not choices.fastest_s:
        return None
    is_algorithm = [usage.transform_bytes == moved for moved in choices.fastest_s]
    fastest_s = np.select(is_algorithm, list(choices.fastest_s.values()), np.inf)
    # This is divided like `used`, so rounding never puts the default beyond its own limit.
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


@criterion(gives_way=50)
def broadcast(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: copy a scalar into a vector although a product of vector and scalar is faster.
    The device's report or recordings show that it is faster (paper, section 4.1, autobroadcast: 4.9 times on an Adreno
    640). Under Mesa's compilers it changes no instruction (benchmarks/bench_listing4.py). On other devices both stay in
    the space.
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


@criterion(gives_way=60)
@bounded
def occupancy(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: registers limit the work groups in flight on a core to fewer work-items than ALUs.
    Some ALUs are then idle.

    If the ALUs were measured, the lowest number of the interval counts.
    """
    if spec.register_file != "pooled" or spec.registers_per_core is None or spec.alus_per_core is None or _is_cpu(spec):
        return None
    size = np.maximum(usage.work_group_size, 1)
    in_flight = spec.registers_per_core // np.maximum(usage.needed_registers * size, 1) * size
    # One group that needs the whole file still runs; `registers` judges it.
    return _verdict(
        "occupancy",
        in_flight,
        spec.ranges.get("alus_per_core", (spec.alus_per_core,))[0],
        "work-items in flight",
        _source(spec, "alus_per_core"),
        is_upper=False,
    )


@criterion(gives_way=70)
def staging(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Ours: stage data in local memory that is slower than the cache it would be read from.
    The paper measured 146 against 190 GB/s (section 3.3). A difference inside the noise of the two measurements
    excludes nothing.
    """
    has_own_cache = bool(spec.l1_buffer_cache_bytes)
    local = spec.interval("local_mem_bandwidth_gbps")
    of_buffers = spec.interval("l1_buffer_bandwidth_gbps" if has_own_cache else "l2_bandwidth_gbps")
    of_images = spec.interval("l1_texture_bandwidth_gbps") or of_buffers
    if local is None or _is_cpu(spec) or of_images is None:
        return None
    buffers_gbps, images_gbps = (of_buffers or of_images)[0], of_images[0]
    # The slower of the two that the kernel reads: staging gains most there.
    rate = np.where(usage.buffer_bytes > 0, min(buffers_gbps, images_gbps), images_gbps)
    used = np.where(usage.is_staged, rate, 0.0)
    source = _source(spec, "local_mem_bandwidth_gbps")
    return _verdict("staging", used, local[1], "GB/s without local memory", source)


@criterion(gives_way=80)
def local_memory(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: use local memory when work group size > alpha * ALUs. There is enough parallelism without it."""
    if spec.alus_per_core is None or _is_cpu(spec):
        return None
    limit = rules.local_memory_alpha * spec.alus_per_core
    used = usage.work_group_size * (usage.local_memory_bytes > 0)
    return _verdict("local_memory", used, limit, "work-items", _source(spec, "alus_per_core"))


@criterion(gives_way=90)
def access_width(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: use inefficient data access width, which is any width below the best width that the operator allows."""
    if not spec.warp_sizes or _is_cpu(spec):
        return None
    limit = min(rules.access_width or spec.best_access_lanes or LANES, choices.access_width)
    return _verdict("access_width", usage.access_width, limit, "lanes", PAPER, is_upper=False)


@criterion(gives_way=100)
def l1_cache(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: access more data in one loop iteration than L1 cache.
    Images count for the texture cache, buffers for the buffer cache.

    Data that no later iteration reads again does not count: weights, and the data if there is no window. Under Mesa's
    compiler for Adreno 630 the leanest kernels of 1x1 convolutions read more than the cache holds.
    """
    texture, buffer = spec.l1_texture_cache_bytes, spec.l1_buffer_cache_bytes
    is_held = np.logical_not(usage.is_staged)
    of_images = usage.unshared_image_bytes if rules.count_per_work_item else usage.reread_image_bytes * is_held
    of_buffers = usage.unshared_buffer_bytes if rules.count_per_work_item else usage.reread_buffer_bytes * is_held
    # A missing cache cannot overflow.
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


@criterion(gives_way=110)
def buffers(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: use buffer type when L1 cache is for texture only.
    Counts tensors in buffers that could be images. The output does not pass through the cache.
    """
    if spec.l1_texture_cache_bytes == 0 or spec.l1_buffer_cache_bytes != 0:
        return None
    tensors = choices.images if rules.count_per_work_item else choices.images - {"output"}
    used = sum((1 - usage.images[name] * 1 for name in sorted(tensors)), start=np.asarray(0))
    return _verdict("buffers", used, 0, "tensors in buffers", _source(spec, "l1_buffer_cache_bytes"))


@criterion(gives_way=120)
def warp(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: work group size < warp size, here < 3/4 of it. If there are several sizes, the smallest one counts.

    Of 127 layers recorded on Adreno 660 and 740, 12 have a config within 2% of the best with groups of 48 to 63
    work-items, and none with fewer (docs/evidence/validation.md).

    If the launch has less than a warp for each core, small groups on all cores are better than full groups on a few.
    """
    if not spec.warp_sizes or _is_cpu(spec):
        return None
    size = min(spec.warp_sizes)
    is_small = usage.work_groups * usage.work_group_size <= size * (spec.shader_cores or 0)
    limit = np.where(is_small, 1, _FULL_WARP * size)
    return _verdict("warp", usage.work_group_size, limit, "work-items", _source(spec, "warp_sizes"), is_upper=False)


@criterion(gives_way=130)
@bounded
def registers(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
    """Table 1: overuse available registers for the work group size.
    The group shares a pooled file, not a dedicated one.

    A group with barriers is resident as a whole, in the largest warps. Mesa's compiler for Adreno allocates these in
    pairs: kernels of 128 work-items get half the registers of kernels of 64 on Adreno 660.
    """
    most, needed_and_limit = spec.registers_per_lane, needed_registers(usage, spec)
    if most is None or needed_and_limit is None or spec.register_file is None:
        return None
    needed, limit = needed_and_limit
    if spec.register_file == "pooled" and spec.registers_per_core is not None:
        limit = np.minimum(limit, spec.registers_per_core // np.maximum(_resident(usage, spec), 1))
    # Transforms have small groups, so their work-items may use all registers of a lane. The tighter of the two decides.
    is_tighter = usage.transform_registers * limit > needed * most
    used, limit = np.where(is_tighter, usage.transform_registers, needed), np.where(is_tighter, most, limit)
    return _verdict(
        "registers", used, limit, "registers", _source(spec, "registers_per_lane", "register_lanes_per_core")
    )


def _resident(usage: KernelUsage, spec: HardwareSpec) -> Any:
    """Return the number of work-items that a core holds registers for while it computes a work group."""
    size, warps = usage.work_group_size, spec.warp_sizes or (1,)
    waits = (usage.local_memory_bytes > 0) & (size > min(warps))
    return np.where(waits, np.maximum(size, 2 * max(warps)), size)


def judge(
    usage: KernelUsage, spec: HardwareSpec, *, rules: Rules | None = None, choices: Choices | None = None
) -> dict[str, Verdict]:
    """Return name -> verdict for all criteria that apply to the device."""
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
