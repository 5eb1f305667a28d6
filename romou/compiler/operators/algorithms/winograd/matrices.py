"""The matrices of Winograd's algorithm F(m, r), and rows of them as sums in a kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce as fold

from tvm import te, tirx

# The finite points of evaluation. A tile takes the first few. Small powers and differences keep the rounding error
# small.
_POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))


@dataclass(frozen=True, kw_only=True)
class TransformMatrices:
    """B^T, G and A^T of F(m, r), by rows."""

    data: Sequence[Sequence[Fraction]]
    weight: Sequence[Sequence[Fraction]]
    output: Sequence[Sequence[Fraction]]


@functools.cache
def transform_matrices(tile: int, window: int) -> TransformMatrices:
    """Return the matrices of the transposed Toom-Cook algorithm, which multiplies polynomials by values at points.

    Row of a point p in B^T: the product of (x - q) over all other points q. In G: 1, p, p^2 … divided by that product's
    value at p. In A^T: 1, p, p^2 …. The last row is the point at infinity and takes the highest powers.
    """
    points = [Fraction(p) for p in _POINTS[: tile + window - 2]]
    data = [(*_polynomial(points[:i] + points[i + 1 :]), Fraction(0)) for i in range(len(points))]
    scales = [math.prod((p - q for q in points if q != p), start=Fraction(1)) for p in points]
    weight = [[p**k / scale for k in range(window)] for p, scale in zip(points, scales, strict=True)]
    output = [[p**k for k in range(tile)] for p in points]
    data.append(_polynomial(points))
    weight.append([Fraction(k == window - 1) for k in range(window)])
    output.append([Fraction(k == tile - 1) for k in range(tile)])
    # At 0 and infinity every other power is missing. As in the paper, the remaining ones begin with a plus.
    for row, paired in ((0, weight), (-1, output)):
        if next(factor for factor in data[row] if factor) < 0:
            data[row] = tuple(-factor for factor in data[row])
            paired[row] = [-factor for factor in paired[row]]
    return TransformMatrices(data=data, weight=weight, output=list(zip(*output, strict=True)))


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the product of (x - root), lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        coefficients = [
            up - root * same
            for up, same in zip([Fraction(0), *coefficients], [*coefficients, Fraction(0)], strict=True)
        ]
    return tuple(coefficients)


def row_of(matrix: Sequence[Sequence[Fraction]], row: tirx.Expr, value: Callable[[int], tirx.Expr]) -> tirx.Expr:
    """Multiply row `row` of a constant matrix by a vector.

    The result is a choice among sums without zeros. Unrolling makes `row` a constant and leaves one sum.
    """
    sums = []
    for factors in matrix:
        terms = [(factor, value(index)) for index, factor in enumerate(factors) if factor]
        # Additions come before subtractions, to avoid sums that begin with a minus.
        sums.append(fold(_add, sorted(terms, key=lambda term: term[0] < 0), None))
    *others, chosen = enumerate(sums)
    chosen_sum = chosen[1]
    for index, total in reversed(others):
        chosen_sum = te.if_then_else(row == index, total, chosen_sum)
    return chosen_sum


def _add(total: tirx.Expr | None, term: tuple[Fraction, tirx.Expr]) -> tirx.Expr:
    factor, value = term
    size = value if abs(factor) == 1 else value * tirx.const(float(abs(factor)), "float32")
    if total is None:
        return size if factor > 0 else -size
    return total + size if factor > 0 else total - size
