"""Reductions of a single term: axes of extent 1, as those of a convolution of one channel with a window of one pixel."""  # noqa: E501

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_equal, structural_map

from romou.compiler.scheduling.blocks import reduced_axes
from romou.compiler.scheduling.emit import substitute


def without_single_terms(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function in which what is reduced over one term only is computed like any other element.

        s[i] = 0;  for k in range(1): s[i] += a[i, k]      ->      s[i] = 0 + a[i, 0]

    TVM's rules for schedules drop axes of extent 1 and keep the first value, and then compute what follows element-wise
    of both: f(f(0) + a) for f(a).
    """
    return func.with_body(structural_map(func.body, (s_tir.SBlockRealize, _elementwise)))


def _elementwise(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
    block = realize.block
    reduced = reduced_axes(block)
    if block.init is None or not all(
        isinstance(axis.dom.extent, tirx.IntImm) and int(axis.dom.extent) == 1 for axis in reduced
    ):
        return realize
    body = _with_first_values(block.body, block.init)
    if body is None:
        return realize
    firsts = {axis.var: axis.dom.min for axis in reduced}
    kept = [
        (axis, value)
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if axis.var not in firsts
    ]
    reads, writes = (substitute(regions, firsts) for regions in (block.reads, block.writes))
    own = s_tir.SBlock(
        [axis for axis, _ in kept],
        [region for region in reads if not any(region.source.same_as(write.source) for write in writes)],
        writes,
        block.name_hint,
        substitute(body, firsts),
        None,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    return s_tir.SBlockRealize([value for _, value in kept], realize.predicate, own)


def _with_first_values(body: tirx.Stmt, init: tirx.Stmt) -> tirx.Stmt | None:
    """The statements of a block with the values that its results begin with in the place of these; None where they are
    read in another way.
    """
    starts = _statements(init)
    if not all(isinstance(start, tirx.BufferStore) for start in starts):
        return None
    stored: list[tirx.Buffer] = []
    fits: list[bool] = []

    def first(load: TensorLoad) -> tirx.Expr:
        start = next((start for start in starts if start.buffer.same_as(load.source)), None)
        if start is None:
            return load
        is_same = len(start.indices) == len(load.indices) and all(map(structural_equal, start.indices, load.indices))
        fits.append(is_same and not any(start.buffer.same_as(buffer) for buffer in stored))
        return start.value

    made = []
    for stmt in _statements(body):
        if not isinstance(stmt, tirx.BufferStore | tirx.Bind):
            return None
        made.append(structural_map(stmt, (TensorLoad, first)))
        if isinstance(stmt, tirx.BufferStore):
            stored.append(stmt.buffer)
    return (tirx.SeqStmt(made) if len(made) > 1 else made[0]) if all(fits) else None


def _statements(body: tirx.Stmt) -> list[tirx.Stmt]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
