"""What a kernel needs, estimated from its lowered TIR: registers of a work-item, and the memory traffic of its busiest loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_visit, structural_walk

from romou.tir.calls import extern_name, is_load_for_tensor_cores, is_tensor_core_fma, is_texel_load, texel_bytes, texels_for_tensor_cores

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
        use(node.var, registers_of(node.value))

    def store(node: tirx.BufferStore, visitor: Any) -> None:
        step()
        for index in node.indices:
            visitor.visit(index)
        visitor.visit(node.value)
        if str(node.buffer.scope()) == _PRIVATE:
            use(node.buffer, array_registers(node.buffer))

    def statement(node: tirx.Stmt, visitor: Any) -> None:
        step()
        visitor.default_visit(node)

    def load(node: tvm.ir.TensorLoad, visitor: Any) -> None:
        for index in node.indices:
            visitor.visit(index)
        if str(node.source.scope()) == _PRIVATE:
            use(node.source, array_registers(node.source))
        else:
            loaded[position] = loaded.get(position, 0) + registers_of(node)

    def call(node: tvm.ir.Call, visitor: Any) -> None:
        if is_texel_load(node):
            loaded[position] = loaded.get(position, 0) + registers_of(node)
        visitor.default_visit(node)

    def variable(node: tirx.Var, visitor: Any) -> None:
        if dtype_of(node).startswith(("int", "uint", "float", "bool")):
            use(node, registers_of(node))

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


def registers_of(expr: Any) -> int:
    return -(-_bytes(expr) // _REGISTER_BYTES)


def array_registers(buffer: tirx.Var) -> int:
    return -(-_array_bytes(buffer) // _REGISTER_BYTES)


def _array_bytes(buffer: tirx.Var) -> int:
    kind = tvm.DataType(str(buffer.dtype))
    return math.prod(int(extent) for extent in buffer.shape) * int(kind.bits) * int(kind.lanes) // 8
