"""The memory traffic of a kernel's busiest loop, read off its lowered TIR."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx

from romou.analysis.expressions import LOCAL, PRIVATE, multiply_adds_of, scope_of, value_bytes
from romou.tir.calls import is_load_for_tensor_cores, is_texel_load
from romou.tir.traversal import nodes_in


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One iteration of the innermost loop with the most multiply-adds, by one work-item; the whole kernel where no loop is left.

    buffer_bytes, image_bytes, local_bytes: loaded from buffers, images and local memory, as the code stands: what a condition guards counts, and what two
        expressions load twice counts twice.
    multiply_adds: multiplications of floats, by lanes.
    """

    buffer_bytes: int
    image_bytes: int
    local_bytes: int
    multiply_adds: int

    @property
    def bytes_loaded(self) -> int:
        """Bytes from all three."""
        return self.buffer_bytes + self.image_bytes + self.local_bytes


def busiest_traffic(func: tirx.PrimFunc) -> Traffic:
    """Return bytes loaded and multiply-adds of one iteration of the innermost reduction loop of a lowered device function."""
    found = [_traffic(loop.body) for loop in nodes_in(func.body, tirx.For) if not nodes_in(loop.body, tirx.For)]
    busy = max(found, key=lambda t: t.multiply_adds, default=None)
    return busy if busy is not None and busy.multiply_adds else _traffic(func.body)


def _traffic(body: tirx.Stmt) -> Traffic:
    bytes_of = {"buffer": 0, "image": 0, "local": 0}
    for access in nodes_in(body, tvm.ir.TensorLoad, tvm.ir.Call):
        if is_texel_load(access):
            bytes_of["image"] += value_bytes(access)
        elif isinstance(access, tvm.ir.TensorLoad) or is_load_for_tensor_cores(access):
            scope = scope_of(access)
            if scope != PRIVATE:
                bytes_of["local" if scope in LOCAL else "buffer"] += value_bytes(access)
    products = sum(map(multiply_adds_of, nodes_in(body, tvm.ir.Call, tirx.Mul)))
    return Traffic(buffer_bytes=bytes_of["buffer"], image_bytes=bytes_of["image"], local_bytes=bytes_of["local"], multiply_adds=products)
