"""Curves with known truth and the faults of measured ones: noise, upward spikes, drift."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import strategies as st


@dataclasses.dataclass(frozen=True)
class Faults:
    """The faults of a curve.

    noise: the relative standard deviation
    spikes: the share of points that take 1.5 to 4 times as long
    drift: the relative change from the first point to the last
    """

    seed: int
    noise: float
    spikes: float
    drift: float

    def spoil(self, time: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        time = (
            np.asarray(time, float) * np.exp(rng.normal(0, self.noise, time.size))
            if self.noise
            else np.array(time, float)
        )
        time = time * (1 + self.drift * np.linspace(0, 1, time.size))
        hit = rng.random(time.size) < self.spikes
        return np.where(hit, time * rng.uniform(1.5, 4.0, time.size), time)


faults = st.builds(
    Faults,
    seed=st.integers(0, 2**32 - 1),
    noise=st.sampled_from([0.0, 0.02, 0.05, 0.10]),
    spikes=st.sampled_from([0.0, 0.03]),
    drift=st.sampled_from([-0.05, 0.0, 0.05]),
)
CLEAN = Faults(seed=0, noise=0.0, spikes=0.0, drift=0.0)


def stairs(period: int, end: int, base: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the time of 1 to `end` work-items if each further `period` of them costs one more pass."""
    x = np.arange(1, end + 1)
    return x, base + np.ceil(x / period)


def spill(registers: int, end: int, *, base: float = 20.0, cost: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Return a straight line up to `registers`. Each further register costs `cost` of the line's value at the end."""
    n = np.arange(1, end + 1)
    line = base + n
    return n, line + cost * (base + registers) * np.maximum(0, n - registers)


def hierarchy(
    sizes: tuple[int, ...], latencies: tuple[float, ...], end: int, per_octave: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Return the latency over the range of a cyclic chase. Past the size of a level every read goes one level down,
    after a slope of a quarter octave.
    """
    x = np.unique((2 ** np.arange(8, np.log2(end) + 1e-9, 1 / per_octave)).astype(np.int64) // 64 * 64)
    y = np.full(x.size, latencies[0])
    for size, low, high in zip(sizes, latencies, latencies[1:], strict=False):
        y = y + (high - low) * np.clip(np.log2(x / size) / 0.25, 0, 1)
    return x, y


def levels_of_bandwidth(sizes: tuple[int, ...], gbps: tuple[float, ...], end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bandwidth over ranges of powers of two. The level that holds the range serves it."""
    x = 2 ** np.arange(8, int(np.log2(end)) + 1)
    return x, np.array([next((b for s, b in zip(sizes, gbps, strict=False) if r <= s), gbps[-1]) for r in x])


def ramp(line: int, hit: float, miss: float, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the latency of a chase in order, over strides from 4 bytes, for lines of `line` bytes."""
    x = np.array([4 * 2**i for i in range(int(np.log2(end // 4)) + 1)] + [24, 48, 96, 192])
    x = np.unique(x[x <= end])
    return x, hit + (miss - hit) * np.minimum(1, x / line)


def divergence(warp: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the time of two branches by blocks of 1, 2, 4, ... work-items. It doubles while a block is smaller than
    the warp.
    """
    x = 2 ** np.arange(0, int(np.log2(end)) + 1)
    return x, np.where(x < warp, 2.0, 1.0)


def repeated(x: np.ndarray, y: np.ndarray, times: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Repeat each point, sweep after sweep, as in measurements. A spike beside a step then looks
    like the step itself.
    """
    return np.tile(x, times), np.tile(y, times)
