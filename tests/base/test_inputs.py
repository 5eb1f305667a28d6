"""Inputs of a run: lists and other types are taken where no number changes but by rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from romou.base.errors import UsageError
from romou.base.inputs import checked_inputs


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.5, 2], "float32"),
        ((1, 2), "float16"),
        (np.array([1.5, 2.0]), "float32"),
        (np.array([1.5, 2.0], "float32"), "float16"),
        (np.array([1.5, 2.0], "float16"), "float32"),
        ([0, 255], "uint8"),
        (np.array([3, 4], "int32"), "int64"),
        (np.array([3, 4], "int64"), "int32"),
        ([True, False], "bool"),
    ],
)
def test_what_is_taken(value: Any, dtype: str) -> None:
    (array,) = checked_inputs({"x": value}, {"x": ((2,), dtype)})
    assert array.dtype == dtype
    assert array.tolist() == list(value)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.array([1, 2], "uint8"), "float32"),  # pixels that nobody divided by 255
        ([0, 256], "uint8"),
        ([-1, 2], "uint8"),
        (np.array([2**40, 0]), "int32"),
        ([1.5, 2.0], "int64"),
        ([1, 0], "bool"),
        ([[1.0, 2.0]], "float32"),
        (["a", "b"], "float32"),
    ],
)
def test_what_is_an_error(value: Any, dtype: str) -> None:
    with pytest.raises(UsageError, match="input 'x' is "):
        checked_inputs({"x": value}, {"x": ((2,), dtype)})
