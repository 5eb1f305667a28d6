"""Cache sizes, latencies and line sizes from pointer chases (paper, Listing 2, figure 6) and concurrent reads."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from archprobe.analysis.answer import Answer, answered, declined
from archprobe.analysis.steps import border, despike, log_curve, noise, repeats_of, segments

_BYTES = "bytes"
# A plateau is flat over at least this many octaves of range. The points between two plateaus are a transition.
_MIN_OCTAVES = 0.75
_MIN_RISE = 0.06
_KNEE = 0.10
# A miss costs at most this many hits. A fit with a higher cost is wrong.
_MOST_MISS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """A level of a hierarchy. `size` is declined for the last plateau, because the sweep did not reach its end."""

    latency_ns: Answer
    size: Answer


def cache_levels(range_bytes: np.ndarray, latency_ns: np.ndarray, *, repeats: int = 1) -> list[Level]:
    """Find the plateaus of latency over the range that a chase walks, from the smallest.

    The list is empty for fewer than 12 points.

    The size of a level is the first range with 10% of the climb to the next level's latency. `low` is the last range
    that is still flat, `high` the first range with half the climb. Each latency was measured `repeats`
    times.
    """
    repeats = repeats_of(range_bytes, repeats)
    x, y = log_curve(range_bytes, latency_ns)
    if x.size < 12:
        return []
    sigma = noise(y)
    clean = despike(y, sigma)
    plateaus = _plateaus(x, clean, sigma)
    levels = []
    for k, (start, end) in enumerate(plateaus):
        flat = y[start:end]
        middle = float(np.median(flat))
        error = 1.2533 * sigma / np.sqrt(flat.size)
        wide = max(
            3 * error,
            float(np.abs(np.median(flat[: max(1, flat.size // 3)]) - np.median(flat[-max(1, flat.size // 3) :]))),
        )
        reason = f"median of {flat.size} ranges up to {x[end - 1]:g} bytes"
        latency = answered(
            float(np.exp(middle)),
            "ns",
            0.99,
            reason,
            low=float(np.exp(middle - wide)),
            high=float(np.exp(middle + wide)),
        )
        following = plateaus[k + 1] if k + 1 < len(plateaus) else None
        levels.append(
            Level(latency_ns=latency, size=_size(x, y, clean, sigma, (start, end), following).measured(repeats))
        )
    return levels


def _plateaus(x: np.ndarray, clean: np.ndarray, sigma: float) -> list[tuple[int, int]]:
    starts = [*segments(clean, sigma), x.size]
    flat = [(a, b) for a, b in itertools.pairwise(starts)]
    merged: list[tuple[int, int]] = []
    core = 0.0
    for a, b in flat:
        level = float(np.median(clean[a:b]))
        # Neighbours that hardly differ are one level with a little drift. They are compared with the level's first
        # part, because a long slope would otherwise pass for a level.
        if merged and abs(level - core) < max(_MIN_RISE / 4, 1.5 * sigma):
            merged[-1] = (merged[-1][0], b)
        else:
            merged.append((a, b))
            core = level
    long = [(a, b) for a, b in merged if b - a >= 3 and np.log2(x[b - 1] / x[a]) >= _MIN_OCTAVES]
    rising: list[tuple[int, int]] = []
    for a, b in long:
        if rising and np.median(clean[a:b]) - np.median(clean[slice(*rising[-1])]) < max(_MIN_RISE, 4 * sigma):
            rising[-1] = (rising[-1][0], b)
        else:
            rising.append((a, b))
    return rising


def _size(
    x: np.ndarray,
    y: np.ndarray,
    clean: np.ndarray,
    sigma: float,
    plateau: tuple[int, int],
    following: tuple[int, int] | None,
) -> Answer:
    start, end = plateau
    base = float(np.median(y[start:end]))
    notes: tuple[str, ...] = ()
    confidence = 0.97
    if following is None:
        # The sweep may end on the slope to a level that it does not reach.
        tail = clean[end:]
        if tail.size < 3 or float(np.median(tail[-3:])) - base < max(_MIN_RISE, 6 * sigma):
            return declined(_BYTES, f"the latency stays at this level up to {x[-1]:g} bytes, the end of the sweep")
        top, stop = float(np.median(tail[-3:])), x.size
        notes = ("the sweep ends on the slope to the next level: how far the latency climbs was not seen",)
        confidence = 0.8
    else:
        top, stop = float(np.median(y[slice(*following)])), following[1]
    height = top - base
    tolerance = max(_KNEE * height, 2.5 * sigma)
    if tolerance > 0.5 * height:
        return declined(
            _BYTES, f"the next level is only {np.expm1(height):.0%} slower, too little above the noise ({sigma:.1%})"
        )
    knee = _first_over(clean, base + tolerance, start, stop)
    half = _first_over(clean, base + 0.5 * height, start, stop)
    calm = _first_over(clean, base + max(0.02 * height, 1.5 * sigma), start, stop)
    # In noise, the first point of the climb may be as low as the plateau, or look like a spike on it.
    unsure = int(2.5 * sigma > _KNEE * height)
    low, value, high = (
        x[max(start, min(calm, knee) - 1 - unsure)],
        x[max(start, knee - 1)],
        x[min(max(half, knee), x.size - 1)],
    )
    if high > 2.2 * low:
        return declined(
            _BYTES,
            f"the latency starts to climb at {low:g} bytes but is half way to the next level only at {high:g}: too far"
            " apart for one size",
        )
    reason = (
        f"latency climbs from {np.exp(base):.4g} to {np.exp(top):.4g} ns: first rise after {low:g} bytes, half way at"
        f" {high:g}"
    )
    return answered(int(value), _BYTES, confidence, reason, low=float(low), high=float(high), notes=notes)


def _first_over(values: np.ndarray, limit: float, start: int, stop: int) -> int:
    """Return the start of the first five points with four over the limit, or `stop`.

    Two neighbouring spikes are no climb.
    """
    over = values > limit
    for i in range(start, stop):
        ahead = over[i : i + 5]
        if over[i] and ahead.sum() >= min(4, ahead.size):
            return i
    return stop


def line_size(stride_bytes: np.ndarray, latency_ns: np.ndarray, *, repeats: int = 1) -> Answer:
    """Find the line size from a chase in order of address, with growing strides, over a range larger than the cache.

    While strides are shorter than a line, only the first element of each line misses:
    t(stride) = hit + (miss - hit) * min(1, stride / line).
    For longer strides the latency is flat. Each latency was measured `repeats` times.
    """
    x, y = log_curve(stride_bytes, latency_ns)
    powers = [int(p) for p in 2 ** np.arange(int(np.log2(max(x[0], 1))), int(np.log2(x[-1])) + 1)]
    if x.size < 5 or len(powers) < 4:
        return declined(_BYTES, f"{x.size} strides from {x[0]:g} to {x[-1]:g} bytes are too few")
    time = np.exp(y)
    fits = {line: _ramp_residual(x, time, line) for line in powers[1:-1]}
    best = min(fits, key=lambda line: fits[line][0])
    residual, hit, miss = fits[best]
    rival = min(v[0] for k, v in fits.items() if k != best)
    if miss < 1.15 * hit:
        return declined(
            _BYTES,
            f"latency grows by {miss / max(hit, 1e-9) - 1:.0%} with the stride: no line is seen (all hits, or a"
            " prefetcher)",
        )
    if hit < miss / _MOST_MISS:
        return declined(
            _BYTES,
            f"a line of {best} bytes would mean hits of {hit:.2g} ns beside misses of {miss:.3g} ns: no cache is so"
            " fast",
        )
    if residual > 0.06 or rival < 2.0 * residual + 0.01:
        return declined(
            _BYTES,
            f"a line of {best} bytes fits the latencies to {residual:.1%}, another one to {rival:.1%}: not clear"
            " enough",
        )
    reason = (
        f"latency climbs from {hit:.4g} ns (hit) to {miss:.4g} ns (miss) as the stride grows to {best} bytes, flat"
        " after"
    )
    return answered(best, _BYTES, 0.95, reason).measured(repeats_of(stride_bytes, repeats))


def _ramp_residual(x: np.ndarray, time: np.ndarray, line: int) -> tuple[float, float, float]:
    ramp = np.minimum(1.0, x / line)
    matrix = np.stack([1 - ramp, ramp], axis=1) / time[:, None]
    (hit, miss), *_ = np.linalg.lstsq(matrix, np.ones_like(time), rcond=None)
    error = (1 - ramp) * hit / time + ramp * miss / time - 1
    return float(np.sqrt(np.mean(np.minimum(error**2, 0.25)))), float(hit), float(miss)


def concurrent_reads(
    work_items: np.ndarray, time: np.ndarray, *, repeats: int = 1, is_stopped_at_jump: bool = False
) -> Answer:
    """Count the work-items that can each re-read a different texel before the texels no longer fit the cache.

    This is the last count before the time jumps by 20% or more. Each time was measured `repeats` times.
    """
    x, raw = log_curve(work_items, time)
    sigma = noise(raw)
    y = despike(raw, sigma)
    steps = np.diff(y)
    # Small even steps (a texel quad, a warp) belong to the plateau. The jump exceeds them clearly.
    usual = (
        float(np.quantile(np.abs(steps), 0.98))
        if steps.size > 60
        else float(np.sort(np.abs(steps))[-2])
        if steps.size > 2
        else 0.0
    )
    where = int(np.argmax(steps)) + 1
    height = float(steps[where - 1])
    after = x.size - where
    if height < 0.18 or height < 3 * usual or height < 8 * sigma:
        return declined(
            "work-items",
            f"the largest step, {np.expm1(height):.0%} after {int(x[where - 1])}, does not stand out (noise"
            f" {sigma:.1%})",
        )
    if where < 4:
        return declined(
            "work-items", f"a jump after {int(x[where - 1])} has too few points before it to be the end of a level"
        )
    if after < (1 if is_stopped_at_jump else 3):
        return declined("work-items", f"a jump after {int(x[where - 1])} rests on the sweep's last {after} points")
    lasting = float(np.median(y[where : where + 15]) - np.median(y[max(0, where - 15) : where]))
    if lasting < 0.7 * height:
        return declined(
            "work-items", f"the rise of {np.expm1(height):.0%} after {int(x[where - 1])} does not last: an outlier"
        )
    low, high = border(raw, sigma, where)
    notes = ("the sweep stopped at the jump: one point lies past it",) if after < 2 else ()
    reason = f"time jumps by {np.expm1(lasting):.0%} after {int(x[where - 1])}"
    answer = answered(
        int(x[where - 1]),
        "work-items",
        0.85 if after < 8 else 0.97,
        reason,
        low=int(x[low - 1]),
        high=int(x[high - 1]),
        notes=notes,
    )
    return answer.measured(repeats_of(work_items, repeats))


def first_jump_stride(
    stride_bytes: np.ndarray, time: np.ndarray, *, repeats: int = 1, is_stopped_at_jump: bool = False
) -> Answer:
    """Find the line size from work-items that each read two addresses a stride apart.

    The time jumps once the two addresses are in different lines.
    """
    count = concurrent_reads(stride_bytes, time, repeats=repeats, is_stopped_at_jump=is_stopped_at_jump)
    if count.is_declined:
        return dataclasses.replace(count, unit=_BYTES)
    x, _ = log_curve(stride_bytes, time)
    value = int(x[int(np.searchsorted(x, count.number())) + 1])
    return answered(
        value,
        _BYTES,
        count.confidence,
        f"time jumps once two reads lie {value} bytes apart: {count.reason}",
        notes=count.notes,
    )


TEXEL_BYTES = 16


def texture_line(across: Answer, down: Answer, level: Answer) -> Answer:
    """Find the bytes of a texture cache line in two ways, which must agree.

    One is the first level's size divided by the rows of one texel that fit it, the other the texels in X for each row
    in Y.

    `across` and `down` are counts of work-items that each re-read a different texel of 16 bytes, in a row and in a
    column.
    """
    if across.is_declined or down.is_declined:
        return declined(
            _BYTES, f"needs both counts of concurrent texels: {(across if across.is_declined else down).reason}"
        )
    line = TEXEL_BYTES * max(across.number(), down.number()) / min(across.number(), down.number())
    reason = f"{across.value:g} texels of {TEXEL_BYTES} bytes fit side by side and {down.value:g} one below the other"
    confidence = min(across.confidence, down.confidence)
    if level.is_declined:
        return answered(
            int(line),
            _BYTES,
            confidence - 0.15,
            reason,
            notes=("the size of the cache is not known and could not confirm this",),
        )
    share = level.number() / min(across.number(), down.number())
    if not 0.8 < share / line < 1.25:
        return declined(
            _BYTES, f"{reason}: lines of {line:g} bytes, but {level.value:g} bytes of cache are {share:g} for each row"
        )
    return answered(
        int(line), _BYTES, confidence, f"{reason}; {level.value:g} bytes of cache hold as many lines as rows"
    )


def texture_axis(across: Answer, down: Answer) -> Answer:
    """Find the axis along which a cache line extends, "X" or "Y": the axis along which more texels fit."""
    if across.is_declined or down.is_declined or across.value == down.value:
        return declined("X or Y", "needs two different counts of concurrent texels")
    return answered(
        "X" if across.number() > down.number() else "Y",
        "X or Y",
        min(across.confidence, down.confidence),
        "more texels fit along this axis",
    )
