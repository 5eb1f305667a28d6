"""The error measure that a model is judged by."""

from __future__ import annotations

import numpy as np
import pytest

from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from support.models.small_networks import prime_net, random_inputs


def test_relative_l2_error() -> None:
    reference = np.array([3.0, 4.0], np.float32)
    assert relative_l2_error(reference, reference) == 0.0
    assert relative_l2_error(np.array([3.0, 4.5], np.float32), reference) == pytest.approx(0.1)
    assert relative_l2_error(np.array([3.0, np.nan], np.float32), reference) == float("inf")
    assert relative_l2_error(reference.reshape(2, 1), reference) == float("inf")
    assert relative_l2_error(np.array([1.0, 0.0]), np.zeros(2)) == float("inf")


def test_onnxruntime_runs_a_model() -> None:
    model = prime_net()
    outputs = run_onnxruntime(model, random_inputs(model))
    assert outputs is not None
    assert outputs[0].shape == (1, 31)


def test_a_model_that_onnxruntime_refuses_is_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    model = prime_net()
    model.opset_import[0].version = 999
    assert run_onnxruntime(model, random_inputs(model)) is None
    assert "cannot run this model" in caplog.text
