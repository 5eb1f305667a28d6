"""Barriers, and variables that passes declare by `Bind`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm_ffi.structural import structural_map, structural_visit

from romou.compiler.tir.calls import op_name
from romou.compiler.tir.traversal import sequence_of


def is_barrier(stmt: Any) -> bool:
    """Return whether a statement is a barrier of the work group."""
    return isinstance(stmt, tirx.Evaluate) and op_name(stmt.value) == "tirx.tvm_storage_sync"


def inline_single_uses(body: tirx.Stmt, declared: Sequence[tirx.Var]) -> tirx.Stmt:
    """Replace each variable that is used once, in the loop that declares it, by its value.

    Unused variables are dropped.
    """
    loops, count = [0], 0  # the loops around, by number, and the last number given
    uses: dict[tirx.Var, list[int]] = {variable: [] for variable in declared}
    home: dict[tirx.Var, int] = {}
    inlined: dict[tirx.Var, tirx.Expr] = {}

    def enter(loop: tirx.For, visitor: Any) -> None:
        nonlocal count
        for part in (loop.min, loop.extent):
            visitor.visit(part)
        count += 1
        loops.append(count)
        visitor.visit(loop.body)
        loops.pop()

    def bind(stmt: tirx.Bind, visitor: Any) -> None:
        home[stmt.var] = loops[-1]
        visitor.visit(stmt.value)

    def use(variable: tirx.Var, _visitor: Any) -> None:
        if variable in uses:
            uses[variable].append(loops[-1])

    structural_visit(body, [(tirx.For, enter), (tirx.Bind, bind), (tirx.Var, use)])

    def drop(stmt: tirx.Bind) -> tirx.Stmt:
        loops_of_uses = uses.get(stmt.var)
        if loops_of_uses is None or len(loops_of_uses) > 1 or (loops_of_uses and loops_of_uses[0] != home[stmt.var]):
            return stmt
        inlined[stmt.var] = stmt.value
        return tirx.Evaluate(0)

    def sequence(stmt: tirx.SeqStmt) -> tirx.Stmt:
        kept = [s for s in stmt.seq if not (isinstance(s, tirx.Evaluate) and isinstance(s.value, tirx.IntImm))]
        return stmt if len(kept) == len(stmt.seq) else sequence_of(kept) if kept else tirx.SeqStmt([])

    # Statements are mapped in the order of the program: a variable's value is complete before its use is met.
    return structural_map(body, [(tirx.Bind, drop), (tirx.Var, lambda v: inlined.get(v, v)), (tirx.SeqStmt, sequence)])
