"""What a software pipeline loads ahead goes from global to local memory past the registers (CUDA): PTX's cp.async.

TVM's InjectSoftwarePipeline takes a loop apart in which a work group stages operands and then uses them: while it uses those of one turn, those of the
next ones are under way. It marks the copies, where a group of them ends, and how many groups may still be under way; TVM's code generator writes out the
latter two, this pass the copies, which keep no register busy until they are there:

    async_scope: kernel_shared[i : i + 4] = weight[j : j + 4]         ->      copy_halfs_async(j / 4, weight, i / 4, kernel_shared, true)
    async_scope: patch_shared[i : i + 4] = if inside data[j : j + 4] else 0      ->      copy_halfs_async(j / 4, data, i / 4, patch_shared, inside)
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map, structural_mutate

from romou.calls import is_conditional
from romou.dialects import copy_texel_async
from romou.errors import BuildError
from romou.primitives import LANES, is_texel

_ASYNC = "async_scope"


@tirx.transform.prim_func_pass(opt_level=0)
def copy_asynchronously(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Run on a device function after its halfs have become bits, while buffers still are those of scalars; the marks go."""
    analyzer = tvm.sym.Analyzer()

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        if stmt.attr_key != _ASYNC:
            return mutator.default_mutate(stmt)
        return structural_map(stmt.body, (tirx.BufferStore, lambda store: _copied(store, analyzer)))

    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


def _copied(store: tirx.BufferStore, analyzer: Any) -> tirx.Stmt:
    inside, value = tirx.const(True, "bool"), store.value
    while is_conditional(value):
        # What stands for the outside is zero, in contractions: that is what a copy of no bytes leaves.
        condition, value, _zeros = value.args
        inside = tirx.all(inside, condition)
    (to,) = store.indices
    if not isinstance(value, tvm.ir.TensorLoad) or not is_texel(value.indices[0]) or not is_texel(to):
        raise BuildError(f"only whole texels are copied past the registers, not {store}")
    start, target = (analyzer.simplify(index.base // LANES) for index in (value.indices[0], to))
    return copy_texel_async(start, value.source, target, store.buffer, analyzer.simplify(inside))
