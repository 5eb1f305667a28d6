"""Change points of a noisy curve.

The functions estimate noise, remove lone spikes, segment exactly, and return the possible positions of a jump.

Everything works on logarithms of times, so noise, jumps and drift are relative. A segmentation minimises

    sum of squared residuals / sigma^2  +  penalty * number of segments

exactly, by dynamic programming (as "optimal partitioning" of Jackson et al., 2005). Curves have at most some hundred
points.
"""

from __future__ import annotations

import dataclasses

import numpy as np

# Below this relative noise the timer's resolution and rounding in files dominate.
NOISE_FLOOR = 5e-4


def undisturbed(times: np.ndarray) -> float:
    """Return the lower quartile of repeated times, which is used to compare them: disturbances only add time."""
    return float(np.quantile(times, 0.25, method="lower"))


def log_curve(x: np.ndarray, y: np.ndarray, *, is_rate: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return a curve sorted by x, with log y. ValueError for anything but positive numbers.

    Several times at one x become their lower quartile, several rates their median.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.ndim != 1 or x.shape != y.shape or x.size == 0:
        raise ValueError(f"a curve needs as many times as positions, in one dimension: got {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (y > 0).all()):
        raise ValueError("a curve holds finite positions and times above zero")
    unique = np.unique(x)
    value_of = np.median if is_rate else undisturbed
    values = np.array([value_of(y[x == u]) for u in unique]) if unique.size < x.size else y[np.argsort(x)]
    return unique, np.log(values)


def repeats_of(x: np.ndarray, repeats: int) -> int:
    """Return how often each position was measured: `repeats`, or more if `x` holds a position several times."""
    x = np.asarray(x)
    return max(repeats, x.size // np.unique(x).size)


# share -> quantile of |N(0, 1)|
_NORMAL = {0.3: 0.3853, 0.45: 0.5978}


def noise(values: np.ndarray, order: int = 1, share: float = 0.45) -> float:
    """Estimate the relative noise (standard deviation of log values) of a curve.

    The curve is mostly flat (order 1) or mostly straight (order 2).

    The estimate rests on a low quantile of the differences between neighbours: all but `share` of them may be jumps.
    """
    values = np.asarray(values, float)
    if values.size < order + 3:
        return NOISE_FLOOR
    differences = np.abs(np.diff(values, n=order))
    scale = {1: np.sqrt(2.0), 2: np.sqrt(6.0)}[order]
    return float(max(np.quantile(differences, share) / _NORMAL[share] / scale, NOISE_FLOOR))


def despike(values: np.ndarray, sigma: float, threshold: float = 4.0) -> np.ndarray:
    """Replace lone points by their neighbours' median if four neighbours agree among themselves."""
    result = np.array(values, float)
    for i in range(result.size):
        near = [j for j in range(i - 2, i + 3) if j != i and 0 <= j < result.size]
        # The last points may be the first ones of a new level: no points follow that could decide it.
        if len(near) < 3 or i >= result.size - 2:
            continue
        around = np.median(values[near])
        deviations = np.abs(values[near] - around)
        if abs(values[i] - around) > threshold * sigma and np.sort(deviations)[len(near) // 2] < 2.5 * sigma:
            result[i] = around
    return result


def segments(values: np.ndarray, sigma: float) -> list[int]:
    """Return the starts of the segments of the best piecewise constant fit. Remove lone spikes before."""
    n = values.size
    penalty = 4.0 + 3.0 * np.log(n)
    scaled = (values - values.mean()) / sigma
    total, squares = np.concatenate([[0], np.cumsum(scaled)]), np.concatenate([[0], np.cumsum(scaled**2)])
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    before = np.zeros(n + 1, int)
    for end in range(1, n + 1):
        starts = np.arange(end)
        cost = squares[end] - squares[starts] - (total[end] - total[starts]) ** 2 / (end - starts)
        scores = best[starts] + cost + penalty
        before[end] = starts[np.argmin(scores)]
        best[end] = scores.min()
    starts_found, end = [], n
    while end > 0:
        end = int(before[end])
        starts_found.append(end)
    return starts_found[::-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Jump:
    """A change of level between positions ``index - 1`` and ``index``.

    ratio: the level after over the level before
    z: the size of the jump in standard errors
    first, last: bounds of the index that the data allow
    after: points of the level after the jump
    """

    index: int
    ratio: float
    z: float
    first: int
    last: int
    after: int


def jumps(values: np.ndarray, sigma: float) -> list[Jump]:
    """Return every jump of a log curve.

    Jumps are found without spikes, then judged by the medians at both sides with them.
    """
    clean = despike(values, sigma)
    starts = [*segments(clean, sigma), values.size]
    judged = []
    for left, here, right in zip(starts, starts[1:], starts[2:], strict=False):
        step = float(np.median(values[here:right]) - np.median(values[left:here]))
        error = 1.2533 * sigma * np.sqrt(1 / (here - left) + 1 / (right - here))
        first, last = _where(clean[left:right], sigma, here - left)
        judged.append(
            Jump(
                index=here,
                ratio=float(np.exp(step)),
                z=abs(step) / error,
                first=left + first,
                last=left + last,
                after=right - here,
            )
        )
    return judged


def _where(window: np.ndarray, sigma: float, best: int) -> tuple[int, int]:
    """Return the first and last split of a two-level window within 4.2 sigma (a likelihood ratio of e^9)."""
    splits = np.arange(1, window.size)
    total = np.cumsum(window)
    cost = -(total[:-1] ** 2 / splits + (total[-1] - total[:-1]) ** 2 / (window.size - splits)) / sigma**2
    allowed = splits[cost <= cost.min() + 18.0]
    return int(min(allowed.min(), best)), int(max(allowed.max(), best))


def border(values: np.ndarray, sigma: float, index: int) -> tuple[int, int]:
    """Return the first and last possible index of a jump found at `index`.

    An outlier beside it may belong to either level.
    """
    before, after = values[max(0, index - 5) : index], values[index : index + 5]
    limit = 4 * sigma
    first = index - 1 if index > 1 and abs(values[index - 1] - np.median(before)) > limit else index
    last = index + 1 if index + 1 < values.size and abs(values[index] - np.median(after)) > limit else index
    return first, last
