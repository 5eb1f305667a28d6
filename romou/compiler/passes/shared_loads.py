"""Loads of the same address, and broadcasts of the same scalar, are computed once.

TVM's code generator writes a load at each use, and a broadcast as the scalar written four times. Within a sequence of
statements this pass names each value that is used more than once:

                                                   float4 v = w[at]
    acc[0] = acc[0] + x * w[at]           ->       acc[0] = acc[0] + x * v
    acc[1] = acc[1] + y * w[at]                    acc[1] = acc[1] + y * v
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm_ffi.structural import structural_equal, structural_hash, structural_walk

from romou.compiler.passes.bindings import inline_single_uses
from romou.compiler.tir.calls import is_conditional, is_fp16_conversion, is_fp16_load, is_texel_load, op_name
from romou.compiler.tir.traversal import function_pass, rewriting, sequence_of, statements_of, walking, with_fields

_SIDE_EFFECTS = ("tirx.tvm_storage_sync", "tirx.call_extern", "tirx.tvm_call_packed")


@function_pass
def share_loads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Name repeated loads of a device function, after addresses are variables: equal ones are equal expressions."""
    sharer = _Sharer(func)
    return func.with_body(inline_single_uses(sharer.sequence(func.body), sharer.declared))


@dataclass(frozen=True)
class _Value:
    """A value with a name.

    name: the variable that holds `expr`.
    reads: the buffers that it was read from.
    """

    expr: tirx.Expr
    name: tirx.Var
    reads: frozenset[tirx.Var]


@dataclass
class _Changes:
    """The effects of a statement.

    written: the buffers that it stores to.
    is_unknown: it may change any memory.
    """

    written: set[tirx.Var] = field(default_factory=set)
    is_unknown: bool = False


class _Sharer:
    def __init__(self, func: tirx.PrimFunc) -> None:
        self.declared: list[tirx.Var] = []
        # Structural hash -> a value that has a name at this point of the program.
        self._known: dict[int, _Value] = {}
        self._pending: list[tirx.Bind] = []
        self._registers: set[tirx.Var] = set()
        structural_walk(func.body, (tirx.AllocBuffer, lambda s: self._registers.add(s.buffer)))
        self._share = rewriting(
            (tirx.Select, lambda expr, _mutator: expr), ((Call, TensorLoad, tirx.Broadcast), self._expression)
        )
        self._changes: dict[tirx.Stmt, _Changes] = {}
        self._found = _Changes()
        self._find_changes = walking((tirx.BufferStore, self._find_store), (Call, self._find_effect))

    def sequence(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """Rewrite an inner scope, with the names around it. Its own names are dropped afterwards."""
        values, pending = self._known, self._pending
        self._known, self._pending = dict(values), []
        done: list[tirx.Stmt] = []
        for child in statements_of(stmt):
            new = self._statement(child)
            done += [*self._pending, new]
            self._pending.clear()
            self._forget(child)
        self._known, self._pending = values, pending
        return sequence_of(done)

    def _statement(self, stmt: tirx.Stmt) -> tirx.Stmt:
        match stmt:
            case tirx.For():
                # An iteration may read values that the previous one wrote.
                self._forget(stmt.body)
                body = self.sequence(stmt.body)
                return with_fields(stmt, body=body)
            case tirx.AttrStmt():
                return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, self.sequence(stmt.body))
            case tirx.IfThenElse():
                otherwise = None if stmt.else_case is None else self.sequence(stmt.else_case)
                return tirx.IfThenElse(stmt.condition, self.sequence(stmt.then_case), otherwise)
            case tirx.Bind() | tirx.BufferStore() | tirx.Evaluate():
                return self._share(stmt)
        return stmt

    def _forget(self, stmt: tirx.Stmt) -> None:
        """Drop the names of values that `stmt` may have changed in memory."""
        changes = self._changes_of(stmt)
        if changes.written or changes.is_unknown:
            self._known = {
                h: v
                for h, v in self._known.items()
                if not (changes.is_unknown and v.reads) and not v.reads & changes.written
            }

    def _changes_of(self, stmt: tirx.Stmt) -> _Changes:
        """Return the buffers that `stmt` may change, cached for the statements of a loop's body."""
        if stmt not in self._changes:
            self._found = _Changes()
            inner = (
                list(stmt.seq)
                if isinstance(stmt, tirx.SeqStmt)
                else [stmt.body]
                if isinstance(stmt, (tirx.For, tirx.AttrStmt))
                else None
            )
            if inner is None:
                self._find_changes(stmt)
                self._changes[stmt] = self._found
            else:
                parts = [self._changes_of(part) for part in inner]
                self._changes[stmt] = _Changes(
                    set().union(*(p.written for p in parts)), any(p.is_unknown for p in parts)
                )
        return self._changes[stmt]

    def _find_store(self, stmt: tirx.BufferStore) -> None:
        self._found.written.add(stmt.buffer)

    def _find_effect(self, expr: Call) -> None:
        self._found.is_unknown |= op_name(expr) in _SIDE_EFFECTS

    def _expression(self, expr: tirx.Expr, mutator: Any) -> tirx.Expr:
        # Evaluated only under a condition: a load in it must stay there.
        if is_conditional(expr):
            return expr
        # The operand stands for a place in memory, not for its value.
        if op_name(expr) == "tirx.address_of":
            return expr
        new = mutator.default_mutate(expr)
        if not self._is_worth_a_name(new):
            return new
        number = structural_hash(new)
        value = self._known.get(number)
        if value is None or not structural_equal(value.expr, new):
            reads: set[tirx.Var] = set()
            structural_walk(
                new,
                [
                    (TensorLoad, lambda a: reads.add(a.source)),
                    (Call, lambda c: reads.update(c.args[1:]) if is_fp16_load(c) else None),
                ],
            )
            value = self._known[number] = _Value(new, tirx.Var("value", new.ty), frozenset(reads))
            self.declared.append(value.name)
            self._pending.append(tirx.Bind(value.name, new))
        return value.name

    def _is_worth_a_name(self, expr: tirx.Expr) -> bool:
        if isinstance(expr, TensorLoad):
            # Registers have a name already.
            return expr.source not in self._registers or str(expr.source.scope()) != "local"
        if isinstance(expr, tirx.Broadcast):
            return not isinstance(expr.value, (tirx.IntImm, tirx.FloatImm))
        return is_texel_load(expr) or is_fp16_load(expr) or is_fp16_conversion(expr)
