"""Host code that trusts a kernel's arguments.

TVM's host code checks count, type, device, rank, shape and strides of a kernel's arguments, each with its own message.
These checks are most of a model's host code, and of the time that LLVM takes for it. The model's own plan makes the
arguments, so only kernels that read inputs of the model keep the checks (`CHECKS_ARGUMENTS`). TVM's SkipAssert would
remove them from all functions.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map

from romou.compiler.tir.primitives import CHECKS_ARGUMENTS


@tirx.transform.prim_func_pass(opt_level=0)
def trust_arguments(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Remove the checks of a host function. Values that only the checks read become unused."""
    if func.attrs is not None and CHECKS_ARGUMENTS in func.attrs:
        return func
    return func.with_body(structural_map(func.body, (tirx.AssertStmt, lambda _: tirx.Evaluate(0))))
