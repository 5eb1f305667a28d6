"""Tests that run only with --exhaustive. Another test checks the same by a sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

exhaustive = pytest.mark.exhaustive


def few(values: Iterable[Any], *kept: int) -> list[Any]:
    """Return values as parameters of a test. All except those at the positions `kept` are exhaustive. A tuple provides
    the values of several names.
    """
    every = list(values)
    assert kept, "a test of which nothing is left"
    assert len(set(kept)) == len(kept) < len(every), f"{kept} of {len(every)}: each position once, and not all"
    assert max(kept) < len(every), f"{kept} of {len(every)}"
    return [
        pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=() if place in kept else exhaustive)
        for place, v in enumerate(every)
    ]
