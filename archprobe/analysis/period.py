"""The period of a staircase: times that step up every `w` work-items (warp size) or every `c` work-groups (cores).

Each candidate period explains the curve by one free level per stair and a straight drift. Its score is the robust
squared residuals over the noise, plus ln(n) per level (BIC). Models without a period (flat, straight line) compete as
well, and the best one wins only by a margin. A divisor of the true period fits equally well but pays for its additional
levels. A multiple or a neighbour does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from archprobe.analysis.answer import Answer, answered, declined
from archprobe.analysis.steps import log_curve, noise

# A lone outlier counts as 3 sigma and no more. If the sweep has only one point past the jump, that point has to count.
_CLIP, _STOPPED_CLIP = 9.0, 400.0
_MARGIN = 16.0
_MIN_STEP = 0.03
# Stairs of real devices are this uneven, however little a repeated point scatters.
_EVEN = 0.003


def find_period(
    x: np.ndarray,
    time: np.ndarray,
    *,
    unit: str,
    candidates: Iterable[int] | None = None,
    is_stopped_at_jump: bool = False,
) -> Answer:
    """Find the period of the stairs in `time` over whole positions `x` (1, 2, 3, ...; gaps are allowed).

    With `is_stopped_at_jump` the sweep ended at its first jump, as in Microsoft's tool. The answer then rests on one
    point past the step, has less confidence and a note that says so.
    """
    x, y = log_curve(x, time)
    if x.size < 8:
        return declined(unit, f"{x.size} points are too few to see a staircase; at least 8 are needed")
    sigma = max(noise(y), _EVEN)
    upper = int(x[-1] - 1) if is_stopped_at_jump else int(x[-1] // 2)
    periods = sorted({int(c) for c in candidates} if candidates is not None else range(2, upper + 1))
    periods = [p for p in periods if 2 <= p <= upper]
    if not periods:
        return declined(unit, f"the sweep ends at {int(x[-1])}: no period could show twice in it")
    clip = _STOPPED_CLIP if is_stopped_at_jump else _CLIP
    scores = {p: _score(x, y, sigma, p, clip) for p in periods}
    best = min(scores, key=lambda p: scores[p])
    # A divisor of the period has all borders of the period, and fits equally well at a small price.
    best = max(
        (p for p in periods if p % best == 0 and (p == best or _has_idle_steps(x, y, best, p, sigma))), default=best
    )
    no_period = min(_score(x, y, sigma, int(x[-1]) + 1, clip), _line_score(x, y, sigma, clip))
    if no_period <= scores[best] + _MARGIN:
        return declined(
            unit,
            f"the time does not climb in stairs: flat or a straight line explains it as well as steps of {best} (noise"
            f" {sigma:.1%})",
        )
    rivals = {
        p: s for p, s in scores.items() if p != best and not (best % p == 0 and _has_idle_steps(x, y, p, best, sigma))
    }
    rival = min(rivals, key=lambda p: rivals[p]) if rivals else None
    margin = min(no_period, rivals[rival] if rival is not None else np.inf) - scores[best]
    needed = 4.0 if is_stopped_at_jump else _MARGIN
    if margin < needed:
        return declined(unit, f"steps of {best} and of {rival} explain the curve alike (noise {sigma:.1%})")
    misfit = (scores[best] - (np.ceil(x[-1] / best) + 1) * np.log(x.size)) / x.size
    rises = _rises(x, y, best)
    doubt = _doubt(best, misfit, rises, int((x > best).sum()), sigma)
    if doubt is not None:
        return declined(unit, doubt)
    confidence = 1 - np.exp(-margin / 2)
    notes: tuple[str, ...] = ()
    if is_stopped_at_jump and (x > best).sum() < 3:
        confidence = min(confidence, 0.85)
        past = int((x > best).sum())
        note = f"the sweep stopped at the first jump: {past} point lies past the step, and whether {best} repeats was"
        notes = (f"{note} not seen",)
    reason = f"time rises by {rises[0]:.1%} after {best} and in steps of {best}; noise {sigma:.2%}"
    return answered(best, unit, confidence, reason, notes=notes)


def _doubt(period: int, misfit: float, rises: np.ndarray, points_past: int, sigma: float) -> str | None:
    """Return the reason why the best period explains the curve badly. None if it explains it well.

    misfit: mean squared residual over the noise
    rises: heights of the steps
    points_past: points after the first step
    """
    if misfit > 3.0:
        return (
            f"no period explains the curve: with the best one, {period}, the points lie {misfit**0.5:.1f} times the"
            " noise off its stairs"
        )
    clear = int((rises > max(_MIN_STEP, 4 * sigma / np.sqrt(period))).sum())
    if rises.size and rises[0] < 4 * sigma / np.sqrt(max(min(period, points_past), 1)):
        return f"the first step, after {period}, is no higher than the noise ({sigma:.1%})"
    if rises.size and rises[0] < _MIN_STEP:
        return f"the first step, after {period}, is only {np.expm1(rises[0]):.1%} high: that may as well be drift"
    if clear == 0 or (rises.size >= 3 and clear < 0.7 * rises.size):
        return f"of {rises.size} steps of {period} only {clear} rise clearly above the noise ({sigma:.1%})"
    return None


def _labels(x: np.ndarray, period: int) -> np.ndarray:
    return np.ceil(x / period).astype(int) - 1


def _score(x: np.ndarray, y: np.ndarray, sigma: float, period: int, clip: float) -> float:
    labels = _labels(x, period)
    position = np.arange(x.size) / x.size
    # Drift over the sweep is slow: more than a quarter from start to end is a staircase that this period misses.
    residual = y - np.clip(_drift(labels, position, y, period), -0.25, 0.25) * position
    residual = residual - _medians(labels, residual)[labels]
    levels = np.unique(labels).size
    return float(np.minimum((residual / sigma) ** 2, clip).sum()) + (levels + 1) * float(np.log(x.size))


def _drift(labels: np.ndarray, position: np.ndarray, y: np.ndarray, period: int) -> float:
    """Return the slope inside the stairs.

    It is the median over pairs of points half a stair apart, which spikes cannot move.
    """
    apart = max(1, period // 2)
    same = labels[apart:] == labels[:-apart]
    return (
        float(np.median((y[apart:] - y[:-apart])[same] / (position[apart:] - position[:-apart])[same]))
        if same.any()
        else 0.0
    )


def _line_score(x: np.ndarray, y: np.ndarray, sigma: float, clip: float) -> float:
    """Score time in proportion to work, without stairs, as on a CPU that runs work-items one after another."""
    time, weights = np.exp(y), np.exp(-y)
    for _ in range(8):
        fit = np.polyval(np.polyfit(x, time, 2, w=weights), x)
        if (fit <= 0).any():
            return np.inf
        residual = (y - np.log(fit)) / sigma
        weights = np.exp(-y) / np.maximum(1, np.abs(residual))
    return float(np.minimum(residual**2, clip).sum()) + 3 * float(np.log(x.size))


def _has_idle_steps(x: np.ndarray, y: np.ndarray, period: int, longer: int, sigma: float) -> bool:
    """Return whether only the steps that `period` shares with its multiple `longer` rise.

    In that case `longer` is the period.
    """
    labels = np.unique(_labels(x, period))
    rises = _rises(x, y, period)
    stair = labels * period // longer
    is_extra = stair[1:] == stair[:-1]
    if not is_extra.any() or is_extra.all():
        return False
    limit = max(0.1 * float(rises[~is_extra].min()), 0.005)
    return bool(limit > 3 * sigma / np.sqrt(period) and (np.abs(rises[is_extra]) < limit).all())


def _rises(x: np.ndarray, y: np.ndarray, period: int) -> np.ndarray:
    labels = _labels(x, period)
    return np.diff([np.median(y[labels == label]) for label in np.unique(labels)])


def _medians(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    result = np.zeros(labels.max() + 1)
    for label in np.unique(labels):
        result[label] = np.median(values[labels == label])
    return result
