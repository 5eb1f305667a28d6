"""The rank correlation that a changing clock leaves of an estimate."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from phone_drift import supposed


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9, 1.0])
def test_a_supposed_estimate_has_its_rank_correlation(correlation: float) -> None:
    rng = np.random.default_rng(0)
    times = rng.exponential(size=4000)
    assert stats.spearmanr(supposed(times, correlation, rng), times).statistic == pytest.approx(correlation, abs=0.04)
