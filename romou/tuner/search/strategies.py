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
# First temperature, in units of the score log(best time / time). A config of half the speed is accepted every other
# time.
_HOTTEST = 1.0


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The input of an exploration function.

    every: returns all configs of the space
    score: the model's scores of configs. Higher is faster
    fastest: measured configs, the fastest first
    taken: keys of the configs that were proposed or measured
    """

    space: Space
    every: Callable[[], Sequence[Config]]
    score: Callable[[Sequence[Config]], np.ndarray]
    fastest: Sequence[Config]
    taken: set[str]
    rng: np.random.Generator


def evolve(look: Outlook) -> list[Config]:
    """Mutate the fastest configs and random ones for a few generations.

    Return the configs with the best scores, the best one first.
    """
    population = [*_fastest(look, _PARENTS), *_fresh(look, _FRESH)]
    if not population:
        return []  # all configs are being measured
    seen = {c.key: c for c in population}
    for _ in range(_GENERATIONS):
        parents = [population[int(index)] for index in look.rng.integers(len(population), size=_CHILDREN)]
        for child in look.space.mutated(parents, look.rng):
            seen.setdefault(child.key, child)
        population = _ranked(look, list(seen.values()))[: _PARENTS + _FRESH]
    return population


def anneal(look: Outlook) -> list[Config]:
    """Run chains of simulated annealing, and return all configs on the way, the best score first.

    A chain accepts a worse config with a probability that falls with the difference and with time.
    """
    fastest = _fastest(look, _CHAINS // 2)
    chains = [*fastest, *_fresh(look, _CHAINS - len(fastest))]
    if not chains:
        return []
    scores = look.score(chains)
    seen = {c.key: c for c in chains}
    for step in range(_STEPS):
        nexts = look.space.mutated(chains, look.rng)
        seen.update((c.key, c) for c in nexts)
        next_scores = look.score(nexts)
        temperature = _HOTTEST * (1 - step / _STEPS)
        is_taken = np.log(look.rng.random(len(chains))) < (next_scores - scores) / temperature
        chains = [new if taken else old for new, old, taken in zip(nexts, chains, is_taken, strict=True)]
        scores = np.where(is_taken, next_scores, scores)
    return _ranked(look, list(seen.values()))


def rank(look: Outlook) -> list[Config]:
    """Score all configs and return the best untried ones, the best first. For spaces of some ten thousand configs."""
    every = look.every()
    order = np.argsort(-look.score(every), kind="stable")
    untried = (every[int(index)] for index in order if every[int(index)].key not in look.taken)
    return list(itertools.islice(untried, _PARENTS))


def _fastest(look: Outlook, count: int) -> list[Config]:
    """Return the fastest measured configs, the same number from each subspace.

    Some subspaces have a thousand times more configs.
    """
    spaces = subspaces(look.space)
    return [
        c
        for part in spaces
        for c in itertools.islice((c for c in look.fastest if c.items() >= part.items()), -(-count // len(spaces)))
    ]


def _fresh(look: Outlook, count: int) -> list[Config]:
    """Return random untried configs, the same number from each subspace."""
    spaces = subspaces(look.space)
    return [
        c
        for part in spaces
        for c in look.space.sample(look.rng, -(-count // len(spaces)), exclude=look.taken, where=part)
    ]


def subspaces(space: Space) -> list[dict[str, Choice]]:
    """Return the choice that selects each subspace. A single empty choice if the space is not divided."""
    return (
        [{space.divided_by: choice} for choice in space.knobs[space.divided_by]]
        if space.divided_by is not None
        else [{}]
    )


def _ranked(look: Outlook, configs: list[Config]) -> list[Config]:
    return [configs[int(i)] for i in np.argsort(-look.score(configs), kind="stable")] if configs else []


Explore: TypeAlias = Callable[[Outlook], list[Config]]
# Name -> exploration function guided by the model. None: without a model, at random or in order.
EXPLORERS: Mapping[str, Explore | None] = {
    "evolution": evolve,
    "annealing": anneal,
    "ranking": rank,
    "random": None,
    "exhaustive": None,
}
