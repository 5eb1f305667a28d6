"""Divisions: correctly rounded if a quotient decides a quantization step, and without signs by sizes at run time.

OpenCL lets a device divide with an error of 2.5 units in the last place, and NVIDIA's do. If the quotient is rounded to
an integer, one unit may decide between neighbours. The scale, which a kernel computes, is as sensitive. All other
divisions stay as fast as the device makes them:

    rint(x / scale)      ->      rint(/* correctly rounded */(x / scale))

The runtime compiles a kernel with this text for correctly rounded division, if the device has it
(`tvm_patches/opencl_runtime/program.cc`).

A division by a size at run time rounds towards zero, as C does: both sides are positive.

    group // tiles      ->      truncdiv(group, tiles)      instead of a quotient, a remainder and a choice of the lower
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map, structural_mutate, structural_walk

from romou.compiler.tir.calls import op_name
from romou.compiler.tir.primitives import tensors_of
from romou.compiler.tir.traversal import function_pass
from romou.devices.backends.dialect import dialect_of

_ROUNDINGS = tuple(f"tirx.{name}" for name in ("ceil", "floor", "nearbyint", "round", "trunc"))


@function_pass
def divide_exactly(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Mark rounded divisions, and all divisions of a kernel with a single result, while buffers have shapes."""
    dialect = dialect_of(func)

    def divided(expr: tirx.Div) -> tirx.Expr:
        return dialect.correctly_rounded(expr) if str(expr.ty).startswith("float32") else expr

    def rounded(expr: Any, mutator: Any) -> Any:
        return structural_map(expr, (tirx.Div, divided)) if _is_rounding(expr) else mutator.default_mutate(expr)

    if any(math.prod(map(_extent, tensor.shape)) == 1 for tensor in tensors_of(func)[-1:]):
        return func.with_body(structural_map(func.body, (tirx.Div, divided)))
    return func.with_body(structural_mutate(func.body, ((tvm.ir.Call, tirx.Cast), rounded)))


def _is_rounding(expr: tvm.ir.Call | tirx.Cast) -> bool:
    if isinstance(expr, tirx.Cast):
        return "int" in str(expr.ty) and "float" in str(expr.value.ty)
    return op_name(expr) in _ROUNDINGS


def _extent(extent: tirx.Expr) -> int:
    return int(extent) if isinstance(extent, tirx.IntImm) else 0


def note_thread(analyzer: tvm.sym.Analyzer, stmt: tirx.AttrStmt) -> None:
    """Bind the variable of an axis of work-items, if the statement declares one, to its range."""
    if stmt.attr_key == "thread_extent":
        analyzer.bind(stmt.node.var, tvm.ir.Range.from_min_extent(tirx.const(0, str(stmt.value.ty)), stmt.value))


@function_pass
def divide_positive(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Divide numbers that are not negative by numbers of tiles without looking at signs."""
    analyzer = tvm.sym.Analyzer()

    def divided(expr: Any) -> tirx.Expr:
        if isinstance(expr.b, tirx.IntImm) or analyzer.const_int_bound(expr.a).min_value < 0:
            return expr
        return (tirx.truncdiv if isinstance(expr, tirx.FloorDiv) else tirx.truncmod)(expr.a, expr.b)

    structural_walk(func.body, (tirx.AttrStmt, partial(note_thread, analyzer)))
    return func.with_body(structural_map(func.body, ((tirx.FloorDiv, tirx.FloorMod), divided)))
