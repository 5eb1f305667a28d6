"""Vectors of truth values as numbers, in OpenCL: a lane that is true is -1 there, and a cast would keep it so."""

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


def _number(cast: tirx.Cast) -> tirx.Expr:
    given, wanted = (tvm.DataType(str(expr.ty)) for expr in (cast.value, cast))
    lanes = int(given.lanes)
    if given.type_code != tvm.DataType("bool").type_code or lanes == 1:
        return cast
    scalar = str(wanted).removesuffix(f"x{lanes}")
    return tirx.Select(cast.value, *(tirx.Broadcast(tirx.const(value, scalar), lanes) for value in (1, 0)))
