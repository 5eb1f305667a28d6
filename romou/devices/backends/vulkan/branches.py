"""Expressions that may be computed even if their condition is false.

A condition then selects a value without a branch.

Compilers can hardly move loads across branches, so an unrolled loop would wait for each load before it starts the next.

    inside ? data[i] : vec4(0.0)      ->      mix(vec4(0.0), data[mix(0, i, inside)], bvec4(inside))
    a && b + c < 4                    ->      all(bvec2(a, b + c < 4))
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from romou.devices.backends.vulkan.calls import extern_of, op_of

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_SUMS = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Min,
    tirx.Max,
    tirx.And,
    tirx.Or,
    tirx.LShift,
    tirx.RShift,
    tirx.BitwiseAnd,
    tirx.BitwiseOr,
)
_DIVISIONS = (tirx.Div, tirx.Mod)
_LEAVES = (tirx.Var, tirx.IntImm)


def is_harmless(expr: Any) -> bool:
    """Return whether an expression may be computed speculatively: no access, no call, no division by zero."""
    if isinstance(expr, (*_LEAVES, tirx.FloatImm)):
        return True
    if isinstance(expr, _DIVISIONS):
        return isinstance(expr.b, tirx.IntImm) and is_harmless(expr.a)
    if isinstance(expr, (*_COMPARISONS, *_SUMS)):
        return is_harmless(expr.a) and is_harmless(expr.b)
    if isinstance(expr, tirx.Select):
        return all(map(is_harmless, (expr.condition, expr.true_value, expr.false_value)))
    if isinstance(expr, tirx.Not):
        return is_harmless(expr.a)
    if isinstance(expr, tirx.Ramp):
        return is_harmless(expr.base)
    return isinstance(expr, (tirx.Cast, tirx.Broadcast)) and is_harmless(expr.value)


def terms_of(condition: Any) -> list[Any]:
    return [*terms_of(condition.a), *terms_of(condition.b)] if isinstance(condition, tirx.And) else [condition]


def is_simple(condition: Any) -> bool:
    """Return whether glslang compiles `&&` with this right side without a branch.

    It does for a variable, and for a comparison of variables and constants.
    """
    return isinstance(condition, _LEAVES) or (
        isinstance(condition, _COMPARISONS) and isinstance(condition.a, _LEAVES) and isinstance(condition.b, _LEAVES)
    )


def loaded_anyway(value: Any, flag: tirx.Var) -> Any | None:
    """Return a load that reads the first elements if `flag` is false.

    None for other expressions, and for an index that cannot be computed in that case.
    """
    if isinstance(value, tirx.Cast):
        inner = loaded_anyway(value.value, flag)
        return None if inner is None else tirx.Cast(value.ty, inner)
    if isinstance(value, TensorLoad):
        return _moved(value, flag)
    if extern_of(value).startswith(("vload_half", "load_texel")):
        name, offset, pointer = value.args
        if op_of(pointer) == "tirx.address_of":
            (start,) = (_moved(access, flag) for access in pointer.args)
            pointer = None if start is None else tirx.address_of(start)
        if pointer is not None and is_harmless(offset):
            return tirx.call_pure_extern(
                value.ty, name.value, tirx.Select(flag, offset, tirx.const(0, str(offset.ty))), pointer
            )
    return None


def _moved(access: TensorLoad, flag: tirx.Var) -> TensorLoad | None:
    """Return an access that reads the first elements if `flag` is false."""
    (index, *others) = access.indices
    is_vector = isinstance(index, tirx.Ramp)
    start = index.base if is_vector else index
    if others or "x" in str(start.ty) or not is_harmless(index):
        return None
    start = tirx.Select(flag, start, tirx.const(0, str(start.ty)))
    return tirx.BufferLoad(access.source, [tirx.Ramp(start, index.stride, index.lanes) if is_vector else start])
