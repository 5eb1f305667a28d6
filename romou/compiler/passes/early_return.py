"""Work-items that store nothing return at once.

If a kernel has more work-items than results, TVM lets the work-items beyond the end compute the last result, and guards
each store. All results are then live at the first guard:

    at = min(item, 783)                                    if (item < 784) {
    rows[...] = ...                                          rows[...] = ...
    if (item < 784) out[at] = rows[0] - rows[2]      ->      out[item] = rows[0] - rows[2]
    if (item < 784) out[at + 784] = ...                      out[item + 784] = ...
                                                           }
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Call
from tvm_ffi.structural import structural_equal, structural_map, structural_visit

from romou.compiler.tir.calls import extern_name, is_conditional, is_pure, is_texel_load, op_name
from romou.compiler.tir.expressions import conjuncts
from romou.compiler.tir.primitives import DOUBLE_BUFFER, TENSOR_CORE_MARKS
from romou.compiler.tir.traversal import function_pass, nodes_in, sequence_of, statements_of
from romou.devices.backends.dialect import SUB_GROUP_CALL

# Marks of statements that need several work-items together.
_TOGETHER = (*TENSOR_CORE_MARKS, DOUBLE_BUFFER)


@function_pass
def return_early(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Guard the body of a device function instead of its stores. Kernels with barriers or shuffles stay as they are."""
    if not _is_alone(func.body):
        return func
    conditions = _common_conditions(func.body)
    return func.with_body(_guarded(func.body, conditions)) if conditions else func


def _is_alone(body: tirx.Stmt) -> bool:
    """Return whether no other work-item sees the results of one before the end of the kernel."""
    has_own_memory = all(allocation.buffer.scope() in ("", "local") for allocation in nodes_in(body, tirx.AllocBuffer))
    marks = {attribute.attr_key for attribute in nodes_in(body, tirx.AttrStmt)}
    return has_own_memory and marks.isdisjoint(_TOGETHER) and all(map(_is_of_one, nodes_in(body, Call)))


def _is_of_one(call: Call) -> bool:
    name = extern_name(call)
    if name is not None:
        return not SUB_GROUP_CALL.search(name)
    return is_pure(call) or is_conditional(call) or is_texel_load(call) or _is_texel_store(call)


def _is_texel_store(call: Call) -> bool:
    return op_name(call) == "tirx.texture2d_store"


def _common_conditions(body: tirx.Stmt) -> list[tirx.Expr]:
    """Return the conditions on a work-item's number that guard all of its stores."""
    threads: list[tirx.Var] = []
    around: list[tirx.Expr] = []
    common: list[tirx.Expr] | None = None
    own = {allocation.buffer for allocation in nodes_in(body, tirx.AllocBuffer)}

    def stored() -> None:
        nonlocal common
        common = [
            condition
            for condition in (around if common is None else common)
            if any(structural_equal(condition, other) for other in around)
        ]

    def attribute(stmt: tirx.AttrStmt, visitor: Any) -> None:
        if stmt.attr_key == "thread_extent":
            threads.append(stmt.node.var)
        visitor.visit(stmt.body)

    def branch(stmt: tirx.IfThenElse, visitor: Any) -> None:
        conditions = [
            condition for condition in conjuncts(stmt.condition) if set(nodes_in(condition, tirx.Var)) <= set(threads)
        ]
        around.extend(conditions)
        visitor.visit(stmt.then_case)
        del around[len(around) - len(conditions) :]
        if stmt.else_case is not None:
            visitor.visit(stmt.else_case)

    def store(stmt: tirx.BufferStore, _visitor: Any) -> None:
        if stmt.buffer not in own:
            stored()

    def evaluate(stmt: tirx.Evaluate, _visitor: Any) -> None:
        if any(_is_texel_store(call) for call in nodes_in(stmt, Call)):
            stored()

    structural_visit(
        body,
        [(tirx.AttrStmt, attribute), (tirx.IfThenElse, branch), (tirx.BufferStore, store), (tirx.Evaluate, evaluate)],
    )
    return common or []


def _guarded(stmt: tirx.Stmt, conditions: list[tirx.Expr]) -> tirx.Stmt:
    """Return `stmt` with its statements, but not its attributes and declarations, under these conditions."""
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, _guarded(stmt.body, conditions))
    statements = list(statements_of(stmt))
    declarations = [statement for statement in statements if isinstance(statement, (tirx.AllocBuffer, tirx.DeclBuffer))]
    rest = [statement for statement in statements if not isinstance(statement, (tirx.AllocBuffer, tirx.DeclBuffer))]
    if len(rest) == 1 and isinstance(rest[0], tirx.AttrStmt):
        return sequence_of([*declarations, _guarded(rest[0], conditions)])

    def branch(inner: tirx.IfThenElse) -> tirx.Stmt:
        left = [
            condition
            for condition in conjuncts(inner.condition)
            if not any(structural_equal(condition, other) for other in conditions)
        ]
        if not left:
            return inner.then_case
        return tirx.IfThenElse(_all(left), inner.then_case, inner.else_case)

    body = structural_map(sequence_of(rest), (tirx.IfThenElse, branch))
    return sequence_of([*declarations, tirx.IfThenElse(_all(conditions), body, None)])


def _all(conditions: list[tirx.Expr]) -> tirx.Expr:
    first, *others = conditions
    for other in others:
        first = tirx.And(first, other)
    return first
