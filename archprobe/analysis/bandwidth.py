"""The bandwidth of each memory level, from reads over growing ranges, and plain rates with their intervals."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from archprobe.analysis.answer import Answer, answered, declined
from archprobe.analysis.steps import despike, log_curve, noise, repeats_of, segments

_GBPS = "GB/s"
# Bandwidths of one level differ by less than this from range to range.
_ALIKE = 0.05


def plateaus(range_bytes: np.ndarray, gbps: np.ndarray) -> list[tuple[float, float, Answer]]:
    """Return (first range, last range, bandwidth) for every stretch of even bandwidth, at least two points each."""
    x, y = log_curve(range_bytes, gbps, is_rate=True)
    if x.size < 4:
        return []
    # Bandwidth curves hold many true steps, so the points of one level show the noise better than all differences of
    # neighbours do.
    sigma = noise(y, share=0.3)
    starts = [*segments(despike(y, sigma), sigma), x.size]
    merged: list[list[int]] = []
    for a, b in itertools.pairwise(starts):
        if merged and abs(np.median(y[a:b]) - np.median(y[merged[-1][0] : merged[-1][1]])) < max(_ALIKE, 1.5 * sigma):
            merged[-1][1] = b
        else:
            merged.append([a, b])
    levels = []
    for a, b in merged:
        own = 1.4826 * float(np.median(np.abs(y[a:b] - np.median(y[a:b])))) if b - a >= 4 else 0.0
        if b - a >= 2:
            levels.append((float(x[a]), float(x[b - 1]), rate(np.exp(y[a:b]), _GBPS, sigma=max(sigma, own))))
    return levels


def peak(range_bytes: np.ndarray, gbps: np.ndarray, *, repeats: int = 1) -> Answer:
    """Return the highest bandwidth that two or more neighbouring ranges sustain, each the median of `repeats`.

    The answer is declined if the bandwidth is not known to within 10%.
    """
    levels = [p for p in plateaus(range_bytes, gbps) if not p[2].is_declined]
    if not levels:
        return declined(_GBPS, "no two neighbouring ranges give alike bandwidths, or noise hides them")
    first, last, best = max(levels, key=lambda p: p[2].number())
    _, y = log_curve(range_bytes, gbps, is_rate=True)
    above = int((np.exp(y) > 1.05 * (best.high or 0)).sum())
    if above > 1:
        return declined(
            _GBPS,
            f"{above} ranges are faster than the best level that is known well, {best.number():.4g} GB/s, and differ"
            " too much",
        )
    lone = f"a single point reaches {np.exp(y.max()):.4g} GB/s; it does not count as sustained" if above else ""
    named = dataclasses.replace(best, reason=f"level from {first:g} to {last:g} bytes; {best.reason}")
    return named.with_notes(lone).measured(repeats_of(range_bytes, repeats))


def floor(range_bytes: np.ndarray, gbps: np.ndarray, *, repeats: int = 1) -> Answer:
    """Return the bandwidth of the last level reached, at the largest ranges. Each is the median of `repeats`."""
    x, y = log_curve(range_bytes, gbps, is_rate=True)
    levels = plateaus(range_bytes, gbps)
    if not levels or levels[-1][1] < x[-1]:
        return declined(_GBPS, "the bandwidth is not level at the end of the sweep: the last level was not reached")
    first, last, tail = levels[-1]
    best = int(np.argmax([np.exp(y[(x >= a) & (x <= b)]).mean() for a, b, _ in levels]))
    dip = np.exp(y[(x > levels[best][1]) & (x < first)].min(initial=np.inf))
    if not tail.is_declined and dip < 0.8 * tail.number():
        reason = (
            f"the bandwidth falls to {dip:.4g} GB/s and climbs again to {tail.number():.4g}: larger ranges are not what"
            " the sweep really read"
        )
        return declined(_GBPS, reason)
    if tail.is_declined:
        return tail
    return dataclasses.replace(tail, reason=f"level from {first:g} to {last:g} bytes; {tail.reason}").measured(
        repeats_of(range_bytes, repeats)
    )


def within(range_bytes: np.ndarray, gbps: np.ndarray, low: float, high: float, *, repeats: int = 1) -> Answer:
    """Return the best sustained bandwidth of the ranges that one memory level holds (low < range <= high)."""
    x, y = np.asarray(range_bytes, float), np.asarray(gbps, float)
    inside = (x > low) & (x <= high)
    if inside.sum() < 2:
        return declined(
            _GBPS, f"{int(inside.sum())} ranges lie between {low:g} and {high:g} bytes; at least 2 are needed"
        )
    if inside.sum() < 4:
        return rate(y[inside], _GBPS)
    return peak(x[inside], y[inside], repeats=repeats)


def rate(samples: np.ndarray, unit: str, *, sigma: float | None = None, tolerance: float = 0.10) -> Answer:
    """Return the median of repeated measurements of one quantity.

    The answer is declined if its interval is wider than `tolerance` to each side.

    The interval includes the trend from the first third to the last (drift). With a known `sigma` it also includes
    three standard errors of the median, otherwise the width in `_ERRORS`: a few values that agree by chance say little
    about their noise.
    """
    values = np.asarray(samples, float)
    if values.size == 0 or not (np.isfinite(values).all() and (values > 0).all()):
        return declined(unit, "no usable measurement")
    middle = float(np.median(values))
    spread, errors = (_scatter(np.log(values)), _errors(values.size)) if sigma is None else (sigma, 3 * 1.2533)
    third = max(1, values.size // 3)
    trend = abs(float(np.log(np.median(values[-third:]) / np.median(values[:third])))) if values.size >= 6 else 0.0
    # One value has no spread to show, and two hardly any: their interval is a convention.
    half = max(
        errors * spread / np.sqrt(values.size),
        0.5 * trend + 2 * spread / np.sqrt(values.size),
        0.01 if values.size > 1 else 0.03,
    )
    if half > tolerance:
        return declined(
            unit,
            f"{values.size} measurements around {middle:.4g} {unit} know it only to {half:.0%} (noise {spread:.1%})",
        )
    reason = f"median of {values.size} measurements, noise {spread:.1%}"
    sure = 0.99 - 2 * half
    if sigma is None and values.size < _MANY:
        sure = min(sure, 0.85)
    return answered(middle, unit, sure, reason, low=middle * float(np.exp(-half)), high=middle * float(np.exp(half)))


# From this number on, values do not agree by chance. Fewer are a hint and no claim.
_MANY = 8
# Half-width, in standard errors by `_scatter`, of an interval around the median that misses once in 1000: simulated
# with normal noise.
_ERRORS = {1: 1.0, 2: 2.0, 3: 32.8, 4: 12.6, 5: 24.1, 6: 14.3, 7: 10.5}


def _errors(count: int) -> float:
    """Return the half-width for `count` values. From `_MANY` on, where answers are claims, it misses once in 10000."""
    return _ERRORS[count] if count < _MANY else 5 + 96 / count


def _scatter(logs: np.ndarray) -> float:
    """Return the standard deviation, without outliers if there are more than four values.

    Up to four values all count. Up to 15, the farthest one is left out. From 16 on, the estimate is robust.
    """
    off = np.abs(logs - np.median(logs))
    if logs.size >= 16:
        return 1.4826 * float(np.median(off))
    kept = np.delete(logs, np.argmax(off)) if logs.size >= 5 else logs
    return float(np.std(kept, ddof=1)) if kept.size > 1 else 0.0
