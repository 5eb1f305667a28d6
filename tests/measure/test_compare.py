"""Outputs against references: right ones are told from wrong ones at every scale."""

from __future__ import annotations

import numpy as np
import pytest

from romou.measure.verify import compare


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [("float16", s) for s in (1e-3, 1.0, 1e3)] + [(d, s) for d in ("float32", "float64") for s in (1e-30, 1e-3, 1.0, 1e3, 1e30)],
)
def test_a_right_output_passes_and_one_wrong_element_does_not(dtype: str, scale: float) -> None:
    reference = (np.random.default_rng(0).standard_normal(20_000) * scale).astype(dtype)
    right = (reference * (1 + 1e-9)).astype(dtype)
    found = compare(right, reference)
    assert found.problem is None
    assert found.relative_l2_error is not None
    assert found.relative_l2_error < 1e-3
    wrong = right.copy()
    wrong[7] += np.asarray(scale, dtype)
    assert "off by more than" in (compare(wrong, reference).problem or "")


def test_a_huge_output_is_wrong() -> None:
    reference = np.random.default_rng(0).standard_normal(100).astype("float32")
    found = compare(reference + np.float32(1e30), reference)
    assert found.problem is not None
    assert np.isfinite([found.relative_l2_error, found.max_error]).all()


def test_zeros_are_compared_by_their_difference() -> None:
    zeros = np.zeros(100, "float32")
    assert compare(zeros, zeros).problem is None
    assert compare(zeros + np.float32(0.1), zeros).problem is not None
