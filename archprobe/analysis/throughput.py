"""Rates of arithmetic and loads.

They are peak arithmetic over vector widths, the best width of a load, ALUs from peak and clock, and sustained against
burst rates.
"""

from __future__ import annotations

import numpy as np

from archprobe.analysis.answer import Answer, answered, declined, ratio
from archprobe.analysis.bandwidth import rate

# Rates of widths that differ by less than this are considered equal.
ALIKE = 0.08


def peak_rate(
    widths: np.ndarray, rates: np.ndarray, unit: str = "GFLOPS", *, noise: float = 0.01, repeats: int = 1
) -> Answer:
    """Return the highest rate over vector widths.

    `noise` is the relative error of one rate, which is the median of `repeats`.
    """
    rates = np.asarray(rates, float)
    if rates.size == 0:
        return declined(unit, "nothing was measured")
    best = int(np.argmax(rates))
    if noise > 0.04:
        return declined(unit, f"each rate is known only to {noise:.0%}; the highest seen is {rates[best]:.4g} {unit}")
    # The highest of several noisy rates exceeds the true rate by about the noise.
    near = rates[rates > rates[best] * (1 - 4 * noise - 0.005)]
    value = float(np.median(near))
    half = max(4 * noise, 0.01)
    reason = f"highest over vector widths {', '.join(f'{w:g}' for w in widths)}, reached at {widths[best]:g}"
    return answered(
        value, unit, 0.97 - noise, reason, low=value * (1 - half), high=max(value * (1 + half), float(rates[best]))
    ).measured(repeats)


def architecture(
    widths: np.ndarray, rates: np.ndarray, *, noise: float = 0.01, repeats: int = 1
) -> tuple[Answer, Answer]:
    """Return ("SISD" or "SIMD", components).

    It is SISD if scalars reach the rate of vectors, else SIMD with the smallest good width.

    `noise` is the relative error of one rate, the median of `repeats`.
    """
    widths, rates = np.asarray(widths, float), np.asarray(rates, float)
    unit = "SISD (scalar) or SIMD (vector)"
    if rates.size < 3 or widths[0] != 1:
        reason = "needs rates for single values and for at least two vector widths"
        return declined(unit, reason), declined("components", reason)
    relative = rates / rates.max()
    error = 3 * noise + 0.01
    if abs(relative[0] - (1 - ALIKE)) < error and relative[0] < 1 - noise:
        reason = (
            f"single values reach {relative[0]:.0%} of the best rate: too close to the border of {1 - ALIKE:.0%} for"
            f" noise of {noise:.1%}"
        )
        return declined(unit, reason), declined("components", reason)
    first = int(np.flatnonzero(relative >= 1 - ALIKE)[0])
    good = widths[first]
    confidence = 0.95 if noise < 0.03 else 0.8
    reason = f"single values reach {relative[0]:.0%} of the best rate (width {widths[int(np.argmax(rates))]:g})"
    if good == 1:
        return answered("SISD", unit, confidence, reason).measured(repeats), answered(
            1, "components", confidence, reason
        ).measured(repeats)
    kind = answered("SIMD", unit, confidence, reason).measured(repeats)
    if (np.abs(relative[: first + 1] - (1 - ALIKE)) < error).any():
        return kind, declined(
            "components", f"{reason}, but a width near {good:g} lies too close to the border of {1 - ALIKE:.0%}"
        )
    return kind, answered(int(good), "components", confidence, reason).measured(repeats)


def vector_width(widths: np.ndarray, time: np.ndarray, *, noise: float = 0.01, repeats: int = 1) -> Answer:
    """Return the best width of a load in 32-bit words: the width with the least time per word.

    `time` is the time of one load, the median of `repeats`.
    """
    widths, per_word = np.asarray(widths, float), np.asarray(time, float) / np.asarray(widths, float)
    unit = "32-bit words"
    if widths.size < 3:
        return declined(unit, f"{widths.size} widths are too few; at least 3 are needed")
    best = int(np.argmin(per_word))
    alike = np.flatnonzero(per_word <= per_word[best] * (1 + ALIKE))
    unclear = np.flatnonzero(np.abs(per_word / per_word[best] - 1 - ALIKE) < 3 * noise)
    if noise > 0.05 or (unclear.size and unclear[0] <= alike[0]):
        return declined(unit, f"times for each word are known to {noise:.1%} only: widths cannot be told apart")
    value = int(widths[alike[0]])
    reason = f"a word costs least in loads of {widths[best]:g}; the narrowest within {ALIKE:.0%} of that is {value}"
    return answered(value, unit, 0.95 if per_word.size > alike[0] + 1 else 0.8, reason).measured(repeats)


def is_above(speed: float, limit: float, *, noise: float, reason: str) -> Answer:
    """Return whether a ratio of two rates is above a limit. It is declined within twice the relative noise.

    reason: a sentence with the ratio
    """
    unit = "yes or no"
    if abs(speed - limit) <= 2 * noise * speed:
        return declined(unit, f"{reason}; noise of {noise:.1%} hides whether that is above {limit:g}")
    return answered(bool(speed > limit), unit, 0.9, reason)


def alus_per_core(peak_gflops: Answer, clock_mhz: float | None, cores: int | None) -> Answer:
    """Count the multiply-add lanes of a core: peak / (2 * clock * cores).

    The count is rounded to the nearest multiple of 8 if that is within 6%.
    """
    unit = "count"
    if peak_gflops.is_declined or not clock_mhz or not cores:
        missing = (
            peak_gflops.reason
            if peak_gflops.is_declined
            else "the clock is not known"
            if not clock_mhz
            else "the number of cores is not known"
        )
        return declined(unit, f"needs peak, clock and cores: {missing}")
    exact = peak_gflops.number() * 1e3 / (2 * clock_mhz * cores)
    rounded = int(round(exact / 8) * 8) if exact >= 12 else round(exact)
    reason = f"{peak_gflops.number():.4g} GFLOPS / (2 x {clock_mhz:g} MHz x {cores} cores) = {exact:.1f}"
    if rounded == 0 or abs(exact / rounded - 1) > 0.06:
        return declined(unit, f"{reason}, which is near no multiple of 8: the clock during the run was another one")
    note = "rests on the clock that the driver gives; under load it may run at another"
    return answered(rounded, unit, 0.8, reason, low=exact * 0.94, high=exact * 1.06, notes=(note,))


def sustained(seconds: np.ndarray, rates: np.ndarray, unit: str = "GFLOPS") -> tuple[Answer, Answer]:
    """Return (rate once warm, that rate over the first rate) of one kernel that runs repeatedly.

    A ratio below 1 shows throttling.
    """
    seconds, rates = np.asarray(seconds, float), np.asarray(rates, float)
    if rates.size < 8:
        reason = f"{rates.size} measurements are too few to see a trend; at least 8 are needed"
        return declined(unit, reason), declined("ratio", reason)
    quarter = max(3, rates.size // 4)
    late, early = rate(rates[-quarter:], unit), rate(rates[1 : 1 + quarter], unit)
    span = float(seconds[-1] - seconds[0])
    reason = f"last quarter against first of {span:.1f} s"
    note = "" if span >= 15 else f"{span:.0f} s are too short to warm a phone up; a full run takes longer"
    over_burst = ratio(late, early, "ratio", min(late.confidence, early.confidence), reason)
    return (late, over_burst) if over_burst.is_declined else (late.with_notes(note), over_burst.with_notes(note))
