"""Nodes of TIR, found by their kinds."""

from __future__ import annotations

from typing import Any

from tvm_ffi.structural import structural_walk


def nodes_in(node: Any, *kinds: type) -> list[Any]:
    """Return the nodes of some kinds in a statement or an expression, itself included; inner ones come first."""
    found: list[Any] = []
    structural_walk(node, (kinds, found.append))
    return found
