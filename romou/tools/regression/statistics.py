"""Rank tests for a shift between two sets of times, and its bounds.

They need no assumption on the distribution of noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads its statistics when they are first used: they take a second

# Confidence of the bounds, which are shown and which end a measurement.
_CONFIDENCE = 0.99


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The ratio of the second of two times to the first.

    ratio: Hodges and Lehmann's estimate.
    low, high: its 99% bounds.
    p_slower: probability of ranks at least as clear as these if the second were not slower.
    p_faster: the same if it were not faster.
    """

    ratio: float
    low: float
    high: float
    p_slower: float
    p_faster: float


def paired_shift(before: Sequence[float], after: Sequence[float]) -> Shift:
    """Return the shift of times measured in turns, by Wilcoxon's signed-rank test of the logarithms of their ratios.

    The i-th times of both are a pair, measured one right after the other. Drift of the machine cancels in each pair.
    The sides of a pair must have run in random order.
    """
    ratios = np.log(np.asarray(after) / np.asarray(before))
    n = len(ratios)
    first, second = np.triu_indices(n)
    walsh = np.sort((ratios[first] + ratios[second]) / 2)
    spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    if not ratios.any():
        return _shift(walsh, spread, 1.0, 1.0)
    tests = [float(scipy.stats.wilcoxon(ratios, alternative=side).pvalue) for side in ("greater", "less")]
    return _shift(walsh, spread, *tests)


def unpaired_shift(before: Sequence[float], after: Sequence[float]) -> Shift:
    """Return the shift of times of two sessions, by Mann and Whitney's test of their logarithms."""
    x, y = np.log(np.asarray(before)), np.log(np.asarray(after))
    differences = np.sort((y[:, None] - x[None, :]).ravel())
    spread = math.sqrt(len(x) * len(y) * (len(x) + len(y) + 1) / 12)
    tests = [float(scipy.stats.mannwhitneyu(y, x, alternative=side).pvalue) for side in ("greater", "less")]
    return _shift(differences, spread, *tests)


def _shift(differences: np.ndarray, spread: float, p_slower: float, p_faster: float) -> Shift:
    """Return the shift of a rank statistic.

    differences: sorted. The statistic counts the positive ones.
    spread: standard deviation of the statistic.
    """
    z = float(scipy.stats.norm.ppf((1 + _CONFIDENCE) / 2))
    cut = max(0, math.floor(len(differences) / 2 - z * spread))
    ratio, low, high = (math.exp(v) for v in (float(np.median(differences)), differences[cut], differences[-1 - cut]))
    return Shift(ratio=ratio, low=low, high=high, p_slower=p_slower, p_faster=p_faster)


def holm(p_values: Sequence[float], *, stages: int = 1) -> list[float]:
    """Return adjusted p-values (Holm 1979).

    If all below alpha are called significant, the probability of any false one is at most alpha.

    stages: most tests of the same hypotheses, each with more data than the one before.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, running = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, p_values[index] * (len(order) - rank) * stages))
        adjusted[index] = running
    return adjusted
