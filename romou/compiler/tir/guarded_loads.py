"""Loads in a statement or an expression, with the conditions and ranges around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_visit

from romou.compiler.tir.calls import is_conditional


@dataclass(frozen=True)
class GuardedLoad:
    """A load of a tensor.

    conditions: all must hold for the load to be evaluated. A condition may itself be loaded.
    ranges: values of the variables of loops and launches around it.
    """

    access: tvm.ir.TensorLoad
    conditions: Sequence[tirx.Expr]
    ranges: Sequence[tuple[tirx.Var, tvm.ir.Range]]


def guarded_loads(root: tirx.Stmt | tirx.Expr) -> list[GuardedLoad]:
    """Return the loads of a statement or an expression.

    for x in range(16): if x < 14: use(image[x])      ->  image[x] under x < 14, x in 0 to 15
    if_then_else(x < 14, image[x], other[x])          ->  image[x] under x < 14, other[x] under not x < 14
    """
    loads: list[GuardedLoad] = []
    conditions: list[tirx.Expr] = []
    ranges: list[tuple[tirx.Var, tvm.ir.Range]] = []

    def within(stmt: tirx.Stmt, var: tirx.Var, low: tirx.Expr, extent: tirx.Expr, visitor: Any) -> None:
        ranges.append((var, tvm.ir.Range.from_min_extent(low, extent)))
        visitor.default_visit(stmt)
        ranges.pop()

    def loop(stmt: tirx.For, visitor: Any) -> None:
        within(stmt, stmt.loop_var, stmt.min, stmt.extent, visitor)

    def attribute(stmt: tirx.AttrStmt, visitor: Any) -> None:
        if stmt.attr_key == "thread_extent":
            within(stmt, stmt.node.var, tirx.const(0, stmt.node.var.ty), stmt.value, visitor)
        else:
            visitor.default_visit(stmt)

    def fork(condition: tirx.Expr, then: Any, otherwise: Any, visitor: Any) -> None:
        visitor.visit(condition)
        for branch, holds in ((then, condition), (otherwise, tirx.Not(condition))):
            if branch is not None:
                conditions.append(holds)
                visitor.visit(branch)
                conditions.pop()

    def branch(stmt: tirx.IfThenElse, visitor: Any) -> None:
        fork(stmt.condition, stmt.then_case, stmt.else_case, visitor)

    def call(expr: tvm.ir.Call, visitor: Any) -> None:
        if is_conditional(expr):
            condition, then, otherwise = expr.args
            fork(condition, then, otherwise, visitor)
        else:
            visitor.default_visit(expr)

    def load(access: tvm.ir.TensorLoad, visitor: Any) -> None:
        loads.append(GuardedLoad(access, list(conditions), list(ranges)))
        visitor.default_visit(access)

    handlers = [
        (tirx.For, loop),
        (tirx.AttrStmt, attribute),
        (tirx.IfThenElse, branch),
        (tvm.ir.Call, call),
        (tvm.ir.TensorLoad, load),
    ]
    structural_visit(root, handlers)
    return loads
