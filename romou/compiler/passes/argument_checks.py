"""Host code that trusts a kernel's arguments.

TVM's host code checks count, type, device, rank, shape and strides of a kernel's arguments, each with its own message.
These checks are most of a model's host code, and of the time that LLVM takes for it. The model's own plan makes the
arguments, so only kernels that read inputs of the model keep the checks (`CHECKS_ARGUMENTS`). TVM's SkipAssert would
remove them from all functions.
"""

from __future__ import annotations

from tvm import tirx
from tvm_ffi.structural import structural_map

from romou.compiler.tir.primitives import CHECKS_ARGUMENTS
from romou.compiler.tir.traversal import function_pass


@function_pass
def trust_arguments(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Remove the checks of a host function. Values that only the checks read become unused."""
    if func.attrs is not None and CHECKS_ARGUMENTS in func.attrs:
        return func
    return func.with_body(structural_map(func.body, (tirx.AssertStmt, lambda _: tirx.Evaluate(0))))
