"""A default and a tuned time with their noise: whether they differ, and how they are written."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

# A time with more noise is measured again, and written as a range if that does not help.
MOST_NOISE = 0.3
# Confidence of the range of a median.
_CONFIDENCE = 0.95
NOTHING_FOUND = "no faster configs found"

Range = tuple[float, float]


def median_range(samples: Sequence[float]) -> Range:
    """Return the 95% bounds of the samples' median, by order statistics. Of less than six, all lie between them.

    Outliers of a busy machine fall outside the bounds if enough samples do not: three of 15, eight of 35.
    """
    ordered, count = sorted(samples), len(samples)
    cut, below = 0, 2.0**-count
    while 2 * below <= 1 - _CONFIDENCE:
        cut += 1
        below += math.comb(count, cut) * 2.0**-count
    cut = max(0, cut - 1)
    return ordered[cut], ordered[-1 - cut]


def noise_of(samples: Sequence[float]) -> float:
    """Return half the range of the samples' median over the median."""
    return _noise(statistics.median(samples), median_range(samples))


def _noise(ms: float | None, bounds: Range | None) -> float:
    return (bounds[1] - bounds[0]) / 2 / ms if ms and bounds else 0.0


def time_text(ms: float | None, bounds: Range | None, between: str = "{:.3f} to {:.3f}") -> str:
    """Return a time in ms with three digits, "-" if there is none, or its range if the noise is above `MOST_NOISE`."""
    if ms is None:
        return "-"
    return between.format(*bounds) if bounds is not None and _noise(ms, bounds) > MOST_NOISE else f"{ms:.3f}"


def ratio(value: float | None) -> str:
    """Return a ratio as text: 2.5 -> "2.50x"."""
    return "-" if value is None else f"{value:.2f}x"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """A time with default and one with tuned kernels, in milliseconds. None if not measured.

    The same kernels are measured once, so their two times are equal.

    default_ms, tuned_ms: medians.
    noise: half the range of a median over the median, of the noisier side. None if it is unknown.
    default_range_ms, tuned_range_ms: see `median_range`. None if unknown.
    """

    default_ms: float | None
    tuned_ms: float | None
    noise: float | None = None
    default_range_ms: Range | None = None
    tuned_range_ms: Range | None = None

    @classmethod
    def of(cls, default: Sequence[float], tuned: Sequence[float]) -> Timed:
        """Return the times of samples in milliseconds."""
        return cls(
            default_ms=statistics.median(default),
            tuned_ms=statistics.median(tuned),
            noise=max(noise_of(default), noise_of(tuned)),
            default_range_ms=median_range(default),
            tuned_range_ms=median_range(tuned),
        )

    def of_default(self) -> Self:
        """Return the times where the default kernels are kept."""
        return dataclasses.replace(self, tuned_ms=self.default_ms, tuned_range_ms=self.default_range_ms)

    def scaled(self, factor: float) -> Self:
        """Return the same times multiplied by a factor."""

        def bounds(known: Range | None) -> Range | None:
            return known and (factor * known[0], factor * known[1])

        return dataclasses.replace(
            self,
            default_ms=None if self.default_ms is None else factor * self.default_ms,
            tuned_ms=None if self.tuned_ms is None else factor * self.tuned_ms,
            default_range_ms=bounds(self.default_range_ms),
            tuned_range_ms=bounds(self.tuned_range_ms),
        )

    @property
    def saved_ms(self) -> float:
        """The difference of the medians, zero if not measured."""
        return self.default_ms - self.tuned_ms if self.default_ms and self.tuned_ms else 0.0

    @property
    def is_noisy(self) -> bool:
        """True if the noise is above 30%."""
        return (self.noise or 0.0) > MOST_NOISE

    @property
    def speedup(self) -> float | None:
        """Speedup by tuning. None if not measured, or if the two times do not differ by more than their noise.

        It is default_ms / tuned_ms. Of noisy times it is the smallest ratio that their ranges allow.
        """
        if not self.default_ms or not self.tuned_ms:
            return None
        noise = self.noise or 0.0
        before, after = (
            bounds or (ms * (1 - noise), ms * (1 + noise))
            for ms, bounds in ((self.default_ms, self.default_range_ms), (self.tuned_ms, self.tuned_range_ms))
        )
        is_faster, is_slower = after[1] < before[0], after[0] > before[1]
        if not (is_faster or is_slower):
            return None
        if self.is_noisy:
            return before[0] / after[1] if is_faster else before[1] / after[0]
        return self.default_ms / self.tuned_ms

    @property
    def speedup_text(self) -> str:
        """The speedup as text: "2.00x", "at least 1.50x" of noisy times, "-" if there is none."""
        speedup = self.speedup
        return f"at least {ratio(speedup)}" if self.is_noisy and speedup and speedup > 1 else ratio(speedup)

    @property
    def noise_text(self) -> str:
        """The noise in percent, "-" if it is unknown or above 30%: the time is a range then."""
        return "-" if self.noise is None or self.is_noisy else f"±{self.noise:.0%}"

    @property
    def default_text(self) -> str:
        """The default time as text, a range if it is noisy."""
        return time_text(self.default_ms, self.default_range_ms)

    @property
    def tuned_text(self) -> str:
        """The tuned time as text, a range if it is noisy."""
        return time_text(self.tuned_ms, self.tuned_range_ms)

    @property
    def sentence(self) -> str:
        """Both times and what they say: "8.000 ms with default schedules, 4.000 ms tuned: 2.00x (±12%)"."""
        if not self.default_ms or not self.tuned_ms:
            return "not measured"
        default, tuned = (
            time_text(ms, bounds, "between {:.3f} and {:.3f}") + " ms"
            for ms, bounds in ((self.default_ms, self.default_range_ms), (self.tuned_ms, self.tuned_range_ms))
        )
        noise = "" if self.noise is None or self.is_noisy else f" ({self.noise_text})"
        if self.default_ms == self.tuned_ms:
            return f"{default} with default schedules; {NOTHING_FOUND}{noise}"
        found = self.speedup_text if self.speedup is not None else f"{NOTHING_FOUND} beyond the noise"
        return f"{default} with default schedules, {tuned} tuned: {found}{noise}"
