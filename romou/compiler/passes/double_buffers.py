"""Local memory in two halves: while a work group sums up one tile, the next one is loaded.

A schedule marks the loop that stages a tile in local memory and sums it up (`primitives.double_buffer`). Its work-items
then load the next tile into registers before they sum up the current one, and store it to the other half of local
memory afterwards. No arithmetic waits for a load, and one barrier in each iteration is enough ("register prefetching",
Tan et al., "Fast implementation of DGEMM on Fermi GPU", SC 2011, section 4).

    for k in n:                                 share[...] = data[0]
      barrier                                   for k in n:
      share[...] = data[k]              ->        barrier
      barrier                                     if k + 1 < n: ahead = data[k + 1]
      acc += share[...]                           acc += share[k % 2 * size + ...]
                                                  if k + 1 < n: share[(k + 1) % 2 * size + ...] = ahead
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_map, structural_mutate

from romou.base.errors import BuildError
from romou.compiler.passes.bindings import is_barrier, sequence_of, statements_of
from romou.compiler.tir.primitives import DOUBLE_BUFFER
from romou.compiler.tir.traversal import nodes_in

_HALVES = 2


@tirx.transform.prim_func_pass(opt_level=0)
def double_buffers(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Double the local memory of marked loops, after barriers are placed. The marks are removed."""
    doubled: dict[tirx.Var, tirx.Var] = {}

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        return _prefetched(stmt.body, doubled) if stmt.attr_key == DOUBLE_BUFFER else mutator.default_mutate(stmt)

    body = structural_mutate(func.body, (tirx.AttrStmt, marked))
    # Declared before the loop, outside of it.
    return func.with_body(
        structural_map(
            body, (tirx.AllocBuffer, lambda s: tirx.AllocBuffer(doubled[s.buffer]) if s.buffer in doubled else s)
        )
    )


def _prefetched(loop: tirx.For, doubled: dict[tirx.Var, tirx.Var]) -> tirx.Stmt:
    barrier, staging, sums = _stages_of(loop)
    for old in (buffer for stmt in staging for buffer in _staged_in(stmt)):
        shape, scope = [_HALVES * old.shape[0]], str(old.scope())
        doubled.setdefault(old, tirx.decl_buffer(shape, str(old.dtype), old.name, scope=scope))
    iteration, iterations = loop.loop_var, loop.extent

    def at(stmt: tirx.Stmt, of_iteration: tirx.Expr) -> tirx.Stmt:
        return structural_map(stmt, (tirx.Var, lambda var: of_iteration if var.same_as(iteration) else var))

    first = tirx.const(0, "int32")
    prologue = [_in_half(at(stmt, first), first, doubled) for stmt in staging]
    registers: list[tirx.Stmt] = []
    fetches, puts = zip(*(_through_registers(stmt, [], registers) for stmt in staging), strict=True)
    following = iteration + 1
    has_next = following < iterations
    body = [
        barrier,
        tirx.IfThenElse(has_next, at(sequence_of(fetches), following), None),
        *(_in_half(stmt, iteration, doubled) for stmt in sums),
        tirx.IfThenElse(has_next, _in_half(sequence_of(puts), following, doubled), None),
    ]
    new = tirx.For(
        iteration, loop.min, iterations, loop.kind, tirx.SeqStmt(body), loop.thread_binding, loop.annotations, loop.step
    )
    return tirx.SeqStmt([*registers, *prologue, new])


def _stages_of(loop: tirx.For) -> tuple[tirx.Stmt, list[tirx.Stmt], list[tirx.Stmt]]:
    """Return the barrier of a marked loop, the statements that fill local memory, and the statements that sum up."""
    staging: list[tirx.Stmt] = []
    sums: list[tirx.Stmt] = []
    for stmt in statements_of(loop.body):
        if is_barrier(stmt):
            barrier = stmt
        elif _staged_in(stmt):
            staging.append(stmt)
            if sums:
                raise BuildError(
                    "what is staged in two halves of local memory is staged before it is summed up, not in between"
                )
        else:
            sums.append(structural_map(stmt, (tirx.SeqStmt, _without_barriers)))  # a mark may be around a barrier
    return barrier, staging, sums


def _without_barriers(sequence: tirx.SeqStmt) -> tirx.Stmt:
    return sequence_of([child for child in sequence.seq if not is_barrier(child)])


def _in_half(stmt: tirx.Stmt, iteration: tirx.Expr, doubled: dict[tirx.Var, tirx.Var]) -> tirx.Stmt:
    """Return `stmt` with its accesses of local memory in the half of an iteration."""

    def moved(old: tirx.Var, index: tirx.Expr) -> list[tirx.Expr]:
        first = iteration % _HALVES * old.shape[0]
        is_ramp = isinstance(index, tirx.Ramp)
        return [tirx.Ramp(first + index.base, index.stride, index.lanes) if is_ramp else first + index]

    def load(access: TensorLoad) -> tirx.Expr:
        old = access.source
        return tirx.BufferLoad(doubled[old], moved(old, access.indices[0])) if old in doubled else access

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        old = access.buffer
        if old not in doubled:
            return access
        return tirx.BufferStore(doubled[old], access.value, moved(old, access.indices[0]))

    return structural_map(stmt, [(TensorLoad, load), (tirx.BufferStore, store)])


def _through_registers(
    stmt: tirx.Stmt, loops: Sequence[tirx.For], registers: list[tirx.Stmt]
) -> tuple[tirx.Stmt, tirx.Stmt]:
    """Split a nest that fills local memory into loads to registers and stores from there. Adds to `registers`."""
    match stmt:
        case tirx.SeqStmt():
            fetches, puts = zip(*(_through_registers(child, loops, registers) for child in stmt.seq), strict=True)
            return sequence_of(fetches), sequence_of(puts)
        case tirx.For():
            parts = _through_registers(stmt.body, [*loops, stmt], registers)
            fetch, put = (_unrolled(stmt, part) for part in parts)
            return fetch, put
        case tirx.IfThenElse() if stmt.else_case is None:
            fetch, put = _through_registers(stmt.then_case, loops, registers)
            return tirx.IfThenElse(stmt.condition, fetch, None), tirx.IfThenElse(stmt.condition, put, None)
        case tirx.BufferStore():
            ahead = tirx.decl_buffer(
                [math.prod(int(loop.extent) for loop in loops)],
                str(stmt.value.ty.dtype),
                f"{stmt.buffer.name}_ahead",
                scope="local",
            )
            registers.append(tirx.AllocBuffer(ahead))
            index: tirx.Expr = tirx.const(0, "int32")
            for loop in loops:
                index = index * loop.extent + (loop.loop_var - loop.min)
            return tirx.BufferStore(ahead, stmt.value, [index]), tirx.BufferStore(
                stmt.buffer, tirx.BufferLoad(ahead, [index]), stmt.indices
            )
    raise BuildError(
        f"what is staged in two halves of local memory is stored by loops and conditions alone, not by {stmt}"
    )


def _unrolled(loop: tirx.For, body: tirx.Stmt) -> tirx.For:
    """Return a copy of a loop, with a new variable, unrolled: registers have no addresses."""
    variable = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    body = structural_map(body, (tirx.Var, lambda var: variable if var.same_as(loop.loop_var) else var))
    return tirx.For(variable, loop.min, loop.extent, tirx.ForKind.UNROLLED, body)


def _staged_in(stmt: tirx.Stmt) -> list[tirx.Var]:
    """Return the buffers of local memory that a statement stores to."""
    return [store.buffer for store in nodes_in(stmt, tirx.BufferStore) if str(store.buffer.scope()) == "shared"]
