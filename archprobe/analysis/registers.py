"""Registers per work-item, and whether work-items share a pool (paper, section 3.1, Listing 1 and figure 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from archprobe.analysis.answer import Answer, answered, declined
from archprobe.analysis.steps import border, despike, jumps, log_curve, noise, repeats_of

# No GPU gives a work-item fewer. The time of the few instructions of fewer registers does not follow a straight line
# yet.
_FEWEST = 16
# A kernel that takes this much longer than its arithmetic explains has spilled registers to memory.
SPILL = 0.10
# In a pool, half the registers make room for twice the groups, less the registers of loop and addresses. Dedicated
# registers make room for no more groups.
_SHARES = 1.25
# If the time grows by this factor more than the work, the groups in flight are halved, or registers have spilled.
_POOL_JUMP = 1.3
_REGISTERS = "32-bit registers"
_GROUPS = "work-groups"


def register_count(registers: np.ndarray, time: np.ndarray, *, repeats: int = 1) -> Answer:
    """Count the registers that a work-item may use before its time leaves the straight line of its arithmetic.

    `value` is the last count within 10% of the line. At `low`, the time first leaves the line at all: a first spilled
    register costs little, and noise hides it. `high` is the last count before the largest jump. Each time was measured
    `repeats` times.
    """
    repeats = repeats_of(registers, repeats)
    n, y = log_curve(registers, time)
    n, y = n[n >= _FEWEST], y[n >= _FEWEST]
    if n.size < 12:
        return declined(
            _REGISTERS,
            f"{n.size} register counts from {_FEWEST} up are too few to tell a line from a break; at least 12 are"
            " needed",
        )
    sigma = noise(y[int(np.searchsorted(n, n[-1] * 0.1)) if n.size > 40 else 0 :], order=2)
    if 2.5 * sigma > SPILL:
        return declined(_REGISTERS, f"noise of {sigma:.1%} hides the first spills, which cost about {SPILL:.0%}")
    time = np.exp(despike(y, max(sigma, 0.01)))
    left = _leaves_line(n, time, max(4 * sigma, 0.02))
    if left is None:
        return declined(
            _REGISTERS, f"the time follows one line up to {int(n[-1])} registers (noise {sigma:.1%}): no spill was seen"
        )
    whole = _line(n, time, rounds=8)(n)
    if (time[left:] / whole[left:] - 1 > max(3 * sigma, 0.02)).mean() < 0.5:
        return declined(
            _REGISTERS,
            f"one line explains the time up to {int(n[-1])} registers (noise {sigma:.1%}): no spill was seen",
        )
    excess = time / _line(n[:left], time[:left])(n) - 1
    over = _stays_over(excess, SPILL)
    if over is None or n.size - over < 2:
        return declined(
            _REGISTERS,
            f"no lasting rise of {SPILL:.0%} over the line of the arithmetic was seen up to {int(n[-1])} registers",
        )
    rise = float(np.median(excess[over:]))
    if rise < 8 * sigma or (n.size - over < 4 and excess[over:].min() < 8 * sigma):
        return declined(
            _REGISTERS,
            f"the rise after {int(n[over - 1])} registers, {rise:.0%}, is not far above the noise ({sigma:.1%})",
        )
    low, high = _spill_span(n, time, excess, left, over, sigma)
    value = int(n[over - 1])
    if high - low > max(8, 0.15 * value):
        return declined(
            _REGISTERS,
            f"the time leaves the line at {low} registers but breaks away only at {high}: too far apart for one number",
        )
    confidence = 0.98 if n.size - over >= 4 else 0.85
    reason = (
        f"time leaves the line of its arithmetic after {low} registers, by {excess[over]:.0%} at {int(n[over])}, and"
        f" jumps after {high}"
    )
    # The grid may have missed the last count without a spill.
    return answered(
        value, _REGISTERS, confidence, reason, low=min(low, value), high=max(high, int(n[over]) - 1)
    ).measured(repeats)


def _spill_span(
    n: np.ndarray, time: np.ndarray, excess: np.ndarray, left: int, over: int, sigma: float
) -> tuple[int, int]:
    """Return the register counts between which the first spill occurs.

    excess: time over the line of the arithmetic, minus 1
    left: first position off the line
    over: start of the points that stay `SPILL` above the line
    """
    steps = np.diff(time / time[over - 1])[over - 1 :][:8]
    # A compiler may spill evenly: later steps are about as high as the first one.
    cliff = over - 1 + int(np.flatnonzero(steps >= 0.5 * steps.max())[0])
    # Noise hides the first cheap spills: the true count may be as low as the last count on the line.
    middle = np.median([excess[:-2], excess[1:-1], excess[2:]], axis=0)
    calm = 1 + int(np.flatnonzero(middle[: over - 1] < max(0.5 * sigma, 0.005)).max(initial=0))
    low, high = int(n[min(left - 1, calm)]), int(n[cliff])
    # A point that noise may have lifted over the limit still belongs to the line.
    high = max(high, int(n[int(np.flatnonzero(excess < max(SPILL, 4 * sigma)).max())]))
    cost = float(excess[over]) / max(1, n[over] - low)
    return low - int(sigma / cost), high


def concurrent_groups(
    groups: np.ndarray, time: np.ndarray, *, repeats: int = 1, is_stopped_at_jump: bool = False
) -> Answer:
    """Count the work-groups that run concurrently: the last count before the time first jumps by 30% or more.

    Each time was measured `repeats` times.
    """
    x, y = log_curve(groups, time)
    if x.size < 6:
        return declined(_GROUPS, f"{x.size} points are too few to see a jump; at least 6 are needed")
    sigma = noise(y)
    for jump in jumps(y, sigma):
        if jump.ratio < 1.3:
            continue
        if jump.z < 7 or (jump.after < 2 and not is_stopped_at_jump):
            return declined(
                _GROUPS,
                f"a jump of {jump.ratio:.2f}x after {int(x[jump.index - 1])} groups rests on {jump.after} points (noise"
                f" {sigma:.1%})",
            )
        near = border(y, sigma, jump.index)
        value, low, high = (
            int(x[jump.index - 1]),
            int(x[min(jump.first, near[0]) - 1]),
            int(x[max(jump.last, near[1]) - 1]),
        )
        notes = (f"the sweep stopped at the jump: {jump.after} point lies past it",) if jump.after < 2 else ()
        confidence = 0.85 if jump.after < 6 else 1 - np.exp(-jump.z / 2)
        low_edge = int(x[jump.index] - 1)
        reason = f"time jumps {jump.ratio:.2f}x after {value} groups"
        answer = answered(value, _GROUPS, confidence, reason, low=low, high=max(high, low_edge), notes=notes)
        return answer.measured(repeats_of(groups, repeats))
    return declined(_GROUPS, f"the time never jumps by 30% up to {int(x[-1])} groups (noise {sigma:.1%})")


def register_file(full: Answer, half: Answer) -> Answer:
    """Determine whether registers are "Pooled" or "Dedicated".

    Pooled: with half the registers, about twice the groups run concurrently.
    """
    unit = "Pooled or Dedicated"
    if full.is_declined or half.is_declined:
        return declined(
            unit, f"needs both counts of concurrent groups: {full.reason if full.is_declined else half.reason}"
        )
    least, most = half.interval[0] / max(full.interval[1], 1), half.interval[1] / max(full.interval[0], 1)
    ratio = half.number() / full.number()
    reason = f"{half.value:g} groups at once with half the registers against {full.value:g} with all: {ratio:.2f}x"
    confidence = full.confidence * half.confidence
    if least > _SHARES:
        return answered("Pooled", unit, confidence, reason)
    if most < _SHARES:
        return answered("Dedicated", unit, confidence, reason)
    return declined(
        unit, f"{reason}, but anything from {least:.2f}x to {most:.2f}x is possible; {_SHARES:g}x is the border"
    )


def _line(n: np.ndarray, time: np.ndarray, rounds: int = 1) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a line by least squares of relative errors. Further rounds give less weight to points far off the line."""
    weights = 1 / time
    for _ in range(rounds):
        slope, base = np.polyfit(n, time, 1, w=weights)
        off = np.abs((base + slope * n) / time - 1)
        weights = 1 / time / np.maximum(1, off / max(float(np.median(off)), 1e-6))
    floor = float(time.min()) * 0.25
    return lambda at: np.maximum(base + slope * at, floor)


def _leaves_line(n: np.ndarray, time: np.ndarray, limit: float) -> int | None:
    """Return the start of the first three points above the line through all points before them, or None."""
    for i in range(8, n.size - 2):
        ahead = time[i : i + 3] / _line(n[:i], time[:i])(n[i : i + 3]) - 1
        if (ahead > limit).all():
            return i
    return None


def _stays_over(excess: np.ndarray, limit: float) -> int | None:
    """Return the start of the points that (nearly) all exceed the limit, or None. Lone points do not count."""
    over = excess > limit
    if not over[-1]:
        return None
    for i in np.flatnonzero(over):
        rest = over[i:]
        if rest.mean() >= 0.9 and rest[:3].all():
            return int(i)
    return None


def register_pool(sweeps: Mapping[int, tuple[np.ndarray, np.ndarray]], refused: Mapping[int, float]) -> Answer:
    """Find the registers that a core's work-items share.

    `sweeps[size]` is (registers of a work-item, time) of one work group of that size (paper, figure 5).
    `refused[size]` is the fewest registers with which the driver does not run a group of that size.

    With a shared pool, a group of twice the size leaves its line of arithmetic, or is refused, at half the registers.
    The smallest groups may do so at the same registers, which are the limit of a work-item, and are left out then. The
    answer is declined if the product of size and registers is not about the same for three others.
    """
    unit = "32-bit registers"
    products = []
    for size, (count, time) in sorted(sweeps.items()):
        step = np.flatnonzero(time[1:] / time[:-1] * count[:-1] / count[1:] > _POOL_JUMP)
        if step.size:
            products.append((size, float(count[step[0]]), float(count[step[0] + 1])))
        elif size in refused:
            products.append((size, float(count[-1]), refused[size]))
    own = [ends for _, *ends in products[:2]]
    pooled = [(size, *ends) for size, *ends in products if own != 2 * [ends]]
    low, high = (np.array([size * ends[at] for size, *ends in pooled]) for at in (0, 1))
    if len(pooled) < 3 or low.max(initial=0) > high.min(initial=np.inf):
        seen = ", ".join(f"{size} work-items at {above:g}" for size, _, above in products) or "none"
        return declined(
            unit, f"groups that need more time or are refused: {seen}; a pool shows three whose products agree"
        )
    value = float(np.sqrt(low.max() * high.min()))
    sizes = ", ".join(str(size) for size, *_ in pooled)
    reason = f"groups of {sizes} work-items take longer or are refused at like products"
    return answered(round(value), unit, 0.8, reason, low=float(low.max()), high=float(high.min()))
