"""Maxima and minima of floats that keep NaN, as in onnxruntime's Relu, Clip, Max, Min, ReduceMax and ReduceMin.

OpenCL's max and min leave the result with NaN undefined, and CUDA's return the other operand. A comparison with NaN is
false on every device:

    max(x, 0)      ->      x < 0 ? 0 : x
    max(x, y)      ->      y == y ? (x < y ? y : x) : y

An operand that is not a name or a constant gets a name, so that the text does not grow with the depth of a chain.
Statements that `primitives.ignore_nan` marked stay as they are. These are softmax, which returns NaN by another way,
and the window of MaxPool. For MaxPool, onnxruntime's answer depends on the position of the NaN.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm_ffi.structural import structural_mutate

from romou.compiler.tir.primitives import IGNORE_NAN
from romou.compiler.tir.traversal import function_pass
from romou.devices.backends.dialect import dialect_of


@function_pass
def keep_nan(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write maxima and minima of a device function as comparisons, after the last simplification.

    The marks are removed.
    """

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        return stmt.body if stmt.attr_key == IGNORE_NAN else mutator.default_mutate(stmt)

    dialect = dialect_of(func)

    def extreme(expr: tirx.Max | tirx.Min, mutator: Any) -> tirx.Expr:
        new = mutator.default_mutate(expr)
        if "float" not in str(new.ty):
            return new
        kept = dialect.keep_nan(new)
        return _keeping(new) if kept is None else kept

    return func.with_body(structural_mutate(func.body, [(tirx.AttrStmt, marked), ((tirx.Max, tirx.Min), extreme)]))


def _keeping(expr: tirx.Max | tirx.Min) -> tirx.Expr:
    # A constant becomes the second operand, so that one comparison is enough.
    a, b = (expr.b, expr.a) if _is_number(expr.a) else (expr.a, expr.b)
    names: list[tuple[tirx.Var, tirx.Expr]] = []

    def named(operand: tirx.Expr) -> tirx.Expr:
        if isinstance(operand, tirx.Var) or _is_number(operand):
            return operand
        names.append((tirx.Var("operand", operand.ty), operand))
        return names[-1][0]

    a, b = named(a), named(b)
    kept = tirx.Select(tirx.LT(a, b) if isinstance(expr, tirx.Max) else tirx.GT(a, b), b, a)
    if not _is_number(b):
        kept = tirx.Select(tirx.EQ(b, b), kept, b)
    for name, value in reversed(names):
        kept = tirx.Let(name, value, kept)
    return kept


def _is_number(expr: tirx.Expr) -> bool:
    """Return whether an expression is a constant other than NaN, or a vector of it."""
    scalar = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return isinstance(scalar, tirx.FloatImm) and not math.isnan(scalar.value)
