"""A task: one kernel to tune, as data alone. What can be done with it stands in `romou/compiler`."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx


@dataclass(frozen=True)
class Task:
    """A fused function that a schedule template covers.

    key: 16 hex digits of the function's structure: equal kernels have equal keys, in any model.
    name: readable, not unique: two tasks may differ in their epilogue alone.
    func: unscheduled; static shapes; the last parameter is the output.
    calls: how often the model calls it.
    flops: multiplications and additions of one call, epilogue not counted; where nothing is contracted, all
        operations and functions of numbers.
    """

    key: str
    name: str
    family: str
    func: tirx.PrimFunc
    calls: int
    flops: int
