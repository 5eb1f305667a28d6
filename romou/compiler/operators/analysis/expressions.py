"""Properties of expressions and buffers of lowered TIR: products, lanes, bytes, registers, parameters."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx

from romou.compiler.tir.calls import (
    extern_name,
    is_load_for_tensor_cores,
    is_matrix_product,
    is_tensor_core_fma,
    texel_bytes,
    texels_for_tensor_cores,
)
from romou.compiler.tir.expressions import lanes_of
from romou.devices.backends.dialect import MATRIX

# Buffer scopes of registers, of local memory that a kernel asks for at its launch, and of all local memory, as TVM
# names them.
PRIVATE, ASKED = "local", "shared.dyn"
LOCAL = ("shared", ASKED)
_REGISTER_BYTES = 4
_MULTIPLY_ADDS = ("mad", "fma")
# Work-items that share a matrix product. A call of `tensor_core_fma` adds 16 products to each of the four lanes of two
# pixels.
_WARP, _TENSOR_CORE_NUMBERS, TENSOR_CORE_DEPTH = 32, 8, 16


def multiply_adds_of(node: tirx.Mul | tvm.ir.Call) -> int:
    """Return the multiply-adds of this expression without its operands, by lanes.

    The expression is a product of floats, or a call of mad or fma.
    """
    if isinstance(node, tirx.Mul):
        return lanes_of(node) if "float" in dtype_of(node) else 0
    if is_tensor_core_fma(node):
        return _TENSOR_CORE_NUMBERS * TENSOR_CORE_DEPTH
    if is_matrix_product(node):
        return int(node.args[2]) * int(node.args[3]) * MATRIX**2 * TENSOR_CORE_DEPTH // _WARP
    return lanes_of(node) if extern_name(node) in _MULTIPLY_ADDS else 0


def scope_of(load: tvm.ir.TensorLoad | tvm.ir.Call) -> str:
    """Return the memory scope that a load, or a call that reads a texel of fp16, reads from."""
    return str((load.source if isinstance(load, tvm.ir.TensorLoad) else load.args[2].args[0]).scope())


def dtype_of(expr: Any) -> str:
    """Return the type of an expression's value, lanes included: "float32x4"."""
    return str(getattr(expr.ty, "dtype", ""))


def element_bytes(buffer: tirx.Var) -> int:
    """Return the bytes of one element of a buffer, all its lanes."""
    return _bytes_of(str(buffer.dtype))


def array_bytes(buffer: tirx.Var) -> int:
    """Return the bytes of a whole array."""
    return _bytes_of(str(buffer.dtype), math.prod(int(extent) for extent in buffer.shape))


def value_bytes(expr: Any) -> int:
    """Return the bytes of an expression's value.

    If a call reads texels for tensor cores, return the bytes of these texels.
    """
    if is_load_for_tensor_cores(expr):
        return texels_for_tensor_cores(expr) * texel_bytes(expr)
    return _bytes_of(dtype_of(expr))


def registers_of(expr: Any) -> int:
    """Return the 32-bit registers of an expression's value."""
    return -(-value_bytes(expr) // _REGISTER_BYTES)


def array_registers(buffer: tirx.Var) -> int:
    """Return the 32-bit registers of a whole private array."""
    return -(-array_bytes(buffer) // _REGISTER_BYTES)


def _bytes_of(dtype: str, count: int = 1) -> int:
    kind = tvm.DataType(dtype)
    return count * int(kind.bits) * int(kind.lanes) // 8
