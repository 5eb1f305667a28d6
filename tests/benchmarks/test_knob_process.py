"""A Gaussian process over the knobs only: its likelihood's gradient, its starting point, its learning from few
measurements, and the first configs of a search.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from knob_process import Covariance, KnobProcess, Ranked
from knob_search import spread

NOTHING = np.zeros(0)


@pytest.mark.parametrize("knobs", [2, 5])
def test_the_gradient_is_that_of_the_likelihood(knobs: int) -> None:
    rng = np.random.default_rng(knobs)
    rows, errors = rng.random((12, knobs)), rng.standard_normal(12)
    apart = [np.abs(np.subtract.outer(column, column)) for column in rows.T]
    covariance = Covariance(knobs)
    logs = covariance._logs + rng.uniform(-0.5, 0.5, len(covariance._logs))
    numeric = approx_fprime(logs, lambda at: covariance._unlikely(at, apart, errors)[0], 1e-6)
    assert covariance._unlikely(logs, apart, errors)[1] == pytest.approx(numeric, abs=1e-3)


def test_what_it_goes_on_with_is_what_it_would_compute_anew() -> None:
    rng = np.random.default_rng(0)
    rows, pool = rng.random((41, 4)), rng.random((200, 4))
    scores = -rows.sum(axis=1)
    before = KnobProcess(rows[:40], scores[:40])
    before(pool, NOTHING, NOTHING)
    longer = KnobProcess(rows, scores, before)
    went_on = longer(pool, NOTHING, NOTHING)
    assert longer._kernel is before._kernel
    assert went_on == pytest.approx(longer(pool.copy(), NOTHING, NOTHING), rel=1e-3, abs=1e-5)
    assert longer._factor == pytest.approx(longer._kernel.factor(rows), abs=1e-9)


def test_knobs_that_act_by_themselves_are_learnt_from_few() -> None:
    """Choices that were never measured together are judged by the effect of each."""
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 4, (40, 6)) / 3
    worth = np.array([3.0, 2.0, 1.0, 0.5, 0.0, 0.0])
    every = rng.integers(0, 4, (500, 6)) / 3
    found = KnobProcess(rows, -rows @ worth).mean(every, NOTHING, NOTHING)
    assert np.corrcoef(found, -every @ worth)[0, 1] > 0.97


def test_ranks_keep_the_order_and_come_back() -> None:
    scores = np.array([-3.5, -0.1, 0.0, -3.5, -1.0])
    ranked = Ranked(scores)
    assert list(np.argsort(ranked.values, kind="stable")) == list(np.argsort(scores, kind="stable"))
    assert ranked.back(ranked.values) == pytest.approx(scores)
    assert ranked.back(ranked.values + 1)[2] > 0
    assert Ranked(np.zeros(3)).back(np.ones(2)) == pytest.approx([0, 0])


def test_a_search_begins_in_the_middle_and_goes_far() -> None:
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 5)] * 2), axis=-1).reshape(-1, 2)
    first, *others = spread(grid, [], 5, np.random.default_rng(0))
    assert list(grid[first]) == [0.5, 0.5]
    assert {tuple(grid[place]) for place in others} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert len(spread(grid, [first, *others], 100, np.random.default_rng(0))) == 20
