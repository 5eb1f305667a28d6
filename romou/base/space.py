"""Knob spaces: the choices of a schedule template, as a countable product.

A template declares its knobs as the Romou paper does (Listing 4, `cfg.define_knob`). Such a space can be counted,
sampled, pruned before anything is lowered, recorded and carried to another device.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from romou.base.config_block import ConfigBlock
from romou.base.errors import UsageError
from romou.base.knob import Choice, Knob, nearest
from romou.base.limits import Limits

# Knob -> its value in one config, or an array of its values in many. Constraints get these.
Columns = Mapping[str, Any]
# Choices of a knob, or whether one of the declared choices is among them.
Choices = Sequence[Choice] | Callable[[Any], bool]

# Below this size a constrained space is enumerated when random draws fail to find new configs.
_ENUMERATE_LIMIT = 200_000
# Random draws for each wanted config. The least number of draws, for spaces with one valid config in thousands. The
# first and the largest batch.
_DRAWS, _LEAST_DRAWS, _FIRST, _AT_ONCE = 50, 1 << 18, 64, 1 << 12
# Valid configs among which the one nearest to an invalid config is looked for.
_NEAR_DRAWS = 128
# Draws for each mutated config, and the share of them that change two knobs.
_MUTATIONS, _TWO_KNOBS = 100, 0.3
# Combinations of choices in a block: a few megabytes.
_BLOCK = 1 << 22


_as_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


# (knob, value) of configs that were recorded before 0.2.0 -> the value's name since. Drop it in 0.3.0.
_RENAMED = {("unroll", "turn"): "iteration"}


def renamed(config: Mapping[str, Choice]) -> Mapping[str, Choice]:
    """Return the config with today's names of its choices."""
    changes = {knob: new for (knob, old), new in _RENAMED.items() if config.get(knob) == old}
    return {**config, **changes} if changes else config


class Config(Mapping[str, Choice]):
    """A frozen, hashable config: one choice for every knob of a space.

    `key` is canonical JSON text (sorted names), the identity of a config in records.
    """

    __slots__ = ("_values", "key")

    def __init__(self, values: Mapping[str, Choice]):
        self._values = dict(renamed(values))
        self.key = _as_json(self._values)

    def __getitem__(self, name: str) -> Any:
        # Any: each template expects numbers for certain knobs.
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
        """Return the config with some knobs changed."""
        return Config({**self._values, **changes})


class Space:
    """A product of knobs without the configs that a constraint rules out."""

    def __init__(self) -> None:
        # Name -> choices, and name -> declared knob
        self.knobs: dict[str, tuple[Choice, ...]] = {}
        self.declared: dict[str, Knob] = {}
        # The knob whose choices are spaces, and these spaces (`one_of`)
        self.divided_by: str | None = None
        self._spaces: Mapping[Any, Space] = {}
        self._constraints: list[Callable[[Columns], Mapping[str, Any]]] = []

    @classmethod
    def of(cls, knobs: Iterable[Knob], limits: Limits, choices: Mapping[str, Choices]) -> Space:
        """Return the space of declared knobs on a device with these limits, without constraints.

        choices: knob -> its choices for the operator, or which of the declared ones it has. Other knobs have all of
        them. A knob with no choices is left out.
        """
        space = cls()
        for knob in knobs:
            given = choices.get(knob.name, knob.choices)
            allowed = list(filter(given, knob.choices)) if callable(given) else given
            # A knob with a single choice leaves nothing open.
            own = [choice for choice in allowed if (knob.name, str(choice)) not in limits.without] or allowed
            if own and knob.exists_on(limits):
                space.define_knob(knob, own)
        return space

    def define_knob(self, knob: Knob | str, choices: Sequence[Choice]) -> None:
        """Declare a knob and its choices (paper, Listing 4). Choices keep their order and must be distinct."""
        name = knob if isinstance(knob, str) else knob.name
        if name in self.knobs:
            raise UsageError(f"knob {name!r} is declared twice; give the second one another name")
        choices = [renamed({name: choice})[name] for choice in choices]
        if not choices or len(set(choices)) != len(choices):
            raise UsageError(f"knob {name!r}: choices must be distinct and not empty, got {list(choices)!r}")
        self.knobs[name] = tuple(choices)
        self.declared[name] = (
            Knob(name=name, choices=tuple(choices), default=choices[0], help="") if isinstance(knob, str) else knob
        )

    def narrowed(self, choices: Mapping[str, Sequence[Choice]]) -> Space | None:
        """Return a copy with only the given choices of knobs. None if a knob keeps no choice.

        choices: knob -> choices. Other knobs keep all choices.
        """
        assert self.divided_by is None, "of several spaces, narrow each"
        part = Space()
        part.declared, part._constraints = dict(self.declared), list(self._constraints)
        part.knobs = {
            name: tuple(choice for choice in every if choice in choices.get(name, every))
            for name, every in self.knobs.items()
        }
        return part if all(part.knobs.values()) else None

    def nearest_valid(self, config: Config) -> Config:
        """Return `config` if it is valid, else the config with most of its choices among a few valid ones."""
        if self.is_valid(config):
            return config
        drawn = self.sample(np.random.default_rng(0), _NEAR_DRAWS)
        return max(drawn, key=lambda c: sum(c[name] == config[name] for name in config), default=config)

    def default(self, **wanted: Choice) -> Config:
        """Return the config of each knob's declared default, or of the values in `wanted`.

        If a wanted value is no choice, the next lower choice is taken. Constraints are ignored.
        """
        defaults = {name: knob.default for name, knob in self.declared.items()} | wanted
        return Config({name: nearest(choices, defaults[name]) for name, choices in self.knobs.items()})

    def add_constraint(self, conditions: Callable[[Columns], Mapping[str, Any]]) -> None:
        """Rule out every config that does not satisfy all of `conditions`, which are named by their reasons.

        The function gets one config or arrays of knob values, so it combines conditions with & and |, not with `and`
        and `or`. No condition is broadcast over the knobs of the others.
        """
        self._constraints.append(conditions)

    def ruled_out(self) -> dict[str, float]:
        """Return reason -> share of all combinations of choices that a constraint rules out by itself."""
        lacking = self.size - sum(space.size for space in self._spaces.values())
        counts: dict[str, float] = {f"choices that its {self.divided_by} has": lacking} if self._spaces else {}
        for space, digits in self._parts():
            columns = self._mesh(digits)
            for of in {id(s): s for s in (self, space)}.values():
                for conditions in of._constraints:
                    for reason, mask in conditions(columns).items():
                        share = 1 - float(np.mean(mask))
                        counts[reason] = counts.get(reason, 0.0) + share * math.prod(map(len, digits))
        return {reason: count / self.size for reason, count in counts.items()}

    @classmethod
    def one_of(cls, knob: Knob | str, spaces: Mapping[str, Space]) -> Space:
        """Return one space for several spaces over the same knobs. Its first knob says which of them a config is in.

        Configs of the first space keep their indices (`index_of`) if it has all choices of the others.
        """
        whole = cls()
        whole.define_knob(knob, list(spaces))
        whole.divided_by, whole._spaces = next(iter(whole.knobs)), spaces
        first = next(iter(spaces.values()))
        for name in first.knobs:
            choices = list(dict.fromkeys(choice for space in spaces.values() for choice in space.knobs[name]))
            whole.define_knob(first.declared[name], choices)
        return whole

    def _conditions(self, config: Columns) -> Iterator[Any]:
        """Return the values of the constraints for one config or for columns of many."""
        for conditions in self._constraints:
            yield from conditions(config).values()

    def _admits(self, columns: Columns, all_choices: Mapping[str, Sequence[Choice]]) -> Any:
        """Return which configs made of the choices in `all_choices` are in this space."""
        kept: Any = True
        for name, choices in self.knobs.items():
            if len(choices) < len(all_choices[name]):
                values = columns.get(name, self.declared[name].absent)
                kept = kept & functools.reduce(operator.or_, (values == choice for choice in choices))
        kept = functools.reduce(operator.and_, self._conditions(columns), kept)
        is_in = [
            (columns[self.divided_by] == key) & space._admits(columns, all_choices)
            for key, space in self._spaces.items()
            if self.divided_by
        ]
        return functools.reduce(operator.or_, is_in) & kept if is_in else kept

    def _parts(self) -> Iterator[tuple[Space, list[np.ndarray]]]:
        """Yield the spaces that this one is divided into, or itself, with positions of their choices of each knob."""
        for key, space in self._spaces.items() or [(None, self)]:
            yield (
                space,
                [
                    np.asarray([choices.index(choice) for choice in space.knobs.get(name, (key,))])
                    for name, choices in self.knobs.items()
                ],
            )

    def _mesh(self, digits: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return some of each knob's choices, each knob along another axis.

        A formula over three knobs then costs the product of these three, however large the space is.
        """
        axes = range(len(self.knobs))
        values = (np.asarray(choices)[which] for choices, which in zip(self.knobs.values(), digits, strict=True))
        return {
            name: v.reshape([-1 if i == axis else 1 for i in axes])
            for axis, (name, v) in enumerate(zip(self.knobs, values, strict=True))
        }

    def blocks(self, most: int = _BLOCK) -> Iterator[ConfigBlock]:
        """Yield all valid configs in blocks of at most `most` combinations.

        They come in the order of their indices, except for knobs after a free one. Each constraint is evaluated over
        the knobs that it reads, and a config is valid if all constraints hold.
        """
        for space, digits in self._parts():
            columns = self._mesh(digits)
            masks = [
                np.asarray(mask)
                for of in {id(s): s for s in (self, space)}.values()
                for mask in of._conditions(columns)
            ]
            masks = [mask.reshape((1,) * (len(digits) - mask.ndim) + mask.shape) for mask in masks]
            yield from self._cut(digits, masks, most)

    def _cut(self, digits: list[np.ndarray], masks: list[np.ndarray], most: int) -> Iterator[ConfigBlock]:
        """Return the blocks among choices of each knob.

        masks: values of the constraints, with 1 along axes that a constraint does not read.
        """
        # Choices that a constraint rules out whatever the other knobs are.
        for axis in range(len(digits)):
            alone = [mask for mask in masks if mask.size == mask.shape[axis]]
            kept = functools.reduce(operator.and_, (mask.reshape(-1) for mask in alone), np.ones(1, dtype=bool))
            if len(kept) == 1:
                continue
            digits, masks = list(digits), [mask for mask in masks if mask.size != mask.shape[axis] or mask.size == 1]
            digits[axis] = digits[axis][kept]
            masks = [np.compress(kept, mask, axis) if mask.shape[axis] > 1 else mask for mask in masks]
        if not all(mask.any() for mask in masks) or not all(map(len, digits)):
            return
        masks = [mask for mask in masks if mask.size > 1]
        shape = np.broadcast_shapes((1,) * len(digits), *(mask.shape for mask in masks))
        axes = [axis for axis, extent in enumerate(shape) if extent > 1]
        if math.prod(shape) > most:
            # Choice by choice of the first knob.
            for choice in range(shape[axes[0]]):
                inside = [mask.take([choice], axes[0]) if mask.shape[axes[0]] > 1 else mask for mask in masks]
                yield from self._cut(
                    [*digits[: axes[0]], digits[axes[0]][[choice]], *digits[axes[0] + 1 :]], inside, most
                )
            return
        valid = functools.reduce(operator.and_, sorted(masks, key=np.size), np.ones([1] * len(digits), dtype=bool))
        places = np.flatnonzero(valid)
        if len(places):
            yield ConfigBlock(digits=digits, columns=self._mesh(digits), shape=shape, places=places)

    @property
    def size(self) -> int:
        """Number of configs before constraints (1 for a space without knobs)."""
        return math.prod(len(c) for c in self.knobs.values())

    def at(self, index: int) -> Config:
        """Return the config at `index` in mixed-radix order, the last knob running fastest. Constraints are ignored."""
        values: dict[str, Choice] = {}
        rest = index
        for name, choices in reversed(self.knobs.items()):
            rest, digit = divmod(rest, len(choices))
            values[name] = choices[digit]
        if rest:
            raise UsageError(f"config index {index} is outside the space of {self.size}")
        return Config({name: values[name] for name in self.knobs})

    def index_of(self, config: Mapping[str, Choice]) -> int:
        """Return the inverse of `at`. Raises UsageError if a knob is unknown or missing, or a value is no choice.

        A missing knob that configs may lack has the value `Knob.absent`.
        """
        config = renamed(config)
        for name in config:
            if name not in self.knobs:
                near = difflib.get_close_matches(name, self.knobs, n=1)
                raise UsageError(
                    f"unknown knob {name!r}; knobs: {', '.join(self.knobs) or 'none'}"
                    + (f"; did you mean {near[0]!r}?" if near else "")
                )
        index = 0
        for name, choices in self.knobs.items():
            value = config.get(name, self.declared[name].absent)
            if value is None:
                raise UsageError(f"config lacks knob {name!r}")
            # bool == int in Python: `True` must not pass for the choice 1.
            digit = next((i for i, c in enumerate(choices) if c == value and type(c) is type(value)), None)
            if digit is None:
                raise UsageError(f"knob {name!r} has no choice {value!r}; choices: {list(choices)!r}")
            index = index * len(choices) + digit
        return index

    def knows(self, config: Mapping[str, Choice]) -> bool:
        """Return whether the config has a choice of every knob and nothing else, valid or not.

        Records may be of other targets or versions.
        """
        try:
            self.index_of(config)
        except UsageError:
            return False
        return True

    def completed(self, config: Mapping[str, Choice]) -> Config:
        """Return the config with the values of knobs that it lacks (`Knob.absent`), and without unknown knobs."""
        values = {name: config.get(name, self.declared[name].absent) for name in self.knobs}
        return Config({name: value for name, value in values.items() if value is not None})

    def is_valid(self, config: Config) -> bool:
        """Return whether every constraint admits `config`."""
        if not all(map(bool, self._conditions(config))):
            return False
        return (
            self.divided_by is None
            or not self._spaces
            or bool(self._spaces[self.completed(config)[self.divided_by]]._admits(config, self.knobs))
        )

    def admits(self, columns: Columns) -> Any:
        """Return which configs, one element of the columns each, pass all constraints. A knob may have one value."""
        return self._admits(columns, self.knobs)

    def __iter__(self) -> Iterator[Config]:
        blocks = (np.arange(start, min(start + _AT_ONCE, self.size)) for start in range(0, self.size, _AT_ONCE))
        return (self.at(int(index)) for indices in blocks for index in indices[self._is_valid_in(self, indices)])

    def sample(
        self,
        rng: np.random.Generator,
        count: int,
        exclude: Container[str] = (),
        where: Mapping[str, Choice] | None = None,
    ) -> list[Config]:
        """Return up to `count` distinct valid configs with the choices in `where`, drawn by `rng`.

        Keys in `exclude` are skipped.
        """
        configs: dict[str, Config] = {}
        box = self._box(where or {})
        if box.size <= 4 * count:
            order = rng.permutation(box.size)
            candidates: Iterator[Config] = (box.at(int(index)) for index in order[self._is_valid_in(box, order)])
        else:
            candidates = self._random(box, rng, max(_DRAWS * count, _LEAST_DRAWS))
        for config in candidates if count > 0 else ():
            if config.key not in exclude:
                configs.setdefault(config.key, config)
            if len(configs) == count:
                break
        if len(configs) < count and 4 * count < box.size <= _ENUMERATE_LIMIT:
            every = (box.at(int(index)) for index in np.flatnonzero(self._is_valid_in(box, np.arange(box.size))))
            left = [c for c in every if c.key not in configs and c.key not in exclude]
            for i in rng.permutation(len(left))[: count - len(configs)]:
                configs[left[int(i)].key] = left[int(i)]
        return list(configs.values())

    def _random(self, box: Space, rng: np.random.Generator, most: int) -> Iterator[Config]:
        """Yield the valid ones among random configs of `box`.

        They are judged in batches, and `rng` is consumed exactly as if they were drawn one by one, one ahead.
        """
        at_once = _FIRST
        while most > 0:
            before, size = rng.bit_generator.state, min(at_once, most)
            drawn = rng.integers(box.size, size=size)
            after = rng.bit_generator.state
            for draw in np.flatnonzero(self._is_valid_in(box, drawn)).tolist():
                rng.bit_generator.state = before
                rng.integers(box.size, size=min(draw + 2, most))
                yield box.at(int(drawn[draw]))
            rng.bit_generator.state = after
            most, at_once = most - size, min(2 * at_once, _AT_ONCE)

    def _is_valid_in(self, box: Space, indices: np.ndarray) -> np.ndarray:
        """Return which of the indices of `box` are of valid configs."""
        columns, rest = {}, indices
        for name in reversed(box.knobs):
            rest, digits = np.divmod(rest, len(box.knobs[name]))
            columns[name] = np.asarray(box.knobs[name])[digits]
        return np.broadcast_to(self.admits(columns), len(indices))

    def _box(self, where: Mapping[str, Choice]) -> Space:
        """Return the product of knobs that configs with these choices are in, without constraints."""
        box, inside = Space(), self
        if self.divided_by is not None and self.divided_by in where:
            inside = self._spaces[where[self.divided_by]]
        box.knobs = {name: (where[name],) if name in where else inside.knobs[name] for name in self.knobs}
        return box

    def mutated(self, parents: Sequence[Config], rng: np.random.Generator) -> list[Config]:
        """Return a valid config for each parent that differs in one or two knobs, or the parent if none is found."""
        digits, extents = self._digits_of(parents), np.asarray([len(choices) for choices in self.knobs.values()])
        axes = np.flatnonzero(extents > 1)
        children, missing = digits.copy(), np.arange(len(parents) if len(axes) else 0)
        for _ in range(_MUTATIONS):
            if not len(missing):
                break
            drawn, rows = digits[missing], np.arange(len(missing))
            first, second = axes[rng.integers(len(axes), size=(2, len(missing)))]
            for axis in (first, np.where(rng.random(len(missing)) < _TWO_KNOBS, second, first)):
                drawn[rows, axis] = rng.integers(extents[axis])
            is_found = (drawn != digits[missing]).any(axis=1) & self._are_valid(drawn)
            children[missing[is_found]] = drawn[is_found]
            missing = missing[~is_found]
        every = list(self.knobs.items())
        return [
            parent.replace(**{every[axis][0]: every[axis][1][child[axis]] for axis in np.flatnonzero(child != own)})
            for parent, child, own in zip(parents, children, digits, strict=True)
        ]

    def _digits_of(self, configs: Sequence[Config]) -> np.ndarray:
        """Return the index of each config's choice of each knob, (configs, knobs)."""
        absent = {name: knob.absent for name, knob in self.declared.items()}
        rows = [[c.index(config.get(name, absent[name])) for name, c in self.knobs.items()] for config in configs]
        return np.asarray(rows, dtype=np.int64).reshape(len(configs), len(self.knobs))

    def _are_valid(self, digits: np.ndarray) -> np.ndarray:
        """Return which configs are valid, given as `_digits_of` does."""
        columns = {
            name: np.asarray(choices)[digits[:, axis]] for axis, (name, choices) in enumerate(self.knobs.items())
        }
        return np.broadcast_to(self.admits(columns), len(digits))
