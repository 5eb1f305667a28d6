"""The matrices of Winograd's algorithm F(m, r), and rows of them as sums in a kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce as fold

from tvm import te, tirx

# Where polynomials are evaluated, beside infinity: as many as a tile needs, whose powers and differences stay near 1,
# and so the error small.
_POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """B^T, G and A^T of F(m, r), by rows."""

    data: Sequence[Sequence[Fraction]]
    weight: Sequence[Sequence[Fraction]]
    output: Sequence[Sequence[Fraction]]


@functools.cache
def matrices(tile: int, window: int) -> Matrices:
    """Matrices of the algorithm of Toom and Cook, transposed: polynomials are multiplied by their values at points.

    The row of a point p in B^T is the product of (x - q) over the other points q, in G 1, p, p^2 ... over its value at
    p, in A^T 1, p, p^2 ...; infinity, the last row, takes the highest powers.
    """
    points = [Fraction(p) for p in _POINTS[: tile + window - 2]]
    data = [(*_polynomial(points[:i] + points[i + 1 :]), Fraction(0)) for i in range(len(points))]
    scales = [math.prod((p - q for q in points if q != p), start=Fraction(1)) for p in points]
    weight = [[p**k / scale for k in range(window)] for p, scale in zip(points, scales, strict=True)]
    output = [[p**k for k in range(tile)] for p in points]
    data.append(_polynomial(points))
    weight.append([Fraction(k == window - 1) for k in range(window)])
    output.append([Fraction(k == tile - 1) for k in range(tile)])
    # At 0 and infinity every other power is missing: as in the paper, what is left begins with a plus.
    for place, other in ((0, weight), (-1, output)):
        if next(factor for factor in data[place] if factor) < 0:
            data[place] = tuple(-factor for factor in data[place])
            other[place] = [-factor for factor in other[place]]
    return Matrices(data=data, weight=weight, output=list(zip(*output, strict=True)))


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of the product of (x - root), the lowest power first."""
    found = [Fraction(1)]
    for root in roots:
        found = [up - root * same for up, same in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return tuple(found)


def row_of(matrix: Sequence[Sequence[Fraction]], row: tirx.Expr, value: Callable[[int], tirx.Expr]) -> tirx.Expr:
    """Row `row` of a constant matrix times a vector: a choice among sums without zeros, which unrolling makes."""
    sums = []
    for factors in matrix:
        terms = [(factor, value(place)) for place, factor in enumerate(factors) if factor]
        # What is added stands before what is subtracted: few sums begin with a minus.
        sums.append(fold(_add, sorted(terms, key=lambda term: term[0] < 0), None))
    *others, chosen = enumerate(sums)
    found = chosen[1]
    for place, total in reversed(others):
        found = te.if_then_else(row == place, total, found)
    return found


def _add(total: tirx.Expr | None, term: tuple[Fraction, tirx.Expr]) -> tirx.Expr:
    factor, value = term
    size = value if abs(factor) == 1 else value * tirx.const(float(abs(factor)), "float32")
    if total is None:
        return size if factor > 0 else -size
    return total + size if factor > 0 else total - size
