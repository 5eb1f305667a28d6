"""Calls in lowered TIR taken apart: of TVM's operators, and of functions that passes name by their text."""

from __future__ import annotations

from typing import Any


def op_of(expr: Any) -> str:
    """Name of the operator that a call calls; "" for what is no call of one."""
    return str(getattr(getattr(expr, "op", None), "name", ""))


def extern_of(call: Any) -> str:
    """Name of the function that an external call calls; "-" for any other call, as "" is a name."""
    return str(call.args[0].value) if op_of(call) in ("tirx.call_pure_extern", "tirx.call_extern") else "-"


def pointed(pointer: Any) -> tuple[Any, Any | None]:
    """The buffer that a pointer leads into, and the element; None for the first one."""
    if op_of(pointer) == "tirx.address_of":
        (access,) = pointer.args
        return access.source, access.indices[0]
    return pointer.args[0], None
