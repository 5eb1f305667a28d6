"""Loops, guards and launches of kernels that a family writes out instead of scheduling them.

TVM's scheduler drops the guard of a tile's last, partial iteration when it stores from registers (cache_write, then
reverse_compute_at), and it has no vectors of partial sums. Families that read each input once write their few loops
themselves, from the expressions in the function's blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from romou.compiler.tir.expressions import is_one
from romou.compiler.tir.traversal import rewriting, substitute, with_fields

_KINDS = {"serial": tirx.ForKind.SERIAL, "unrolled": tirx.ForKind.UNROLLED, "vectorized": tirx.ForKind.VECTORIZED}


def register_type(dtype: str) -> str:
    """Return the type that registers and local memory hold for a tensor of `dtype`: fp32 for fp16."""
    return "float32" if dtype == "float16" else dtype


def loop(var: tirx.Var, extent: int | tirx.Expr, body: tirx.Stmt, kind: str = "serial") -> tirx.Stmt:
    """Return `for var in range(extent): body`, or only `body` with var = 0 if the extent is 1."""
    if is_one(extent):
        return substitute(body, {var: tirx.const(0, var.ty)})
    return tirx.For(var, tirx.const(0, var.ty), typed(extent, var), _KINDS[kind], body)


def typed(extent: int | tirx.Expr, var: tirx.Var) -> tirx.Expr:
    """Return an extent in a variable's type."""
    return extent.astype(str(var.ty)) if isinstance(extent, tirx.Expr) else tirx.const(int(extent), var.ty)


def guarded(condition: tirx.Expr | None, body: tirx.Stmt) -> tirx.Stmt:
    """Return `if condition: body`, or only `body` if the condition is None."""
    return body if condition is None else tirx.IfThenElse(condition, body, None)


def barrier() -> tirx.Stmt:
    """Return a wait for all work-items of the group, and for what they stored in local memory."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def unravel(position: tirx.Expr, extents: Sequence[int | tirx.Expr]) -> list[tirx.Expr]:
    """Return the indices of the element at a flat, row-major position.

    position, (a, b, c)      ->      [position // c // b, position // c % b, position % c]
    position, (1, 1, c)      ->      [0, 0, position]

    The index of the first axis with several elements is not bounded.
    """
    leading = next((axis for axis, extent in enumerate(extents) if _may_be_several(extent)), len(extents))
    if 0 < leading < len(extents):
        return [*(tirx.const(0, position.ty) for _ in range(leading)), *unravel(position, extents[leading:])]
    indices: list[tirx.Expr] = []
    for axis in range(len(extents) - 1, 0, -1):
        is_several = _may_be_several(extents[axis])
        indices.insert(0, position % extents[axis] if is_several else tirx.const(0, position.ty))
        position = position // extents[axis] if is_several else position
    if not extents:
        return indices
    return [position if _may_be_several(extents[0]) else tirx.const(0, position.ty), *indices]


def _may_be_several(extent: int | tirx.Expr) -> bool:
    return extent > 1 if isinstance(extent, int) else True


def bound(threads: Mapping[str, tuple[tirx.Var, int | tirx.Expr]], body: tirx.Stmt) -> tirx.Stmt:
    """Return `body`, the program of a work-item, inside its thread bindings. threads: as for `launch`."""
    for tag, (var, extent) in reversed(list(threads.items())):
        kind, low, high = tirx.ForKind.THREAD_BINDING, tirx.const(0, var.ty), typed(extent, var)
        body = tirx.For(var, low, high, kind, body, thread_binding=tirx.IterVar(None, tirx.Var(tag, var.ty), 1, tag))
    return body


def stage_of(
    threads: Mapping[str, tuple[tirx.Var, int | tirx.Expr]], body: tirx.Stmt, buffers: Sequence[tirx.Buffer]
) -> tirx.Stmt:
    """Return a kernel as one of several of a function. threads, buffers: as for `launch`."""
    block = s_tir.SBlock([], [], [], "kernel", body, alloc_buffers=list(buffers))
    return bound(threads, s_tir.SBlockRealize([], True, block))


def launch(
    func: tirx.PrimFunc,
    threads: Mapping[str, tuple[tirx.Var, int | tirx.Expr]],
    body: tirx.Stmt,
    buffers: Sequence[tirx.Buffer] = (),
) -> tvm.IRModule:
    """Return a module with `func` as `main` and `body` as the program of a work-item.

    threads: "blockIdx.x", "threadIdx.x", ... -> (variable, extent).
    buffers: in registers and local memory.
    """
    root = s_tir.SBlock([], [], [], "root", _with_distinct_loops(bound(threads, body)), alloc_buffers=list(buffers))
    kernel = with_fields(func, body=s_tir.SBlockRealize([], True, root))
    return tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})


def _with_distinct_loops(body: tirx.Stmt) -> tirx.Stmt:
    """Rename loop variables, so that no two loops share one.

    for lane: a[lane] = 0      ->      for lane: a[lane] = 0
    for lane: b[lane] = 1              for lane': b[lane'] = 1

    A statement that is used twice repeats its loops, and TVM cannot copy a function that binds a variable twice.
    """
    bound: set[tirx.Var] = set()

    def renew(stmt: tirx.For, mutator: Any) -> tirx.For:
        var = stmt.loop_var
        is_first = var not in bound
        bound.add(var)
        new = mutator.default_mutate(stmt)
        if is_first:
            return new
        fresh = tirx.Var(var.name, var.ty)
        body = substitute(new.body, {var: fresh})
        return with_fields(new, loop_var=fresh, body=body)

    return rewriting((tirx.For, renew))(body)
