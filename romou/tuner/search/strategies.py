"""Ways to explore a space by a model's scores. To add one: write its function and put it in EXPLORERS."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from romou.base.knob import Choice
from romou.base.space import Config, Space

_PARENTS = 16
_FRESH = 128
_CHILDREN = 128
_GENERATIONS = 4
_CHAINS = 64
_STEPS = 32
# Of the score, log(best time / time): at first a config half as fast is taken every other time.
_HOTTEST = 1.0


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What an explorer looks at.

    every: gives all configs of the space.   score: of configs, higher is faster; a model's.
    fastest: measured configs, the fastest first.   taken: keys of those that were proposed or measured.
    """

    space: Space
    every: Callable[[], Sequence[Config]]
    score: Callable[[Sequence[Config]], np.ndarray]
    fastest: Sequence[Config]
    taken: set[str]
    rng: np.random.Generator


def evolve(look: Outlook) -> list[Config]:
    """The fastest configs and some random ones are mutated for a few generations; those that the model likes best, the
    best one first.
    """
    population = [*_fastest(look, _PARENTS), *_fresh(look, _FRESH)]
    if not population:
        return []  # all configs are under way, and none has a time yet
    seen = {c.key: c for c in population}
    for _ in range(_GENERATIONS):
        for _ in range(_CHILDREN):
            child = look.space.mutate(population[int(look.rng.integers(len(population)))], look.rng)
            seen.setdefault(child.key, child)
        population = _ranked(look, list(seen.values()))[: _PARENTS + _FRESH]
    return population


def anneal(look: Outlook) -> list[Config]:
    """Simulated annealing: chains of mutations that take a worse config the less often, the worse it is and the longer
    they go; the best of all.
    """
    fastest = _fastest(look, _CHAINS // 2)
    chains = [*fastest, *_fresh(look, _CHAINS - len(fastest))]
    if not chains:
        return []
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


def rank(look: Outlook) -> list[Config]:
    """Rank all configs and return those that the model likes best, the best one first: for spaces of some ten thousand."""  # noqa: E501
    every, found = look.every(), []
    scores = look.score(every)
    for place in np.argsort(-scores, kind="stable"):
        if every[int(place)].key not in look.taken:
            found.append(every[int(place)])
        if len(found) == _PARENTS:
            break
    return found


def _fastest(look: Outlook, count: int) -> list[Config]:
    """The fastest measured configs, of each space that the whole one is made of as many: some have a thousand times the
    configs of others.
    """
    spaces = subspaces(look.space)
    return [
        c
        for part in spaces
        for c in itertools.islice((c for c in look.fastest if c.items() >= part.items()), -(-count // len(spaces)))
    ]


def _fresh(look: Outlook, count: int) -> list[Config]:
    """Random configs, of each space that the whole one is made of as many."""
    spaces = subspaces(look.space)
    return [
        c
        for part in spaces
        for c in look.space.sample(look.rng, -(-count // len(spaces)), exclude=look.taken, where=part)
    ]


def subspaces(space: Space) -> list[dict[str, Choice]]:
    """Return the choices that tell apart the spaces that the whole one is made of; nothing where it is one."""
    return (
        [{space.divided_by: choice} for choice in space.knobs[space.divided_by]]
        if space.divided_by is not None
        else [{}]
    )


def _ranked(look: Outlook, configs: list[Config]) -> list[Config]:
    return [configs[int(i)] for i in np.argsort(-look.score(configs), kind="stable")] if configs else []


Explore: TypeAlias = Callable[[Outlook], list[Config]]
# Name -> function that the model guides; None: no model, configs at random or one after another.
EXPLORERS: Mapping[str, Explore | None] = {
    "evolution": evolve,
    "annealing": anneal,
    "ranking": rank,
    "random": None,
    "exhaustive": None,
}
