"""Tests that run only with --exhaustive. Another test checks the same by a sample."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

exhaustive = pytest.mark.exhaustive
# Of a test with several lists of parameters: all combinations are exhaustive but those of `in_turn_of`.
in_turn = pytest.mark.in_turn


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


def in_turn_of(combinations: Sequence[Sequence[Hashable]]) -> list[bool]:
    """Return for each combination of values whether it is in the sample: each value of the longest list once, beside
    the values of the other lists in turn.
    """
    columns = []
    for values in zip(*combinations, strict=True):
        places = {value: place for place, value in enumerate(dict.fromkeys(values))}
        columns.append([places[value] for value in values])
    longest, *others = sorted(columns, key=max, reverse=True)
    sizes = [max(column) + 1 for column in others]
    return [
        all(
            column[at] == (row + k * (row // size)) % size
            for k, (column, size) in enumerate(zip(others, sizes, strict=True))
        )
        for at, row in enumerate(longest)
    ]
