"""Floats that TVM's simplifier would take for numbers without rounding, NaN or infinity.

    (x + c) - c      ->      (x + c) + -1 * c           TVM: x
    x - (x + y)      ->      x + -1 * (x + y)           TVM: 0 - y
    f(x) - f(x)      ->      f(x) + -1 * f(x)           TVM: 0
    f(x) == f(x)     ->      not isnan(f(x))            TVM: true, as of <= and >=; of != it makes false
    not x <= y       ->      y < x or isnan(x) or isnan(y)          TVM: y < x

With c of 1.5 * 2**23, the first one rounds x to an integer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import tirx
from tvm_ffi.structural import structural_equal, structural_map

from romou.compiler.tir.traversal import function_pass

_OPPOSITES: dict[type, Any] = {tirx.LT: tirx.GE, tirx.LE: tirx.GT, tirx.GT: tirx.LE, tirx.GE: tirx.LT}


@function_pass
def keep_differences(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write differences with a common term as sums, and comparisons of a number with itself as tests for NaN, which TVM
    leaves alone. It runs before the first simplification.
    """
    rewrites = [
        (tirx.Sub, _as_sum),
        (tirx.Not, _unordered),
        ((tirx.EQ, tirx.LE, tirx.GE, tirx.NE), _as_test),
    ]
    return func.with_body(structural_map(func.body, rewrites))


def _as_sum(difference: tirx.Sub) -> tirx.Expr:
    a, b = difference.a, difference.b
    if "float" not in str(difference.ty) or not any(structural_equal(x, y) for x in _terms(a) for y in _terms(b)):
        return difference
    return tirx.Add(a, tirx.Mul(tirx.const(-1.0, str(difference.ty)), b))


def _unordered(negation: tirx.Not) -> tirx.Expr:
    order: Any = negation.a
    if type(order) not in _OPPOSITES or "float" not in str(order.a.ty):
        return negation
    opposite = _OPPOSITES[type(order)](order.a, order.b)
    return tirx.Or(opposite, tirx.Or(tirx.isnan(order.a), tirx.isnan(order.b)))


def _as_test(comparison: tirx.EQ | tirx.LE | tirx.GE | tirx.NE) -> tirx.Expr:
    number = comparison.a
    if "float" not in str(number.ty) or not structural_equal(number, comparison.b):
        return comparison
    return tirx.isnan(number) if isinstance(comparison, tirx.NE) else tirx.Not(tirx.isnan(number))


def _terms(expr: tirx.Expr) -> Iterator[tirx.Expr]:
    """Yield the expression and, if it is a sum, its operands."""
    yield expr
    if isinstance(expr, tirx.Add):
        yield from (expr.a, expr.b)
