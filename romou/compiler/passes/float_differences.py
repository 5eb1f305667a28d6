"""Differences of floats that TVM's simplifier would take for differences of numbers without rounding, NaN or infinity.

    (x + c) - c      ->      (x + c) + -1 * c           TVM: x
    x - (x + y)      ->      x + -1 * (x + y)           TVM: 0 - y
    f(x) - f(x)      ->      f(x) + -1 * f(x)           TVM: 0

With c of 1.5 * 2**23, the first one rounds x to an integer.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_equal, structural_map


@tirx.transform.prim_func_pass(opt_level=0)
def keep_differences(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Write differences with a common term as sums, which TVM leaves alone. It runs before the first simplification."""
    return func.with_body(structural_map(func.body, (tirx.Sub, _as_sum)))


def _as_sum(difference: tirx.Sub) -> tirx.Expr:
    a, b = difference.a, difference.b
    if "float" not in str(difference.ty) or not any(structural_equal(x, y) for x in _terms(a) for y in _terms(b)):
        return difference
    return tirx.Add(a, tirx.Mul(tirx.const(-1.0, str(difference.ty)), b))


def _terms(expr: tirx.Expr) -> Iterator[tirx.Expr]:
    """Yield the expression and, if it is a sum, its operands."""
    yield expr
    if isinstance(expr, tirx.Add):
        yield from (expr.a, expr.b)
