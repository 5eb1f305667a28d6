"""Bytes that a model takes on a device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes of the device's memory that a model holds between and during its runs, planned before anything runs.

    weights: all constants, in the form that kernels read.
    inputs: inputs of the model.
    tensors: all tensors between kernels, with workspaces and outputs, also of the run before. Tensors share a buffer if
        they are never live together, and an image if also their width and height are equal.
    least: the peak of live bytes, a lower bound of `tensors`.
    workspaces: workspaces of the function that needs most.
    """

    weights: int
    inputs: int
    tensors: int
    least: int
    workspaces: int

    @property
    def total(self) -> int:
        """Total bytes."""
        return self.weights + self.inputs + self.tensors

    def to_dict(self) -> dict[str, int]:
        """Return plain data, the total included."""
        return {**dataclasses.asdict(self), "total": self.total}


@dataclass(frozen=True, kw_only=True)
class FloatWeight:
    """A quantized weight that became floats at compile time, because no kernel reads it packed.

    node: name of the node that dequantizes it, see `host_groups.node_name`.
    packed_bytes, float_bytes: bytes of its codes in the model, and of its floats.
    """

    node: str
    packed_bytes: int
    float_bytes: int
