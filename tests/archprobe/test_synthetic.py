"""Never wrong with confidence: on curves of known truth with noise, spikes and drift, the truth is found or the
analysis declines.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archprobe.analysis import bandwidth, cache, registers, throughput, warp
from archprobe.analysis.answer import Answer
from archprobe.analysis.period import find_period
from support.data.synthetic_curves import (
    CLEAN,
    Faults,
    divergence,
    faults,
    hierarchy,
    levels_of_bandwidth,
    ramp,
    repeated,
    spill,
    stairs,
)

# Answers from this confidence on are claims. Below it they are hints, which a reader should doubt.
CLAIM = 0.9
many = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def check(answer: Answer, truth: float, tolerance: float = 0.0) -> None:
    """Assert that a claim's interval, widened by `tolerance` (the grid of the sweep), holds the truth."""
    if answer.confidence < CLAIM:
        return
    assert answer.low is not None
    assert answer.high is not None
    assert answer.low * (1 - tolerance) <= truth <= answer.high * (1 + tolerance), (truth, answer)


@many
@given(period=st.sampled_from([8, 16, 32, 64]), base=st.sampled_from([0.0, 1.0, 3.0]), dirt=faults)
def test_warp_stairs(period: int, base: float, dirt: Faults) -> None:
    x, t = stairs(period, 4 * period + 8, base)
    check(warp.warp_by_time(x, dirt.spoil(t)), period)


@many
@given(cores=st.integers(2, 40), dirt=faults)
def test_core_stairs(cores: int, dirt: Faults) -> None:
    x, t = stairs(cores, 3 * cores + 4, 0.2)
    check(find_period(x, dirt.spoil(t), unit="count"), cores)


@many
@given(dirt=faults, slope=st.floats(0.01, 1.0))
def test_a_straight_line_has_no_warp(dirt: Faults, slope: float) -> None:
    x = np.arange(1, 140)
    assert warp.warp_by_time(x, dirt.spoil(1 + slope * x)).confidence < CLAIM


@many
@given(dirt=faults)
def test_a_flat_line_says_nothing(dirt: Faults) -> None:
    x = np.arange(1, 140)
    t = dirt.spoil(np.ones(139))
    assert warp.warp_by_time(x, t).confidence < CLAIM
    assert registers.concurrent_groups(x, t).confidence < CLAIM
    assert all(level.size.confidence < CLAIM for level in cache.cache_levels(64 * x, t))
    assert cache.concurrent_reads(x, t).confidence < CLAIM


@many
@given(count=st.integers(30, 250), cost=st.floats(0.02, 0.8), base=st.floats(0, 60), dirt=faults)
def test_registers(count: int, cost: float, base: float, dirt: Faults) -> None:
    n, t = repeated(*spill(count, count + 60, base=base, cost=cost))
    # With cheap spills, the time leaves the line before it is 10% above it, so only the interval holds the truth, from
    # below.
    check(registers.register_count(n, dirt.spoil(t)), count, 0.04)


@many
@given(slope=st.floats(0.1, 5.0), dirt=faults)
def test_no_spill_no_register_count(slope: float, dirt: Faults) -> None:
    n = np.arange(1, 257)
    assert registers.register_count(n, dirt.spoil(20 + slope * n)).confidence < CLAIM


@many
@given(groups=st.integers(4, 60), ratio=st.floats(1.5, 2.1), dirt=faults)
def test_concurrent_groups(groups: int, ratio: float, dirt: Faults) -> None:
    x = np.arange(1, groups * 2 + 1)
    x, t = repeated(x, np.where(x > groups, ratio, 1.0))
    check(registers.concurrent_groups(x, dirt.spoil(t)), groups)


@many
@given(
    first=st.sampled_from([1, 16, 32, 128]),
    factor=st.sampled_from([8, 32, 128]),
    steps=st.tuples(st.floats(1.3, 4.0), st.floats(1.3, 4.0)),
    dirt=faults,
)
def test_cache_sizes(first: int, factor: int, steps: tuple[float, float], dirt: Faults) -> None:
    sizes = (first * 1024, first * factor * 1024)
    latencies = (30.0, 30.0 * steps[0], 30.0 * steps[0] * steps[1])
    x, t = repeated(*hierarchy(sizes, latencies, sizes[1] * 8))
    found = [level.size for level in cache.cache_levels(x, dirt.spoil(t)) if level.size.confidence >= CLAIM]
    for size in found:
        # A grid of eight ranges for each octave, and a slope of a quarter octave.
        assert any(size.low / 1.15 <= truth <= size.high * 1.15 for truth in sizes), (sizes, size)


@many
@given(line=st.sampled_from([16, 32, 64, 128]), ratio=st.floats(1.0, 6.0), dirt=faults)
def test_line_sizes(line: int, ratio: float, dirt: Faults) -> None:
    x, t = repeated(*ramp(line, 20.0, 20.0 * ratio, 1024))
    check(cache.line_size(x, dirt.spoil(t)), line)


@many
@given(count=st.integers(8, 100), ratio=st.floats(1.1, 2.0), dirt=faults)
def test_concurrent_texels(count: int, ratio: float, dirt: Faults) -> None:
    x = np.arange(1, count + 20)
    x, t = repeated(x, np.where(x > count, ratio, 1.0))
    check(cache.concurrent_reads(x, dirt.spoil(t)), count)


@many
@given(top=st.floats(50, 1000), drop=st.floats(1.5, 6.0), dirt=faults)
def test_bandwidths(top: float, drop: float, dirt: Faults) -> None:
    x, b = levels_of_bandwidth((2**14, 2**20), (top, top / drop, top / drop / 2), 2**26)
    x, b = repeated(x, b)
    # A spike in time is a hole in bandwidth.
    b = 1 / dirt.spoil(1 / b)
    check(bandwidth.peak(x, b), top, 0.06)
    check(bandwidth.floor(x, b), top / drop / 2, 0.06)


@many
@given(true_warp=st.sampled_from([4, 8, 16, 32, 64]), dirt=faults)
def test_divergence(true_warp: int, dirt: Faults) -> None:
    x, t = repeated(*divergence(true_warp, 256))
    found = warp.warp_by_divergence(x, dirt.spoil(t))
    check(found, true_warp)


@many
@given(runs=st.integers(2, 12), true_warp=st.sampled_from([8, 16, 32, 64]), seed=st.integers(0, 2**32 - 1))
def test_order_of_a_counter(runs: int, true_warp: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    warps = 512 // true_warp
    order = np.stack(
        [(rng.permutation(warps)[:, None] * true_warp + np.arange(true_warp)).ravel() for _ in range(runs)]
    )
    check(warp.warp_by_order(order), true_warp)


@many
@given(order=st.permutations(list(range(64))))
def test_an_order_by_chance_is_no_warp(order: list[int]) -> None:
    assert warp.warp_by_order(np.array([order, order[::-1]])).confidence < CLAIM


@many
@given(best=st.sampled_from([1, 2, 4, 8]), gain=st.floats(1.0, 2.0), dirt=faults)
def test_vector_widths(best: int, gain: float, dirt: Faults) -> None:
    widths = np.array([1, 2, 4, 8, 16])
    rates = np.minimum(widths / best, 1) ** (gain - 1)
    spoiled = 1 / Faults(dirt.seed, dirt.noise, 0.0, 0.0).spoil(1 / rates)
    kind, components = throughput.architecture(widths, spoiled, noise=max(dirt.noise, 0.002), repeats=5)
    check(throughput.peak_rate(widths, spoiled, noise=max(dirt.noise, 0.002), repeats=5), 1.0)
    truth = widths[np.flatnonzero(rates >= 1 - throughput.ALIKE)[0]]
    if abs(rates[0] - (1 - throughput.ALIKE)) > 0.03:
        if kind.confidence >= CLAIM:
            assert (kind.value == "SISD") == (truth == 1), (rates, kind)
        check(components, truth)


@many
@given(best=st.sampled_from([1, 2, 4, 8]), gain=st.floats(1.2, 3.0), dirt=faults)
def test_width_of_a_load(best: int, gain: float, dirt: Faults) -> None:
    widths = np.array([1, 2, 4, 8, 16])
    per_word = np.maximum(best / widths, 1) ** np.log2(gain) * (1 + 0.2 * np.log2(np.maximum(widths / best, 1)))
    time = Faults(dirt.seed, dirt.noise, 0.0, 0.0).spoil(per_word * widths)
    truth = widths[np.flatnonzero(per_word <= per_word.min() * (1 + throughput.ALIKE))[0]]
    check(throughput.vector_width(widths, time, noise=max(dirt.noise, 0.002), repeats=5), truth)


@many
@given(count=st.integers(1, 40), dirt=faults)
def test_rates(count: int, dirt: Faults) -> None:
    """A few values that agree by chance are no proof of little noise."""
    check(bandwidth.rate(Faults(dirt.seed, dirt.noise, dirt.spikes, 0.0).spoil(np.ones(count)), "GB/s"), 1.0)


@many
@given(count=st.integers(8, 200), throttled=st.sampled_from([1.0, 0.9, 0.5]), dirt=faults)
def test_throttling(count: int, throttled: float, dirt: Faults) -> None:
    seconds = np.linspace(0, 20, count)
    time = Faults(dirt.seed, dirt.noise, dirt.spikes, 0.0).spoil(1 / np.where(seconds < 8, 1.0, throttled))
    for answer in throughput.sustained(seconds, 1 / time):
        check(answer, throttled, 0.03)


def test_a_sweep_made_once_claims_nothing_that_one_point_decides() -> None:
    """A spike before a jump, or on the last point before a level, looks like the jump itself."""
    x = np.arange(1, 60)
    step = np.where(x > 32, 2.0, 1.0)
    for found in (
        registers.concurrent_groups(x, step),
        cache.concurrent_reads(x, step),
        warp.warp_by_divergence(*divergence(32, 256)),
    ):
        assert found.value == 32
        assert found.confidence < CLAIM
        assert "measured once" in found.notes[-1]
    assert cache.line_size(*ramp(64, 20.0, 100.0, 512)).confidence < CLAIM
    assert registers.register_count(*spill(64, 124)).confidence < CLAIM
    assert all(
        level.size.confidence < CLAIM
        for level in cache.cache_levels(*hierarchy((16384, 2**21), (30.0, 90.0, 300.0), 2**24))
    )
    assert bandwidth.peak(*levels_of_bandwidth((2**14, 2**20), (900.0, 300.0, 50.0), 2**26)).confidence < CLAIM
    for widths in ((1, 2, 4), (1, 2, 4, 8, 16)):
        assert throughput.architecture(np.array(widths), np.ones(len(widths)))[0].confidence < CLAIM
    twice = [registers.concurrent_groups(x, step, repeats=2), cache.concurrent_reads(*repeated(x, step))]
    assert all(answer.confidence >= CLAIM for answer in twice)


def test_what_no_device_does_is_declined() -> None:
    x, t = ramp(16, 20.0, 60.0, 1024)
    t[1] *= 2.0
    assert "no cache is so fast" in cache.line_size(x, t, repeats=3).reason
    x, t = divergence(4, 256)
    t[0] *= 4
    assert "that is no divergence" in warp.warp_by_divergence(x, t, repeats=3).reason


def test_clean_curves_are_answered() -> None:
    """Declining everything would pass the tests above."""
    for period in (8, 32, 64):
        x, t = stairs(period, 4 * period + 8)
        assert warp.warp_by_time(x, t).value == period
    for count in (64, 181, 250):
        assert registers.register_count(*spill(count, count + 60)).value == pytest.approx(count, abs=1)
    found = cache.cache_levels(*hierarchy((16384, 2**21), (30.0, 90.0, 300.0), 2**24))
    assert [round(np.log2(level.size.number())) for level in found[:2]] == [14, 21]
    assert found[-1].size.is_declined
    assert cache.line_size(*ramp(64, 20.0, 100.0, 512)).value == 64
    x, t = divergence(32, 256)
    assert warp.warp_by_divergence(x, t).value == 32
    assert bandwidth.peak(*levels_of_bandwidth((2**14, 2**20), (900.0, 300.0, 50.0), 2**26)).value == pytest.approx(900)


def test_moderate_noise_is_mostly_answered() -> None:
    """At least half of the curves with 2% noise are claimed and right."""
    claims = 0
    for seed in range(40):
        dirt = Faults(seed, 0.02, 0.03, 0.05)
        x, t = stairs(32, 136)
        answer = warp.warp_by_time(x, dirt.spoil(t))
        claims += answer.confidence >= CLAIM and answer.value == 32
    assert claims >= 20, claims
    assert CLEAN.spoil(np.ones(3)).tolist() == [1, 1, 1]


def test_a_ratio_within_the_noise_of_its_limit_settles_nothing() -> None:
    assert throughput.is_above(1.3, 1.05, noise=0.02, reason="1.3 times").value is True
    assert throughput.is_above(1.0, 1.05, noise=0.01, reason="as fast").value is False
    unclear = throughput.is_above(1.08, 1.05, noise=0.02, reason="1.08 times")
    assert unclear.is_declined
    assert "noise of 2.0% hides whether that is above 1.05" in unclear.reason
