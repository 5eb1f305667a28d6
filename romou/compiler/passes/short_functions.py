"""Short forms of functions that compilers of mobile GPUs write at length.

A few multiply-adds give each result within the errors that OpenCL allows.

    exp(x)         ->      exp_float4(x)                 without a branch (`backends/opencl/functions.py`)
    sigmoid(x)     ->      1 / (1 + exp_float4(-x))
    pow(x, 0.5)    ->      square_root_float4(x)         and inverse_root for -0.5
    x / c          ->      x * (1.0f / c)                for a constant

Exponentials of fp16 are computed in fp32: libraries' forms do the same, at length.

A kernel with the knob `functions` at "native" has single instructions of the GPU instead:

    exp(x)         ->      native_exp(x)
    sigmoid(x)     ->      native_recip(1 + native_exp(-x))
    x / y          ->      native_divide(x, y)

- tanh, erf, sin and cos are written like exp.
- Powers of whole numbers are products since the import.
- The division is within 1.5 units in the last place. OpenCL allows 2.5.
- Divisions that must be rounded correctly (`passes/division.py`) stay.

Languages other than OpenCL C keep the functions as they were. A kernel of one function of four lanes, in instructions
under Mesa's compilers:

                   Adreno 630        Mali-G76
    exp            224 -> 137        139 -> 99
    sigmoid        221 -> 185        183 -> 147
    SiLU, native   179 -> 79         151 -> 51           on Adreno 660 and Mali-G76
    tanh           392 -> 165        259 -> 127
    erf            866 -> 137
    sin            2225 -> 484       1407 -> 401
    pow(x, 0.5)    1058 -> 73        39, which the compiler did not survive before
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_mutate

from romou.compiler.tir.calls import extern_name, op_name
from romou.compiler.tir.primitives import NATIVE_FUNCTIONS
from romou.compiler.tir.traversal import function_pass
from romou.devices.backends.dialect import dialect_of

# Constants outside of this range have a reciprocal that is no normal number, or nearly so.
_LEAST, _MOST = 1e-30, 1e30
_SHORT = ("cos", "erf", "exp", "sin", "tanh")
_POWERS = {0.5: "square_root", -0.5: "inverse_root"}


@function_pass
def shorten_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace functions and divisions of a device function by multiply-adds, after the last simplification."""
    dialect = dialect_of(func)
    is_native = bool(func.attrs) and NATIVE_FUNCTIONS in func.attrs

    def function(name: str, operand: tirx.Expr, call: tirx.Expr) -> tirx.Expr:
        return (
            dialect.native_function(name, [operand], call)
            if is_native and name == "exp"
            else dialect.short_function(name, operand, call)
        )

    def shortened(name: str, new: tirx.Expr) -> tirx.Expr:
        if name == "pow" and (power := _POWERS.get(getattr(_scalar_of(new.args[1]), "value", 0.0))):
            return dialect.short_function(power, new.args[0], new)
        if name == "sigmoid":
            exponential = tirx.exp(-new.args[0])
            short, one = function("exp", exponential.args[0], exponential), tirx.const(1, str(new.ty))
            if short.same_as(exponential):
                return new
            return dialect.native_function("recip", [one + short], new) if is_native else one / (one + short)
        return function(name, new.args[0], new) if name in _SHORT else new

    def call(expr: tvm.ir.Call, mutator: Any) -> tirx.Expr:
        if dialect.rounding_mark and extern_name(expr) == dialect.rounding_mark:
            return expr
        new = mutator.default_mutate(expr)
        name, kind = op_name(new).removeprefix("tirx."), str(new.ty)
        if kind.startswith("float16") and name in ("exp", "sigmoid"):
            wide = tirx.call_intrin(
                kind.replace("16", "32"), f"tirx.{name}", new.args[0].astype(kind.replace("16", "32"))
            )
            short = shortened(name, wide)
            return new if short.same_as(wide) else short.astype(kind)
        return shortened(name, new) if kind.startswith("float32") else new

    def divided(expr: tirx.Div, mutator: Any) -> tirx.Expr:
        new = mutator.default_mutate(expr)
        constant = _scalar_of(new.b)
        if not (dialect.rounds_divisions_roughly and str(constant.ty).startswith("float32")):
            return new
        if not isinstance(constant, tirx.FloatImm):
            return dialect.native_function("divide", [new.a, new.b], new) if is_native else new
        if not _LEAST < abs(constant.value) < _MOST:
            return new
        # A compiler folds the quotient. TVM would write the reciprocal with fewer digits.
        inverse = tirx.Div(tirx.const(1, "float32"), constant)
        if isinstance(new.b, tirx.Broadcast):
            return new.a * tirx.Broadcast(inverse, new.b.lanes)
        return new.a * (dialect.bare_scalar(inverse, str(new.b.ty)) if extern_name(new.b) == "" else inverse)

    return func.with_body(structural_mutate(func.body, ((tvm.ir.Call, call), (tirx.Div, divided))))


def _scalar_of(expr: tirx.Expr) -> tirx.Expr:
    """Return the scalar of a vector of copies, or that autobroadcast has written in place of one."""
    if extern_name(expr) == "":
        return expr.args[1]
    return expr.value if isinstance(expr, tirx.Broadcast) else expr
