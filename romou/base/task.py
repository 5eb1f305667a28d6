"""A task: one kernel to tune, as data. `romou/compiler/task.py` adds its behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm import tirx

from romou.base.headline import Headline


@dataclass(frozen=True, repr=False)
class Task(Headline):
    """A fused function that a schedule template covers.

    key: 16 hex digits of what the function computes. Equal kernels have equal keys, in any model.
    name: readable, not unique: two tasks may differ only in their epilogue.
    func: unscheduled, with static shapes. The last parameter is the output.
    calls: how often the model calls it.
    flops: multiplications and additions of one call without the epilogue. Without a contraction, all operations.
    nodes: names of the ONNX nodes of all its calls, empty if nothing has looked for them.
    """

    key: str
    name: str
    family: str
    func: tirx.PrimFunc
    calls: int
    flops: int
    nodes: tuple[str, ...] = field(default=(), compare=False, kw_only=True)

    @property
    def headline(self) -> str:
        """The task's name, key and calls."""
        return f"{self.name}; key {self.key}, calls: {self.calls}"
