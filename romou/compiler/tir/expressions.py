"""Properties of expressions of a Relax graph, and of conditions in TIR."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import tvm
from tvm import relax, tirx

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


def extents_of(shape: Iterable[Any]) -> list[Any]:
    """Return the extents of a shape: integers, and expressions of sizes at run time."""
    return [int(extent) if isinstance(extent, tirx.IntImm | int) else extent for extent in shape]


def is_one(extent: Any) -> bool:
    """Return whether an extent is one at all sizes."""
    return isinstance(extent, tirx.IntImm | int) and int(extent) == 1


def is_multiple(extent: Any, factor: int) -> bool:
    """Return whether an extent is known to be a multiple of a factor at all sizes."""
    return isinstance(extent, tirx.IntImm | int) and int(extent) % factor == 0


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
