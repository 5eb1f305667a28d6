"""Properties of expressions of a Relax graph, and of conditions in TIR."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import tvm
from tvm import relax, te, tirx

Shape: TypeAlias = tuple[int, ...]
FLOATS = ("float32", "float16")


def shape_of(expr: relax.Expr) -> Shape | None:
    """Return the static shape of a tensor expression, else None."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    dims = list(ty.shape.values) if isinstance(ty.shape, relax.ShapeExpr) else []
    return tuple(int(d) for d in dims) if all(isinstance(d, tirx.IntImm | int) for d in dims) else None


def static_shape(expr: relax.Expr) -> Shape:
    """Return the shape of an expression that is known to be static."""
    shape = shape_of(expr)
    assert shape is not None
    return shape


def dtype_of(expr: relax.Expr) -> str:
    """Return the type of a tensor expression's elements."""
    return str(expr.ty.dtype)


def bytes_of(shape: Iterable[Any], dtype: str) -> int:
    """Return the bytes of a dense tensor. `shape` may hold TIR's integers."""
    return math.prod(int(extent) for extent in shape) * int(tvm.DataType(dtype).itemsize)


def is_constant(expr: relax.Expr) -> bool:
    """Return whether an expression is a constant tensor."""
    return isinstance(expr, tvm.ir.GenericConst)


def conjuncts(condition: tirx.Expr) -> list[tirx.Expr]:
    """Return the operands of a conjunction.

    a and (b and c)      ->      [a, b, c]
    """
    return [*conjuncts(condition.a), *conjuncts(condition.b)] if isinstance(condition, tirx.And) else [condition]


def zero_unless(dtype: str, value: tirx.Expr, *conditions: tirx.Expr | bool) -> tirx.Expr:
    """Return `if all conditions: value else 0`, without a branch if all conditions are True."""
    unknown = [condition for condition in conditions if not isinstance(condition, bool)]
    assert all(condition for condition in conditions if isinstance(condition, bool)), "nothing would be left"
    return te.if_then_else(te.all(*unknown), value, tirx.const(0, dtype)) if unknown else value
