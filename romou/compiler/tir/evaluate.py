"""Index expressions of TIR as numbers: evaluated with NumPy for many work-items, pixels or iterations at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from romou.base.errors import BuildError
from romou.compiler.tir.calls import extern_name, is_fp16_conversion, is_fp16_load, is_texel_load

# C's division of integers rounds to zero, and so do Div and Mod.
_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Div: lambda a, b: np.trunc(np.divide(a, b)).astype(np.int64),
    tirx.Mod: np.fmod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
    tirx.LShift: np.left_shift,
    tirx.RShift: np.right_shift,
    tirx.BitwiseAnd: np.bitwise_and,
    tirx.BitwiseOr: np.bitwise_or,
    tirx.BitwiseXor: np.bitwise_xor,
}
_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "tirx.shift_left": np.left_shift,
    "tirx.shift_right": np.right_shift,
    "tirx.bitwise_and": np.bitwise_and,
    "tirx.bitwise_or": np.bitwise_or,
    "tirx.bitwise_xor": np.bitwise_xor,
}

# Roundings by their names in TIR, OpenCL C and CUDA, without CUDA's suffix "f" for single precision.
_ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "nearbyint": np.round,
    "rint": np.round,
    "trunc": np.trunc,
}


def evaluate(expr: Any, values: Mapping[Any, Any]) -> Any:
    """Return the value of an integer or boolean expression, which may contain floats.

    values: variable -> number or array. Arrays broadcast.

    Raises
    ------
    BuildError
        The expression has an unsupported operation.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, tirx.IntImm):
        return int(expr.value)
    if isinstance(expr, tirx.Var):
        return values[expr]
    if isinstance(expr, tirx.FloatImm):
        return float(expr.value)
    if isinstance(expr, tvm.ir.TensorLoad) or is_fp16_load(expr) or is_fp16_conversion(expr) or is_texel_load(expr):
        return 0  # loaded values are only known at run time, so the first entry represents all
    if isinstance(expr, tirx.Cast):
        value = evaluate(expr.value, values)
        return (
            np.trunc(value).astype(np.int64) if "int" in str(expr.ty) and np.asarray(value).dtype.kind == "f" else value
        )
    if isinstance(expr, tirx.Not):
        return ~np.asarray(evaluate(expr.a, values), dtype=bool)
    if isinstance(expr, tirx.Select):
        return np.where(*(evaluate(part, values) for part in (expr.condition, expr.true_value, expr.false_value)))
    name = getattr(getattr(expr, "op", None), "name", "")
    if name == "prim.if_then_else":
        return np.where(*(evaluate(argument, values) for argument in expr.args))
    rounding = _ROUNDINGS.get((extern_name(expr) or name.removeprefix("tirx.")).removesuffix("f"))
    if rounding is not None:
        return rounding(evaluate(expr.args[-1], values))
    operation = _CALLS.get(name) or _OPERATIONS.get(type(expr))
    if operation is None:
        raise BuildError(f"an index is made with {type(expr).__name__} {name}, which cannot be evaluated: {expr}")
    a, b = expr.args if name else (expr.a, expr.b)
    return operation(evaluate(a, values), evaluate(b, values))


def count_distinct(numbers: np.ndarray) -> int:
    """Return the number of distinct integers, several times faster than `np.unique`, which hashes them."""
    return int(np.count_nonzero(np.diff(np.sort(numbers, axis=None)))) + (numbers.size > 0)
