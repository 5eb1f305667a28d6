"""Partial unrolling of loops, so that loads of several iterations overlap.

A compiler that does not unroll loops waits for the loads of each iteration. For other compilers nothing changes.

    for (int i = 0; i < 3; i++)       ->      [[unroll]] for (int i = 0; i < 3; i++)
    for (int i = 0; i < 80; i++)      ->      for (int i_start = 0; i_start < 80; i_start += 8) {
                                                [[unroll]] for (int i_step = 0; i_step < 8; i_step++) {
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm_ffi.structural import structural_walk

from romou.devices.backends.vulkan.calls import extern_of, op_of

# Limits of unrolled code: its statements, and its loads. A load needs registers until its value is used.
MOST_LOADS = 64
MOST_STATEMENTS = 384


def iterations_at_once(loop: tirx.For, is_memory: Callable[[Any], bool]) -> int:
    """Return the number of iterations to unroll: the largest divisor of a loop's extent within the limits.

    is_memory: whether a buffer has to be loaded.
    """
    extent = loop.extent
    if not isinstance(extent, tirx.IntImm) or _has_other_control_flow(loop.body):
        return 1
    loads, statements = _size(loop.body, is_memory)
    most = min(MOST_LOADS // max(loads, 1), MOST_STATEMENTS // max(statements, 1), int(extent))
    return next((count for count in range(most, 1, -1) if int(extent) % count == 0), 1)


def _has_other_control_flow(body: tirx.Stmt) -> bool:
    nodes: list[Any] = []
    structural_walk(body, ((tirx.While, tirx.Break, tirx.Continue, Call), nodes.append))
    return any(not isinstance(each, Call) or op_of(each) == "tirx.tvm_storage_sync" for each in nodes)


def _size(stmt: Any, is_memory: Callable[[Any], bool]) -> tuple[int, int]:
    """Return (loads, statements) of a statement, with all iterations of its loops."""
    if isinstance(stmt, tirx.SeqStmt):
        sizes = [_size(child, is_memory) for child in stmt.seq]
        return sum(loads for loads, _ in sizes), sum(statements for _, statements in sizes)
    if isinstance(stmt, tirx.For):
        loads, statements = _size(stmt.body, is_memory)
        times = int(stmt.extent) if isinstance(stmt.extent, tirx.IntImm) else MOST_STATEMENTS
        return loads * times, statements * times
    nodes: list[Any] = []
    structural_walk(stmt, ((TensorLoad, Call, tirx.BufferStore), nodes.append))
    return sum(_is_load(each, is_memory) for each in nodes), 1 + sum(
        isinstance(each, tirx.BufferStore) for each in nodes
    )


def _is_load(node: Any, is_memory: Callable[[Any], bool]) -> bool:
    if isinstance(node, TensorLoad):
        return is_memory(node.source)
    return isinstance(node, Call) and (op_of(node) == "tirx.texture2d_load" or extern_of(node).startswith("vload_half"))
