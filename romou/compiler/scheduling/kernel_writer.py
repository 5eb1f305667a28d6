"""The base of classes that write a whole kernel out instead of scheduling it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from romou.compiler.scheduling.statements import loop
from romou.compiler.tir.primitives import LANES


class KernelWriter:
    """Statements over the registers and the local memory of a kernel.

    buffers: both, in the order of their declarations.
    index_type: of constant indices.
    """

    def __init__(self, index_type: Any = "int32") -> None:
        self.buffers: list[tirx.Buffer] = []
        self.index_type = index_type

    def _buffer(self, name: str, size: int, dtype: str = "float32", scope: str = "local") -> tirx.Buffer:
        self.buffers.append(tirx.decl_buffer([size], dtype, name, scope=scope))
        return self.buffers[-1]

    def _at(self, buffer: tirx.Buffer, *index: int | tirx.Expr) -> tirx.Expr:
        return tirx.BufferLoad(buffer, list(map(self._index, index)))

    def _put(self, buffer: tirx.Buffer, index: int | tirx.Expr, value: tirx.Expr) -> tirx.Stmt:
        return tirx.BufferStore(buffer, value, [self._index(index)])

    def _index(self, index: int | tirx.Expr) -> tirx.Expr:
        return tirx.const(index, self.index_type) if isinstance(index, int) else index

    def _in_lanes(
        self, stmt: Callable[[tirx.Var], tirx.Stmt], lanes: int = LANES, kind: str = "vectorized"
    ) -> tirx.Stmt:
        """Return a loop over the lanes of a vector."""
        lane = tirx.Var("lane", self.index_type)
        return loop(lane, lanes, stmt(lane), kind)
