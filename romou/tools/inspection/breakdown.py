"""The effect of each of Romou's passes on a kernel: integer operations in its loops with and without it (paper, Fig.
17).
"""

from __future__ import annotations

from tvm import tirx

from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function

# Technique -> its passes. A kernel is correct without any of them.
TECHNIQUES = {
    "addresses": ("eliminate_addresses", "share_loads", "advance_pointers"),
    "broadcast": ("spell_arithmetic",),
    "vectors": ("vectorize_pointers",),
}


def without(*techniques: str) -> list[str]:
    """Return the names of the passes of these techniques, to be disabled."""
    return [name for technique in techniques for name in TECHNIQUES[technique]]


def operations_step_by_step(func: tirx.PrimFunc, target: Target) -> dict[str, int]:
    """Return the integer operations of one work-item in loops, times trips, by technique.

    The first entry is without any technique ("none"). Each further entry adds one technique.

    func: a scheduled function.
    """
    left = list(TECHNIQUES)
    operations = {"none": _operations(func, target, left)}
    for technique in TECHNIQUES:
        left.remove(technique)
        operations[f"+ {technique}"] = _operations(func, target, left)
    return operations


def _operations(func: tirx.PrimFunc, target: Target, left_out: list[str]) -> int:
    return sum(
        kernel.operations.in_loops_weighted for kernel in inspect_function(func, target, without=without(*left_out))
    )
