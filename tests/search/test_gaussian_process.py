"""The corrections of a Gaussian process from few measurements, and its uncertainty."""

from __future__ import annotations

import numpy as np
import pytest

from romou.tuner.search.cost_model import _KIND_OFF, _NOISE, _OFF, _REACH, GaussianProcess

ONE_KIND = np.zeros(1)


def test_two_measurements_by_hand() -> None:
    """One error is 1 above the mean and one is 1 below. All features differ by a factor of two."""
    rows, kinds = np.array([[0.0, 0.0], [1.0, 1.0]]), np.zeros(2)
    process = GaussianProcess(rows, kinds, np.array([3.0, 1.0]))
    near = _OFF**2 * np.exp(-1 / _REACH) + _KIND_OFF**2
    itself = _OFF**2 + _KIND_OFF**2
    covariance = np.array([[itself, near], [near, itself]])
    shared = np.array([itself, near])
    solved = np.linalg.solve(covariance + _NOISE**2 * np.eye(2), shared)
    bound = 5.0 + 2.0 + solved @ [1.0, -1.0] + np.sqrt(itself - solved @ shared)
    assert process(rows[:1], ONE_KIND, np.array([5.0])) == pytest.approx([bound])


def test_neighbours_are_corrected_and_what_is_far_is_in_doubt() -> None:
    rows = np.arange(6.0)[:, None]
    errors = np.array([0, 0, 0, 0, 0, -1.0])
    process = GaussianProcess(rows, np.zeros(6), errors)
    expected = np.zeros(3)
    measured_well, measured_badly, far = process(np.array([[0.0], [5.0], [40.0]]), np.zeros(3), expected)
    assert measured_badly == pytest.approx(-1 + _NOISE, abs=0.1)
    assert measured_well == pytest.approx(_NOISE, abs=0.1)
    # It may well be better than all that was measured.
    assert far > measured_well + 0.1


def test_all_configs_of_an_algorithm_are_wrong_together() -> None:
    """Two configs of one kind were as fast as expected, two of the other a lot slower. None is near the queried
    configs.
    """
    rows, kinds = np.array([[0.0], [50.0], [100.0], [150.0]]), np.array(["direct", "direct", "winograd2", "winograd2"])
    process = GaussianProcess(rows, kinds, np.array([0, 0, -1.0, -1.0]))
    direct, winograd, another = process(
        np.array([[300.0]] * 3), np.array(["direct", "winograd2", "winograd4"]), np.zeros(3)
    )
    assert direct > winograd + 0.4
    # The least is known of configs far from all measurements.
    assert another > winograd
