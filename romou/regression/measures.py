"""What can be read off a kernel on any machine: the numbers that a worse kernel raises, and a mark of its text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from romou.analysis.usage import read_usage

if TYPE_CHECKING:
    from romou.inspection.kernels import InspectedKernel
    from romou.schedules.base import Template

# name -> (what it counts, measure that it is divided by before two are compared, or None). More is worse for each of them.
JUDGED: dict[str, tuple[str, str | None]] = {
    "registers": ("32-bit registers that a compiler gives a work-item, estimated", None),
    "needed_registers": ("32-bit registers without which it would spill or stall, estimated", None),
    "integer_operations_in_loops": ("integer operations in loops, as they stand in the code", None),
    "integer_operations_in_loops_weighted": ("integer operations in loops, times the trips", None),
    "divisions_in_loops": ("divisions and modulos of integers in loops", None),
    "bytes_per_iteration": ("bytes that a work-item loads in one iteration of its innermost loop", "multiply_adds_per_iteration"),
    "group_bytes_per_iteration": ("distinct bytes of data and weight that a work group loads in one iteration", "multiply_adds_per_iteration"),
    "local_memory_bytes": ("local memory of a work group, in bytes", None),
}


def stable_measures(kernels: Sequence[InspectedKernel], template: Template | None, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the measures of one operator, over all its kernels: the most registers of any, the sum of everything else.

    template: the operator's template under `config`; without one, `group_bytes_per_iteration` and `local_memory_bytes` are not known and left out.
    """
    found = {
        "registers": max(round(k.registers.allocated) for k in kernels),
        "needed_registers": max(round(k.registers.needed) for k in kernels),
        "integer_operations_in_loops": sum(k.operations.in_loops for k in kernels),
        "integer_operations_in_loops_weighted": sum(k.operations.in_loops_weighted for k in kernels),
        "divisions_in_loops": sum(k.operations.divisions_in_loops for k in kernels),
        "bytes_per_iteration": sum(k.traffic.bytes_loaded for k in kernels),
        "multiply_adds_per_iteration": sum(k.traffic.multiply_adds for k in kernels),
    }
    if template is not None:
        usage = read_usage([kernel.lowered for kernel in kernels], template, config)
        found["group_bytes_per_iteration"] = int(usage.buffer_bytes) + int(usage.image_bytes)
        found["local_memory_bytes"] = int(usage.local_memory_bytes)
    return found


def source_mark(kernels: Sequence[InspectedKernel]) -> tuple[str, int]:
    """(SHA-256 of all kernels' sources, their size in bytes); the function's name, a number among its like, does not count."""
    text = "".join(k.source.replace(k.function, "kernel") for k in kernels).encode()
    return hashlib.sha256(text).hexdigest(), len(text)
