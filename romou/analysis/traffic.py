"""The memory traffic of a kernel's busiest loop, read off its lowered TIR."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.analysis.expressions import LOCAL, PRIVATE, multiply_adds_of, scope_of, value_bytes
from romou.tir.calls import is_load_for_tensor_cores, is_texel_load


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
    loops: list[tirx.For] = []
    structural_walk(func.body, (tirx.For, loops.append))
    innermost = [loop for loop in loops if _is_innermost(loop)]
    found = [_traffic(loop.body) for loop in innermost]
    busy = max(found, key=lambda t: t.multiply_adds, default=None)
    return busy if busy is not None and busy.multiply_adds else _traffic(func.body)


def _is_innermost(loop: tirx.For) -> bool:
    inner: list[tirx.For] = []
    structural_walk(loop.body, (tirx.For, inner.append))
    return not inner


def _traffic(body: tirx.Stmt) -> Traffic:
    bytes_of = {"buffer": 0, "image": 0, "local": 0}
    products = 0

    def load(access: tvm.ir.TensorLoad) -> None:
        scope = scope_of(access)
        if scope != PRIVATE:
            bytes_of["local" if scope in LOCAL else "buffer"] += value_bytes(access)

    def call(node: tvm.ir.Call) -> None:
        if is_texel_load(node):
            bytes_of["image"] += value_bytes(node)
        elif is_load_for_tensor_cores(node):
            bytes_of["local" if scope_of(node) in LOCAL else "buffer"] += value_bytes(node)

    def product(node: tirx.Mul | tvm.ir.Call) -> None:
        nonlocal products
        products += multiply_adds_of(node)

    structural_walk(body, [(tvm.ir.TensorLoad, load), (tvm.ir.Call, call)])
    structural_walk(body, ((tvm.ir.Call, tirx.Mul), product))
    return Traffic(buffer_bytes=bytes_of["buffer"], image_bytes=bytes_of["image"], local_bytes=bytes_of["local"], multiply_adds=products)
