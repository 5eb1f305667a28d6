"""Splits of axes into pieces: every element of an axis is stored, and stored once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from romou.compiler.scheduling.splits import OVERLAPPED, PADDED, PARTIAL, SINGLE, Split


@pytest.mark.parametrize("tail", [PADDED, PARTIAL, OVERLAPPED, SINGLE])
def test_pieces_cover_an_axis_and_store_each_element_once(tail: str) -> None:
    for extent, size in itertools.product(range(1, 30), range(1, 6)):
        if tail == OVERLAPPED and extent < size:
            continue
        split = Split(extent, size, tail)
        pieces = np.arange(split.count)
        elements, stored = split.elements(pieces), split.stored(pieces)
        assert stored.min() > 0
        assert stored.sum() == extent
        assert {*elements[elements < extent].tolist()} == {*range(extent)}
        assert (elements.max() >= extent) == (tail == PADDED and split.left > 0)
        if tail != SINGLE:
            low, high = split.stored_by_last
            assert stored[-1] == high - low
