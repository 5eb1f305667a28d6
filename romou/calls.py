"""What a call in lowered TIR stands for: the one place for the names of TVM's operators that passes and estimates look for."""

from __future__ import annotations

from typing import Any


def op_name(expr: Any) -> str:
    """Name of the operator that a call calls; empty for what is no call of an operator."""
    return str(getattr(getattr(expr, "op", None), "name", ""))


def is_conditional(expr: Any) -> bool:
    """Whether the other arguments are evaluated only where the first one holds."""
    return op_name(expr) == "prim.if_then_else"


def is_texel_load(expr: Any) -> bool:
    """Whether a texel of an image is read."""
    return op_name(expr) == "tirx.texture2d_load"


def extern_name(expr: Any) -> str | None:
    """Name of the C function that a pure external call calls; None for anything else."""
    return str(getattr(expr.args[0], "value", "")) if op_name(expr) == "tirx.call_pure_extern" else None


def is_half_load(expr: Any) -> bool:
    """Whether halfs are read from memory as floats (`passes/half_storage.py`)."""
    return (extern_name(expr) or "").startswith("vload_half")


def is_half_store(expr: Any) -> bool:
    """Whether floats are written to memory as halfs."""
    return op_name(expr) == "tirx.call_extern" and str(getattr(expr.args[0], "value", "")).startswith("vstore_half")


def is_half_conversion(expr: Any) -> bool:
    """Whether the bits of halfs that were read before become floats."""
    return extern_name(expr) == "float_of_half"
