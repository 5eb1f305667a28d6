"""What passes and operator families ask of an expression of a Relax graph."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import tvm
from tvm import relax, tirx

Shape: TypeAlias = tuple[int, ...]
FLOATS = ("float32", "float16")


def shape_of(expr: relax.Expr) -> Shape | None:
    """Static shape of a tensor expression, else None."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    dims = list(ty.shape.values) if isinstance(ty.shape, relax.ShapeExpr) else []
    return tuple(int(d) for d in dims) if all(isinstance(d, tirx.IntImm | int) for d in dims) else None


def static_shape(expr: relax.Expr) -> Shape:
    """Shape of an expression that was found to be static before."""
    shape = shape_of(expr)
    assert shape is not None
    return shape


def dtype_of(expr: relax.Expr) -> str:
    """Type of a tensor expression's elements."""
    return str(expr.ty.dtype)


def bytes_of(shape: Iterable[Any], dtype: str) -> int:
    """Bytes of a dense tensor; `shape` may hold TIR's integers."""
    return math.prod(int(extent) for extent in shape) * int(tvm.DataType(dtype).itemsize)


def is_constant(expr: relax.Expr) -> bool:
    """Whether an expression is a tensor whose values are known."""
    return isinstance(expr, tvm.ir.GenericConst)
