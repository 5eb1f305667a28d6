"""Functions that compilers of mobile GPUs write at length, and that a few multiply-adds give within the errors that OpenCL allows.

    erf(x)      ->      erf_float4(x)      one rational function, without a branch (`backends/opencl/functions.py`); for CUDA and Vulkan as it was
    x / c       ->      x * (1.0f / c)     for a constant; within 1.5 units in the last place, where OpenCL allows a division 2.5

Under Mesa's compiler for Adreno 630 four lanes of erf take 137 instructions then instead of 866. A GELU behind a dense layer is written out once for each
texel of a work-item's tile.

What has to be rounded correctly (`passes/exact_division.py`) stays a division.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_mutate

from romou.backends.dialect import dialect_of
from romou.tir.calls import extern_name, op_name

# Constants outside of this range have a reciprocal that is no normal number, or nearly so.
_LEAST, _MOST = 1e-30, 1e30


@tirx.transform.prim_func_pass(opt_level=0)
def shorten_functions(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Run on a device function when nothing simplifies any more."""
    dialect = dialect_of(func)

    def call(expr: tvm.ir.Call, mutator: Any) -> tirx.Expr:
        if dialect.rounding_mark and extern_name(expr) == dialect.rounding_mark:
            return expr
        new = mutator.default_mutate(expr)
        return dialect.erf(new) if op_name(new) == "tirx.erf" and str(new.ty).startswith("float32") else new

    def divided(expr: tirx.Div, mutator: Any) -> tirx.Expr:
        new = mutator.default_mutate(expr)
        constant = new.b.value if isinstance(new.b, tirx.Broadcast) else new.b
        if not (dialect.rounds_divisions_roughly and isinstance(constant, tirx.FloatImm) and str(constant.ty) == "float32"):
            return new
        if not _LEAST < abs(constant.value) < _MOST:
            return new
        # A compiler folds it, with more digits than TVM would write of the reciprocal.
        inverse = tirx.Div(tirx.const(1, "float32"), constant)
        return new.a * (tirx.Broadcast(inverse, new.b.lanes) if isinstance(new.b, tirx.Broadcast) else inverse)

    return func.with_body(structural_mutate(func.body, ((tvm.ir.Call, call), (tirx.Div, divided))))
