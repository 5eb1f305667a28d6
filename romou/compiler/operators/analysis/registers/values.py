"""Values of a kernel in registers: variables, private arrays and their lanes, and the registers of each."""

from __future__ import annotations

import itertools
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.compiler.operators.analysis.expressions import (
    LOCAL,
    PRIVATE,
    array_registers,
    dtype_of,
    lanes_of,
    registers_of,
    scope_of,
)
from romou.compiler.operators.analysis.registers.instructions import MemorySpace, Value
from romou.compiler.tir.calls import is_fp16_load, is_load_for_tensor_cores, is_texel_load, op_name


class Values:
    """The values of a function. Variables and arrays have numbers."""

    def __init__(self, body: tirx.Stmt) -> None:
        # Registers of each value.
        self.sizes: dict[Value, float] = {}
        # Registers of each value if none holds two lanes.
        self.unpacked: dict[Value, float] = {}
        # Variables that alias lanes of other values and need no registers.
        self.copies: dict[int, tuple[Value, ...]] = {}
        # Bytes of local memory before each of its arrays.
        self.local_starts: dict[int, int] = {}
        self._names: dict[Any, int] = {}
        # Private arrays accessed as a whole, and values read by lane.
        self._whole: set[int] = set()
        self._by_lane: set[int] = set()
        self._fresh = itertools.count()
        self._look_through(body)

    def _look_through(self, body: tirx.Stmt) -> None:
        local_bytes = 0
        copied: list[tuple[int, int]] = []

        def allocation(stmt: tirx.AllocBuffer) -> None:
            nonlocal local_bytes
            if str(stmt.buffer.scope()) in LOCAL:
                self.local_starts[self.number_of(stmt.buffer)] = local_bytes
                local_bytes += 4 * array_registers(stmt.buffer)

        def access(node: tvm.ir.TensorLoad | tirx.BufferStore) -> None:
            is_store = isinstance(node, tirx.BufferStore)
            buffer, index = node.buffer if is_store else node.source, node.indices[0]
            if str(buffer.scope()) != PRIVATE:
                return
            if not isinstance(index.base if isinstance(index, tirx.Ramp) else index, tirx.IntImm):
                self._whole.add(self.number_of(buffer))
            if is_store and loads_lane_by_lane(node.value):
                self._by_lane.add(self.number_of(buffer))
            if is_store and isinstance(node.value, tirx.Var):
                copied.append((self.number_of(node.value), self.number_of(buffer)))

        def bind(node: tirx.Bind) -> None:
            if loads_lane_by_lane(node.value):
                self._by_lane.add(self.number_of(node.var))

        def call(node: tvm.ir.Call) -> None:
            if op_name(node) == "tirx.address_of" and isinstance(node.args[0], tvm.ir.TensorLoad):
                self._whole.add(self.number_of(node.args[0].source))

        def lanes(node: tirx.Shuffle) -> None:
            for vector in node.vectors:
                self._by_lane.add(self.number_of(vector.source if isinstance(vector, tvm.ir.TensorLoad) else vector))

        accesses = ((tvm.ir.TensorLoad, tirx.BufferStore), access)
        structural_walk(
            body,
            [(tirx.AllocBuffer, allocation), accesses, (tirx.Bind, bind), (tvm.ir.Call, call), (tirx.Shuffle, lanes)],
        )
        # A copy that is read by lane is live by lane.
        self._by_lane.update(variable for variable, buffer in copied if buffer in self._by_lane)

    @property
    def fp16(self) -> frozenset[Value]:
        """The values that hold two lanes in a register."""
        return frozenset(value for value, registers in self.unpacked.items() if registers == 2 * self.sizes[value] > 0)

    def number_of(self, var: Any) -> int:
        """Return the number of a variable or array."""
        return self._names.setdefault(var, len(self._names) + 1)

    def is_whole(self, buffer: tirx.Var) -> bool:
        """Return whether a private array is live as a whole, because some access to it depends on run-time values."""
        return self.number_of(buffer) in self._whole

    def variable(self, var: tirx.Var) -> tuple[Value, ...]:
        """Return the values of a variable: several if it is live by lane."""
        kind = tvm.DataType(dtype_of(var) or "handle")
        return self._value(
            (self.number_of(var),),
            self.number_of(var),
            registers_of(var) if str(kind) != "handle" else 0,
            int(kind.lanes),
        )

    def elements(self, buffer: tirx.Var, index: tirx.Expr, lanes: int) -> tuple[Value, ...]:
        """Return the values of a private array at an index."""
        name, kind = self.number_of(buffer), tvm.DataType(str(buffer.dtype))
        if name in self._whole:
            return self._value((name,), -1, array_registers(buffer), 1)
        first, each = int(index.base if isinstance(index, tirx.Ramp) else index), int(kind.bits) * int(kind.lanes) / 32
        elements = range(first, first + (lanes // int(kind.lanes)))
        return tuple(
            value for element in elements for value in self._value((name, element), name, each, int(kind.lanes))
        )

    def loaded(self, load: Any) -> tuple[Value, ...]:
        """Return new values for a load inside an expression."""
        name = -next(self._fresh) - 1
        if loads_lane_by_lane(load):
            self._by_lane.add(name)
        return self._value(("loaded", name), name, registers_of(load), lanes_of(load))

    def kept(self, expr: Any) -> tuple[Value, ...]:
        """Return a new value that an expression keeps from one iteration to the next."""
        return self._value(("kept", next(self._fresh)), 0, registers_of(expr), lanes_of(expr))

    def _value(self, value: Value, name: int, registers: float, lanes: int) -> tuple[Value, ...]:
        values = (
            tuple((*value, "lane", lane) for lane in range(lanes)) if lanes > 1 and name in self._by_lane else (value,)
        )
        for part in values:
            self.sizes.setdefault(part, registers / len(values))
            self.unpacked.setdefault(part, max(registers, lanes) / len(values))
        return values


def place_of(expr: Any) -> MemorySpace | None:
    """Return the memory that an expression loads from. None for other expressions, and for private arrays."""
    if isinstance(expr, tvm.ir.TensorLoad) or is_load_for_tensor_cores(expr):
        scope = scope_of(expr)
        return None if scope == PRIVATE else "local" if scope in LOCAL else "buffer"
    return "buffer" if is_fp16_load(expr) else "image" if is_texel_load(expr) else None


def loads_lane_by_lane(expr: Any) -> bool:
    """Return whether an expression loads a vector from a buffer of scalars."""
    return isinstance(expr, tvm.ir.TensorLoad) and place_of(expr) is not None and isinstance(expr.indices[0], tirx.Ramp)
