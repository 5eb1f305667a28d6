"""Asynchronous copies of a software pipeline from global to local memory, which bypass the registers: PTX's cp.async.

TVM's InjectSoftwarePipeline splits a loop that stages operands and then uses them. While a work group uses the
operands of one iteration, the operands of the next ones are in flight. It marks the copies, the end of each group of
copies, and the number of groups that may still be in flight. TVM's code generator writes the last two in CUDA only.
This pass writes all three. The copies occupy no register:

    async_scope: kernel_shared[i : i + 4] = weight[j : j + 4]
        ->  copy_halfs_async(j / 4, weight, i / 4, kernel_shared, true)
    async_scope: patch_shared[i : i + 4] = if inside data[j : j + 4] else 0
        ->  copy_halfs_async(j / 4, data, i / 4, patch_shared, inside)

TVM's iteration begins with copies, which overwrite memory that all work-items must have read. Then it waits for the
operands, which all work-items must see. Both need a barrier. An iteration that waits first needs only one:

    for i:                                            for i:
      barrier                                           wait for all but n - 1 groups
      copy share i + n                                  barrier
      end of group                            ->        use share i
      wait for all but n groups                         copy share i + n
      barrier                                           end of group
      use share i

If n is 1, the copies come before the use.

    async_commit_queue_scope: copies                              ->  copies; end_group_of_copies()
    async_wait_queue_scope: async_wait_inflight_count n: use      ->  wait_for_copies(n); use
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map, structural_mutate

from romou.base.errors import BuildError
from romou.compiler.passes.bindings import is_barrier
from romou.compiler.tir.calls import is_conditional
from romou.compiler.tir.primitives import LANES, is_texel
from romou.compiler.tir.traversal import statements_of
from romou.devices.backends.dialect import call_on_device, copy_texel_async

# TVM's marks on a copy, on a group of copies, on a wait for groups, and on the number of groups that may then still be
# in flight.
_ASYNC, _GROUP, _WAITING, _UNDER_WAY = (
    "async_scope",
    "async_commit_queue_scope",
    "async_wait_queue_scope",
    "async_wait_inflight_count",
)


@tirx.transform.prim_func_pass(opt_level=0)
def copy_asynchronously(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Write the marked copies of a device function, after fp16 is bits and while buffers are scalar.

    The marks are removed.
    """
    analyzer = tvm.sym.Analyzer()

    def iteration(stmt: tirx.For) -> tirx.For:
        parts = list(statements_of(stmt.body))
        if len(parts) != 2 or not _is_marked(parts[0], _GROUP) or not _is_marked(parts[1], _WAITING):
            return stmt
        group, (waiting, under_way) = parts[0], (parts[1], parts[1].body)
        barrier, *use = statements_of(under_way.body)
        copies = structural_map(
            group, (tirx.Evaluate, lambda statement: tirx.Evaluate(0) if is_barrier(statement) else statement)
        )
        if not _is_marked(under_way, _UNDER_WAY) or not is_barrier(barrier):
            return stmt
        ahead = int(under_way.value)
        fewer = tirx.AttrStmt(under_way.node, _UNDER_WAY, tirx.const(ahead - 1, "int32"), barrier)
        first = tirx.AttrStmt(waiting.node, _WAITING, waiting.value, fewer)
        body = tirx.SeqStmt([first, copies, *use] if ahead == 1 else [first, *use, copies])
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body, stmt.thread_binding, stmt.annotations)

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        if stmt.attr_key != _ASYNC:
            return mutator.default_mutate(stmt)
        return structural_map(stmt.body, (tirx.BufferStore, lambda store: _copied(store, analyzer)))

    def written(stmt: tirx.AttrStmt) -> tirx.Stmt:
        if stmt.attr_key == _GROUP:
            return tirx.SeqStmt([stmt.body, call_on_device("end_group_of_copies")])
        if stmt.attr_key == _UNDER_WAY:
            return tirx.SeqStmt([call_on_device("wait_for_copies", stmt.value), stmt.body])
        return stmt.body if stmt.attr_key == _WAITING else stmt

    body = structural_mutate(func.body, (tirx.AttrStmt, marked))
    body = structural_map(body, (tirx.For, iteration))
    return func.with_body(structural_map(body, (tirx.AttrStmt, written)))


def _is_marked(stmt: Any, key: str) -> bool:
    return isinstance(stmt, tirx.AttrStmt) and str(stmt.attr_key) == key


def _copied(store: tirx.BufferStore, analyzer: Any) -> tirx.Stmt:
    inside, value = tirx.const(True, "bool"), store.value
    while is_conditional(value):
        # In contractions, elements outside are zero, and a copy of no bytes also leaves zeros.
        condition, value, _zeros = value.args
        inside = tirx.all(inside, condition)
    (to,) = store.indices
    if not isinstance(value, tvm.ir.TensorLoad) or not is_texel(value.indices[0]) or not is_texel(to):
        raise BuildError(f"only whole texels are copied past the registers, not {store}")
    start, target = (analyzer.simplify(index.base // LANES) for index in (value.indices[0], to))
    return copy_texel_async(start, value.source, target, store.buffer, analyzer.simplify(inside))
