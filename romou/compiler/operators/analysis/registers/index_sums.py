"""Indices as linear sums of variables.

They give the constant bytes of a local memory access, and the change of these bytes in an unrolled iteration.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.compiler.operators.analysis.registers.instructions import Index, Value
from romou.compiler.operators.analysis.registers.values import Values

# Fields of an expression's operands.
_OPERANDS = ("a", "b", "value", "condition", "true_value", "false_value")


@dataclass(frozen=True, eq=False)
class IndexSum:
    """A linear sum of variables and a constant. Each iteration of a loop adds its counter's stride.

    is_plain: whether the index is such a sum. Otherwise `variables` lists all variables in it.
    """

    variables: Mapping[Value, int] = field(default_factory=dict)
    strides: Mapping[int, int] = field(default_factory=dict)
    constant: int = 0
    is_plain: bool = True

    def plus(self, other: IndexSum) -> IndexSum:
        """Return the sum of both."""
        constant, is_plain = self.constant + other.constant, self.is_plain and other.is_plain
        return IndexSum(
            _added(self.variables, other.variables), _added(self.strides, other.strides), constant, is_plain
        )

    def times(self, factor: int) -> IndexSum:
        """Return the product with a constant."""
        variables = {value: each * factor for value, each in self.variables.items()}
        return IndexSum(
            variables,
            {counter: each * factor for counter, each in self.strides.items()},
            self.constant * factor,
            self.is_plain,
        )


def _added(a: Mapping[Any, int], b: Mapping[Any, int]) -> dict[Any, int]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}


class IndexSums:
    """The linear sums of a function's indices and variables.

    uses_of: returns the values that a nonlinear expression uses.
    """

    def __init__(self, values: Values, uses_of: Callable[[Any], tuple[Value, ...]]) -> None:
        self._values = values
        self._uses_of = uses_of
        self._counters: set[int] = set()
        # Variable -> its sum, if that has counters. Below, value -> its sum without counters.
        self._with_counters: dict[int, IndexSum] = {}
        self._invariants: dict[Value, IndexSum] = {}

    def add_counter(self, var: tirx.Var) -> None:
        """Register a variable as a loop's counter."""
        self._counters.add(self._values.number_of(var))

    def bind(self, var: tirx.Var, value: tirx.Expr) -> bool:
        """Register the value of a variable. Return whether it is a sum with counters.

        Unrolled iterations of such a sum differ only in the constant.
        """
        index_sum = self.of(value)
        if index_sum.strides and index_sum.is_plain:
            self._with_counters[self._values.number_of(var)] = index_sum
            return True
        if index_sum.is_plain:
            self._invariants.update(dict.fromkeys(self._values.variable(var), self._in_full(index_sum)))
        return False

    def known(self, var: tirx.Var) -> IndexSum | None:
        """Return the sum with counters that `bind` registered for a variable. None for other variables."""
        return self._with_counters.get(self._values.number_of(var))

    def of(self, index: Any) -> IndexSum:
        """Return an index as a sum."""
        match index:
            case tirx.IntImm():
                return IndexSum(constant=int(index))
            case tirx.Var():
                name = self._values.number_of(index)
                (value,) = self._values.variable(index)
                return self.known(index) or IndexSum({value: 1}, {name: 1} if name in self._counters else {})
            case tirx.Mul() if isinstance(index.b, tirx.IntImm):
                return self.of(index.a).times(int(index.b))
            case tirx.Add():
                return self.of(index.a).plus(self.of(index.b))
            case tirx.Sub():
                return self.of(index.a).plus(self.of(index.b).times(-1))
            case tirx.Ramp():
                return self.of(index.base)
        return IndexSum(dict.fromkeys(self._uses_of(index), 1), is_plain=False)

    def address(
        self, index: tirx.Expr, element_bytes: int
    ) -> tuple[frozenset[tuple[Value, int]], int, Mapping[int, int]]:
        """Return the summands of a local memory address.

        They are its variables with their bytes, its constant bytes, and the bytes that iterations of loops add.
        """
        whole = self._in_full(self.of(index)).times(element_bytes)
        # Iterations are distinguished by `strides`.
        base = frozenset((value, each) for value, each in whole.variables.items() if value[0] not in self._counters)
        return base, whole.constant, whole.strides

    def texel(self, image: tirx.Var, coordinates: Sequence[tirx.Expr]) -> tuple[Index | None, ...]:
        """Return the image and the coordinates of a texel as sums. None for a coordinate that is no linear sum."""
        sums = (self.of(coordinate) for coordinate in coordinates)
        whole = Index(frozenset({((self._values.number_of(image),), 1)}), frozenset(), 0)
        return (whole, *(self._index(index_sum) if index_sum.is_plain else None for index_sum in sums))

    def changing(self, indices: Sequence[tirx.Expr]) -> tuple[Index, ...]:
        """Return the sums of the variables in these indices that `bind` registered, which change in loops."""
        variables: dict[tirx.Var, None] = {}
        for index in indices:
            structural_walk(index, [(tirx.Var, lambda var: variables.setdefault(var))])
        sums = (self.known(var) for var in variables)
        return tuple(self._index(index_sum) for index_sum in sums if index_sum is not None)

    def operation(self, expr: tirx.Expr) -> tuple[str, tuple[Index, ...]]:
        """Return integer arithmetic as text, with "#" for each linear sum, and the sums.

        (x + 2 * i) * 29 >> 8   ->   "RShift(#, #)", (29 * x + 58 * i, 8)

        The text is empty for a linear sum, and for arithmetic with a load or a call.
        """
        text, parts = self._text(expr)
        return (text, parts) if text and text != "#" else ("", ())

    def _text(self, expr: tirx.Expr) -> tuple[str, tuple[Index, ...]]:
        index_sum = self.of(expr)
        if index_sum.is_plain:
            return "#", (self._index(index_sum),)
        operands = [self._text(getattr(expr, name)) for name in _OPERANDS if hasattr(expr, name)]
        if not operands or not all(text for text, _ in operands):
            return "", ()
        text = f"{type(expr).__name__}({', '.join(text for text, _ in operands)})"
        return text, tuple(part for _, parts in operands for part in parts)

    def _index(self, index_sum: IndexSum) -> Index:
        variables = {value: each for value, each in index_sum.variables.items() if value[0] not in self._counters}
        return Index(frozenset(variables.items()), frozenset(index_sum.strides.items()), index_sum.constant)

    def _in_full(self, index_sum: IndexSum) -> IndexSum:
        """Return a sum with its variables replaced by their sums."""
        parts = (
            self._invariants.get(value, IndexSum({value: 1})).times(factor)
            for value, factor in index_sum.variables.items()
        )
        return functools.reduce(IndexSum.plus, parts, IndexSum(constant=index_sum.constant, strides=index_sum.strides))
