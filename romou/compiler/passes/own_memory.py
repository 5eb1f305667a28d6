"""Local memory in separate slices for each work-item, like an array of registers. It needs no barrier.

TVM's `ThreadSync` puts a barrier between a store and a load in a loop, and raises if a condition is around them:

    if (i < n) {
      kept[item * 9 + i] = x
      sum += kept[item * 9 + i]
    }
        ->  InternalError: Cannot insert syncs inside condition
"""

from __future__ import annotations

from tvm import tirx

from romou.compiler.tir.primitives import OWN_MEMORY
from romou.compiler.tir.traversal import function_pass, nodes_in, substitute


@function_pass
def name_own_memory(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rename the scope of a work-item's own memory to local memory, after barriers are placed."""
    own = [alloc.buffer for alloc in nodes_in(func.body, tirx.AllocBuffer) if str(alloc.buffer.scope()) == OWN_MEMORY]
    named = {buffer: tirx.decl_buffer(buffer.shape, buffer.dtype, buffer.name, scope="shared") for buffer in own}
    return func.with_body(substitute(func.body, named)) if named else func
