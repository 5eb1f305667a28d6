"""Vectors of the single elements that a sum over an odd extent reads, one in each iteration.

    for k in 197:                                   for k in 49:
      … data[at + k]   weight[at_1 + k * 16]          v = data[at + k * 4 : at + k * 4 + 4]
                                             ->       … v.s0   weight[at_1 + k * 64]
                                                      … v.s1   weight[at_1 + k * 64 + 16]
                                                      … v.s2, v.s3
                                                    … data[at + 196]   weight[at_1 + 196 * 16]

Rows of 197 elements start anywhere, so a schedule reads them one by one, and an iteration multiplies little. A product
of 77x77 and 77x64 takes 1.7 times the instructions without this pass under Mesa's compiler for Adreno 660, and 1.35
times for Mali-G76. The order of a sum stays. The loops are those with pointers that advance (`advancing_pointers.py`).
fp16 that is converted to fp32 where it is loaded is converted in vectors, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_equal, structural_map, structural_mutate

from romou.compiler.passes.advancing_pointers import keeps_loops
from romou.compiler.tir.calls import extern_name, is_conditional, is_fp16_load, is_fp16_store, op_name
from romou.compiler.tir.expressions import lanes_of
from romou.compiler.tir.primitives import ADVANCE_POINTERS, KEEP_LOOP, LANES
from romou.compiler.tir.traversal import function_pass, nodes_in, sequence_of, statements_of, substitute, with_fields
from romou.devices.backends.dialect import Dialect, dialect_of

# Mesa's compilers unroll loops up to these iterations and products, and load ahead for all of them.
_MOST_ITERATIONS, _MOST_PRODUCTS = 32, 832
# Fewest iterations of a loop that is kept nevertheless (`keeps_loops`).
_LEAST_ITERATIONS = 8


@function_pass
def read_odd_sums(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Sum four iterations at a time in the marked loops of a device function that read single elements in a row."""
    dialect = dialect_of(func)
    if not dialect.has_pointers:
        return func
    written, keeps = _written(func), keeps_loops(func)

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        new = mutator.default_mutate(stmt)
        if stmt.attr_key != ADVANCE_POINTERS:
            return new
        parts = [
            part
            for child in statements_of(new.body)
            for part in (
                _in_vectors(child, written, dialect, int(stmt.value), keeps=keeps)
                if isinstance(child, tirx.For)
                else [child]
            )
        ]
        return tirx.AttrStmt(new.node, new.attr_key, new.value, sequence_of(parts))

    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


@dataclass(frozen=True)
class _Single:
    """A load of one number at `index` of `source`. is_converted: whether it converts the bits of fp16 to fp32."""

    load: tvm.ir.Expr
    source: tirx.Buffer
    index: tirx.Expr
    is_converted: bool

    @classmethod
    def of(cls, load: tvm.ir.Expr, loop: tirx.For, written: set[tirx.Var]) -> _Single | None:
        """Return the load if it reads one number after the other, at an address that the loop does not declare."""
        if isinstance(load, TensorLoad):
            source, index, is_converted = load.source, load.indices[-1], False
            if len(load.indices) > 1 or str(source.dtype) not in ("float32", "float16"):
                return None
        elif extern_name(load) == "vload_half" and op_name(data := load.args[2].args[1]) == "tirx.buffer_data":
            source, index, is_converted = data.args[0], load.args[1], True
        else:
            return None
        if (
            str(index.ty) != "int32"
            or str(source.scope()) != "global"
            or source in written
            or nodes_in(index, TensorLoad)
        ):
            return None
        declared = {stmt.var for stmt in nodes_in(loop.body, tirx.Bind)}
        if any(var in declared for var in nodes_in(index, tirx.Var)):
            return None
        step = tvm.sym.Analyzer().simplify(_at(index, loop, loop.loop_var + 1) - index)
        return cls(load, source, index, is_converted) if isinstance(step, tirx.IntImm) and int(step) == 1 else None

    def vector(self, first: tirx.Expr, lanes: int, dialect: Dialect) -> tirx.Expr:
        """Return the load of `lanes` elements from the index `first` on."""
        if not self.is_converted:
            return tirx.BufferLoad(self.source, [tirx.Ramp(first, tirx.const(1, "int32"), lanes)])
        start = tirx.address_of(tirx.BufferLoad(self.source, [first]))
        return dialect.load_fp16(tirx.const(0, "int32"), dialect.fp16_pointer(start, "global"), lanes, False)


def _written(func: tirx.PrimFunc) -> set[tirx.Var]:
    """Return the buffers that a function writes, and all variables in the addresses of fp16 values that it writes."""
    conversions = [call for call in nodes_in(func.body, tvm.ir.Call) if is_fp16_store(call)]
    return {store.buffer for store in nodes_in(func.body, tirx.BufferStore)} | {
        var for call in conversions for var in nodes_in(call.args[-1], tirx.Var)
    }


def _in_vectors(loop: tirx.For, written: set[tirx.Var], dialect: Dialect, most: int, *, keeps: bool) -> list[tirx.Stmt]:
    """Return the statements in place of a loop: the loop itself if it reads no single elements, or would be unrolled.

    most: registers that an iteration may take for sums, pointers and vectors.
    """
    extent = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 0
    if loop.kind != tirx.ForKind.SERIAL or nodes_in(loop.body, tirx.For, tirx.IfThenElse):
        return [loop]
    if any(map(is_conditional, nodes_in(loop.body, tvm.ir.Call))):
        # A load of a padded window stays behind its condition.
        return [loop]
    singles: list[_Single] = []
    for load in nodes_in(loop.body, TensorLoad, tvm.ir.Call):
        single = _Single.of(load, loop, written)
        if single is not None and not any(structural_equal(load, other.load) for other in singles):
            singles.append(single)
    stores = nodes_in(loop.body, tirx.BufferStore)
    if any(str(store.value.ty) == "float16" and _adds(store) for store in stores):
        # On Mali, sums of single fp16 values take a register each, and spill beside vectors.
        return [loop]
    least = _LEAST_ITERATIONS if keeps else _MOST_ITERATIONS + 1
    stays = [n for n in (LANES, 2) if extent // n >= least or extent * len(stores) > _MOST_PRODUCTS]
    # The sums, a pointer of two registers and the vector for each row, and what is loaded from other places.
    sums = sum(lanes_of(store.value) for store in stores)
    loads = [
        load
        for load in nodes_in(loop.body, TensorLoad, tvm.ir.Call)
        if (str(load.source.scope()) == "global" if isinstance(load, TensorLoad) else is_fp16_load(load))
    ]
    others = len(loads) - len(singles)
    lanes = next((n for n in stays if n < extent and sums + (2 + n) * len(singles) + n * others <= most), 1)
    if not singles or lanes == 1:
        return [loop]
    first = loop.loop_var * lanes
    vectors = [
        tirx.Bind(
            tirx.Var(f"{single.source.name}_row", tvm.ir.PrimType(f"{single.load.ty}x{lanes}")),
            single.vector(_at(single.index, loop, first), lanes, dialect),
        )
        for single in singles
    ]

    def step(number: int) -> tirx.Stmt:
        def lane(load: tvm.ir.Expr) -> tirx.Expr:
            at = next((at for at, other in enumerate(singles) if structural_equal(load, other.load)), None)
            return load if at is None else tirx.Shuffle([vectors[at].var], [number])

        mapped = structural_map(loop.body, [(TensorLoad, lane), (tvm.ir.Call, lane)])
        return _at(_with_own_variables(mapped), loop, first + number)

    body = sequence_of([*vectors, *(part for number in range(lanes) for part in statements_of(step(number)))])
    count = tirx.const(extent // lanes, loop.loop_var.ty)
    marks = {**loop.annotations, KEEP_LOOP: 1}
    main = with_fields(loop, extent=count, body=body, annotations=marks)
    rest = [
        part
        for number in range(extent // lanes * lanes, extent)
        for part in statements_of(_at(_with_own_variables(loop.body), loop, tirx.const(number, loop.loop_var.ty)))
    ]
    return [main, *rest]


def _adds(store: tirx.BufferStore) -> bool:
    return any(load.source.same_as(store.buffer) for load in nodes_in(store.value, TensorLoad))


def _at(node: Any, loop: tirx.For, value: tirx.Expr) -> Any:
    """Return a statement or an expression of an iteration."""
    analyzer = tvm.sym.Analyzer()
    new = substitute(node, {loop.loop_var: value})
    return analyzer.simplify(new) if isinstance(new, tvm.ir.Expr) else new


def _with_own_variables(body: tirx.Stmt) -> tirx.Stmt:
    """Return a copy of statements with new variables in place of the declared ones."""
    own = {stmt.var: tirx.Var(stmt.var.name, stmt.var.ty) for stmt in nodes_in(body, tirx.Bind)}
    return substitute(body, own)
