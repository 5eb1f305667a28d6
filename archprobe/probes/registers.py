"""Registers of a work-item, and whether groups share a pool of registers (paper, Listing 1 and figure 5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from archprobe.analysis.answer import Answer, answered, declined
from archprobe.analysis.registers import concurrent_groups, register_count, register_file, register_pool
from archprobe.curve import Curve, Findings
from archprobe.errors import KernelError
from archprobe.meter import Meter, Run
from archprobe.probes.probe import probe

_MOST_GROUPS = 2**16


def source(count: int, group: str = "ONE_WORK_ITEM") -> str:
    """Return a kernel that keeps `count` values live. Each step multiplies every value by its neighbour.

    The values are read from memory, so that the compiler cannot fold them, and added up at the end, so that it cannot
    drop any. group: "" for a kernel of any group size.
    """
    declare = "\n".join(f"  float r{i} = seed[{i}];" for i in range(count))
    step = "\n".join(f"    r{i} *= r{i - 1 if i else count - 1};" for i in range(count))
    total = " + ".join(f"r{i}" for i in range(count))
    return f"""
__kernel {group} void registers(int n, __global float *out, __global const float *seed) {{
{declare}
  for (int k = 0; k < n; ++k) {{
{step}
  }}
  float total = {total};
  if (total == 12345.0f) out[0] = total;
}}
"""


@probe(
    aspect="RegCount",
    title="Registers",
    method=(
        "time over the number of values that a work-item keeps; groups at once with all and with half the registers"
        " (paper, Listing 1)"
    ),
    not_on_cpu=(
        "a CPU keeps a work-item's values in its core's registers or in the cache, as the compiler likes; no file of"
        " registers is shared out"
    ),
)
def registers(meter: Meter) -> Findings:
    device = meter.device
    seed, out = device.buffer(np.ones(1024, np.float32)), device.buffer(64)
    spilled: dict[int, int] = {}

    def kernel_of(count: int) -> Any:
        kernel = device.kernel(source(count), "registers")
        spilled[count] = device.spill_bytes(kernel)
        return kernel

    def make(count: int) -> Run:
        kernel = kernel_of(count)
        return lambda n: device.launch(kernel, 1, 1, np.int32(n), out, seed)

    label = "registers of a work-item"
    coarse = meter.part(0.0, 0.4).sweep("registers", range(16, 301, 8 if meter.is_quick else 4), make, x_label=label)
    count = register_count(coarse.xs, coarse.ys, repeats=coarse.repeats)
    curve = coarse
    if not count.is_declined:
        low, high = count.interval
        fine = range(int(low) - 8, int(high) + 14)
        more = meter.part(0.4, 0.6).sweep("registers", [n for n in fine if n not in coarse.x], make, x_label=label)
        curve = _joined(coarse, more)
        count = register_count(curve.xs, curve.ys, repeats=curve.repeats)
    by_driver = _by_driver(spilled)
    count = _agreed(count, by_driver)
    answers: dict[str, Answer] = {"RegCount": count, "SpilledAt": by_driver}
    curves = [curve.marked({"RegCount": count})]
    if count.is_declined:
        missing = f"needs the registers of a work-item: {count.reason}"
        return Findings(
            answers=answers | {"RegType": declined("word", missing), "RegPool": declined("32-bit registers", missing)},
            curves=tuple(curves),
        )
    group_counts = []
    most = int(count.number())
    for key, use, part in (
        ("FullRegConcurWorkgroupCount", most, meter.part(0.6, 0.8)),
        ("HalfRegConcurWorkgroupCount", most // 2, meter.part(0.8, 1.0)),
    ):
        kernel = kernel_of(use)

        def run(groups: int, kernel: Any = kernel) -> Run:
            return lambda n: device.launch(kernel, groups, 1, np.int32(n), out, seed)

        groups = _groups_curve(part, f"groups of {use} registers", run)
        answers[key] = concurrent_groups(groups.xs, groups.ys, repeats=groups.repeats)
        curves.append(groups.marked({key: answers[key]}))
        group_counts.append(answers[key])
    answers["RegType"] = register_file(*group_counts)
    answers["RegPool"] = _pool(meter, count, group_counts[0])
    return Findings(answers=answers, curves=tuple(curves))


# Work-items of the groups, as in figure 5.
_GROUP_SIZES = (64, 128, 256, 384, 512, 768, 1024)
# First and last number of values of a work-item.
_VALUES = (16, 256)


@probe(
    aspect="RegisterSweep",
    title="Registers by the size of a work group",
    method=(
        "one work group of growing size, whose work-items keep growing numbers of values: with a shared pool, larger"
        " groups leave the plateau earlier (paper, figure 5)"
    ),
    not_on_cpu="a CPU keeps a work-item's values in its core's registers or in the cache",
)
def register_sweep(meter: Meter) -> Findings:
    device = meter.device
    seed, out = device.buffer(np.ones(1024, np.float32)), device.buffer(64)
    sizes = [size for size in _GROUP_SIZES if size <= device.facts.max_work_group_size]
    counts = range(_VALUES[0], _VALUES[1] + 1, 24 if meter.is_quick else 8)
    # The kernel of a count serves all group sizes.
    kernels = {count: device.kernel(source(count, group=""), "registers") for count in counts}
    curves, refused = {}, {}
    for i, size in enumerate(sizes):

        def make(count: int, size: int = size) -> Run:
            return lambda n: device.launch(kernels[count], size, size, np.int32(n), out, seed)

        # Some drivers refuse a group whose registers exceed the pool.
        refusal = next((count for count in counts if not _is_run(make(count))), None)
        accepted = [count for count in counts if refusal is None or count < refusal]
        if len(accepted) < 2:
            continue
        if refusal is not None:
            refused[size] = float(refusal)
        part = meter.part(i / len(sizes), (i + 1) / len(sizes))
        curve = part.sweep(f"{size} work-items", accepted, make, x_label="registers of a work-item")
        curves[size] = dataclasses.replace(curve, picture="time by registers and work-items")
    pool = register_pool({size: (curve.xs, curve.ys) for size, curve in curves.items()}, refused)
    return Findings(answers={"PoolByGroups": pool}, curves=tuple(curves.values()))


def _is_run(run: Run) -> bool:
    """Return whether the device runs a kernel, in its shortest form."""
    try:
        run(1)
    except KernelError:
        return False
    return True


def _groups_curve(meter: Meter, name: str, run: Callable[[int], Run]) -> Curve:
    """Time group counts around the first jump.

    Doubling brackets the jump, and bisection narrows the bracket to neighbouring counts.
    """
    iterations = meter.calibrate(run(1))

    def time_of(groups: int) -> float:
        return float(np.median([run(groups)(iterations) for _ in range(3)]))

    alone, upper = time_of(1), 2
    while upper < _MOST_GROUPS and time_of(upper) < 1.3 * alone:
        upper *= 2
    lower, end = upper // 2, upper
    group_counts = {1, 2, *(upper * i // 16 for i in range(1, 25))}
    while upper - lower > 1:
        middle = (lower + upper) // 2
        lower, upper = (middle, upper) if time_of(middle) < 1.3 * alone else (lower, middle)
    group_counts |= set(range(lower - 8, upper + 10)) | set(range(lower, end + 1, max(1, (end - lower) // 8)))
    return meter.sweep(name, sorted(p for p in group_counts if p > 0), run, x_label="work-groups", is_log_x=True)


def _pool(meter: Meter, count: Answer, groups: Answer) -> Answer:
    """Compute the registers of a core: the sum over the groups, each one warp wide, that run on it concurrently."""
    unit = "32-bit registers"
    cores, warp = (
        meter.number("Cores.CoreCount"),
        meter.number("WarpSizeMethodB.WarpThreadCount") or meter.number("WarpDivergence.WarpThreadCount"),
    )
    if groups.is_declined or cores is None or warp is None:
        return declined(unit, "needs concurrent groups, the number of cores and the warp size")
    on_core = groups.number() / cores
    value = on_core * warp * count.number()
    reason = f"{on_core:.4g} groups on each of {cores:g} cores, a warp of {warp:g} and {count.value:g} registers each"
    note = "values of the probe alone: the registers of loop and addresses come on top"
    low, high = (on_core * warp * edge for edge in count.interval)
    return answered(
        round(value),
        unit,
        min(groups.confidence, count.confidence, 0.9),
        reason,
        low=low,
        high=high * 1.05,
        notes=(note,),
    )


def _by_driver(spilled: dict[int, int]) -> Answer:
    """Return the smallest register count with private memory by the driver's report."""
    unit = "32-bit registers"
    spilling = [count for count, size in spilled.items() if size > 0]
    if not spilling or len(spilling) == len(spilled):
        return declined(unit, f"the driver speaks of private memory for {'every' if spilling else 'no'} kernel")
    return answered(
        min(spilling),
        unit,
        0.9,
        f"the driver gives a kernel with {min(spilling)} values {spilled[min(spilling)]} bytes of private memory",
    )


def _agreed(count: Answer, by_driver: Answer) -> Answer:
    """Narrow the count to the driver's number if that is within its interval.

    The first spills cost little and do not show in time.
    """
    if count.is_declined or by_driver.is_declined:
        return count
    low, high = count.interval
    kept = by_driver.number() - 1
    if not low - 2 <= kept <= high:
        return count.with_notes(
            f"the driver speaks of private memory from {by_driver.value} on, which the time does not show"
        )
    reason = f"{count.reason}; the driver gives private memory from {by_driver.value} on"
    note = "values of the probe: the registers of loop and addresses come on top"
    return answered(
        int(kept), count.unit, count.confidence, reason, low=min(low, kept), high=high, notes=(*count.notes, note)
    )


def _joined(curve: Curve, other: Curve) -> Curve:
    order = np.argsort(curve.x + other.x)
    x, y = np.array(curve.x + other.x)[order], np.array(curve.y + other.y)[order]
    return dataclasses.replace(curve, x=tuple(x.tolist()), y=tuple(y.tolist()))
