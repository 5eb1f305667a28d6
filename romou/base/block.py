"""A block of a knob space: valid configs side by side, so that formulas are evaluated for all of them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Block:
    """Valid configs of a space side by side, as places in the product of some choices of each knob.

    digits: of each knob, the numbers of these choices.   columns: the choices, each knob's along an axis of its own.
    shape: of the product, with 1 for free axes, along which every choice is as valid as the next.
    places: in this shape, sorted, where valid configs are.
    """

    digits: Sequence[np.ndarray]
    columns: Mapping[str, np.ndarray]
    shape: tuple[int, ...]
    places: np.ndarray

    @property
    def free(self) -> list[int]:
        """The free axes."""
        return [axis for axis, extent in enumerate(self.shape) if extent == 1]

    def pick(self, *tables: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """What belongs to the valid configs of arrays that broadcast over the product: shape (places, *free), with 1
        where an array does not vary.
        """
        rest = [axis for axis, extent in enumerate(self.shape) if extent > 1]
        rows = np.unravel_index(self.places, [self.shape[axis] for axis in rest]) if rest else ()
        known: dict[tuple[int, ...], np.ndarray] = {}

        def picked(number: np.ndarray) -> np.ndarray:
            number = number.reshape((1,) * (len(self.shape) - number.ndim) + number.shape).transpose(*rest, *self.free)
            varies = number.shape[: len(rest)]
            if varies not in known:
                place: Any = np.zeros(1, dtype=np.intp)
                for row, extent in zip(rows, varies, strict=True):
                    place = place * extent + row if extent > 1 else place
                known[varies] = place
            found: np.ndarray = number.reshape(-1, *number.shape[len(rest) :])[known[varies]]
            return found

        return [{name: picked(number) for name, number in table.items()} for table in tables]

    def places_in(self, shape: Sequence[int], is_kept: np.ndarray) -> np.ndarray:
        """Where valid configs are in the whole space, a place for each choice of a knob; with 1 in `shape`, for all of
        its choices.

        `is_kept`: which ones, shape (places, *free), or 1 where all choices of a free axis are.
        """
        pitches = [math.prod(shape[axis + 1 :]) if extent > 1 else 0 for axis, extent in enumerate(shape)]
        rows = np.flatnonzero(is_kept.reshape(len(is_kept), -1).any(axis=1))
        own, pitch = self.places[rows], math.prod(self.shape)
        places = np.zeros((len(rows), *(1 for _ in self.free)), dtype=np.int64)
        of_rows = places.reshape(-1)
        for axis, extent in enumerate(self.shape):
            if extent > 1:
                pitch //= extent
                of_rows += (self.digits[axis] * pitches[axis])[own // pitch % extent]
        for place, axis in enumerate(self.free):
            if pitches[axis]:
                places = places + (self.digits[axis] * pitches[axis]).reshape(
                    [-1 if i == place + 1 else 1 for i in range(places.ndim)]
                )
        found: np.ndarray = places[np.broadcast_to(is_kept[rows], places.shape)]
        return found
