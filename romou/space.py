"""Knob spaces: what a schedule template leaves open, as a countable product of choices.

A template declares its knobs as the Romou paper does (Listing 4, `cfg.define_knob`); the space can then be
counted, sampled, pruned before anything is lowered, recorded and carried to another device.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from romou.errors import UsageError

Choice = int | str | bool
# Knob -> its value in one config, or an array of its values in many: what a constraint judges.
Columns = Mapping[str, Any]

# Below this size a constrained space is enumerated when random draws fail to find new configs.
_ENUMERATE_LIMIT = 200_000


class Config(Mapping[str, Choice]):
    """One choice for every knob of a space; frozen and hashable.

    `key` is canonical JSON text (sorted names), the identity of a config in records.
    """

    __slots__ = ("_values", "key")

    def __init__(self, values: Mapping[str, Choice]):
        self._values = dict(values)
        self.key = json.dumps(self._values, sort_keys=True, separators=(",", ":"))

    def __getitem__(self, name: str) -> Any:
        # Any: a template knows which of its knobs are numbers.
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.key == other.key

    def __repr__(self) -> str:
        return "Config(" + ", ".join(f"{k}={v}" for k, v in self._values.items()) + ")"

    def replace(self, **changes: Choice) -> Config:
        """The same config with some knobs changed."""
        return Config({**self._values, **changes})


class Space:
    """A product of knobs, less the configs that a constraint rules out."""

    def __init__(self) -> None:
        self.knobs: dict[str, tuple[Choice, ...]] = {}
        # The knob whose choices are spaces of their own, and these (`one_of`).
        self.divided_by: str | None = None
        self._spaces: Mapping[Any, Space] = {}
        self._constraints: list[Callable[[Columns], Any]] = []

    def define_knob(self, name: str, choices: Sequence[Choice]) -> None:
        """Declare a knob and its choices (paper, Listing 4). Choices keep their order and must be distinct."""
        if name in self.knobs:
            raise UsageError(f"knob {name!r} is declared twice; give the second one another name")
        if not choices or len(set(choices)) != len(choices):
            raise UsageError(f"knob {name!r}: choices must be distinct and not empty, got {list(choices)!r}")
        self.knobs[name] = tuple(choices)

    def add_constraint(self, is_allowed: Callable[[Columns], Any]) -> None:
        """Rule out every config for which `is_allowed` is false.

        It is given one config or arrays of knob values, and so joins its conditions with & and |, not with `and` and `or`.
        """
        self._constraints.append(is_allowed)

    @classmethod
    def one_of(cls, knob: str, spaces: Mapping[str, Space]) -> Space:
        """Several spaces over the same knobs as one, whose first knob says which of them a config is in.

        Configs of the first one keep their numbers (`index_of`) where it has all choices of the others.
        """
        whole = cls()
        whole.define_knob(knob, list(spaces))
        whole.divided_by, whole._spaces = knob, spaces
        names = list(next(iter(spaces.values())).knobs)
        for name in names:
            whole.define_knob(name, list(dict.fromkeys(choice for space in spaces.values() for choice in space.knobs[name])))

        def is_allowed(config: Columns, key: str, space: Space) -> Any:
            is_elsewhere = config[knob] != key
            # Of a single config, only the space that it is in is asked.
            return is_elsewhere if is_elsewhere is True else is_elsewhere | space._admits(config, whole.knobs)

        for key, space in spaces.items():
            whole.add_constraint(functools.partial(is_allowed, key=key, space=space))
        return whole

    def _admits(self, config: Columns, known: Mapping[str, Sequence[Choice]]) -> Any:
        """Whether a config made of the choices in `known` is one of this space."""
        kept: Any = True
        for name, choices in self.knobs.items():
            if len(choices) < len(known[name]):
                kept = kept & functools.reduce(operator.or_, (config[name] == choice for choice in choices))
        for is_allowed in self._constraints:
            kept = kept & is_allowed(config)
        return kept

    def mesh(self) -> dict[str, np.ndarray]:
        """Each knob's choices along an axis of its own: what is computed from them broadcasts to all configs, shape (choices, choices, ...).

        A formula over three knobs so costs the product of those three alone, however large the space.
        """
        axes = len(self.knobs)
        return {name: np.asarray(choices).reshape([-1 if i == axis else 1 for i in range(axes)]) for axis, (name, choices) in enumerate(self.knobs.items())}

    def valid_mask(self) -> np.ndarray:
        """Which configs every constraint admits, over `mesh`; axes of knobs that no constraint looks at have length 1."""
        mesh = self.mesh()
        mask = np.ones([1] * len(self.knobs), dtype=bool)
        for is_allowed in self._constraints:
            mask = mask & is_allowed(mesh)
        return mask

    def count(self, mask: np.ndarray) -> int:
        """How many configs a mask over `mesh` stands for."""
        shape = [len(choices) for choices in self.knobs.values()]
        missing = [extent for extent, have in zip(shape, mask.shape, strict=True) if have != extent]
        return int(np.count_nonzero(mask)) * math.prod(missing)

    @property
    def size(self) -> int:
        """Number of configs before constraints (1 for a space without knobs)."""
        return math.prod(len(c) for c in self.knobs.values())

    def at(self, index: int) -> Config:
        """The config at `index` in mixed-radix order, the last knob running fastest. Constraints are ignored."""
        if not 0 <= index < self.size:
            raise UsageError(f"config index {index} is outside the space of {self.size}")
        values: dict[str, Choice] = {}
        for name in reversed(self.knobs):
            index, digit = divmod(index, len(self.knobs[name]))
            values[name] = self.knobs[name][digit]
        return Config({name: values[name] for name in self.knobs})

    def index_of(self, config: Mapping[str, Choice]) -> int:
        """Inverse of `at`. Raises UsageError for an unknown or missing knob, or a value that is no choice."""
        for name in config:
            if name not in self.knobs:
                near = difflib.get_close_matches(name, self.knobs, n=1)
                raise UsageError(f"unknown knob {name!r}; knobs: {', '.join(self.knobs) or 'none'}" + (f"; did you mean {near[0]!r}?" if near else ""))
        index = 0
        for name, choices in self.knobs.items():
            if name not in config:
                raise UsageError(f"config lacks knob {name!r}")
            # bool == int in Python: `True` must not pass for the choice 1.
            digit = next((i for i, c in enumerate(choices) if c == config[name] and type(c) is type(config[name])), None)
            if digit is None:
                raise UsageError(f"knob {name!r} has no choice {config[name]!r}; choices: {list(choices)!r}")
            index = index * len(choices) + digit
        return index

    def knows(self, config: Mapping[str, Choice]) -> bool:
        """Whether the config has a choice of every knob and nothing else, be it valid or not: records may be of other targets or versions."""
        try:
            self.index_of(config)
        except UsageError:
            return False
        return True

    def is_valid(self, config: Config) -> bool:
        """Whether every constraint admits the config."""
        return all(bool(is_allowed(config)) for is_allowed in self._constraints)

    def __iter__(self) -> Iterator[Config]:
        return (c for c in map(self.at, range(self.size)) if self.is_valid(c))

    def sample(self, rng: np.random.Generator, count: int, exclude: Container[str] = (), where: Mapping[str, Choice] | None = None) -> list[Config]:
        """Up to `count` distinct valid configs whose keys are not in `exclude`, with the choices in `where`; fewer when no more are found."""
        found: dict[str, Config] = {}
        box = self._box(where or {})
        if box.size <= 4 * count:
            order = rng.permutation(box.size)
            candidates: Iterator[Config] = map(box.at, (int(i) for i in order))
        else:
            candidates = (box.at(int(rng.integers(box.size))) for _ in range(50 * count + 200))
        for config in candidates:
            if len(found) == count:
                break
            if config.key not in found and config.key not in exclude and self.is_valid(config):
                found[config.key] = config
        if len(found) < count and 4 * count < box.size <= _ENUMERATE_LIMIT:
            left = [c for c in box if c.key not in found and c.key not in exclude and self.is_valid(c)]
            for i in rng.permutation(len(left))[: count - len(found)]:
                found[left[int(i)].key] = left[int(i)]
        return list(found.values())

    def _box(self, where: Mapping[str, Choice]) -> Space:
        """The product of knobs that configs with these choices are in, without constraints."""
        box, inside = Space(), self
        if self.divided_by is not None and self.divided_by in where:
            inside = self._spaces[where[self.divided_by]]
        box.knobs = {name: (where[name],) if name in where else inside.knobs[name] for name in self.knobs}
        return box

    def mutate(self, config: Config, rng: np.random.Generator) -> Config:
        """A valid config that differs from `config` in one or two knobs; `config` itself when none is found."""
        names = [n for n, c in self.knobs.items() if len(c) > 1]
        for _ in range(100 if names else 0):
            changed = dict(config)
            for name in rng.choice(names, size=min(len(names), 1 + int(rng.random() < 0.3)), replace=False):
                changed[name] = self.knobs[name][int(rng.integers(len(self.knobs[name])))]
            candidate = Config(changed)
            if candidate != config and self.is_valid(candidate):
                return candidate
        return config

    def features(self, configs: Sequence[Config]) -> np.ndarray:
        """Numbers for the cost model, one row a config: log2(1 + v) of ints, 0/1 of bools, one-hot of strings."""
        rows = []
        for config in configs:
            row: list[float] = []
            for name, choices in self.knobs.items():
                value = config[name]
                if isinstance(value, bool):
                    row.append(float(value))
                elif isinstance(value, int):
                    row.append(math.log2(1 + value) if value >= 0 else -math.log2(1 - value))
                else:
                    row.extend(float(value == c) for c in choices)
            rows.append(row)
        return np.asarray(rows, dtype=np.float32)
