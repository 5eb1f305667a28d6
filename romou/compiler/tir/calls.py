"""Calls in lowered TIR: the one place for the names of the TVM operators that passes and estimates look for."""

from __future__ import annotations

from typing import Any

import tvm

# Functions of one number that every kernel language here also has for vectors, or writes lane by lane. TVM does not
# declare them so, and takes a vectorized loop with such a function apart into lanes. An image has no single lanes.
_ALSO_OF_VECTORS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "erf", "log1p", "nearbyint", "rsqrt")
for _name in _ALSO_OF_VECTORS:
    tvm.ir.Op.get(f"tirx.{_name}").set_attr("TVectorizable", True)

# TVM's effect number of pure functions. The numbers of intrinsics that only annotate are lower.
_PURE = 1


def op_name(expr: Any) -> str:
    """Return the name of the operator that a call calls, empty for other expressions."""
    return str(getattr(getattr(expr, "op", None), "name", ""))


def called_function(expr: Any) -> str | None:
    """Return the name of the TIR function that a call in a graph calls, in place or not, None for other expressions."""
    return str(expr.args[0].name_hint) if op_name(expr) in ("relax.call_tir", "relax.call_tir_inplace") else None


def is_conditional(expr: Any) -> bool:
    """Return whether an expression evaluates its other arguments only if the first one holds."""
    return op_name(expr) == "prim.if_then_else"


def takes_vectors(expr: Any) -> bool:
    """Return whether a call of an operator may have vectors as operands."""
    return bool(getattr(expr.op, "get_attr", lambda _: False)("TVectorizable"))


def keeps_next_loop(expr: Any) -> bool:
    """Return whether an expression marks the next loop as one that stays (`Dialect.keep_loop`)."""
    return _called(expr) == "KEEP_LOOP"


def is_pure(expr: Any) -> bool:
    """Return whether a call neither reads nor changes memory."""
    kind = getattr(expr.op, "get_attr", lambda _: None)("TCallEffectKind")
    return kind is not None and int(kind) <= _PURE and extern_name(expr) is None


def is_texel_load(expr: Any) -> bool:
    """Return whether an expression reads a texel of an image."""
    return op_name(expr) == "tirx.texture2d_load"


def extern_name(expr: Any) -> str | None:
    """Return the name of the C function of a pure external call, None for other expressions."""
    return str(getattr(expr.args[0], "value", "")) if op_name(expr) == "tirx.call_pure_extern" else None


def is_fp16_load(expr: Any) -> bool:
    """Return whether an expression reads fp16 from memory as fp32, or as bits (`passes/fp16_storage.py`)."""
    return (extern_name(expr) or "").startswith(("vload_half", "vloada_half", "LOAD_BITS_HALF"))


def is_reinterpretation(expr: Any) -> bool:
    """Return whether an expression is the bits of a value as another type (`Dialect.reinterpreted`)."""
    return (extern_name(expr) or "").startswith("as_")


def is_fp16_store(expr: Any) -> bool:
    """Return whether an expression writes fp32 to memory as fp16."""
    return op_name(expr) == "tirx.call_extern" and str(getattr(expr.args[0], "value", "")).startswith(
        ("vstore_half", "vstorea_half")
    )


def is_fp16_conversion(expr: Any) -> bool:
    """Return whether an expression converts loaded bits of fp16 to fp32."""
    return extern_name(expr) == "float_of_half"


def is_load_for_tensor_cores(expr: Any) -> bool:
    """Return whether an expression reads unconverted texels (`passes/tensor_cores.py`, `passes/async_copies.py`).

    Arguments: (name, texel or pair of texels, pointer, ...).
    """
    return texels_for_tensor_cores(expr) > 0


def texels_for_tensor_cores(expr: Any) -> int:
    """Return the number of texels that a call reads unconverted, 0 for other expressions."""
    if _called(expr) in ("load_texel_pair", "copy_texel_pair_async"):
        return 2
    return int(extern_name(expr) in _TEXEL_LOADS or is_async_copy(expr))


def is_async_copy(expr: Any) -> bool:
    """Return whether an expression copies a texel, or two of fp16, to local memory asynchronously.

    Arguments: (name, texel, pointer, texel there, pointer there, whether it is inside).
    """
    return _called(expr) in _ASYNC_COPIES


def texel_bytes(expr: Any) -> int:
    """Return the bytes of a texel that a call reads unconverted."""
    return 16 if (_called(expr) or extern_name(expr) or "").endswith(("_floats", "_floats_async")) else 8


def is_tensor_core_fma(expr: Any) -> bool:
    """Return whether an expression adds products of tensor cores to 16 sums of a work-item.

    Arguments: (name, first sum, pointer to the sums, ...).
    """
    return _called(expr) in ("tensor_core_fma", "tensor_core_fma_tf32", "tensor_core_fma_tf32x3")


def is_matrix_product(expr: Any) -> bool:
    """Return whether an expression adds products of matrices to the sums of a warp.

    Arguments: (name, sums, count of row matrices, count of column matrices, ...).
    """
    return _called(expr) == "multiply_matrices"


_TEXEL_LOADS = ("load_texel", "load_staged_texel", "load_floats", "load_staged_floats")
_ASYNC_COPIES = ("copy_texel_async", "copy_texel_pair_async", "copy_floats_async")


def _called(expr: Any) -> str | None:
    return str(getattr(expr.args[0], "value", "")) if op_name(expr) == "tirx.call_extern" else None
