"""Blocks of a knob space: valid configs as arrays, so that formulas are evaluated for all of them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class ConfigBlock:
    """Valid configs of a space, as positions in the product of some choices of each knob.

    digits: indices of these choices, one array for each knob.
    columns: the choices themselves. Each knob varies along another axis.
    shape: of the product, with 1 for free axes. Along a free axis, all choices are equally valid.
    places: sorted positions of valid configs in this shape.
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
        """Return the elements of arrays, which broadcast over the product, that belong to valid configs.

        The shape is (places, *free), with 1 for axes along which an array does not vary.
        """
        rest = [axis for axis, extent in enumerate(self.shape) if extent > 1]
        rows = np.unravel_index(self.places, [self.shape[axis] for axis in rest]) if rest else ()
        index_of: dict[tuple[int, ...], np.ndarray] = {}

        def picked(number: np.ndarray) -> np.ndarray:
            number = number.reshape((1,) * (len(self.shape) - number.ndim) + number.shape).transpose(*rest, *self.free)
            varies = number.shape[: len(rest)]
            if varies not in index_of:
                index: Any = np.zeros(1, dtype=np.intp)
                for row, extent in zip(rows, varies, strict=True):
                    index = index * extent + row if extent > 1 else index
                index_of[varies] = index
            elements: np.ndarray = number.reshape(-1, *number.shape[len(rest) :])[index_of[varies]]
            return elements

        return [{name: picked(number) for name, number in table.items()} for table in tables]

    def places_in(self, shape: Sequence[int], is_kept: np.ndarray) -> np.ndarray:
        """Return the positions of valid configs in the whole space, one index for each choice of a knob.

        shape: of the whole space, with 1 for a knob with all of its choices.
        is_kept: which configs, of shape (places, *free), or 1 for all choices of a free axis.
        """
        pitches = [math.prod(shape[axis + 1 :]) if extent > 1 else 0 for axis, extent in enumerate(shape)]
        rows = np.flatnonzero(is_kept.reshape(len(is_kept), -1).any(axis=1))
        own, pitch = self.places[rows], math.prod(self.shape)
        positions = np.zeros((len(rows), *(1 for _ in self.free)), dtype=np.int64)
        of_rows = positions.reshape(-1)
        for axis, extent in enumerate(self.shape):
            if extent > 1:
                pitch //= extent
                of_rows += (self.digits[axis] * pitches[axis])[own // pitch % extent]
        for free_index, axis in enumerate(self.free):
            if pitches[axis]:
                positions = positions + (self.digits[axis] * pitches[axis]).reshape(
                    [-1 if i == free_index + 1 else 1 for i in range(positions.ndim)]
                )
        kept: np.ndarray = positions[np.broadcast_to(is_kept[rows], positions.shape)]
        return kept
