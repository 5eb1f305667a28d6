"""Live registers of a work-item, counted in its lowered kernel.

    acc = 0                      acc
    for i in range(64):          acc, i
        t = image[x, i]          acc, i, t
        acc += t * weight[i]     acc, i, t, and the loaded texel
    out[x] = acc                 acc

A variable or private array is live from its first write to its last read, and through each loop around a read that is
not around the write. An array is live as a whole. In a basic block, a compiler for Adreno loads ahead, which adds
registers for each load. Compilers for Mali keep the order of the kernel's text.

The count is for ranking and for a limit on random configs; Mesa's compilers tell the real number (`romou inspect
--gpu`). benchmarks/bench_registers.py compares both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.compiler.operators.analysis.expressions import (
    LOCAL,
    PRIVATE,
    array_registers,
    dtype_of,
    multiply_adds_of,
    registers_of,
    scope_of,
)
from romou.compiler.tir.calls import is_fp16_load, is_load_for_tensor_cores, is_texel_load, keeps_next_loop, op_name
from romou.compiler.tir.expressions import lanes_of

# Number of live registers above which Mesa spills, and the number measured on the same GPU, as in device files.
_MOST, _MOST_MEASURED = 192, 181
# Registers that each load of a basic block adds. Fitted: of 100 random configs of 16 layers, Mesa 25.0.7's compiler for
# Adreno 630 spills 25, all of them above the limit, as are 12 others (benchmarks/bench_registers.py).
_AHEAD = {"image": 3, "buffer": 1, "local": 1}
# Addresses of one block's weights that the formulas count: registers of an address, and addresses computed ahead of the
# first load (Mesa, ir3_sched.c: the delay of a load by the instructions of an address).
_ADDRESS, _ADDRESSES_AHEAD = {"image": 3, "buffer": 2}, {"image": 14, "buffer": 16}
# Limits of loops that a compiler unrolls: iterations (Mesa's limit), and operations of the unrolled loop. A product has
# a cost for each lane, as has a memory access with its index, and a condition. Of 104 kernels for Adreno 660, Mesa
# keeps other loops in three.
_MOST_ITERATIONS, _MOST_OPERATIONS = 32, 1600
_PRODUCT_COST, _ACCESS_COST, _CONDITION_COST = 1.2, 9, 20
# Mesa's compiler for Mali unrolls loops before it splits vectors: the limit counts a fused product of a vector as 1, a
# product and its sum as 2, an access with its index as 3.
_MOST_VECTORS, _VECTOR_PRODUCT_COST, _VECTOR_ACCESS_COST = 1100, 2, 3


@dataclass(frozen=True)
class RegisterEstimate:
    """Estimated 32-bit registers of a work-item. Arrays for many kernels.

    live: most live registers if a compiler loads ahead, as for Adreno
    as_written: most live registers in the order of the kernel's text, as for Mali
    """

    live: Any
    as_written: Any = 0

    @property
    def needed(self) -> Any:
        """Fewest registers with which the work-item does not spill, comparable with a device file's number."""
        return _MOST_MEASURED / _MOST * self.live

    def error(self, registers: Any) -> Any:
        """Return the relative error of `live` against a compiler's number: 0.09 is 9% too many."""
        return self.live / registers - 1


def estimate_registers(func: tirx.PrimFunc) -> RegisterEstimate:
    """Return the registers of a work-item of a lowered device function.

    Two fp16 numbers share a register, unless a loop carries them.
    """
    kernel = _Kernel()
    kernel.read(func.body)
    as_written = kernel.most_live()
    return RegisterEstimate(as_written + max(block.registers_ahead for block in kernel.blocks), as_written)


def address_registers(loads: Any, *, is_image: Any) -> Any:
    """Return a lower bound of the registers for addresses of `loads` loads in one basic block. Takes arrays too."""
    image, buffer = (_ADDRESS[kind] * np.minimum(loads, _ADDRESSES_AHEAD[kind]) for kind in _ADDRESS)
    return np.where(is_image, image, buffer)


def is_unrolled(iterations: Any, products: Any, loads: Any) -> Any:
    """Return whether a compiler for Adreno unrolls a loop. Takes arrays, too.

    products, loads: of one iteration, each lane of a product counted.
    """
    operations = _PRODUCT_COST * products + _ACCESS_COST * loads + _CONDITION_COST
    return (iterations <= _MOST_ITERATIONS) & (iterations * operations <= _MOST_OPERATIONS)


def is_kept_on_mali(iterations: Any, vectors: Any, accesses: Any, *, is_fused: Any) -> Any:
    """Return whether Mesa's compiler for Mali keeps a loop, or one inside it, for certain. Takes arrays, too.

    vectors, accesses: products and loads of one iteration, each of a vector
    is_fused: whether a product and its sum are one operation
    """
    operations = np.where(is_fused, 1, _VECTOR_PRODUCT_COST) * vectors + _VECTOR_ACCESS_COST * accesses
    return (iterations > 1) & (iterations * operations > _MOST_VECTORS)


@dataclass
class _Block:
    """Loads of a basic block by memory, and its products by lanes."""

    loads: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_AHEAD, 0))
    products: int = 0

    def add(self, other: _Block, times: int = 1) -> None:
        self.products += times * other.products
        for place, loads in other.loads.items():
            self.loads[place] += times * loads

    @property
    def registers_ahead(self) -> int:
        return sum(_AHEAD[place] * loads for place, loads in self.loads.items())


@dataclass
class _Value:
    """A variable or private array: its registers and type, where it is live, and the loops around its first write."""

    registers: int
    dtype: str
    first: int
    last: int
    loops: tuple[_Loop, ...]
    is_carried: bool = False


@dataclass(eq=False)
class _Loop:
    """A loop, with the values that it has to keep, because they were written before it."""

    kept: list[_Value] = field(default_factory=list)


class _Kernel:
    """The values of a kernel in the order of its text, and its basic blocks."""

    def __init__(self) -> None:
        self.blocks = [_Block()]
        self._values: dict[tirx.Var, _Value] = {}
        self._loops: list[_Loop] = []
        # Registers of loads inside expressions, by statement.
        self._loaded = [0]
        self._stays = False

    def most_live(self) -> float:
        """Return the most live registers in the order of the text."""
        changes = np.zeros(len(self._loaded) + 1)
        for value in self._values.values():
            registers = value.registers * (2 if value.is_carried and "float16" in value.dtype else 1)
            changes[value.first] += registers
            changes[value.last + 1] -= registers
        return float(np.max(np.cumsum(changes)[:-1] + self._loaded))

    def read(self, stmt: tirx.Stmt) -> None:
        """Read a statement. Loops and branches end basic blocks, unrolled loops do not."""
        match stmt:
            case tirx.SeqStmt():
                for child in stmt.seq:
                    self.read(child)
            case tirx.AttrStmt():
                if stmt.attr_key == "thread_extent" and str(stmt.node.thread_tag).startswith("threadIdx"):
                    self._next(())
                    self._write(stmt.node.var, 1)
                self.read(stmt.body)
            case tirx.For():
                self._loop(stmt)
            case tirx.IfThenElse():
                self._next([stmt.condition])
                for branch in (stmt.then_case, stmt.else_case):
                    if branch is not None:
                        self.blocks.append(_Block())
                        self.read(branch)
                self.blocks.append(_Block())
            case tirx.Bind():
                self._next([stmt.value], is_assigned=True)
                kind = dtype_of(stmt.var) or "handle"
                self._write(stmt.var, 0 if kind == "handle" else registers_of(stmt.var), kind)
            case tirx.BufferStore():
                is_private = str(stmt.buffer.scope()) == PRIVATE
                self._next([stmt.value, *stmt.indices], is_assigned=is_private and _place_of(stmt.value) is not None)
                if is_private:
                    self._write(stmt.buffer, array_registers(stmt.buffer), str(stmt.buffer.dtype))
            case tirx.Evaluate():
                if keeps_next_loop(stmt.value):
                    self._stays = True
                else:
                    self._next([stmt.value])

    def _loop(self, loop: tirx.For) -> None:
        stays, self._stays = self._stays, False
        iterations = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else _MOST_ITERATIONS + 1
        before, count = self.blocks[-1], len(self.blocks)
        self.blocks.append(_Block())
        self._next(())
        self._write(loop.loop_var, 1)
        self._loops.append(_Loop())
        self.read(loop.body)
        inside = self.blocks[count:]
        whole = _Block()
        for block in inside:
            whole.add(block)
        is_kept = stays or not is_unrolled(iterations, whole.products, sum(whole.loads.values()))
        for value in (self._values[loop.loop_var], *self._loops.pop().kept):
            value.last = len(self._loaded) - 1
            value.is_carried |= is_kept
        if is_kept:
            self.blocks.append(_Block())
        elif len(inside) == 1:
            del self.blocks[count:]
            before.add(whole, iterations)

    def _next(self, expressions: Sequence[tirx.Expr], *, is_assigned: bool = False) -> None:
        """Count the loads and products of a statement's expressions, and note which values they read.

        is_assigned: the loaded value is what the statement writes, so it has no further registers.
        """
        self._loaded.append(0)
        block, loaded = self.blocks[-1], 0

        def load(node: tvm.ir.TensorLoad | tvm.ir.Call) -> None:
            nonlocal loaded
            if (place := _place_of(node)) is not None:
                block.loads[place] += lanes_of(node) if _is_by_lane(node) else 1
                loaded += registers_of(node)
            elif isinstance(node, tvm.ir.TensorLoad):
                self._use(node.source)

        def call(node: tvm.ir.Call) -> None:
            load(node)
            block.products += multiply_adds_of(node)
            if op_name(node) == "tirx.address_of" and isinstance(node.args[0], tvm.ir.TensorLoad):
                self._use(node.args[0].source)

        def product(node: tirx.Mul) -> None:
            block.products += multiply_adds_of(node)

        visitors = [(tirx.Var, self._use), (tvm.ir.TensorLoad, load), (tvm.ir.Call, call), (tirx.Mul, product)]
        for expression in expressions:
            structural_walk(expression, visitors)
        self._loaded[-1] = 0 if is_assigned else loaded

    def _write(self, var: tirx.Var, registers: int, dtype: str = "int32") -> None:
        if var in self._values:
            self._use(var)
        else:
            now = len(self._loaded) - 1
            self._values[var] = _Value(registers, dtype, now, now, tuple(self._loops))

    def _use(self, var: tirx.Var) -> None:
        if (value := self._values.get(var)) is not None:
            value.last = len(self._loaded) - 1
            if (around := next((loop for loop in self._loops if loop not in value.loops), None)) is not None:
                around.kept.append(value)


def _place_of(expr: Any) -> str | None:
    """Return the memory that an expression loads from. None for other expressions, and for private arrays."""
    if isinstance(expr, tvm.ir.TensorLoad) or is_load_for_tensor_cores(expr):
        scope = scope_of(expr)
        return None if scope == PRIVATE else "local" if scope in LOCAL else "buffer"
    return "buffer" if is_fp16_load(expr) else "image" if is_texel_load(expr) else None


def _is_by_lane(expr: Any) -> bool:
    """Return whether an expression loads a vector from a buffer of scalars."""
    return isinstance(expr, tvm.ir.TensorLoad) and isinstance(expr.indices[0], tirx.Ramp)
