"""GLSL as passes write it."""

from __future__ import annotations

import tvm
from tvm import tirx

from romou.devices.backends.opencl.dialect import OpenCLC
from romou.devices.backends.vulkan.functions import BUILT_IN, OWN


def name_functions() -> None:
    """Register GLSL's names of functions. TVM has no rules for this kind, and would write C's names.

    Except fma: with a rule for it, TVM would write every a * b + c as fma.
    """
    for name, function in (BUILT_IN | OWN).items():
        operator = tvm.ir.Op.get(f"prim.{name}" if name in ("ceil", "clz", "log2") else f"tirx.{name}")
        operator.set_attr(
            "vulkan.FLowerIntrinsic",
            lambda call, function=function: tirx.call_pure_extern(call.ty, function, *call.args),
        )


name_functions()


class Glsl(OpenCLC):
    """The dialect GLSL, with vectors as values, as in OpenCL C.

    Passes write broadcasts, multiply-adds and fp16 in memory as for OpenCL C, and `glsl.py` translates them.

    four copies of a scalar     vec4(x)
    a * b + c                   a * b + c, which the driver may fuse, or fma(a, b, c)
    read fp16 as fp32           unpackHalf2x16(word), of core GLSL
    write fp32 as fp16          packHalf2x16(v)
    a / b, correctly rounded    quotient(a, b): Vulkan allows divisions an error of 2.5 units in the last place
    products of a warp          coopMatMulAdd(rows, columns, sums) of `matrices.py`
    a maximum that keeps NaN    max_with_nan(a, b): comparisons may be folded to a maximum that drops it
    """

    has_negative_truth = False
    widens_truth_values = False
    packs_gathered_bytes = False
    prints_seven_digits = False
    has_pointers = False
    # Buffers of 16-bit integers are an extension.
    moves_fp16_bits = False
    names_fp16_images = True
    # Only for kernels whose configs use them. Spaces of other devices have no such configs.
    has_cooperative_matrices = True
    fp16_texel = "uint32x2"
    rounding_mark = ""

    def correctly_rounded(self, quotient: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern(quotient.ty, "quotient", quotient.a, quotient.b)

    def reinterpreted(self, value: tirx.Expr, dtype: str) -> tirx.Expr:
        return tirx.reinterpret(dtype, value)

    def narrowed(self, value: tirx.Expr) -> tirx.Expr:
        return value

    def short_function(self, name: str, operand: tirx.Expr, call: tirx.Expr) -> tirx.Expr:
        # `functions.py` defines the functions that GLSL lacks.
        return call

    def fp16_pointer(self, start: tirx.Expr, scope: str) -> tirx.Expr:
        return start

    def load_fp16(self, offset: tirx.Expr, pointer: tirx.Expr, lanes: int, is_aligned: bool) -> tirx.Expr:
        # `glsl.py` finds the words of a vector without this flag.
        return super().load_fp16(offset, pointer, lanes, False)

    def store_fp16(
        self, value: tirx.Expr, offset: tirx.Expr, pointer: tirx.Expr, lanes: int, is_aligned: bool
    ) -> tirx.Stmt:
        return super().store_fp16(value, offset, pointer, lanes, False)

    def keep_nan(self, extreme: tirx.Max | tirx.Min) -> tirx.Expr | None:
        name = "max_with_nan" if isinstance(extreme, tirx.Max) else "min_with_nan"
        return tirx.call_pure_extern(extreme.ty, name, extreme.a, extreme.b)
