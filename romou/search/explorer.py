"""Chooses the configs of one task to measure next."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from romou.search.cost_model import CostModel, Features, Lessons
from romou.search.options import TuningOptions
from romou.space import Config, Space

_PARENTS = 16
_FRESH = 256
_CHILDREN = 128
_GENERATIONS = 4


class Explorer:
    """The default config first, then random ones, then evolution under the cost model's eyes. Never the same config twice.

    Where something is expected of configs before any is measured, the model has a say from the start and no trial goes to random ones first.

    Evolution: the best measured configs and some random ones are mutated for a few generations, the model keeps the most promising,
    and the best of those that were not tried yet are proposed, mixed with a share of random ones. A space without untried configs
    proposes nothing. Where other tasks teach, the model has a say from the second config on.

    Parameters
    ----------
    features
        What the model sees of a config; those of the space where None.
    expected
        A score of a config before anything is measured (see `CostModel`); nothing is known where None.
    lessons
        What other tasks have taught so far.
    """

    def __init__(
        self,
        space: Space,
        default: Config,
        options: TuningOptions,
        rng: np.random.Generator,
        *,
        features: Features | None = None,
        expected: Features | None = None,
        lessons: Callable[[], Lessons] = Lessons,
    ) -> None:
        self._space = space
        self._default = default
        self._options = options
        self._rng = rng
        self._model = CostModel(features or space.features, options.seed, expected=expected)
        self._knows_before = expected is not None
        self._lessons = lessons
        self._trained_on = 0
        self._proposed: set[str] = set()

    def propose(self, count: int, measured: Mapping[str, tuple[Config, float | None]]) -> list[Config]:
        """Up to `count` configs, none of which was proposed or measured before.

        Parameters
        ----------
        measured
            Config key -> (config, seconds or None where it failed).
        """
        taken = self._proposed | measured.keys()
        chosen: dict[str, Config] = {}
        if self._default.key not in taken:
            chosen[self._default.key] = self._default
        guided = self._guided(count - len(chosen), measured, taken | chosen.keys())
        chosen.update((c.key, c) for c in guided)
        missing = count - len(chosen)
        if missing > 0:
            chosen.update((c.key, c) for c in self._space.sample(self._rng, missing, exclude=taken | chosen.keys()))
        self._proposed |= chosen.keys()
        return list(chosen.values())

    def _guided(self, count: int, measured: Mapping[str, tuple[Config, float | None]], taken: set[str]) -> list[Config]:
        if count <= 0 or not (measured or self._knows_before):
            return []
        lessons = self._lessons()
        if not self._knows_before and lessons.joined() is None and len(measured) < self._options.random_trials:
            return []
        if len(measured) != self._trained_on:
            self._model.fit([c for c, _ in measured.values()], [t for _, t in measured.values()], lessons)
            self._trained_on = len(measured)
        if not (self._knows_before or self._model.is_trained):
            return []
        count -= int(self._rng.binomial(count, min(1.0, self._options.random_share)))
        timed = sorted((item for item in measured.values() if item[1] is not None), key=lambda item: item[1] or 0.0)
        population = [c for c, _ in timed[:_PARENTS]] + self._space.sample(self._rng, _FRESH, exclude=taken)
        seen = {c.key: c for c in population}
        for _ in range(_GENERATIONS):
            for _ in range(_CHILDREN):
                child = self._space.mutate(population[int(self._rng.integers(len(population)))], self._rng)
                seen.setdefault(child.key, child)
            everyone = list(seen.values())
            scores = self._model.predict(everyone)
            population = [everyone[int(i)] for i in np.argsort(-scores, kind="stable")[: _PARENTS + _FRESH]]
        fresh = [c for c in population if c.key not in taken]
        return fresh[:count]
