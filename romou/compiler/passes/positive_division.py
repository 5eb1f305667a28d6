"""Divisions by a size at run time, rounded towards zero: both sides are positive, and C divides so.

group // tiles      ->      truncdiv(group, tiles)      instead of a quotient, a remainder and a choice of the lower one
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map, structural_walk


@tirx.transform.prim_func_pass(opt_level=0)
def divide_positive(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Divide numbers that are not negative by numbers of tiles without looking at signs."""
    analyzer = tvm.sym.Analyzer()

    def note_thread(stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "thread_extent":
            analyzer.bind(stmt.node.var, tvm.ir.Range.from_min_extent(tirx.const(0, str(stmt.value.ty)), stmt.value))

    def divided(expr: Any) -> tirx.Expr:
        if isinstance(expr.b, tirx.IntImm) or analyzer.const_int_bound(expr.a).min_value < 0:
            return expr
        return (tirx.truncdiv if isinstance(expr, tirx.FloorDiv) else tirx.truncmod)(expr.a, expr.b)

    structural_walk(func.body, (tirx.AttrStmt, note_thread))
    return func.with_body(structural_map(func.body, ((tirx.FloorDiv, tirx.FloorMod), divided)))
