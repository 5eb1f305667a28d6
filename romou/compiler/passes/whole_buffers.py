"""Constant sizes of a kernel's own buffers, if the kernel takes sizes at run time.

alloc(row, (size,), "shared")      ->      alloc(row, (512,), "shared")      `LARGEST_SIZES`: [512]
"""

from __future__ import annotations

from tvm import s_tir, sym, tirx

from romou.compiler.tir.primitives import LARGEST_SIZES, SIZES
from romou.compiler.tir.traversal import function_pass, nodes_in, substitute


@function_pass
def allocate_whole_buffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give buffers whose size depends on the last parameters the size that they have for their largest values."""
    if func.attrs is None or LARGEST_SIZES not in func.attrs:
        return func
    return with_whole_buffers(func)


def with_whole_buffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """See `allocate_whole_buffers`."""
    numbers = [int(number) for number in func.attrs[LARGEST_SIZES]]
    sizes = func.attrs[SIZES] if SIZES in func.attrs else list(func.params)[-len(numbers) :]
    largest = {size: tirx.const(number, str(size.ty)) for size, number in zip(sizes, numbers, strict=True)}

    def at_largest(extent: tirx.Expr) -> tirx.Expr:
        return substitute(extent, largest)

    simple = sym.Analyzer().simplify
    whole: dict[tirx.Var, tirx.Var] = {}
    for block in nodes_in(func.body, s_tir.SBlock):
        for buffer in block.alloc_buffers:
            if not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
                shape = [simple(at_largest(extent)) for extent in buffer.shape]
                whole[buffer] = tirx.decl_buffer(shape, buffer.dtype, buffer.name, scope=str(buffer.scope()))
    if not whole:
        return func
    return func.with_body(substitute(func.body, whole))
