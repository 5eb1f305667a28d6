"""Rules of integers that follow from sizes of dimensions, each the only rule of its family that fits.

    64, 63, 62, 61, 32 at the sizes 64, 63, 62, 61, 32      ->      size
    16, 15, 15, 15, 8                                       ->      size // 4
    33, 32, 32, 31, 17                                      ->      (size + 2) // 2

Two rules that fit all known sizes may differ at another one. Then that size is needed to decide (`NeedsPointError`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

# Sizes of all free dimensions
Point: TypeAlias = "tuple[int, ...]"
# An integer at each point
Values: TypeAlias = "tuple[int, ...]"

# Divisors of sizes: strides, their products, and shares as n // 3
_DIVISORS = (*range(1, 17), 32, 64, 128, 256)
# Factors and divisors of shares as 3 n // 4, and divisors of what is left of a share
_FACTORS = (2, 3, 4)
_STRIDES = (1, 2, 3, 4, 6, 8)
# What an integer may be more than a product: a last position, a position behind the end.
_MORE = (0, -1, 1)
# Combinations of sizes that rules are compared at, if there are more than these
_GRID = 4096
_CANDIDATES = 64


class NotOneKernelError(Exception):
    """Kernels for different sizes are not one kernel."""


class NeedsPointError(Exception):
    """Several rules fit an integer, and a further point decides.

    point: the sizes at which the rules differ.
    """

    def __init__(self, point: Point) -> None:
        super().__init__(f"several rules fit, which differ at the sizes {list(point)}")
        self.point = point


@dataclass(frozen=True)
class Term:
    """floor((factor * size + offset) / divisor) of the dimension at a place."""

    place: int
    factor: int = 1
    offset: int = 0
    divisor: int = 1

    def __call__(self, sizes: Sequence[Any]) -> Any:
        """Return the number, or its expression."""
        return (sizes[self.place] * self.factor + self.offset) // self.divisor


@dataclass(frozen=True)
class Rule:
    """The sum of products, each of a number and of terms, and more."""

    products: tuple[tuple[int, tuple[Term, ...]], ...]
    more: int = 0

    @classmethod
    def of(cls, *terms: Term, times: int = 1, more: int = 0) -> Rule:
        """Return the rule of one product."""
        return cls(((times, terms),), more)

    def __call__(self, sizes: Sequence[Any]) -> Any:
        """Return the number, or its expression."""
        first, *others = (math.prod((term(sizes) for term in terms), start=times) for times, terms in self.products)
        return sum(others, start=first) + self.more

    @property
    def is_product(self) -> bool:
        """True if it is one product, and no more."""
        return len(self.products) == 1 and not self.more


@dataclass(kw_only=True)
class SizeRules:
    """The rules of integers at points.

    points: the first has the largest sizes. Others differ from it in one dimension, or in all.
    ranges: the sizes of each dimension that rules have to hold for.
    lacking: points at which nothing can be known, because the model takes no such sizes.
    grid: sizes of each dimension that rules are compared at: all combinations if these are few.
    """

    points: Sequence[Point]
    ranges: Sequence[range]
    lacking: frozenset[Point] = frozenset()
    grid: list[np.ndarray] = field(init=False)
    _found: dict[Values, Rule] = field(default_factory=dict)
    _fitting_at: dict[tuple[Values, int], list[Rule]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        if math.prod(map(len, self.ranges)) <= _GRID:
            grid = [np.array(each) for each in zip(*itertools.product(*self.ranges), strict=True)]
        else:
            grid = [rng.choice(np.array(each), _GRID) for each in self.ranges]
            # All sizes of one dimension at the largest ones of the others
            for place, sizes in enumerate(self.ranges):
                for other, column in enumerate(grid):
                    line = np.array(sizes) if other == place else np.full(len(sizes), self.points[0][other])
                    grid[other] = np.concatenate([column, line])
        self.grid = grid
        for place, _ in enumerate(self.ranges):
            self._found[tuple(point[place] for point in self.points)] = Rule.of(Term(place))

    @property
    def most(self) -> Point:
        """The largest sizes."""
        return self.points[0]

    def of(self, values: Values) -> Rule:
        """Return the rule of an integer.

        Raises
        ------
        NotOneKernelError
            No rule fits.
        NeedsPointError
            Several rules fit, and differ at a point.
        """
        if values not in self._found:
            rules = self._fitting(values)
            if not rules:
                raise NotOneKernelError(f"an integer is {values} at the sizes {[*self.points]}")
            self._check_only(rules)
            self._check_remainders(rules[0])
            self._found[values] = rules[0]
        return self._found[values]

    def _fitting(self, values: Values, depth: int = 0) -> list[Rule]:
        """Return rules that fit and differ from one another. depth: of the product that the integer is a factor of."""
        if (values, depth) not in self._fitting_at:
            fitting: dict[bytes, Rule] = {}
            for rule in itertools.takewhile(lambda _: len(fitting) <= _CANDIDATES, self._candidates(values, depth)):
                if all(rule(point) == value for point, value in zip(self.points, values, strict=True)):
                    fitting.setdefault(np.asarray(rule(self.grid)).tobytes(), rule)
            self._fitting_at[values, depth] = [*fitting.values()]
        return self._fitting_at[values, depth]

    def _check_only(self, rules: Sequence[Rule]) -> None:
        """Raise NeedsPointError if rules differ somewhere, at the point where most of them do."""
        table = np.array([rule(self.grid) for rule in rules])
        counts = np.array([len(set(column)) for column in table.T.tolist()])
        known = {*self.points, *self.lacking}
        grid = np.array(self.grid)
        # Axes of one element are often left out of a kernel, so the best point is large, on a line.
        is_small, changed = (grid < 2).any(axis=0), (grid != np.array(self.most)[:, None]).sum(axis=0)
        for at in np.lexsort((-grid.sum(axis=0), -counts, changed, is_small)):
            point = tuple(int(size) for size in grid[:, at])
            if counts[at] > 1 and point not in known:
                raise NeedsPointError(point)

    def _check_remainders(self, rule: Rule) -> None:
        """Raise NeedsPointError unless a share as 3 n // 4, or a sum of shares of one size, was seen at sizes of all
        remainders: a sum of shares as n // 2 + n // 3 is like one at most of them.
        """
        terms = [term for _, terms in rule.products for term in terms]
        is_sum = len(rule.products) > 1 and len({term.place for term in terms}) < len(terms)
        for term in terms:
            if (abs(term.factor) == 1 and not is_sum) or term.divisor == 1:
                continue
            seen = {point[term.place] % term.divisor for point in (*self.points, *self.lacking)}
            for size in reversed(self.ranges[term.place]):
                if size % term.divisor not in seen:
                    raise NeedsPointError((*self.most[: term.place], size, *self.most[term.place + 1 :]))

    def _candidates(self, values: Values, depth: int) -> Iterator[Rule]:
        at = dict(zip(self.points, values, strict=True))
        lines = {
            place: {
                point[place]: value
                for point, value in at.items()
                if (*point[:place], *point[place + 1 :]) == (*self.most[:place], *self.most[place + 1 :])
            }
            for place, _ in enumerate(self.most)
        }
        varying = {place: line for place, line in lines.items() if len(set(line.values())) > 1}
        if len(varying) == 1:
            ((place, line),) = varying.items()
            yield from _fits(place, line)
            yield from self._products(values, {}, depth)
            yield from _remains(place, line)
        elif varying:
            yield from self._products(values, varying, depth)
            yield from self._sums(varying)

    def _products(self, values: Values, lines: Mapping[int, Mapping[int, int]], depth: int) -> Iterator[Rule]:
        """Yield products of another integer and of one that has a rule, or of a term of the first dimension in `lines`.

        They have three factors at most.
        """
        for more in _MORE if depth < 2 else ():
            left, factors = [value - more for value in values], [*self._found.values()]
            for place, line in itertools.islice(lines.items(), 1):
                common = math.gcd(*(value - more for value in line.values())) or 1
                factors += _fits(place, {size: (value - more) // common for size, value in line.items()})
            for factor in filter(lambda rule: rule.is_product, factors):
                known = [factor(point) for point in self.points]
                if 0 in known or len(set(known)) == 1 or any(v % k for v, k in zip(left, known, strict=True)):
                    continue
                ((times, terms),) = factor.products
                rest = tuple(value // k for value, k in zip(left, known, strict=True))
                if len(set(rest)) == 1:
                    yield Rule.of(*terms, times=times * rest[0], more=more)
                for other in filter(lambda rule: rule.is_product, self._fitting(rest, depth + 1)):
                    ((other_times, others),) = other.products
                    yield Rule.of(*terms, *others, times=times * other_times, more=more)

    def _sums(self, lines: Mapping[int, Mapping[int, int]]) -> Iterator[Rule]:
        """Yield sums of rules of single dimensions."""
        whole = next(line[self.most[place]] for place, line in lines.items())
        each = [list(_fits(place, line)) for place, line in lines.items()]
        for rules in itertools.islice(itertools.product(*each), _CANDIDATES):
            total = Rule(tuple(product for rule in rules for product in rule.products))
            yield replace(total, more=whole - total(self.most))


def _fits(place: int, line: Mapping[int, int]) -> Iterator[Rule]:
    """Yield rules of one term that fit the values at sizes of a dimension."""
    sizes, values = np.array(list(line)), np.array(list(line.values()))
    step = int(np.gcd.reduce(values - values[0]))
    for times in (each for each in range(step, 0, -1) if step % each == 0):
        counts, more = values // times, int(values[0] % times)
        for factor, offset, divisor in floors(sizes, counts):
            yield Rule.of(Term(place, factor, offset, divisor), times=times, more=more)


def _remains(place: int, line: Mapping[int, int]) -> Iterator[Rule]:
    """Yield what remains of a share without a share of it, as n // 2 - n // 6: often, but not always, (n + 1) // 3."""
    sizes, values = np.array(list(line)), np.array(list(line.values()))
    low, high = values.argmin(), values.argmax()
    for divisor, share in itertools.product(_STRIDES, _FACTORS):
        for offset in range(-divisor, divisor):
            first, second = (Term(place, 1, offset, each) for each in (divisor, divisor * share))
            counts = (sizes + offset) // divisor - (sizes + offset) // (divisor * share)
            rise = int(counts[high] - counts[low])
            if rise and (values[high] - values[low]) % rise == 0:
                times = int(values[high] - values[low]) // rise
                yield Rule(((times, (first,)), (-times, (second,))), int(values[low] - times * counts[low]))


def floors(
    sizes: np.ndarray, counts: np.ndarray, divisors: Iterable[int] = _DIVISORS
) -> Iterator[tuple[int, int, int]]:
    """Yield factor, offset and divisor of floors that fit: with the least and the largest offset of each."""
    low, high = int(np.argmin(sizes)), int(np.argmax(sizes))
    run, rise = int(sizes[high] - sizes[low]), int(counts[high] - counts[low])
    for divisor in divisors:
        least, most = -(-(divisor * rise - divisor + 1) // run), (divisor * rise + divisor - 1) // run
        for factor in range(least, most + 1):
            is_known = factor == 1 or divisor == 1 or (factor in _FACTORS and divisor in _FACTORS)
            if factor == 0 or not is_known or math.gcd(factor, divisor) > 1:
                continue
            spare = divisor * counts - factor * sizes
            first, last = int(spare.max()), int(spare.min()) + divisor - 1
            if first <= last:
                yield factor, first, divisor
            if first < last:
                yield factor, last, divisor
