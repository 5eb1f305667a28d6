"""Vectors of truth values in OpenCL: a lane that is true is -1 there, a scalar that is true is 1. A cast would keep that, and select asks for the sign."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map

from romou.backends.dialect import dialect_of


@tirx.transform.prim_func_pass(opt_level=0)
def number_truth_values(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Run after vectors are made.

    float4(a < b)      ->      select(a < b, float4(1), float4(0))
    """
    return func.with_body(structural_map(func.body, (tirx.Cast, _number))) if dialect_of(func).has_negative_truth else func


@tirx.transform.prim_func_pass(opt_level=0)
def sign_conditions(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Run when nothing simplifies any more, which would make one comparison of it again.

    select(x == y, v, w)      ->      select(int4(x == y) != int4(0), v, w)      for scalars x and y, and vectors v and w
    """
    return func.with_body(structural_map(func.body, (tirx.Select, _compared))) if dialect_of(func).has_negative_truth else func


def _compared(select: tirx.Select) -> tirx.Expr:
    condition = select.condition.value if isinstance(select.condition, tirx.Broadcast) else select.condition
    lanes = int(tvm.DataType(str(select.ty)).lanes)
    if lanes == 1 or int(tvm.DataType(str(condition.ty)).lanes) > 1:
        return select
    vectors = [tirx.Broadcast(value, lanes) for value in (tirx.Cast("int32", condition), tirx.const(0, "int32"))]
    return tirx.Select(tirx.NE(*vectors), select.true_value, select.false_value)


def _number(cast: tirx.Cast) -> tirx.Expr:
    given, wanted = (tvm.DataType(str(expr.ty)) for expr in (cast.value, cast))
    lanes = int(given.lanes)
    if given.type_code != tvm.DataType("bool").type_code or lanes == 1:
        return cast
    scalar = str(wanted).removesuffix(f"x{lanes}")
    return tirx.Select(cast.value, *(tirx.Broadcast(tirx.const(value, scalar), lanes) for value in (1, 0)))
