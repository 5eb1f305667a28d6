"""Vectors of the single numbers that a sum over an odd extent reads, one in each iteration.

    for k in 197:                                   for k in 49:
      … data[at + k]   weight[at_1 + k * 16]          v = data[at + k * 4 : at + k * 4 + 4]
                                             ->       … v.s0   weight[at_1 + k * 64]
                                                      … v.s1   weight[at_1 + k * 64 + 16]
                                                      … v.s2, v.s3
                                                    … data[at + 196]   weight[at_1 + 196 * 16]

Rows of 197 numbers start anywhere, so a schedule reads them one by one, and an iteration multiplies little. A product
of 77x77 and 77x64 takes 1.7 times the instructions without this pass under Mesa's compiler for Adreno 660, and 1.35
times for Mali-G76. The order of a sum stays. The loops are those with pointers that advance (`advancing_pointers.py`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_equal, structural_map, structural_mutate

from romou.compiler.passes.bindings import sequence_of, statements_of
from romou.compiler.tir.calls import is_conditional
from romou.compiler.tir.primitives import ADVANCE_POINTERS, LANES
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.dialect import dialect_of

# Mesa's compilers unroll loops with at most so many iterations and products, and load ahead for all of them.
_MOST_ITERATIONS, _MOST_PRODUCTS = 32, 832


@tirx.transform.prim_func_pass(opt_level=0)
def read_odd_sums(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Sum four iterations at a time in the marked loops of a device function that read single fp32 numbers in a row."""
    if not dialect_of(func).has_pointers:
        return func
    written = {store.buffer for store in nodes_in(func.body, tirx.BufferStore)}

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        new = mutator.default_mutate(stmt)
        if stmt.attr_key != ADVANCE_POINTERS:
            return new
        parts = [
            part
            for child in statements_of(new.body)
            for part in (_in_vectors(child, written, int(stmt.value)) if isinstance(child, tirx.For) else [child])
        ]
        return tirx.AttrStmt(new.node, new.attr_key, new.value, sequence_of(parts))

    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


def _in_vectors(loop: tirx.For, written: set[tirx.Var], most: int) -> list[tirx.Stmt]:
    """Return the statements in place of a loop: the loop itself if it reads no single numbers, or would be unrolled.

    most: registers that an iteration may take for sums, pointers and vectors.
    """
    extent = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 0
    if loop.kind != tirx.ForKind.SERIAL or nodes_in(loop.body, tirx.For, tirx.IfThenElse):
        return [loop]
    if any(map(is_conditional, nodes_in(loop.body, tvm.ir.Call))):
        # A load of a padded window stays behind its condition.
        return [loop]
    singles: list[TensorLoad] = []
    for load in nodes_in(loop.body, TensorLoad):
        if _is_single(load, loop, written) and not any(structural_equal(load, other) for other in singles):
            singles.append(load)
    stores = nodes_in(loop.body, tirx.BufferStore)
    stays = [n for n in (LANES, 2) if extent // n > _MOST_ITERATIONS or extent * len(stores) > _MOST_PRODUCTS]
    # The sums, and a pointer of two registers for each load.
    sums = sum(tvm.DataType(str(store.value.ty)).lanes for store in stores)
    loads = [load for load in nodes_in(loop.body, TensorLoad) if str(load.source.scope()) == "global"]
    others = sums + 2 * len(loads)
    lanes = next((n for n in stays if n < extent and others + n * len(singles) <= most), 1)
    if not singles or lanes == 1:
        return [loop]
    first = loop.loop_var * lanes
    vectors = [
        tirx.Bind(
            tirx.Var(f"{load.source.name}_row", tvm.ir.PrimType(f"{load.source.dtype}x{lanes}")),
            tirx.BufferLoad(load.source, [tirx.Ramp(_at(load.indices[0], loop, first), tirx.const(1, "int32"), lanes)]),
        )
        for load in singles
    ]

    def step(number: int) -> tirx.Stmt:
        def lane(load: TensorLoad) -> tirx.Expr:
            at = next((at for at, other in enumerate(singles) if structural_equal(load, other)), None)
            return load if at is None else tirx.Shuffle([vectors[at].var], [number])

        return _at(_with_own_variables(structural_map(loop.body, (TensorLoad, lane))), loop, first + number)

    body = sequence_of([*vectors, *(part for number in range(lanes) for part in statements_of(step(number)))])
    count = tirx.const(extent // lanes, loop.loop_var.ty)
    main = tirx.For(loop.loop_var, loop.min, count, loop.kind, body, loop.thread_binding, loop.annotations, loop.step)
    rest = [
        part
        for number in range(extent // lanes * lanes, extent)
        for part in statements_of(_at(_with_own_variables(loop.body), loop, tirx.const(number, loop.loop_var.ty)))
    ]
    return [main, *rest]


def _is_single(load: TensorLoad, loop: tirx.For, written: set[tirx.Var]) -> bool:
    """Return whether a load reads one fp32 number after the other, at an address that the loop does not declare."""
    source, index = load.source, load.indices[-1]
    if (
        len(load.indices) > 1
        or str(index.ty) != "int32"
        or str(source.dtype) != "float32"
        or str(source.scope()) != "global"
        or source in written
        or nodes_in(index, TensorLoad)
    ):
        return False
    declared = {stmt.var for stmt in nodes_in(loop.body, tirx.Bind)}
    if any(var in declared for var in nodes_in(index, tirx.Var)):
        return False
    step = tvm.sym.Analyzer().simplify(_at(index, loop, loop.loop_var + 1) - index)
    return isinstance(step, tirx.IntImm) and int(step) == 1


def _at(node: Any, loop: tirx.For, value: tirx.Expr) -> Any:
    """Return a statement or an expression of an iteration."""
    analyzer = tvm.sym.Analyzer()
    new = structural_map(node, (tirx.Var, lambda var: value if var.same_as(loop.loop_var) else var))
    return analyzer.simplify(new) if isinstance(new, tvm.ir.Expr) else new


def _with_own_variables(body: tirx.Stmt) -> tirx.Stmt:
    """Return a copy of statements that declares variables of its own."""
    own = {stmt.var: tirx.Var(stmt.var.name, stmt.var.ty) for stmt in nodes_in(body, tirx.Bind)}

    return structural_map(body, (tirx.Var, lambda var: own.get(var, var)))
