"""What a kernel needs, estimated from its lowered TIR: registers of a work-item, and the memory traffic of its busiest loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_visit, structural_walk

from romou.calls import (
    extern_name,
    is_async_copy,
    is_conditional,
    is_half_load,
    is_load_for_tensor_cores,
    is_tensor_core_fma,
    is_texel_load,
    op_name,
    texel_bytes,
    texels_for_tensor_cores,
)

_REGISTER_BYTES = 4
_MULTIPLY_ADDS = ("mad", "fma")
# Buffer scope -> where it lies.
_PRIVATE, _LOCAL = "local", ("shared", "shared.dyn")
# A call of `tensor_core_fma` adds to two pixels of four lanes, 16 products each.
_TENSOR_CORE_NUMBERS, TENSOR_CORE_DEPTH = 8, 16


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One turn of the innermost loop with the most multiply-adds, of one work-item; the whole kernel where no loop is left.

    buffer_bytes, image_bytes, local_bytes: loaded from buffers, images and local memory, as the code stands: what a condition guards
        counts, and what two expressions load twice counts twice.
    multiply_adds: multiplications of floats, by lanes.
    """

    buffer_bytes: int
    image_bytes: int
    local_bytes: int
    multiply_adds: int

    @property
    def bytes_loaded(self) -> int:
        """From all three."""
        return self.buffer_bytes + self.image_bytes + self.local_bytes


def estimate_traffic(func: tirx.PrimFunc) -> Traffic:
    """Bytes loaded and multiply-adds in one turn of the innermost reduction loop of a lowered device function."""
    loops: list[tirx.For] = []
    structural_walk(func.body, (tirx.For, loops.append))
    innermost = [loop for loop in loops if _is_innermost(loop)]
    found = [_traffic(loop.body, func) for loop in innermost]
    busy = max(found, key=lambda t: t.multiply_adds, default=None)
    return busy if busy is not None and busy.multiply_adds else _traffic(func.body, func)


def _is_innermost(loop: tirx.For) -> bool:
    inner: list[tirx.For] = []
    structural_walk(loop.body, (tirx.For, inner.append))
    return not inner


def _traffic(body: tirx.Stmt, func: tirx.PrimFunc) -> Traffic:
    bytes_of = {"buffer": 0, "image": 0, "local": 0}
    products = 0

    def load(access: tvm.ir.TensorLoad) -> None:
        scope = str(access.source.scope())
        if scope != _PRIVATE:
            bytes_of["local" if scope in _LOCAL else "buffer"] += _bytes(access)

    def call(node: tvm.ir.Call) -> None:
        if is_texel_load(node):
            bytes_of["image"] += _bytes(node)
        elif is_load_for_tensor_cores(node):
            bytes_of["local" if scope_of(node) in _LOCAL else "buffer"] += _bytes(node)

    def product(node: tirx.Mul | tvm.ir.Call) -> None:
        nonlocal products
        products += multiply_adds_of(node)

    structural_walk(body, [(tvm.ir.TensorLoad, load), (tvm.ir.Call, call)])
    structural_walk(body, ((tvm.ir.Call, tirx.Mul), product))
    return Traffic(buffer_bytes=bytes_of["buffer"], image_bytes=bytes_of["image"], local_bytes=bytes_of["local"], multiply_adds=products)


@dataclass
class _Value:
    """Something that takes registers, from its first to its last use; positions count statements and expressions in order."""

    registers: int
    first: int
    last: int
    # Around its definition: used in a deeper loop, it lives until that loop ends.
    loops: tuple[int, ...]


def estimate_registers(func: tirx.PrimFunc) -> int:
    """32-bit registers of one work-item: the most that are live at once, by a simple rule.

    Live are private arrays (whole, from their first to their last access), variables (from binding to last use; one that a loop uses and
    does not define, until the loop ends), loop counters, work-item and work-group ids, and, in the statement that loads them, values from
    memory. Halfs share a register by two. What a compiler recomputes, moves or keeps in scalar registers it does better than this; what it
    needs for 64-bit addresses comes on top.
    """
    values: dict[Any, _Value] = {}
    loops: list[int] = []
    ends: dict[int, int] = {}
    until: list[tuple[_Value, int]] = []
    loaded: dict[int, int] = {}
    position = 0

    def use(key: Any, registers: int) -> None:
        value = values.get(key)
        if value is None:
            values[key] = _Value(registers, position, position, tuple(loops))
            return
        value.last = position
        # Where that loop ends is known later.
        until.extend((value, loop) for loop in loops if loop not in value.loops)

    def step() -> None:
        nonlocal position
        position += 1

    def loop(node: tirx.For, visitor: Any) -> None:
        step()
        number = position
        visitor.visit(node.extent)
        loops.append(number)
        use(node.loop_var, 1)
        visitor.visit(node.body)
        step()
        use(node.loop_var, 1)
        loops.pop()
        ends[number] = position

    def bind(node: tirx.Bind, visitor: Any) -> None:
        step()
        visitor.visit(node.value)
        use(node.var, _registers(node.value))

    def store(node: tirx.BufferStore, visitor: Any) -> None:
        step()
        for index in node.indices:
            visitor.visit(index)
        visitor.visit(node.value)
        if str(node.buffer.scope()) == _PRIVATE:
            use(node.buffer, _array_registers(node.buffer))

    def statement(node: tirx.Stmt, visitor: Any) -> None:
        step()
        visitor.default_visit(node)

    def load(node: tvm.ir.TensorLoad, visitor: Any) -> None:
        for index in node.indices:
            visitor.visit(index)
        if str(node.source.scope()) == _PRIVATE:
            use(node.source, _array_registers(node.source))
        else:
            loaded[position] = loaded.get(position, 0) + _registers(node)

    def call(node: tvm.ir.Call, visitor: Any) -> None:
        if is_texel_load(node):
            loaded[position] = loaded.get(position, 0) + _registers(node)
        visitor.default_visit(node)

    def variable(node: tirx.Var, visitor: Any) -> None:
        if dtype_of(node).startswith(("int", "uint", "float", "bool")):
            use(node, _registers(node))

    def skip(_node: Any, _visitor: Any) -> None:
        # A declaration and a type use nothing yet.
        return

    structural_visit(
        func.body,
        [
            ((tvm.ir.Type, tirx.AllocBuffer, tirx.DeclBuffer), skip),
            (tirx.For, loop),
            (tirx.Bind, bind),
            (tirx.BufferStore, store),
            (tirx.Stmt, statement),
            (tvm.ir.TensorLoad, load),
            (tvm.ir.Call, call),
            (tirx.Var, variable),
        ],
    )
    for value, number in until:
        value.last = max(value.last, ends[number])
    live = [loaded.get(at, 0) + sum(v.registers for v in values.values() if v.first <= at <= v.last) for at in range(position + 1)]
    return max(live, default=0)


# Loops that a compiler unrolls: so many turns at most (Mesa's limit), and so many operations when done. What an operation counts: each product
# of floats by lanes, an index as 2, an access of memory with its 64-bit address or an image's coordinates as 8, of local memory as 2, a
# condition with the selection behind it as 20, and so does a turn. Fitted: it tells for 94% of 556 random kernels how many loops Mesa's Adreno
# compiler keeps.
_MOST_TURNS, _MOST_OPERATIONS = 32, 1600
_INDEX_COST, _ACCESS_COST, _LOCAL_COST, _CONDITION_COST = 2, 8, 2, 20
# Registers of an address: three coordinates of a texel in a row, 64 bits of a pointer. All are computed ahead of the loads, as they wait for nothing.
_ADDRESS = {"image": 3, "buffer": 2}
# Loads under way have registers for their values instead, and Mesa waits for eight before it issues more: a vector of four from a buffer takes
# two registers more than its address.
_UNDER_WAY = 8 * 2
# A load under a condition stays behind its branch, and what its address is made of before it: for each register of the value, fitted.
_GUARDED = 0.4
# An offset in a load from local memory reaches so many bytes (12 bits); beyond, each load has an address of its own.
_LOCAL_REACH = 4096
# Allocation is coarser than use: by vectors of four, and then by what the next number of waves leaves.
_ROUNDING = 1.2
# Short of registers, a compiler moves less ahead and computes addresses again: it spills, or holds no whole work group, where this share of them does
# not suffice. Fitted: so 101 of 115 of the 556 kernels are told, and 25 of the other 441 wrongly.
_SUFFICIENT = 0.8


@dataclass(frozen=True)
class RegisterUse:
    """32-bit registers of a work-item; arrays for many kernels.

    live: at once, by `estimate_registers`.   ahead: for loads and addresses that a compiler moves ahead of their use to hide latency.
    """

    live: Any
    ahead: Any

    @property
    def allocated(self) -> Any:
        """What a compiler with registers enough gives a work-item."""
        return _ROUNDING * (self.live + self.ahead)

    @property
    def needed(self) -> Any:
        """What it cannot do without: a compiler that is short of registers moves fewer loads and addresses ahead."""
        return _SUFFICIENT * (self.live + self.ahead)


def register_use(func: tirx.PrimFunc) -> RegisterUse:
    """Registers that are live, and those for loads ahead of their use, of a lowered device function.

    Compilers unroll short loops and move loads up as far as straight code goes: to the loop, barrier or condition before.
    """
    allocated: list[int] = []
    structural_walk(func.body, (tirx.AllocBuffer, lambda stmt: allocated.append(_array_bytes(stmt.buffer) if str(stmt.buffer.scope()) in _LOCAL else 0)))
    code = _flow(func.body, _ADDRESS | {"local": int(sum(allocated) > _LOCAL_REACH)})
    return RegisterUse(estimate_registers(func), max(code.loads.peak.registers, code.guarded.peak.registers))


def registers_ahead(loads: Any, registers_each: Any, *, is_image: Any) -> Any:
    """Registers for so many loads in one stretch of straight code, from images or else from buffers; for arrays too."""
    address = _ADDRESS["buffer"] + is_image * (_ADDRESS["image"] - _ADDRESS["buffer"])
    return loads * address + np.minimum(loads * np.maximum(registers_each - address, 0), _UNDER_WAY)


@dataclass(frozen=True)
class _Accesses:
    """Registers for accesses of memory in one stretch of straight code: addresses, and what values need more than them."""

    addresses: float = 0.0
    more: float = 0.0

    @property
    def registers(self) -> float:
        return self.addresses + min(self.more, _UNDER_WAY)

    def __add__(self, other: _Accesses) -> _Accesses:
        return _Accesses(self.addresses + other.addresses, self.more + other.more)


@dataclass(frozen=True)
class _Straight:
    """Accesses along a piece of code: in its first and in its last stretch of straight code, and in the fullest one.

    is_cut: whether it has more than one stretch; if not, all three are the same.
    """

    first: _Accesses = _Accesses()
    last: _Accesses = _Accesses()
    peak: _Accesses = _Accesses()
    is_cut: bool = False

    @classmethod
    def of(cls, accesses: _Accesses) -> _Straight:
        return cls(accesses, accesses, accesses)

    def __add__(self, other: _Straight) -> _Straight:
        middle = self.last + other.first
        first = self.first if self.is_cut else middle
        last = other.last if other.is_cut else middle
        peak = max(self.peak, other.peak, middle, key=lambda accesses: accesses.registers)
        return _Straight(first, last, peak, self.is_cut or other.is_cut)

    def cut_off(self) -> _Straight:
        """The same code with an end before and behind it."""
        return _Straight(peak=self.peak, is_cut=True)


@dataclass(frozen=True)
class _Code:
    """A statement, short loops unrolled: operations by their cost, accesses, and those under a condition, which ends no stretch for them."""

    cost: int = 0
    loads: _Straight = _Straight()
    guarded: _Straight = _Straight()

    def __add__(self, other: _Code) -> _Code:
        return _Code(self.cost + other.cost, self.loads + other.loads, self.guarded + other.guarded)


def _flow(stmt: tirx.Stmt, address: Mapping[str, int]) -> _Code:
    """`address`: registers that an address takes, by where it points to."""
    match stmt:
        case tirx.SeqStmt():
            return sum((_flow(child, address) for child in stmt.seq), start=_Code())
        case tirx.AttrStmt():
            return _flow(stmt.body, address)
        case tirx.For():
            code = _flow(stmt.body, address)
            turns = int(stmt.extent) if isinstance(stmt.extent, tirx.IntImm) else _MOST_TURNS + 1
            cost = turns * (code.cost + _CONDITION_COST)
            if turns > _MOST_TURNS or cost > _MOST_OPERATIONS:
                return _Code(code.cost + _INDEX_COST, code.loads.cut_off(), code.guarded.cut_off())
            return replace(sum([code] * turns, start=_Code()), cost=cost)
        case tirx.IfThenElse():
            code = _flow(stmt.then_case, address)
            return _Code(code.cost + _CONDITION_COST, code.loads.cut_off(), code.guarded)
        case tirx.AllocBuffer() | tirx.DeclBuffer():
            return _Code()
        case tirx.Evaluate() if op_name(stmt.value) == "tirx.tvm_storage_sync":
            return _Code(1, _Straight().cut_off(), _Straight().cut_off())
    return _leaf_flow(stmt, address)


def _leaf_flow(stmt: tirx.Stmt, address: Mapping[str, int]) -> _Code:
    cost, accesses, under_condition = 0, _Accesses(), 0.0
    stored = _stored_to(stmt)
    if stored is not None:
        cost += _LOCAL_COST if stored == "local" else _ACCESS_COST
        # Stores to local memory are as good as in order; an offset reaches them.
        accesses += _Accesses(0 if stored == "local" else address[stored])
    guarded: list[Any] = []

    def expression(expr: Any) -> None:
        nonlocal cost, accesses, under_condition
        kind = _load_kind(expr)
        if kind is not None:
            cost += _LOCAL_COST if kind == "local" else _ACCESS_COST
            if any(expr.same_as(g) for g in guarded):
                under_condition += _GUARDED * _registers(expr)
            else:
                # Values from local memory come soon enough.
                accesses += _Accesses(address[kind], 0 if kind == "local" else max(_registers(expr) - address[kind], 0))
        elif isinstance(expr, (tirx.Mul, tvm.ir.Call)) and multiply_adds_of(expr):
            cost += multiply_adds_of(expr)
        elif isinstance(expr, _ARITHMETIC) and "float" not in dtype_of(expr):
            cost += _INDEX_COST
        elif is_conditional(expr):
            cost += _CONDITION_COST

    def condition(call: tvm.ir.Call) -> None:
        if is_conditional(call):
            structural_walk(call.args[1], (tvm.ir.Expr, lambda e: guarded.append(e) if _load_kind(e) is not None else None))

    structural_walk(stmt, (tvm.ir.Call, condition))
    structural_walk(stmt, (tvm.ir.Expr, expression))
    loads = _Straight.of(accesses)
    return _Code(cost, loads + _Straight().cut_off() if guarded else loads, _Straight.of(_Accesses(under_condition)))


def _stored_to(stmt: tirx.Stmt) -> str | None:
    """Where a statement stores to: image, buffer, local memory; None for what stores nothing, or into a private array."""
    if isinstance(stmt, tirx.BufferStore):
        scope = str(stmt.buffer.scope())
        return None if scope == _PRIVATE else "local" if scope in _LOCAL else "buffer"
    return "image" if isinstance(stmt, tirx.Evaluate) and op_name(stmt.value) == "tirx.texture2d_store" else None


_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.LShift, tirx.RShift, tirx.FloorDiv, tirx.FloorMod)


def _load_kind(expr: Any) -> str | None:
    """Where an expression loads from into registers: image, buffer, local memory; None for what is no such load, or one of a private array."""
    if is_async_copy(expr):
        return None  # it passes by the registers, at an offset from one address
    if isinstance(expr, tvm.ir.TensorLoad) or is_load_for_tensor_cores(expr):
        scope = scope_of(expr)
        return None if scope == _PRIVATE else "local" if scope in _LOCAL else "buffer"
    return "buffer" if is_half_load(expr) else "image" if is_texel_load(expr) else None


def multiply_adds_of(node: tirx.Mul | tvm.ir.Call) -> int:
    """Multiply-adds that this expression alone stands for, by lanes: of a product of floats, or of a call of mad or fma."""
    if isinstance(node, tirx.Mul):
        return lanes_of(node) if "float" in dtype_of(node) else 0
    if is_tensor_core_fma(node):
        return _TENSOR_CORE_NUMBERS * TENSOR_CORE_DEPTH
    return lanes_of(node) if extern_name(node) in _MULTIPLY_ADDS else 0


def scope_of(load: tvm.ir.TensorLoad | tvm.ir.Call) -> str:
    """Memory scope that a load, or a call that reads a texel of halfs, reads from."""
    return str((load.source if isinstance(load, tvm.ir.TensorLoad) else load.args[2].args[0]).scope())


def dtype_of(expr: Any) -> str:
    """Type of an expression's value, lanes included: "float32x4"."""
    return str(getattr(expr.ty, "dtype", ""))


def lanes_of(expr: Any) -> int:
    """How many values an expression has."""
    return int(tvm.DataType(dtype_of(expr)).lanes)


def _bytes(expr: Any) -> int:
    if is_load_for_tensor_cores(expr):
        return texels_for_tensor_cores(expr) * texel_bytes(expr)
    kind = tvm.DataType(dtype_of(expr))
    return int(kind.bits) * int(kind.lanes) // 8


def _registers(expr: Any) -> int:
    return -(-_bytes(expr) // _REGISTER_BYTES)


def _array_registers(buffer: tirx.Var) -> int:
    return -(-_array_bytes(buffer) // _REGISTER_BYTES)


def _array_bytes(buffer: tirx.Var) -> int:
    kind = tvm.DataType(str(buffer.dtype))
    return math.prod(int(extent) for extent in buffer.shape) * int(kind.bits) * int(kind.lanes) // 8
