"""Features of configs without a template: only knobs, in spaces recorded by other tools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from romou.base.space import Config, Space

# Number of random configs to search for the farthest one.
_LOOKED_AT = 200


class KnobFeatures:
    """Features of configs from knobs only, in the form of `TaskFeatures`.

    A knob of numbers counts as log2(1 + value), a knob of words as the index of the choice. Both are scaled to 0 to 1.
    """

    has_estimate = False

    def __init__(self, space: Space) -> None:
        self._numbers: dict[str, dict[object, float]] = {}
        for name, choices in space.knobs.items():
            if len(choices) < 2:
                continue
            are_numbers = all(isinstance(choice, int | float) and choice >= 0 for choice in choices)
            positions = [
                np.log2(1 + float(choice)) if are_numbers else float(position)
                for position, choice in enumerate(choices)
            ]
            self._numbers[name] = {
                choice: (at - min(positions)) / (max(positions) - min(positions))
                for choice, at in zip(choices, positions, strict=True)
            }
        self.columns = tuple(self._numbers)
        self._last: tuple[Sequence[Config], np.ndarray] = ((), np.empty((0, len(self.columns))))

    def __call__(self, configs: Sequence[Config]) -> np.ndarray:
        """Return one row for each config. Return the same array again for the longest list of configs so far."""
        if configs is self._last[0]:
            return self._last[1]
        table = [[numbers[config[name]] for name, numbers in self._numbers.items()] for config in configs]
        rows = np.array(table, dtype=np.float64).reshape(len(configs), len(self.columns))
        if len(configs) > len(self._last[0]):
            self._last = (configs, rows)
        return rows

    def expected(self, configs: Sequence[Config]) -> np.ndarray:
        """Return zeros: there is no estimate."""
        return np.zeros(len(configs))


def spread(rows: np.ndarray, chosen: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """Return the indices of `count` more rows, far apart. If none is chosen yet, the first is the middle of all rows.

    Each further row is the random candidate farthest from the chosen rows. So a first look at a space begins in its
    middle and reaches each end of each knob.
    """
    picked: list[int] = []
    while len(picked) < min(count, len(rows) - len(chosen)):
        taken = [*chosen, *picked]
        if not taken:
            away = np.abs(rows - np.median(rows, axis=0)).sum(axis=1)
            picked.append(int(rng.choice(np.flatnonzero(away == away.min()))))
            continue
        free = np.setdiff1d(np.arange(len(rows)), taken)
        candidates = rng.permutation(free)[:_LOOKED_AT]
        nearest = np.min([np.abs(rows[candidates] - rows[index]).sum(axis=1) for index in taken], axis=0)
        picked.append(int(candidates[np.argmax(nearest)]))
    return picked
