"""Loops that the device's compiler writes out: TVM's code generator for CUDA puts `#pragma unroll` in front of them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_mutate

from romou.passes.bindings import sequence_of, statements_of
from romou.tir.primitives import UNROLL_BY_COMPILER


@tirx.transform.prim_func_pass(opt_level=0)
def unroll_by_compiler(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Run on a device function when all loops that TVM unrolls are; the marks go."""

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        new = mutator.default_mutate(stmt)
        if stmt.attr_key != UNROLL_BY_COMPILER:
            return new
        # Variables and a barrier may stand before the loop.
        return sequence_of([_unrolled(child) if isinstance(child, tirx.For) else child for child in statements_of(new.body)])

    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


def _unrolled(loop: tirx.For) -> tirx.For:
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body, loop.thread_binding, loop.annotations, loop.step)
