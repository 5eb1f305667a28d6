"""Constant sizes of a kernel's own buffers, if the kernel takes a size at run time.

alloc(row, (size,), "shared")      ->      alloc(row, (512,), "shared")      `LARGEST_SIZE`: 512
"""

from __future__ import annotations

import tvm
from tvm import s_tir, sym, tirx
from tvm_ffi.structural import structural_map

from romou.compiler.tir.primitives import LARGEST_SIZE
from romou.compiler.tir.traversal import nodes_in


@tirx.transform.prim_func_pass(opt_level=0)
def allocate_whole_buffers(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    """Give buffers whose size depends on the last parameter the size that they have for its largest value."""
    if func.attrs is None or LARGEST_SIZE not in func.attrs:
        return func
    return with_whole_buffers(func)


def with_whole_buffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """See `allocate_whole_buffers`."""
    size, largest = func.params[-1], tirx.const(int(func.attrs[LARGEST_SIZE]), str(func.params[-1].ty))

    def at_largest(extent: tirx.Expr) -> tirx.Expr:
        return structural_map(extent, (tirx.Var, lambda var: largest if var.same_as(size) else var))

    simple = sym.Analyzer().simplify
    whole: dict[tirx.Var, tirx.Var] = {}
    for block in nodes_in(func.body, s_tir.SBlock):
        for buffer in block.alloc_buffers:
            if not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
                shape = [simple(at_largest(extent)) for extent in buffer.shape]
                whole[buffer] = tirx.decl_buffer(shape, buffer.dtype, buffer.name, scope=str(buffer.scope()))
    if not whole:
        return func
    return func.with_body(structural_map(func.body, (tirx.Var, lambda var: whole.get(var, var))))
