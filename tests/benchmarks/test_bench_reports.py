"""Device files of a Pixel 4's reports against the file written by hand: the verdict on two sets of searches."""

from __future__ import annotations

import numpy as np
import pytest

import bench_reports


def test_searches_that_take_longer_are_worse_beyond_their_noise() -> None:
    rng = np.random.default_rng(5)
    by_hand = rng.integers(20, 60, size=(6, 10)).astype(float)
    ratio, error = bench_reports.ratio_of(by_hand, by_hand)
    assert (ratio, error) == (1.0, 1.0)
    assert bench_reports.verdict(ratio, error) == "no worse"
    slower = by_hand * rng.normal(1.3, 0.1, size=by_hand.shape)
    ratio, error = bench_reports.ratio_of(slower, by_hand)
    assert ratio == pytest.approx(1.3, rel=0.05)
    assert bench_reports.verdict(ratio, error) == "WORSE"
    assert bench_reports.verdict(*bench_reports.ratio_of(by_hand, slower)) == "no worse"
    noisy = by_hand * np.exp(rng.normal(0, 0.5, size=by_hand.shape))
    assert bench_reports.verdict(*bench_reports.ratio_of(noisy, by_hand)) == "no worse"
