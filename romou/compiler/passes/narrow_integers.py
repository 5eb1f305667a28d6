"""Work-item numbers, comparisons and indices in 32 bits, if they fit.

TVM's NarrowDataType stops at a buffer with an unknown offset, and leaves conditions in 64 bits. Most GPUs take several
instructions for these, and Mesa's compiler folds some of them wrongly (22.3: `int64_t(int_value) < 5L` is false for
every value):

    threadIdx.x < int64(5)                           ->      threadIdx.x < 5
    int64(local_x) * 2 + int64(v) < int64(5)         ->      local_x * 2 + v < 5
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_map, structural_mutate, structural_walk

from romou.compiler.passes.division import note_thread
from romou.compiler.tir.expressions import lanes_of
from romou.compiler.tir.traversal import function_pass

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
# Operations with a right result in 32 bits if both operands and the result fit.
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max)
_LEAST, _MOST = -(2**31), 2**31 - 1


@function_pass
def narrow_integers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Narrow the integers of a device function, after all conditions are written.

    Extents of loops and work groups bound them.
    """
    body, analyzer = _with_narrow_work_items(func.body), tvm.sym.Analyzer()

    def note_loop(loop: tirx.For) -> None:
        analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))

    structural_walk(body, [(tirx.For, note_loop), (tirx.AttrStmt, partial(note_thread, analyzer))])

    def compared(expr: Any) -> tirx.Expr:
        sides = _both_narrowed(expr, analyzer) if str(expr.a.ty) == "int64" else None
        return expr if sides is None else type(expr)(*sides)

    def indices(wide: Any) -> list[tirx.Expr] | None:
        """Return narrow indices of an access, or None if none gets narrower."""
        narrow = [(_narrowed(index, analyzer) if str(index.ty) == "int64" else None) for index in wide]
        return (
            None
            if all(new is None for new in narrow)
            else [old if new is None else new for old, new in zip(wide, narrow, strict=True)]
        )

    def load(access: TensorLoad) -> tirx.Expr:
        new = indices(access.indices)
        return access if new is None else tirx.BufferLoad(access.source, new)

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        new = indices(access.indices)
        return access if new is None else tirx.BufferStore(access.buffer, access.value, new)

    return func.with_body(
        structural_map(body, [(_COMPARISONS, compared), (TensorLoad, load), (tirx.BufferStore, store)])
    )


def _with_narrow_work_items(body: tirx.Stmt) -> tirx.Stmt:
    narrow: dict[tirx.Var, tirx.Var] = {}

    def launch(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        if stmt.attr_key != "thread_extent" or str(stmt.node.var.ty) != "int64" or not _fits(stmt.value):
            return mutator.default_mutate(stmt)
        item, extent = stmt.node, tirx.const(int(stmt.value), "int32")
        variable = narrow.setdefault(item.var, tirx.Var(str(item.var.name), "int32"))
        node = tirx.IterVar(tvm.ir.Range(0, extent), variable, item.iter_type, item.thread_tag)
        return tirx.AttrStmt(node, stmt.attr_key, extent, mutator.mutate(stmt.body))

    def use(variable: tirx.Var, _mutator: Any) -> tirx.Expr:
        return tirx.Cast("int64", narrow[variable]) if variable in narrow else variable

    return structural_mutate(body, [(tirx.AttrStmt, launch), (tirx.Var, use)])


def _fits(extent: tirx.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) <= _MOST


def _narrowed(expr: tirx.Expr, analyzer: tvm.sym.Analyzer) -> tirx.Expr | None:
    """Return a 64-bit number in 32 bits, converted only if necessary, or None if it may not fit."""
    bound = analyzer.const_int_bound(expr)
    if bound.min_value < _LEAST or bound.max_value > _MOST:
        return None
    if isinstance(expr, tirx.IntImm):
        return tirx.const(int(expr.value), "int32")
    if isinstance(expr, tirx.Cast) and str(expr.value.ty) == "int32":
        return expr.value
    if isinstance(expr, _ARITHMETIC):
        sides = _both_narrowed(expr, analyzer)
        if sides is not None:
            return type(expr)(*sides)
    return expr.astype("int32")


def _both_narrowed(expr: Any, analyzer: tvm.sym.Analyzer) -> tuple[tirx.Expr, tirx.Expr] | None:
    a, b = _narrowed(expr.a, analyzer), _narrowed(expr.b, analyzer)
    return None if a is None or b is None else (a, b)


@function_pass
def keep_stored_types(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Store values in the types of their buffers: TVM's narrowing of indices also narrows vectors of constants."""

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        lanes = lanes_of(access.value)
        dtype = (
            str(access.buffer.dtype)
            if lanes == 1 or "x" in str(access.buffer.dtype)
            else f"{access.buffer.dtype}x{lanes}"
        )
        if str(access.value.ty) == dtype or "int" not in dtype:
            return access
        return tirx.BufferStore(access.buffer, access.value.astype(dtype), access.indices)

    return func.with_body(structural_map(func.body, (tirx.BufferStore, store)))
