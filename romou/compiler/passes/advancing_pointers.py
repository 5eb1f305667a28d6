"""Pointers that advance with a loop, in place of offsets from a tensor's start.

A GPU's addresses have 64 bits, its integer units 32. `data[at + 128]` then costs a sum, a sign, a shift and a carry for
each load, ten instructions under Mesa's compiler for Adreno 630. From a pointer it costs the sum and the carry of a
constant.

                                                    p = &data[base]
    for k in 128:                                   q = &weight[other]
      at = base + k                                 for k in 128:
      at_1 = other + k * 512                          … p[0]   p[128]   q[0]   q[1] …
      … data[at]   data[at + 128]            ->       p += 1
      … weight[at_1]   weight[at_1 + 1]               q += 512

Loops are marked (`primitives.advance_pointers`), and the innermost marked loops get pointers. After the last iteration
they point beyond the tensor, but nothing is read there. An address that is itself loaded from memory stays in the loop,
because a store or a barrier may change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType, TensorLoad
from tvm_ffi.structural import structural_map, structural_mutate

from romou.compiler.passes.bindings import sequence_of, statements_of
from romou.compiler.tir.calls import is_pure
from romou.compiler.tir.primitives import ADVANCE_POINTERS
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.dialect import Dialect, dialect_of


@tirx.transform.prim_func_pass(opt_level=0)
def advance_pointers(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Read through pointers in the marked loops of a device function, after unrolling. The marks are removed."""
    written = {store.buffer for store in nodes_in(func.body, tirx.BufferStore)}
    dialect = dialect_of(func)

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        new = mutator.default_mutate(stmt)
        if stmt.attr_key != ADVANCE_POINTERS:
            return new
        if not dialect.has_pointers:
            return new.body
        # Declarations of variables may come before the loop.
        return sequence_of(
            [
                _with_pointers(child, written, dialect) if isinstance(child, tirx.For) else child
                for child in statements_of(new.body)
            ]
        )

    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


@dataclass(frozen=True)
class _Pointer:
    """The pointer that replaces a buffer: `variable` starts at `start`, advances by `step`. `buffer` begins at it."""

    variable: tirx.Var
    buffer: tirx.Buffer
    start: tirx.Expr
    step: int

    @classmethod
    def of(cls, source: tirx.Buffer, start: tirx.Expr, step: int) -> _Pointer:
        name, dtype, scope = f"{source.name}_at", str(source.dtype), str(source.scope())
        variable = tirx.Var(name, PointerType(PrimType(dtype), scope))
        return cls(variable, tirx.decl_buffer(source.shape, dtype, name, data=variable, scope=scope), start, step)


def _with_pointers(loop: tirx.For, written: set[tirx.Var], dialect: Dialect) -> tirx.Stmt:
    if nodes_in(loop.body, tirx.For) or loop.kind != tirx.ForKind.SERIAL:
        return loop
    analyzer, body = tvm.sym.Analyzer(), list(statements_of(loop.body))
    declared = {stmt.var for stmt in nodes_in(loop.body, tirx.Bind)}
    # Addresses that the loop declares: variable -> (value in the first iteration, step).
    steps: dict[tirx.Var, tuple[tirx.Expr, int]] = {}
    for stmt in body:
        if (
            not isinstance(stmt, tirx.Bind)
            or str(stmt.var.ty) != "int32"
            or any(node in declared for node in nodes_in(stmt.value, tirx.Var))
        ):
            continue
        if nodes_in(stmt.value, TensorLoad) or not all(map(is_pure, nodes_in(stmt.value, tvm.ir.Call))):
            continue
        step = analyzer.simplify(_at(stmt.value, loop.loop_var, loop.loop_var + 1) - stmt.value)
        if isinstance(step, tirx.IntImm):
            steps[stmt.var] = analyzer.simplify(_at(stmt.value, loop.loop_var, loop.min)), int(step)
    pointers: dict[tuple[tirx.Var, tirx.Var], _Pointer] = {}

    def load(access: TensorLoad) -> tirx.Expr:
        source, parts = access.source, _parts(access.indices)
        if parts is None or parts[0] not in steps or str(source.scope()) != "global" or source in written:
            return access
        variable, constant = parts
        pointer = pointers.setdefault((source, variable), _Pointer.of(source, *steps[variable]))
        return tirx.BufferLoad(pointer.buffer, [tirx.const(constant, "int32")])

    mapped = [structural_map(stmt, (TensorLoad, load)) for stmt in body]
    kept = [
        stmt
        for stmt in mapped
        if not (isinstance(stmt, tirx.Bind) and stmt.var in steps and not _uses(mapped, stmt.var))
    ]
    before: list[tirx.Stmt] = []
    for (source, _), pointer in pointers.items():
        before.append(tirx.Bind(pointer.variable, dialect.pointer_to(pointer.variable.ty, source, pointer.start)))
        before.append(tirx.DeclBuffer(pointer.buffer, data=pointer.variable))
    after = [dialect.advance(pointer.variable, pointer.step) for pointer in pointers.values() if pointer.step]
    new = tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        sequence_of([*kept, *after]),
        loop.thread_binding,
        loop.annotations,
        loop.step,
    )
    return sequence_of([*before, new])


def _at(expr: tirx.Expr, variable: tirx.Var, value: tirx.Expr) -> tirx.Expr:
    return structural_map(expr, (tirx.Var, lambda var: value if var.same_as(variable) else var))


def _parts(indices: Sequence[tirx.Expr]) -> tuple[tirx.Var, int] | None:
    """Return the variable and the constant of an index that is their sum."""
    match list(indices):
        case [tirx.Var() as variable]:
            return variable, 0
        case [tirx.Add(a=tirx.Var() as variable, b=tirx.IntImm() as constant)]:
            return variable, int(constant)
    return None


def _uses(statements: Sequence[tirx.Stmt], variable: tirx.Var) -> int:
    """Return the number of reads of a variable, without its declaration."""
    return sum(
        node.same_as(variable)
        for stmt in statements
        for node in nodes_in(stmt.value if isinstance(stmt, tirx.Bind) else stmt, tirx.Var)
    )
