"""Host code that trusts a kernel's arguments.

TVM has each kernel's host code check the count, type, device, rank, shape and strides of its arguments, each with a
message of its own: that is most of a model's host code, and of the time that LLVM takes for it. But a model's own plan
hands its kernels their arguments. Only those that read what others hand to the model go on checking.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map

from romou.compiler.tir.primitives import CHECKS_ARGUMENTS


@tirx.transform.prim_func_pass(opt_level=0)
def trust_arguments(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Run on a host function; what it reads for the checks alone stays, without a use."""
    if func.attrs is not None and CHECKS_ARGUMENTS in func.attrs:
        return func
    return func.with_body(structural_map(func.body, (tirx.AssertStmt, lambda _: tirx.Evaluate(0))))
