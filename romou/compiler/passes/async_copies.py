"""Asynchronous copies of a software pipeline from global to local memory, which bypass the registers: PTX's cp.async.

TVM's InjectSoftwarePipeline splits a loop that stages operands and then uses them. While a work group uses the
operands of one iteration, the operands of the next ones are in flight. It marks the copies, the end of each group of
copies, and the number of groups that may still be in flight. TVM's code generator writes the last two in CUDA only.
This pass writes all three. The copies occupy no register:

    async_scope: kernel_shared[i : i + 4] = weight[j : j + 4]
        ->  copy_texel_async(j / 4, weight, i / 4, kernel_shared, true)
    async_scope: patch_shared[i : i + 4] = if inside data[j : j + 4] else 0
        ->  copy_texel_async(j / 4, data, i / 4, patch_shared, inside)

Two neighbouring texels of fp16 are one copy of 16 bytes, `copy_texel_pair_async`.

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

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map, structural_mutate

from romou.base.errors import BuildError
from romou.compiler.passes.bindings import is_barrier
from romou.compiler.tir.calls import is_conditional
from romou.compiler.tir.primitives import LANES, is_texel
from romou.compiler.tir.traversal import function_pass, sequence_of, statements_of, with_fields
from romou.devices.backends.dialect import call_on_device, copy_async

# TVM's marks on a copy, on a group of copies, on a wait for groups, and on the number of groups that may then still be
# in flight.
_ASYNC, _GROUP, _WAITING, _UNDER_WAY = (
    "async_scope",
    "async_commit_queue_scope",
    "async_wait_queue_scope",
    "async_wait_inflight_count",
)


@function_pass
def copy_asynchronously(func: tirx.PrimFunc) -> tirx.PrimFunc:
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
        return with_fields(stmt, body=body)

    def sequence(stmt: tirx.SeqStmt, mutator: Any) -> tirx.Stmt:
        parts: list[tirx.Stmt] = []
        for are_stores, run in itertools.groupby(statements_of(stmt), lambda part: isinstance(part, tirx.BufferStore)):
            same = list(run)
            parts += [_copied(same, analyzer)] if are_stores else map(mutator.mutate, same)
        return sequence_of(parts)

    def single(store: tirx.BufferStore, _mutator: Any) -> tirx.Stmt:
        return _copied([store], analyzer)

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        if stmt.attr_key != _ASYNC:
            return mutator.default_mutate(stmt)
        return structural_mutate(stmt.body, [(tirx.SeqStmt, sequence), (tirx.BufferStore, single)])

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


@dataclass(frozen=True)
class _Copy:
    """A copy of `lanes` elements from source[start] on to target[into] on, or zeros if they are not `inside`."""

    lanes: int
    source: tirx.Buffer
    start: tirx.Expr
    target: tirx.Buffer
    into: tirx.Expr
    inside: tirx.Expr

    @classmethod
    def of(cls, store: tirx.BufferStore) -> _Copy:
        """Return the copy of a texel."""
        inside, value = tirx.const(True, "bool"), store.value
        while is_conditional(value):
            # In contractions, elements outside are zero, and a copy of no bytes also leaves zeros.
            condition, value, _zeros = value.args
            inside = tirx.all(inside, condition)
        (to,) = store.indices
        if not isinstance(value, tvm.ir.TensorLoad) or not is_texel(value.indices[0]) or not is_texel(to):
            raise BuildError(f"only whole texels are copied past the registers, not {store}")
        return cls(LANES, value.source, value.indices[0].base, store.buffer, to.base, inside)

    def joined(self, other: _Copy, analyzer: Any) -> _Copy | None:
        """Return one copy of this texel of fp16 and the one after it, or None if they are not one aligned access."""
        pairs = [(self.start, other.start), (self.into, other.into)]
        is_fp16_texel = self.lanes == LANES and str(self.source.dtype) != "float32"
        is_same = self.source.same_as(other.source) and self.target.same_as(other.target)
        is_next = is_fp16_texel and is_same and analyzer.can_prove_equal(self.inside, other.inside)
        is_pair = is_next and all(
            analyzer.can_prove_equal(end - begin, LANES) and analyzer.can_prove_equal(begin % (2 * LANES), 0)
            for begin, end in pairs
        )
        return replace(self, lanes=2 * LANES) if is_pair else None

    def written(self, analyzer: Any) -> tirx.Stmt:
        """Return the statement that starts the copy."""
        start, into, inside = map(analyzer.simplify, (self.start // self.lanes, self.into // self.lanes, self.inside))
        return copy_async(self.lanes, start, self.source, into, self.target, inside)


def _copied(stores: Sequence[tirx.BufferStore], analyzer: Any) -> tirx.Stmt:
    """Return the copies of stores, neighbours joined."""
    copies: list[_Copy] = []
    for copy in map(_Copy.of, stores):
        both = copies[-1].joined(copy, analyzer) if copies else None
        copies[-1 if both else len(copies) :] = [both or copy]
    return sequence_of([copy.written(analyzer) for copy in copies])
