"""Pointers that advance with a loop, in place of offsets from a tensor's start.

A GPU's addresses have 64 bits, its integer units 32. `data[at + 128]` then costs a sum, a sign, a shift and a carry for
each load, ten instructions under Mesa's compiler for Adreno 630. From a pointer it costs the sum and the carry of a
constant.

                                                    p = &data[base]
                                                    q = &weight[other]
    for k in 128:                                   r = &data[third]
      at = base + k                                 for k in 128:
      at_1 = other + k * 512                          … p[0]   p[128]   q[0]   q[1]   r[0] …
      … data[at]   data[at + 128]            ->       p += 1
      … weight[at_1]   weight[at_1 + 1]               q += 512
      … data[third + k]                               r += 1

With pointers, an iteration is so short that compilers would unroll loops of a few dozen iterations. Such loops are kept
(`Dialect.keep_loop`): the sum of six products of 50x50 and 50x64 then takes 4.6 instructions instead of 5.7 under
Mesa's compiler for Adreno 630, and does not spill.

Loops are marked (`primitives.advance_pointers`), and the innermost marked loops get pointers. After the last iteration
they point beyond the tensor, but nothing is read there. An address that is itself loaded from memory stays in the loop,
because a store or a barrier may change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType, TensorLoad
from tvm_ffi.structural import structural_equal, structural_map, structural_mutate

from romou.compiler.tir.calls import is_fp16_load, is_pure, is_texel_load
from romou.compiler.tir.primitives import ADVANCE_POINTERS, KEEP_ANY_LOOP, KEEP_LOOP
from romou.compiler.tir.traversal import function_pass, nodes_in, sequence_of, statements_of, substitute, with_fields
from romou.devices.backends.dialect import Dialect, dialect_of

# Mesa's compilers unroll loops of up to 32 iterations and load ahead for all of them, which spills if they are many. A
# loop is kept if it has at least 17 iterations, or more than 64 loads in all of them. A sum of 12 texels of a dense
# layer, five loads each, is unrolled without spills, and takes 6% fewer instructions on Adreno 630 and 11% on Adreno
# 660. A product of 77x64 and 64x77 loads 160 texels and single elements, and spills 318 registers there if it is
# unrolled: 11.4 instructions instead of 5.2.
_MOST_UNROLLED, _LEAST_KEPT, _MOST_LOADS = 32, 17, 64


@function_pass
def advance_pointers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Read through pointers in the marked loops of a device function, after unrolling. The marks are removed."""
    written = {store.buffer for store in nodes_in(func.body, tirx.BufferStore)}
    dialect, keeps = dialect_of(func), keeps_loops(func)

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        new = mutator.default_mutate(stmt)
        if stmt.attr_key != ADVANCE_POINTERS:
            return new
        if not dialect.has_pointers:
            return new.body
        return advanced(new.body)

    def advanced(stmt: tirx.Stmt) -> tirx.Stmt:
        if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == KEEP_ANY_LOOP:
            return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, advanced(stmt.body))
        # Declarations of variables may come before the loop.
        return sequence_of(
            [
                _with_pointers(child, written, dialect, keeps=keeps) if isinstance(child, tirx.For) else child
                for child in statements_of(stmt)
            ]
        )

    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


def keeps_loops(func: tirx.PrimFunc) -> bool:
    """Return whether loops with pointers can stay: the third dimension of the launch has one work group."""
    axes = (stmt.node for stmt in nodes_in(func.body, tirx.AttrStmt) if stmt.attr_key == "thread_extent")
    return not any(str(axis.thread_tag) == "blockIdx.z" for axis in axes)


@dataclass(frozen=True)
class _Pointer:
    """A pointer into `source` that starts at the element `start` and advances by `step`. `buffer` begins at it."""

    source: tirx.Buffer
    variable: tirx.Var
    buffer: tirx.Buffer
    start: tirx.Expr
    step: int

    @classmethod
    def of(cls, source: tirx.Buffer, start: tirx.Expr, step: int) -> _Pointer:
        name, dtype, scope = f"{source.name}_at", str(source.dtype), str(source.scope())
        variable = tirx.Var(name, PointerType(PrimType(dtype), scope))
        buffer = tirx.decl_buffer(source.shape, dtype, name, data=variable, scope=scope)
        return cls(source, variable, buffer, start, step)

    def reads(self, source: tirx.Buffer, start: tirx.Expr, step: int) -> bool:
        return self.source.same_as(source) and self.step == step and structural_equal(self.start, start)


def _with_pointers(loop: tirx.For, written: set[tirx.Var], dialect: Dialect, *, keeps: bool) -> tirx.Stmt:
    if nodes_in(loop.body, tirx.For) or loop.kind != tirx.ForKind.SERIAL:
        return loop
    body = list(statements_of(loop.body))
    # What the loop declares, over variables from outside and the loop's.
    values: dict[tirx.Var, tirx.Expr] = {}
    for stmt in body:
        if isinstance(stmt, tirx.Bind):
            values[stmt.var] = substitute(stmt.value, values)
    pointers: list[_Pointer] = []

    def load(access: TensorLoad) -> tirx.Expr:
        source, parts = access.source, _parts(access.indices)
        if parts is None or str(source.scope()) != "global" or source in written:
            return access
        address, lanes = parts
        # Without the loop's variable, an address is the same in each iteration.
        is_kept = isinstance(address, tirx.Var) and address not in values
        advance = (
            None if is_kept or _is_constant(address, loop, values) else _advance_of(substitute(address, values), loop)
        )
        if advance is None:
            return access
        start, constant, step = advance
        pointer = next((p for p in pointers if p.reads(source, start, step)), None)
        if pointer is None:
            pointer = _Pointer.of(source, start, step)
            pointers.append(pointer)
        at = tirx.const(constant, "int32")
        return tirx.BufferLoad(pointer.buffer, [at if lanes == 1 else tirx.Ramp(at, tirx.const(1, "int32"), lanes)])

    kept = [structural_map(stmt, (TensorLoad, load)) for stmt in body]
    for stmt in reversed(body):
        if isinstance(stmt, tirx.Bind) and not _uses(kept, stmt.var):
            kept = [other for other in kept if not (isinstance(other, tirx.Bind) and other.var.same_as(stmt.var))]
    before: list[tirx.Stmt] = []
    for pointer in pointers:
        start = dialect.pointer_to(pointer.variable.ty, pointer.source, pointer.start)
        before.append(tirx.Bind(pointer.variable, start))
        before.append(tirx.DeclBuffer(pointer.buffer, data=pointer.variable))
    after = [dialect.advance(pointer.variable, pointer.step) for pointer in pointers if pointer.step]
    new = with_fields(loop, body=sequence_of([*kept, *after]))
    stays = pointers and keeps and _spills_if_unrolled(loop)
    return sequence_of([*before, *([dialect.keep_loop()] if stays else []), new])


def _spills_if_unrolled(loop: tirx.For) -> bool:
    """Return whether a compiler would unroll a loop and load too much ahead."""
    iterations = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 0
    if KEEP_LOOP in loop.annotations:
        return 1 <= iterations <= _MOST_UNROLLED
    loads = sum(map(_is_load, nodes_in(loop.body, TensorLoad, tvm.ir.Call)))
    is_long = iterations >= _LEAST_KEPT or iterations * loads > _MOST_LOADS
    return is_long and iterations <= _MOST_UNROLLED


def _is_load(node: TensorLoad | tvm.ir.Call) -> bool:
    if isinstance(node, TensorLoad):
        return str(node.source.scope()) == "global"
    return is_fp16_load(node) or is_texel_load(node)


def _is_constant(address: tirx.Expr, loop: tirx.For, values: Mapping[tirx.Var, tirx.Expr]) -> bool:
    """Return whether neither the loop's variable nor anything that the loop declares is in an address."""
    return not any(var.same_as(loop.loop_var) or var in values for var in nodes_in(address, tirx.Var))


def _advance_of(address: tirx.Expr, loop: tirx.For) -> tuple[tirx.Expr, int, int] | None:
    """Return an address in the first iteration as a sum with a constant, and its step.

    None if the step varies or memory holds a part of the address.
    """
    if nodes_in(address, TensorLoad) or not all(map(is_pure, nodes_in(address, tvm.ir.Call))):
        return None
    analyzer = tvm.sym.Analyzer()
    step = analyzer.simplify(substitute(address, {loop.loop_var: loop.loop_var + 1}) - address)
    if not isinstance(step, tirx.IntImm):
        return None
    start = analyzer.simplify(substitute(address, {loop.loop_var: loop.min}))
    if isinstance(start, tirx.Add) and isinstance(start.b, tirx.IntImm):
        return start.a, int(start.b), int(step)
    return start, 0, int(step)


def _parts(indices: Sequence[tirx.Expr]) -> tuple[tirx.Expr, int] | None:
    """Return the first address of an access to neighbours, and their number."""
    match list(indices):
        case [tirx.Ramp(base=base, stride=tirx.IntImm(value=1), lanes=lanes)]:
            return base, int(lanes)
        case [index] if str(index.ty) == "int32":
            return index, 1
    return None


def _uses(statements: Sequence[tirx.Stmt], variable: tirx.Var) -> int:
    """Return the number of reads of a variable, without its declaration."""
    return sum(
        node.same_as(variable)
        for stmt in statements
        for node in nodes_in(stmt.value if isinstance(stmt, tirx.Bind) else stmt, tirx.Var)
    )
