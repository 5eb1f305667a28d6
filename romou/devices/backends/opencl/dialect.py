"""OpenCL C as passes write it."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import tirx
from tvm.ir import PointerType

from romou.devices.backends.dialect import Dialect, vector_type
from romou.devices.backends.opencl.functions import function_name

_NAMES = {
    "float32": "float",
    "float16": "half",
    "int32": "int",
    "uint32": "uint",
    "int16": "short",
    "uint16": "ushort",
    "int8": "char",
    "uint8": "uchar",
}

# TVM's scope -> OpenCL's address space.
_SCOPES = {"global": "global", "shared": "local", "local": "private"}
# TVM calls these by their names in C (acosf), or has no name for them. OpenCL's names serve all types and vectors.
_FUNCTIONS = (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "copysign",
    "hypot",
    "ldexp",
    "log1p",
    "nextafter",
    "rsqrt",
    "tan",
)


def name_functions() -> None:
    """Register OpenCL's names of functions that TVM has no rule for."""
    for name in _FUNCTIONS:
        operator = tvm.ir.Op.get(f"tirx.{name}")
        operator.set_attr(
            "opencl.FLowerIntrinsic", lambda call, name=name: tirx.call_pure_extern(call.ty, name, *call.args)
        )


name_functions()


class OpenCLC(Dialect):
    """Vectors are values like scalars, and every device stores fp16, even without fp16 arithmetic.

    four copies of a scalar     (float4)(x)
    bits of a half4             as_uint2(v)
    a scalar times a vector     x * v
    a * b + c                   mad(a, b, c), fma(a, b, c)
    read fp16 as fp32           vloada_half4(i, (half*)p), or vload_half4 if 4 * i is not aligned
    write fp32 as fp16          vstorea_half4(v, i, (half*)p)
    const global float4* p = data + i       float4* p = POINTER(data, i)
    p += 128                                ADVANCE(p, 128)
    for (int k = LOOP_START; …)             KEEP_LOOP(); in front of the loop

    An external call whose type is a vector is called once.
    """

    has_negative_truth = True
    has_pointers = True
    widens_truth_values = True
    packs_gathered_bytes = True
    prints_seven_digits = True
    packs_fp16_as_bits = True
    rounds_divisions_roughly = True
    widest_vector = 16
    # `opencl_runtime/program.cc` searches for the comment.
    rounding_mark = "/* correctly rounded */"

    def broadcast(self, scalar: tirx.Expr, dtype: str) -> tirx.Expr:
        return self.vector_of([scalar], dtype)

    def vector_of(self, scalars: Sequence[tirx.Expr], dtype: str) -> tirx.Expr:
        """See `Dialect.vector_of`. TVM would print a call of a function `char4`."""
        base, _, lanes = dtype.partition("x")
        return tirx.call_pure_extern(dtype, f"({_NAMES[base]}{lanes})", *scalars)

    def narrowed(self, value: tirx.Expr) -> tirx.Expr:
        """See `Dialect.narrowed`. `select` does not accept an int and a short."""
        return tirx.call_pure_extern(value.ty, f"({_NAMES[str(value.ty)]})", value)

    def bare_scalar(self, scalar: tirx.Expr, dtype: str) -> tirx.Expr:
        """See `Dialect.bare_scalar`. The call of a nameless function prints its argument in parentheses."""
        return tirx.call_pure_extern(dtype, "", scalar)

    def reinterpreted(self, value: tirx.Expr, dtype: str) -> tirx.Expr:
        base, _, lanes = dtype.partition("x")
        return tirx.call_pure_extern(dtype, f"as_{_NAMES[base]}{lanes}", value)

    def load_fp16_bits(self, offset: tirx.Expr, pointer: tirx.Expr, lanes: int) -> tirx.Expr:
        return tirx.call_pure_extern(vector_type("uint32", lanes // 2), f"LOAD_BITS_HALF{lanes}", offset, pointer)

    def fp32_of_fp16(self, bits: tirx.Expr) -> tirx.Expr:
        lanes = 2 * int(tvm.DataType(str(bits.ty)).lanes)
        return tirx.call_pure_extern(vector_type("float32", lanes), f"OF_BITS_HALF{lanes}", bits)

    def correctly_rounded(self, quotient: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern(quotient.ty, self.rounding_mark, quotient)

    def short_function(self, name: str, operand: tirx.Expr, call: tirx.Expr) -> tirx.Expr:
        called = function_name("sin" if name == "cos" else name, int(tvm.DataType(str(call.ty)).lanes))
        # A cosine is the sine of pi / 2 more.
        quarters = {"sin": [tirx.const(0, "int32")], "cos": [tirx.const(1, "int32")]}.get(name, [])
        return tirx.call_pure_extern(call.ty, called, operand, *quarters)

    def native_function(self, name: str, operands: Sequence[tirx.Expr], call: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern(call.ty, f"native_{name}", *operands)

    def fp16_pointer(self, start: tirx.Expr, scope: str) -> tirx.Expr:
        # Declared to return a number: the code generator would cast a pointer to void*, which has no address space.
        return tirx.call_pure_extern("int32", f"(__{_SCOPES[scope]} half*)", start)

    def load_fp16(self, offset: tirx.Expr, pointer: tirx.Expr, lanes: int, is_aligned: bool) -> tirx.Expr:
        return tirx.call_pure_extern(
            vector_type("float32", lanes), _access("vload", lanes, is_aligned), offset, pointer
        )

    def store_fp16(
        self, value: tirx.Expr, offset: tirx.Expr, pointer: tirx.Expr, lanes: int, is_aligned: bool
    ) -> tirx.Stmt:
        return tirx.Evaluate(tirx.call_extern("int32", _access("vstore", lanes, is_aligned), value, offset, pointer))

    # `source_attributes.py` finds these by their names: TVM would declare a pointer without its address space, and
    # variables of TIR never change.

    def pointer_to(self, ty: PointerType, buffer: tirx.Buffer, index: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern(ty, "POINTER", buffer.data, index)

    def advance(self, pointer: tirx.Var, elements: int) -> tirx.Stmt:
        return tirx.Evaluate(tirx.call_extern("int32", "ADVANCE", pointer, elements))

    def keep_loop(self) -> tirx.Stmt:
        return tirx.Evaluate(tirx.call_extern("int32", "KEEP_LOOP"))


def _access(name: str, lanes: int, is_aligned: bool) -> str:
    return f"{name}_half" if lanes == 1 else f"{name}{'a' * is_aligned}_half{lanes}"
