"""What a kernel needs, estimated from its lowered TIR: registers of a work-item, and the memory traffic of its busiest loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_visit, structural_walk

from romou.calls import extern_name, is_conditional, is_half_load, is_texel_load

_REGISTER_BYTES = 4
_MULTIPLY_ADDS = ("mad", "fma")
# Buffer scope -> where it lies.
_PRIVATE, _LOCAL = "local", ("shared", "shared.dyn")


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


# Loops that a compiler unrolls: so many turns at most, and so many operations when done, one on a vector counted once. The first is Mesa's
# limit, the second matches best which loops of random kernels Mesa's Adreno compiler keeps.
_MOST_TURNS = 32
_MOST_OPERATIONS = 300
# Registers that a load issued ahead of its use takes: for each register of its value, and for its address. Fitted on random kernels against
# Mesa's Adreno compiler (scripts/bench_registers.py). Loads from local memory are hardly moved; under a condition only the address is.
_AHEAD = {"image": (1.0, 0.5), "buffer": (0.65, 1.0), "local": (0.1, 0.25), "guarded": (0.1, 0.25)}
# Allocation is coarser than use: by vectors of four, and then by what the next number of waves leaves.
_ROUNDING = 1.2


@dataclass(frozen=True)
class RegisterUse:
    """32-bit registers of a work-item; arrays for many kernels.

    live: at once, by `estimate_registers`.   ahead: for loads that a compiler can issue ahead of their use to hide latency.
    """

    live: Any
    ahead: Any

    @property
    def allocated(self) -> Any:
        """What a compiler with registers enough gives a work-item."""
        return _ROUNDING * (self.live + self.ahead)

    @property
    def needed(self) -> Any:
        """What it should have: a compiler that is short of registers issues fewer loads ahead, half as many as are live suffice."""
        return _ROUNDING * (self.live + np.minimum(self.ahead, self.live / 2))


def register_use(func: tirx.PrimFunc) -> RegisterUse:
    """Registers that are live, and those for loads ahead of their use, of a lowered device function.

    Compilers unroll short loops and move loads up as far as straight code goes: to the loop, barrier or condition before.
    """
    _, ahead, guarded = _flow(func.body)
    return RegisterUse(estimate_registers(func), ahead.peak + guarded.peak)


def registers_ahead(loads: Any, registers_each: Any, *, is_image: Any) -> Any:
    """Registers for so many loads in one stretch of straight code, from images or else from buffers; for arrays too."""
    (buffer_value, buffer_address), (image_value, image_address) = _AHEAD["buffer"], _AHEAD["image"]
    value = buffer_value + is_image * (image_value - buffer_value)
    address = buffer_address + is_image * (image_address - buffer_address)
    return loads * (value * registers_each + address)


@dataclass(frozen=True)
class _Straight:
    """Registers for loads along a piece of code: in its first and in its last stretch of straight code, and in the fullest one.

    is_cut: whether it has more than one stretch; if not, all three are the same.
    """

    first: float = 0.0
    last: float = 0.0
    peak: float = 0.0
    is_cut: bool = False

    def __add__(self, other: _Straight) -> _Straight:
        middle = self.last + other.first
        first = self.first if self.is_cut else middle
        last = other.last if other.is_cut else middle
        return _Straight(first, last, max(self.peak, other.peak, middle), self.is_cut or other.is_cut)

    def cut_off(self) -> _Straight:
        """The same code with an end before and behind it."""
        return _Straight(peak=self.peak, is_cut=True)


def _flow(stmt: tirx.Stmt) -> tuple[int, _Straight, _Straight]:
    """(operations, loads, guarded loads) of a statement, short loops unrolled."""
    match stmt:
        case tirx.SeqStmt():
            operations, loads, guarded = 0, _Straight(), _Straight()
            for child in stmt.seq:
                more = _flow(child)
                operations, loads, guarded = operations + more[0], loads + more[1], guarded + more[2]
            return operations, loads, guarded
        case tirx.AttrStmt():
            return _flow(stmt.body)
        case tirx.For():
            operations, loads, guarded = _flow(stmt.body)
            turns = int(stmt.extent) if isinstance(stmt.extent, tirx.IntImm) else _MOST_TURNS + 1
            if turns > _MOST_TURNS or turns * operations > _MOST_OPERATIONS:
                return operations + 2, loads.cut_off(), guarded.cut_off()
            return turns * operations, sum([loads] * turns, start=_Straight()), sum([guarded] * turns, start=_Straight())
        case tirx.IfThenElse():
            operations, loads, guarded = _flow(stmt.then_case)
            return operations + 1, loads.cut_off(), guarded
        case tirx.AllocBuffer() | tirx.DeclBuffer():
            return 0, _Straight(), _Straight()
        case tirx.Evaluate() if getattr(getattr(stmt.value, "op", None), "name", "") == "tirx.tvm_storage_sync":
            return 1, _Straight().cut_off(), _Straight().cut_off()
    return _leaf_flow(stmt)


def _leaf_flow(stmt: tirx.Stmt) -> tuple[int, _Straight, _Straight]:
    operations = int(isinstance(stmt, tirx.BufferStore) and str(stmt.buffer.scope()) != _PRIVATE)
    counts = dict.fromkeys(_AHEAD, 0.0)
    guarded: list[Any] = []

    def expression(expr: Any) -> None:
        nonlocal operations
        kind = _load_kind(expr)
        if kind is not None:
            kind = "guarded" if any(expr.same_as(g) for g in guarded) else kind
            of_value, of_address = _AHEAD[kind]
            counts[kind] += of_value * _registers(expr) + of_address
            operations += 1
        elif isinstance(expr, _ARITHMETIC) or (isinstance(expr, tvm.ir.Call) and multiply_adds_of(expr)):
            operations += 1

    def condition(call: tvm.ir.Call) -> None:
        if is_conditional(call):
            structural_walk(call.args[1], (tvm.ir.Expr, lambda e: guarded.append(e) if _load_kind(e) is not None else None))

    structural_walk(stmt, (tvm.ir.Call, condition))
    structural_walk(stmt, (tvm.ir.Expr, expression))
    straight = counts["image"] + counts["buffer"] + counts["local"]
    loads = _Straight(straight, straight, straight)
    under_condition = counts["guarded"]
    return operations, loads + _Straight().cut_off() if guarded else loads, _Straight(under_condition, under_condition, under_condition)


_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.LShift, tirx.RShift, tirx.FloorDiv, tirx.FloorMod)


def _load_kind(expr: Any) -> str | None:
    """Where an expression loads from: image, buffer, local memory; None for what is no load, or one of a private array."""
    if isinstance(expr, tvm.ir.TensorLoad):
        scope = str(expr.source.scope())
        return None if scope == _PRIVATE else "local" if scope in _LOCAL else "buffer"
    return "buffer" if is_half_load(expr) else "image" if is_texel_load(expr) else None


def multiply_adds_of(node: tirx.Mul | tvm.ir.Call) -> int:
    """Multiply-adds that this expression alone stands for, by lanes: of a product of floats, or of a call of mad or fma."""
    if isinstance(node, tirx.Mul):
        return lanes_of(node) if "float" in dtype_of(node) else 0
    return lanes_of(node) if extern_name(node) in _MULTIPLY_ADDS else 0


def dtype_of(expr: Any) -> str:
    """Type of an expression's value, lanes included: "float32x4"."""
    return str(getattr(expr.ty, "dtype", ""))


def lanes_of(expr: Any) -> int:
    """How many values an expression has."""
    return int(tvm.DataType(dtype_of(expr)).lanes)


def _bytes(expr: Any) -> int:
    kind = tvm.DataType(dtype_of(expr))
    return int(kind.bits) * int(kind.lanes) // 8


def _registers(expr: Any) -> int:
    return -(-_bytes(expr) // _REGISTER_BYTES)


def _array_registers(buffer: tirx.Var) -> int:
    size = 1
    for extent in buffer.shape:
        size *= int(extent)
    kind = tvm.DataType(str(buffer.dtype))
    return -(-size * int(kind.bits) * int(kind.lanes) // (8 * _REGISTER_BYTES))
