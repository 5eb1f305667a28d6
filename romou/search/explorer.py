"""Chooses the configs of one task to measure next. To add a way to explore: write its function and put it in EXPLORERS."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from romou.core.knob import Choice
from romou.core.space import Config, Space
from romou.search.cost_model import CostModel, Features, TransferData
from romou.search.options import TuningOptions

_PARENTS = 16
_FRESH = 128
_CHILDREN = 128
_GENERATIONS = 4
_CHAINS = 64
_STEPS = 32
# Of the score, log(best time / time): at first a config half as fast is taken every other time.
_HOTTEST = 1.0
# Knobs that only spell the same arithmetic: drivers often make the same code of all spellings. One whose kernel took so many times longer than
# the best in another spelling can wait.
_SPELLINGS, _HOPELESS = ("autobroadcast", "multiply_add"), 1.05


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What an explorer looks at.

    score: of configs, higher is faster; a model's.
    fastest: measured configs, the fastest first.   taken: keys of those that were proposed or measured.
    """

    space: Space
    score: Callable[[Sequence[Config]], np.ndarray]
    fastest: Sequence[Config]
    taken: set[str]
    rng: np.random.Generator


def evolve(look: Outlook) -> list[Config]:
    """The fastest configs and some random ones are mutated for a few generations; those that the model likes best, the best one first."""
    population = [*_fastest(look, _PARENTS), *_fresh(look, _FRESH)]
    seen = {c.key: c for c in population}
    for _ in range(_GENERATIONS):
        for _ in range(_CHILDREN):
            child = look.space.mutate(population[int(look.rng.integers(len(population)))], look.rng)
            seen.setdefault(child.key, child)
        population = _ranked(look, list(seen.values()))[: _PARENTS + _FRESH]
    return population


def anneal(look: Outlook) -> list[Config]:
    """Simulated annealing: chains of mutations that take a worse config the less often, the worse it is and the longer they go; the best of all."""
    fastest = _fastest(look, _CHAINS // 2)
    chains = [*fastest, *_fresh(look, _CHAINS - len(fastest))]
    scores = look.score(chains)
    seen = {c.key: c for c in chains}
    for step in range(_STEPS):
        nexts = [look.space.mutate(config, look.rng) for config in chains]
        seen.update((c.key, c) for c in nexts)
        found = look.score(nexts)
        temperature = _HOTTEST * (1 - step / _STEPS)
        is_taken = np.log(look.rng.random(len(chains))) < (found - scores) / temperature
        chains = [new if taken else old for new, old, taken in zip(nexts, chains, is_taken, strict=True)]
        scores = np.where(is_taken, found, scores)
    return _ranked(look, list(seen.values()))


def _fastest(look: Outlook, count: int) -> list[Config]:
    """The fastest measured configs, of each space that the whole one is made of as many: some have a thousand times the configs of others."""
    parts = _parts(look.space)
    return [c for part in parts for c in itertools.islice((c for c in look.fastest if c.items() >= part.items()), -(-count // len(parts)))]


def _fresh(look: Outlook, count: int) -> list[Config]:
    """Random configs, of each space that the whole one is made of as many."""
    parts = _parts(look.space)
    return [c for part in parts for c in look.space.sample(look.rng, -(-count // len(parts)), exclude=look.taken, where=part)]


def _parts(space: Space) -> list[dict[str, Choice]]:
    """What tells the spaces apart that the whole one is made of; nothing where it is one."""
    return [{space.divided_by: choice} for choice in space.knobs[space.divided_by]] if space.divided_by is not None else [{}]


def _ranked(look: Outlook, configs: list[Config]) -> list[Config]:
    return [configs[int(i)] for i in np.argsort(-look.score(configs), kind="stable")] if configs else []


Explore: TypeAlias = Callable[[Outlook], list[Config]]
# Name -> function that the model guides; None: no model, configs at random or one after another.
EXPLORERS: Mapping[str, Explore | None] = {"evolution": evolve, "annealing": anneal, "random": None, "exhaustive": None}


class Explorer:
    """The default config first, then the first ones that it was given, then what `TuningOptions.explorer` says. Never the same config twice.

    A guided explorer begins with random configs, until the cost model has a say; from then on it is asked for what the model likes best, mixed
    with a share of random ones. Where something is expected of configs before any is measured, or other tasks teach, the model has a say from
    the start, and none are drawn at random while it tells what it knows little of. A space without untried configs proposes nothing.

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
        lessons: Callable[[], TransferData] = TransferData,
    ) -> None:
        self._space = space
        self._first = [default]
        self._options = options
        self._rng = rng
        self._model = CostModel(features or space.features, options.seed, expected=expected, divided_by=space.divided_by)
        self._knows_before = expected is not None
        self._lessons = lessons
        self._trained_on: int | None = None
        self._proposed: dict[str, Config] = {}
        self._in_order: Iterator[Config] = iter(space)

    def start_with(self, configs: Sequence[Config]) -> None:
        """Propose these right after the default config; what the space does not admit is passed over."""
        self._first += [config for config in configs if self._space.is_valid(config)]

    def propose(self, count: int, measured: Mapping[str, tuple[Config, float | None]]) -> list[Config]:
        """Up to `count` configs, none of which was proposed or measured before.

        Parameters
        ----------
        measured
            Config key -> (config, seconds or None where it failed).
        """
        taken = self._proposed.keys() | measured.keys()
        chosen: dict[str, Config] = {}

        def add(configs: Iterator[Config]) -> None:
            new = (c for c in configs if c.key not in taken and c.key not in chosen)
            chosen.update((c.key, c) for c in itertools.islice(new, count - len(chosen)))

        add(iter(self._first))
        if self._options.explorer == "exhaustive":
            # One at a time: the order is gone through once.
            while len(chosen) < count and (config := next(self._in_order, None)) is not None:
                add(iter([config]))
        else:
            add(iter(self._guided(count - len(chosen), measured, taken | chosen.keys())))
            parts = _parts(self._space)
            # Where one space is exhausted, of all of them.
            for where in (parts[int(self._rng.integers(len(parts)))], None):
                missing = count - len(chosen)
                add(iter(self._space.sample(self._rng, missing, exclude=taken | chosen.keys(), where=where) if missing else ()))
        self._proposed |= chosen
        return list(chosen.values())

    def _guided(self, count: int, measured: Mapping[str, tuple[Config, float | None]], taken: set[str]) -> list[Config]:
        explore = EXPLORERS[self._options.explorer]
        if count <= 0 or explore is None:
            return []
        if not self._knows_before and len(measured) < self._options.random_trials and not len(self._lessons()):
            return []
        if len(measured) != self._trained_on:
            self._model.fit([c for c, _ in measured.values()], [t for _, t in measured.values()], self._lessons())
            self._trained_on = len(measured)
        if not (self._knows_before or self._model.is_trained):
            return []
        if not self._model.knows_doubt:
            count -= int(self._rng.binomial(count, min(1.0, self._options.random_share)))
        timed = sorted((item for item in measured.values() if item[1] is not None), key=lambda item: item[1] or 0.0)
        look = Outlook(space=self._space, score=self._model.predict, fastest=[c for c, _ in timed], taken=taken, rng=self._rng)
        return self._hopeful([c for c in explore(look) if c.key not in taken], measured)[:count]

    def _hopeful(self, ranked: list[Config], measured: Mapping[str, tuple[Config, float | None]]) -> list[Config]:
        """In the same order, but last those of which another spelling is under way, comes before or turned out to be slow."""
        best_s = min((t for _, t in measured.values() if t is not None), default=math.inf)
        tried = {_kernel(c) for key, c in self._proposed.items() if key not in measured}
        tried |= {_kernel(c) for c, t in measured.values() if t is None or t > _HOPELESS * best_s}
        first: list[Config] = []
        last: list[Config] = []
        for config in ranked:
            (last if _kernel(config) in tried else first).append(config)
            tried.add(_kernel(config))
        return first + last


def _kernel(config: Config) -> tuple[Choice, ...]:
    """What a config is but for the spelling of its arithmetic."""
    return tuple(value for name, value in config.items() if name not in _SPELLINGS)
