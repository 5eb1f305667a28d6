"""Properties of expressions of a Relax graph, and of conditions in TIR."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import tvm
from tvm import relax, sym, te, tirx

from romou.compiler.tir.primitives import LARGEST_SIZES, SIZES

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


def module_of(inputs: Mapping[str, tuple[Shape, str]], build: Callable[..., relax.Expr]) -> tvm.IRModule:
    """Return a Relax module whose `main` computes one expression of its inputs: name -> (shape, type)."""
    variables = [relax.Var(name, relax.TensorType(list(shape), dtype)) for name, (shape, dtype) in inputs.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(build(*variables)))
        builder.emit_func_output(output)
    return builder.finalize()


def is_free(extent: Any) -> bool:
    """Return whether an extent is an expression of sizes at run time."""
    return isinstance(extent, tirx.Expr) and not isinstance(extent, tirx.IntImm)


def extents_of(shape: Iterable[Any]) -> list[Any]:
    """Return the extents of a shape: integers, and expressions of sizes at run time."""
    return [extent if is_free(extent) else int(extent) for extent in shape]


def is_one(extent: Any) -> bool:
    """Return whether an extent is one at all sizes."""
    return not is_free(extent) and int(extent) == 1


def is_multiple(extent: Any, factor: int) -> bool:
    """Return whether an extent is known to be a multiple of a factor at all sizes."""
    if not is_free(extent):
        return int(extent) % factor == 0
    known = sym.Analyzer().modular_set(extent)
    return int(known.coeff) % factor == int(known.base) % factor == 0


def is_equal(extent: Any, other: Any) -> bool:
    """Return whether two extents are known to be equal at all sizes."""
    if not is_free(extent) and not is_free(other):
        return int(extent) == int(other)
    return bool(sym.Analyzer().can_prove_equal(extent, other))


def count_of(extent: Any, size: Any) -> Any:
    """Return the number of parts of `size` elements that cover an extent, the last one perhaps in part."""
    if not is_free(extent):
        return -(-extent // size)
    return extent if size == 1 else (extent + (int(size) - 1)) // int(size)


def digits_of(number: Any, extents: Sequence[Any]) -> list[Any]:
    """Return the index along each extent of an element by its row-major number. The first one is not bounded."""
    digits: list[Any] = []
    for extent in reversed(extents[1:]):
        digits.insert(0, number % extent)
        number = number // extent
    return [number, *digits] if extents else []


def number_of(digits: Sequence[Any], extents: Sequence[Any]) -> Any:
    """Invert `digits_of`."""
    number: Any = 0
    for digit, extent in zip(digits, extents, strict=True):
        number = number * extent + digit
    return number


def bounds_of(func: tirx.PrimFunc) -> dict[tirx.Var, int]:
    """Return the sizes at run time that a function's extents follow from, with the largest value of each."""
    if func.attrs is None or SIZES not in func.attrs:
        return {}
    return dict(zip(func.attrs[SIZES], map(int, func.attrs[LARGEST_SIZES]), strict=True))


def largest(extent: Any, bounds: Mapping[tirx.Var, int]) -> int:
    """Return an extent's largest value for sizes from 1 to their bounds."""
    if not is_free(extent):
        return int(extent)
    analyzer = sym.Analyzer()
    for size, bound in bounds.items():
        analyzer.bind(size, tvm.ir.Range(tirx.const(1, size.ty), tirx.const(bound + 1, size.ty)))
    return int(analyzer.const_int_bound(extent).max_value)


def bytes_of(shape: Iterable[Any], dtype: str) -> int:
    """Return the bytes of a dense tensor. `shape` may hold TIR's integers."""
    return math.prod(int(extent) for extent in shape) * int(tvm.DataType(dtype).itemsize)


def lanes_of(expr: tirx.Expr) -> int:
    """Return the lanes of a vector: 1 for a scalar, 0 for an expression without a value."""
    return int(tvm.DataType(str(getattr(expr.ty, "dtype", ""))).lanes)


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
