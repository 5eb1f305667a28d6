"""Parts of calls in lowered TIR: of TVM's operators, and of functions that passes name by their text."""

from __future__ import annotations

from typing import Any


def op_of(expr: Any) -> str:
    """Return the name of a call's operator. "" for other expressions."""
    return str(getattr(getattr(expr, "op", None), "name", ""))


def extern_of(call: Any) -> str:
    """Return the name of an external call's function. "-" for other calls, because "" is a name."""
    return str(call.args[0].value) if op_of(call) in ("tirx.call_pure_extern", "tirx.call_extern") else "-"


def pointed(pointer: Any) -> tuple[Any, Any | None]:
    """Return the buffer that a pointer points into, and the element. None for the first element."""
    if op_of(pointer) == "tirx.address_of":
        (access,) = pointer.args
        return access.source, access.indices[0]
    return pointer.args[0], None
