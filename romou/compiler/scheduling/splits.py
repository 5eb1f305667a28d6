"""Axes split into pieces of equal size, such as vectors, and the elements that fill no piece.

13 elements in pieces of four:

    PADDED          0:4  4:8  8:12  12:16     the last piece ends beyond the axis, and stores the elements inside
    PARTIAL         0:4  4:8  8:12  12:13     the last piece has fewer elements
    OVERLAPPED      0:4  4:8  8:12   9:13     the last piece ends with the axis, and stores what no other piece does
    SINGLE          0:4  4:8  8:12  12        each element after the last whole piece is a piece
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from romou.compiler.tir.expressions import count_of, is_free

PADDED, PARTIAL, OVERLAPPED, SINGLE = "padded", "partial", "overlapped", "single"


@dataclass(frozen=True)
class Split:
    """A split of an axis of `extent` elements into pieces of `size`.

    extent: perhaps an expression of sizes at run time.
    tail: see above.
    """

    extent: Any
    size: int = 1
    tail: str = PADDED

    @property
    def whole(self) -> Any:
        """The number of whole pieces before the tail."""
        return self.extent // self.size

    @property
    def left(self) -> int:
        """The number of elements after the whole pieces, 0 if the extent is free."""
        return 0 if is_free(self.extent) else self.extent % self.size

    @property
    def count(self) -> Any:
        """The number of pieces."""
        return self.whole + self.left if self.tail == SINGLE else count_of(self.extent, self.size)

    @property
    def stored_by_last(self) -> tuple[int, int]:
        """First and last + 1 of the elements of a piece that also the last one stores, if the tail is no element."""
        return (-self.extent % self.size, self.size) if self.tail == OVERLAPPED else (0, self.left or self.size)

    def elements(self, pieces: np.ndarray) -> np.ndarray:
        """Return the elements of each piece, along a new last axis. Those of shorter pieces are repeated."""
        begin = pieces[..., None] * self.size
        if self.tail == OVERLAPPED:
            begin = np.minimum(begin, self.extent - self.size)
        every = begin + np.arange(self.size)
        if self.tail == PARTIAL:
            every = np.minimum(every, self.extent - 1)
        is_single = (self.tail == SINGLE) & (pieces[..., None] >= self.whole)
        return np.where(is_single, pieces[..., None] + self.whole * (self.size - 1), every)

    def stored(self, pieces: np.ndarray) -> np.ndarray:
        """Return the number of elements that each piece stores."""
        is_single = (self.tail == SINGLE) & (pieces >= self.whole)
        return np.where(is_single, 1, np.minimum(self.extent - pieces * self.size, self.size))
