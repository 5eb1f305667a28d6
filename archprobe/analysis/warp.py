"""The warp size by the order of an atomic counter (paper, Listing 3), stairs in time (figure 7), and divergence."""

from __future__ import annotations

import numpy as np

from archprobe.analysis.answer import Answer, answered, declined
from archprobe.analysis.period import find_period
from archprobe.analysis.steps import log_curve, noise, repeats_of

_UNIT = "work-items"
# Both branches cost at most this much more (log) than the dearer one: twice, and a little for the jumps.
_TWO_BRANCHES = 0.9


def warp_by_time(work_items: np.ndarray, time: np.ndarray, *, is_stopped_at_jump: bool = False) -> Answer:
    """Find the warp size by method B: the time of many groups of 1, 2, 3, ... work-items.

    It steps up with every further warp.
    """
    return find_period(work_items, time, unit=_UNIT, is_stopped_at_jump=is_stopped_at_jump)


def warp_by_order(order: np.ndarray) -> Answer:
    """Find the warp size by method A: the ranks that work-items draw from the group's counter.

    `order[run, i]` is the rank of work-item i, in several runs.

    Work-items of one warp draw together and in order of their lanes. Different warps race. So ranks rise by one inside
    a warp and break between warps, in some runs at least.
    """
    order = np.atleast_2d(np.asarray(order))
    runs, n = order.shape
    for ranks in order:
        if not np.array_equal(np.sort(ranks), np.arange(n)):
            return declined(
                _UNIT, f"the counter did not give each of {n} work-items a rank of its own: atomics do not work here"
            )
    broken = (np.diff(order, axis=1) != 1).mean(axis=0)
    breaks = np.flatnonzero(broken > 0) + 1
    if breaks.size == 0:
        return declined(
            _UNIT,
            f"all {n} work-items drew their ranks in order in each of {runs} runs: one warp, or a processor without"
            " warps",
        )
    warp = int(np.gcd.reduce(breaks))
    if warp == 1:
        share = float(broken[np.arange(1, n) % 2 == 1].mean())
        return declined(
            _UNIT,
            f"ranks break inside every block of work-items (at {share:.0%} of odd places): lanes do not draw in order"
            " here",
        )
    borders = np.arange(warp, n, warp)
    seen = np.isin(borders, breaks).mean()
    if borders.size < 3 or seen < 0.6 or breaks.size * runs < 8:
        return declined(
            _UNIT,
            f"ranks break at {breaks.size} of {borders.size} multiples of {warp}: too few to rule out a smaller warp",
        )
    # With a warp half this size, each of its additional borders must have held in every run, although the observed
    # borders break often.
    chance = (1 - float(broken[borders - 1].mean())) ** (runs * borders.size)
    return answered(
        warp,
        _UNIT,
        max(0.5, 1 - max(chance, 1e-3)),
        f"ranks run on inside blocks of {warp} and break at {seen:.0%} of their borders, {runs} runs",
    )


def warp_by_first_break(work_items: np.ndarray, ascending: np.ndarray) -> Answer:
    """Find the warp size by method A as Microsoft's tool records it: the largest group with its ranks in order.

    There is one run for each group size, so one warp of 128 looks like two warps of 64 that started one after the
    other.
    """
    n, m = np.asarray(work_items, int), np.asarray(ascending, int)
    bad = np.flatnonzero(m != n)
    if bad.size == 0:
        return declined(_UNIT, f"ranks are in order for every group up to {int(n.max())} work-items")
    value = int(n[bad[0] - 1]) if bad[0] > 0 else 0
    if value < 2 or int(m[bad[0]]) != value:
        return declined(
            _UNIT,
            f"ranks break at {int(m[bad[0]])} in a group of {int(n[bad[0]])}, though {value} were in order before: no"
            " fixed border",
        )
    note = (
        f"one run shows that {value} work-items draw in order, not that they are one warp: warps that start in turn"
        " look the same; method B decides"
    )
    return answered(
        value, _UNIT, 0.8, f"all groups up to {value} work-items draw ranks in order, {value + 1} do not", notes=(note,)
    )


def warp_by_divergence(block: np.ndarray, time: np.ndarray, *, repeats: int = 1) -> Answer:
    """Find the warp size by divergence.

    Neighbouring blocks of `block` work-items branch differently, and from the warp size on no warp runs both branches.

    Each time was measured `repeats` times.
    """
    x, y = log_curve(block, time)
    if x.size < 4:
        return declined(_UNIT, f"{x.size} block sizes are too few; at least 4 are needed")
    splits = np.arange(1, x.size)
    gaps = np.array([np.median(y[:s]) - np.median(y[s:]) for s in splits])
    costs = np.array([np.abs(y[:s] - np.median(y[:s])).sum() + np.abs(y[s:] - np.median(y[s:])).sum() for s in splits])
    best = int(np.argmin(costs))
    split, gap = int(splits[best]), float(gaps[best])
    sides = [part - np.median(part) for part in (y[:split], y[split:])]
    sigma = max(
        1.4826 * float(np.median(np.abs(np.concatenate(sides)))),
        float(np.abs(np.concatenate(sides)).max()) / 2,
        noise(np.zeros(1)),
    )
    if gap < 0.3 or y[:split].min() - y[split:].max() < max(0.2, 2 * sigma):
        return declined(
            _UNIT,
            f"dividing branches cost {np.expm1(max(gap, 0)):.0%} at most, without a clear border: no lanes in lockstep,"
            " or too much noise",
        )
    if gap > _TWO_BRANCHES:
        return declined(_UNIT, f"two branches seem to cost {np.exp(gap):.1f} times one: that is no divergence")
    value = int(x[split])
    notes = () if x.size - split >= 2 else ("only one block size lies past the border",)
    reason = f"both branches cost {np.exp(gap):.2f}x up to blocks of {int(x[split - 1])}, nothing from {value} on"
    answer = answered(
        value, _UNIT, 0.97 if x.size - split >= 2 else 0.8, reason, low=int(x[split - 1]) + 1, high=value, notes=notes
    )
    return answer.measured(repeats_of(block, repeats))


def parallel_work_items(order: np.ndarray, warp: int) -> Answer:
    """Count the work-items of a core that run concurrently.

    `order[run, i]` is the rank that work-item i of one group drew.

    Warps that run concurrently alternate at the counter, and so do their ranks. The warps that began before half of the
    first warp's work-items had drawn run concurrently with it (paper, figure 8: 3 warps of 128 on Adreno 640).
    """
    order = np.atleast_2d(np.asarray(order))
    runs, n = order.shape
    if n < 2 * warp:
        return declined(_UNIT, f"a group of {n} work-items has no two warps of {warp}")
    counts = []
    for ranks in order:
        if not np.array_equal(np.sort(ranks), np.arange(n)):
            return declined(_UNIT, f"the counter did not give each of {n} work-items a rank of its own")
        warps = [ranks[at : at + warp] for at in range(0, n, warp)]
        first = min(warps, key=lambda drawn: int(drawn.min()))
        half = np.sort(first)[len(first) // 2]
        counts.append(sum(int(drawn.min()) < half for drawn in warps))
    count = int(np.median(counts))
    agreeing = float(np.mean(np.array(counts) == count))
    if count == 1:
        return declined(_UNIT, f"warps of {warp} draw one after another: the counter shows no parallel ones")
    if agreeing < 0.6:
        return declined(_UNIT, f"{min(counts)} to {max(counts)} warps began beside the first one, in {runs} runs")
    reason = f"the ranks of {count} warps of {warp} alternate, in {agreeing:.0%} of {runs} runs"
    return answered(count * warp, _UNIT, min(0.9, 0.5 + agreeing / 2), reason)
