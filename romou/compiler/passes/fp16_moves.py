"""Bits of fp16 values that a kernel only moves.

It loads and stores them, maybe through registers, but does not compute with them.

A conversion to fp32 and back costs instructions on some devices (OpenCL's vloada_half4 is four loads in Mesa's
compilers), and a NaN loses its payload. `fp16_storage.py` handles the values that a kernel computes with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_map, structural_visit

from romou.compiler.tir.calls import is_conditional, op_name
from romou.compiler.tir.traversal import nodes_in


def only_moves(value: tirx.Expr, is_moved: Callable[[tirx.Var], bool] = lambda _: True) -> bool:
    """Return whether an expression consists of loads and constants, at most converted between fp16 and fp32.

    is_moved: whether the values of a buffer may be loaded.
    """
    if isinstance(value, TensorLoad):
        return is_moved(value.source)
    if isinstance(value, tirx.Cast):
        kinds = {str(tvm.DataType(str(expr.ty)).with_lanes(1)) for expr in (value, value.value)}
        return kinds <= {"float16", "float32"} and only_moves(value.value, is_moved)
    parts = _parts(value)
    return isinstance(value, tirx.FloatImm) or (bool(parts) and all(only_moves(part, is_moved) for part in parts))


class Moves:
    """The moves of a device function, while accesses are accesses of scalar buffers.

    memory: fp16 buffers in memory, without images.
    registers: arrays of a work-item that hold only moved values.
    """

    def __init__(self, body: tirx.Stmt, memory: set[tirx.Var]) -> None:
        allocated = {stmt.buffer for stmt in nodes_in(body, tirx.AllocBuffer)}
        self.memory = memory
        self.registers = {
            buffer
            for buffer in allocated
            if str(buffer.scope()) == "local" and str(buffer.dtype).partition("x")[0] in ("float16", "float32")
        }
        while computed := self._computed(body) & self.registers:
            self.registers -= computed

    def is_move(self, store: tirx.BufferStore) -> bool:
        """Return whether a store moves loaded values or constants to memory that holds fp16 as bits."""
        return self._holds(store.buffer) and only_moves(store.value, self._holds)

    def with_bits(self, body: tirx.Stmt, buffers: Mapping[tirx.Var, tirx.Var], place: Callable[..., Any]) -> tirx.Stmt:
        """Write the moves with `buffers`, which hold the bits of the old ones.

        half y[i] = x[i]      ->      ushort y[i] = x[i]

        place: (old buffer, old indices) -> indices in the new one.
        """

        def bits(value: tirx.Expr) -> tirx.Expr:
            if isinstance(value, tirx.FloatImm):
                return tirx.const(int(np.float16(float(value.value)).view(np.uint16)), "uint16")
            if isinstance(value, tirx.Cast):
                return bits(value.value)
            if isinstance(value, TensorLoad):
                return tirx.BufferLoad(buffers[value.source], place(value.source, value.indices))
            if isinstance(value, tirx.Broadcast):
                return tirx.Broadcast(bits(value.value), value.lanes)
            if isinstance(value, tirx.Shuffle):
                return tirx.Shuffle([bits(vector) for vector in value.vectors], value.indices)
            if isinstance(value, tirx.Select):
                return tirx.Select(value.condition, bits(value.true_value), bits(value.false_value))
            condition, *values = value.args
            return tirx.if_then_else(condition, *map(bits, values))

        def store(access: tirx.BufferStore) -> tirx.Stmt:
            return (
                tirx.BufferStore(buffers[access.buffer], bits(access.value), place(access.buffer, access.indices))
                if self.is_move(access)
                else access
            )

        return structural_map(body, (tirx.BufferStore, store))

    def _holds(self, buffer: tirx.Var) -> bool:
        return buffer in self.memory or buffer in self.registers

    def _computed(self, body: tirx.Stmt) -> set[tirx.Var]:
        """Return the buffers with other accesses than moves."""
        computed: set[tirx.Var] = set()

        def store(access: tirx.BufferStore, visitor: Any) -> None:
            if self.is_move(access):
                for index in access.indices:
                    visitor.visit(index)
                moved(access.value, visitor)
            else:
                computed.add(access.buffer)
                visitor.default_visit(access)

        def moved(value: tirx.Expr, visitor: Any) -> None:
            """Visit the operands that choose or arrange a moved value."""
            if isinstance(value, TensorLoad):
                for index in value.indices:
                    visitor.visit(index)
            elif isinstance(value, tirx.Cast):
                moved(value.value, visitor)
            elif isinstance(value, tirx.Select) or is_conditional(value):
                visitor.visit(value.condition if isinstance(value, tirx.Select) else value.args[0])
            for part in _parts(value):
                moved(part, visitor)

        def load(access: TensorLoad, visitor: Any) -> None:
            computed.add(access.source)
            visitor.default_visit(access)

        def call(expr: tvm.ir.Call, visitor: Any) -> None:
            if op_name(expr) == "tirx.buffer_data":
                computed.add(expr.args[0])
            visitor.default_visit(expr)

        structural_visit(body, [(tirx.BufferStore, store), (TensorLoad, load), (tvm.ir.Call, call)])
        return computed


def _parts(value: tirx.Expr) -> list[tirx.Expr]:
    """Return the operands of an expression that chooses or arranges values."""
    if isinstance(value, tirx.Broadcast):
        return [value.value]
    if isinstance(value, tirx.Shuffle):
        return list(value.vectors)
    if isinstance(value, tirx.Select):
        return [value.true_value, value.false_value]
    return list(value.args[1:]) if is_conditional(value) else []
