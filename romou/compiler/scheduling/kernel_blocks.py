"""Kernels written as nested `with` blocks, by TVM's builder of statements.

with launched("sum", groups, items) as (group, item), loop("k", 8) as k, when(item < n):
    sums[item] = sums[item] + x[group, k]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from romou.compiler.scheduling.statements import barrier


@contextmanager
def launched(name: str, groups: int | tirx.Expr, items: int) -> Iterator[tuple[tirx.Expr, tirx.Expr]]:
    """Open a kernel. Yield the numbers of the work group and of the work-item in it."""
    bind = T.thread_binding
    with bind(0, groups, "blockIdx.x") as group, bind(0, items, "threadIdx.x") as item, T.sblock(name):
        T.reads()
        T.writes()
        yield IRBuilder.name("group", group), IRBuilder.name("item", item)


@contextmanager
def loop(name: str, extent: tirx.Expr | int) -> Iterator[tirx.Expr]:
    with T.serial(0, extent) as var:
        yield IRBuilder.name(name, var)


@contextmanager
def when(condition: tirx.Expr | None) -> Iterator[None]:
    """Open a branch, if there is a condition."""
    if condition is None:
        yield
    else:
        with T.If(condition), T.Then():
            yield


@contextmanager
def share(count: tirx.Expr | int, items: int, item: tirx.Expr, *, most: int = 0) -> Iterator[tirx.Expr]:
    """Open a loop over a work-item's share of `count` steps: every `items`-th one.

    most: the largest value of a count that is no constant.
    """
    is_whole = isinstance(count, int) and count % items == 0
    with loop("iteration", -(-(count if isinstance(count, int) else most) // items)) as iteration:
        at = iteration * items + item
        with when(None if is_whole else at < count):
            yield at


def array(name: str, shape: Sequence[int], dtype: str, scope: str = "local") -> Any:
    """Return an array of the open block, which is indexed like one of NumPy: registers, local memory or a workspace."""
    return T.buffer_proxy(IRBuilder.name(name, T.sblock_alloc_buffer(tuple(shape), dtype, scope=scope)))


def wait() -> None:
    """Wait for all work-items of the group, and for what they stored in local memory."""
    T.evaluate(barrier().value)
