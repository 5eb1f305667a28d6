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

In OpenCL, fp16 of the next tile is held as bits in 32-bit integers, whether the kernel computes in fp16 or in fp32:

    half4 ahead = data[k + 1]                    ->      uint2 ahead = as_uint2(data[k + 1])
    share[...] = ahead                                   share[...] = as_half4(ahead)
    float4 ahead = float4(data[k + 1])           ->      uint2 ahead = as_uint2(data[k + 1])
    share[...] = ahead                                   share[...] = float4(as_half4(ahead))

Floats take twice as many registers. So does a vector of fp16 that lives through a branch under Mesa's compilers for
Mali, which have a register for each lane.
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
from romou.compiler.passes.bindings import is_barrier
from romou.compiler.tir.calls import is_conditional
from romou.compiler.tir.expressions import lanes_of
from romou.compiler.tir.primitives import DOUBLE_BUFFER, FP16_ARITHMETIC
from romou.compiler.tir.traversal import function_pass, nodes_in, sequence_of, statements_of, substitute, with_fields
from romou.devices.backends.dialect import Dialect, dialect_of, vector_type

_HALVES = 2


@function_pass
def double_buffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Double the local memory of marked loops, after barriers are placed. The marks are removed."""
    doubled: dict[tirx.Var, tirx.Var] = {}
    dialect = dialect_of(func)
    is_fp16 = any(stmt.attr_key == FP16_ARITHMETIC for stmt in nodes_in(func.body, tirx.AttrStmt))
    has_bits = dialect.packs_fp16_as_bits and dialect.moves_fp16_bits
    bits = _Bits(dialect, is_fp16=is_fp16) if has_bits else None

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        if stmt.attr_key != DOUBLE_BUFFER:
            return mutator.default_mutate(stmt)
        return _prefetched(stmt.body, doubled, bits)

    body = structural_mutate(func.body, (tirx.AttrStmt, marked))
    # Declared before the loop, outside of it.
    return func.with_body(
        structural_map(
            body, (tirx.AllocBuffer, lambda s: tirx.AllocBuffer(doubled[s.buffer]) if s.buffer in doubled else s)
        )
    )


def _prefetched(loop: tirx.For, doubled: dict[tirx.Var, tirx.Var], bits: _Bits | None) -> tirx.Stmt:
    barrier, staging, sums = _stages_of(loop)
    for old in (buffer for stmt in staging for buffer in _staged_in(stmt)):
        shape, scope = [_HALVES * old.shape[0]], str(old.scope())
        doubled.setdefault(old, tirx.decl_buffer(shape, str(old.dtype), old.name, scope=scope))
    iteration, iterations = loop.loop_var, loop.extent

    def at(stmt: tirx.Stmt, of_iteration: tirx.Expr) -> tirx.Stmt:
        return substitute(stmt, {iteration: of_iteration})

    first = tirx.const(0, "int32")
    prologue = [_in_half(at(stmt, first), first, doubled) for stmt in staging]
    split = _Split(bits)
    fetches, puts = zip(*(split.visit(stmt, []) for stmt in staging), strict=True)
    following = iteration + 1
    has_next = following < iterations
    body = [
        barrier,
        tirx.IfThenElse(has_next, at(sequence_of(fetches), following), None),
        *(_in_half(stmt, iteration, doubled) for stmt in sums),
        tirx.IfThenElse(has_next, _in_half(sequence_of(puts), following, doubled), None),
    ]
    new = with_fields(loop, loop_var=iteration, extent=iterations, body=tirx.SeqStmt(body))
    return tirx.SeqStmt([*split.registers, *prologue, new])


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


class _Bits:
    """Conversions between fp16 vectors and their bits.

    is_fp16: whether the kernel computes in fp16. If not, only loads from buffers are bits.
    """

    def __init__(self, dialect: Dialect, *, is_fp16: bool) -> None:
        self.dialect, self.is_fp16 = dialect, is_fp16

    def of(self, value: tirx.Expr) -> tirx.Expr | None:
        """Return the bits of a loaded value, or None if it is held as it is.

        What leaves a condition is bits, too.
        """
        if is_conditional(value):
            condition, *values = value.args
            first, second = map(self.of, values)
            return None if first is None or second is None else tirx.if_then_else(condition, first, second)
        lanes = lanes_of(value)
        if lanes % 2:
            return None
        held = vector_type("uint32", lanes // 2)
        if isinstance(value, tirx.Broadcast) and isinstance(value.value, tirx.FloatImm) and not value.value.value:
            zero = tirx.const(0, "uint32")
            return zero if lanes == 2 else tirx.Broadcast(zero, lanes // 2)
        half = value.value if isinstance(value, tirx.Cast) else value
        is_load = isinstance(half, TensorLoad) and str(half.source.scope()) == "global"
        if not _is_fp16(half) or not (is_load or (self.is_fp16 and half is value)):
            return None
        return self.dialect.reinterpreted(half, held)

    def value_of(self, bits: tirx.Expr, dtype: str) -> tirx.Expr:
        """Return the value that `bits` stand for, of a type that was loaded."""
        half = self.dialect.reinterpreted(bits, vector_type("float16", int(tvm.DataType(dtype).lanes)))
        return half if str(half.ty) == dtype else tirx.Cast(dtype, half)


def _is_fp16(value: tirx.Expr) -> bool:
    return str(tvm.DataType(str(value.ty)).with_lanes(1)) == "float16"


class _Split:
    """Splits a nest that fills local memory into loads to registers and stores from there.

    bits: conversions, if registers may hold fp16 as bits.
    registers: their allocations.
    """

    def __init__(self, bits: _Bits | None) -> None:
        self.bits = bits
        self.registers: list[tirx.Stmt] = []

    def visit(self, stmt: tirx.Stmt, loops: Sequence[tirx.For]) -> tuple[tirx.Stmt, tirx.Stmt]:
        """Return the loads and the stores of a statement inside of `loops`."""
        match stmt:
            case tirx.SeqStmt():
                fetches, puts = zip(*(self.visit(child, loops) for child in stmt.seq), strict=True)
                return sequence_of(fetches), sequence_of(puts)
            case tirx.For():
                fetch, put = (_unrolled(stmt, part) for part in self.visit(stmt.body, [*loops, stmt]))
                return fetch, put
            case tirx.IfThenElse() if stmt.else_case is None:
                fetch, put = self.visit(stmt.then_case, loops)
                return tirx.IfThenElse(stmt.condition, fetch, None), tirx.IfThenElse(stmt.condition, put, None)
            case tirx.BufferStore():
                return self.visit_store(stmt, loops)
        raise BuildError(
            f"what is staged in two halves of local memory is stored by loops and conditions alone, not by {stmt}"
        )

    def visit_store(self, stmt: tirx.BufferStore, loops: Sequence[tirx.For]) -> tuple[tirx.Stmt, tirx.Stmt]:
        """Return the load and the store of an element or a vector."""
        bits = None if self.bits is None else self.bits.of(stmt.value)
        value = stmt.value if bits is None else bits
        count = math.prod(int(loop.extent) for loop in loops)
        ahead = tirx.decl_buffer([count], str(value.ty.dtype), f"{stmt.buffer.name}_ahead", scope="local")
        self.registers.append(tirx.AllocBuffer(ahead))
        index: tirx.Expr = tirx.const(0, "int32")
        for loop in loops:
            index = index * loop.extent + (loop.loop_var - loop.min)
        loaded: tirx.Expr = tirx.BufferLoad(ahead, [index])
        if self.bits is not None and bits is not None:
            loaded = self.bits.value_of(loaded, str(stmt.value.ty.dtype))
        return tirx.BufferStore(ahead, value, [index]), tirx.BufferStore(stmt.buffer, loaded, stmt.indices)


def _unrolled(loop: tirx.For, body: tirx.Stmt) -> tirx.For:
    """Return a copy of a loop, with a new variable, unrolled: registers have no addresses."""
    variable = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    body = substitute(body, {loop.loop_var: variable})
    return tirx.For(variable, loop.min, loop.extent, tirx.ForKind.UNROLLED, body)


def _staged_in(stmt: tirx.Stmt) -> list[tirx.Var]:
    return [store.buffer for store in nodes_in(stmt, tirx.BufferStore) if str(store.buffer.scope()) == "shared"]
