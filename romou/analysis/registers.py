"""Registers that a compiler gives a work-item, off lowered TIR: its loads and arithmetic put in order as Mesa's scheduler for Adreno does.

The scheduler (Mesa 25, ir3_sched.c) orders one stretch of straight code at a time. It takes first what frees registers or adds none, then what is used
next. What uses a value that is still under way is put off for as long as there is anything else to do, and so is the next load of the same memory, which has
to follow the one before (of images, eight may be under way). Addresses wait for nothing: so those of a whole stretch lie in registers before its first
product, and that, and not the code as it stands, decides.
"""

from __future__ import annotations

import functools
import itertools
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.analysis.estimates import array_registers, dtype_of, lanes_of, multiply_adds_of, registers_of, scope_of
from romou.tir.calls import extern_name, is_async_copy, is_conditional, is_half_load, is_half_store, is_load_for_tensor_cores, is_texel_load, op_name

_PRIVATE, _LOCAL = "local", ("shared", "shared.dyn")
# Loops that a compiler unrolls: so many turns at most (Mesa's limit), and so many operations when done. What an operation counts: each product
# of floats by lanes, an index as 2, an access of memory with its 64-bit address or an image's coordinates as 8, of local memory as 2, a
# condition with the selection behind it as 20, and so does a turn. Fitted: it tells for 94% of 556 random kernels how many loops Mesa's Adreno
# compiler keeps.
_MOST_TURNS, _MOST_OPERATIONS = 32, 1600
# Up to so many operations (Mesa's limit; products by lanes, accesses and indices as 1) a loop is unrolled before addresses are taken apart.
_MOST_EARLY_OPERATIONS = 832
_INDEX_COST, _ACCESS_COST, _LOCAL_COST, _CONDITION_COST = 2, 8, 2, 20
# Registers of an address: three coordinates of a texel in a row, 64 bits of a pointer.
_ADDRESS = {"image": 3, "buffer": 2}
# While it is computed it takes more (an index, its sign, half an address, a carry), and four are at a time: a result can be used three cycles later.
_COMPUTED, _COMPUTED_AT_ONCE = 4, 4
# Loads from memory, and from local memory, of which so many may be under way before what uses them is waited for.
_UNDER_WAY = 8
# For so many instructions what uses a load is put off (Mesa, soft_ss_delay and soft_sy_delay), and how many compute an address, without its index.
_DELAY = {"local": 10, "image": 100, "buffer": 176}
_SLOTS = {"local": 1, "image": 6, "buffer": 10}
# An offset in a load from local memory reaches so many bytes (12 bits); beyond, each load has an address of its own.
_LOCAL_REACH = 4096
# Beyond so many live registers Mesa spills; of the same GPU fewer were measured, which is what its device file knows and `needed` is told in.
_MOST, _MOST_MEASURED = 192, 181
# Up to half of them, more waves run for fewer registers. Beyond, a compiler hands out all that there are in turn (Mesa, ir3_ra.c), as far as a stretch writes
# so many: what lies between vectors is lost, and this many times more than are written are passed. How far an estimate near the half is from either is a
# matter of chance: between these two, the mean.
_SAVED, _TAKEN_IN_TURN, _GAPS = 85, 110, 1.15


@dataclass(frozen=True)
class RegisterUse:
    """32-bit registers of a work-item; arrays for many kernels.

    live: at once, in the order of the compiler.   written: one after the other in the longest stretch of straight code, with those that live through it.
    """

    live: Any
    written: Any = 0

    @property
    def allocated(self) -> Any:
        """What a compiler with registers enough gives a work-item."""
        in_turn = np.clip((self.live - _SAVED) / (_TAKEN_IN_TURN - _SAVED), 0, 1)
        return self.live + in_turn * np.maximum(np.minimum(_GAPS * self.written, _MOST) - self.live, 0)

    @property
    def needed(self) -> Any:
        """What it cannot do without."""
        return _MOST_MEASURED / _MOST * self.live


def address_registers(loads: Any, *, is_image: Any) -> Any:
    """Registers at least for addresses of so many loads in one stretch of straight code, from images or else from buffers; for arrays too.

    They are computed ahead for as long as nothing waits that could be done in their place.
    """
    ahead = {place: _DELAY[place] // (_SLOTS[place] + 1) for place in _ADDRESS}
    return np.where(is_image, np.minimum(loads, ahead["image"]) * _ADDRESS["image"], np.minimum(loads, ahead["buffer"]) * _ADDRESS["buffer"])


def register_use(func: tirx.PrimFunc) -> RegisterUse:
    """Registers of a lowered device function, short loops unrolled, halfs two by two."""
    reader = _Reader()
    code = reader.read(func.body)
    found = [_Schedule(stretch, reader.sizes).run() for stretch in _stretches(_live(code, frozenset(), reader.sizes))]
    return RegisterUse(float(max((live for live, _ in found), default=0)), float(max((written for _, written in found), default=0)))


# A value: a variable, an element of a private array or the whole array, or one lane of either.
_Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class _Step:
    """Something that is put in order.

    kind: "load", "store", "index" (integers, which wait for nothing that is loaded), "value", "copy" of values, which takes no registers, or "barrier",
        which no access of memory passes.
    uses, defines: values.   place: what it reads or writes, "image", "buffer" or "local".
    address: registers of its address, whose own values are among `uses` or, of a store, are `indices`.
    base: of an address in local memory, the variables in it and how many bytes each adds.   offset: its constant bytes, with those before its array.
    strides: loops, and the bytes that each of their turns adds.   moved: the bytes that turns of unrolled loops have added.
    """

    kind: str
    uses: tuple[_Key, ...]
    defines: tuple[_Key, ...] = ()
    place: str = ""
    address: int = 0
    indices: tuple[_Key, ...] = ()
    base: frozenset[tuple[_Key, int]] | None = None
    offset: int = 0
    strides: Mapping[int, int] = field(default_factory=dict)
    moved: int = 0
    slots: int = 0

    def in_turn(self, loop: int, turn: int, *, is_early: bool) -> _Step:
        """The same in that turn of a loop that is unrolled: early, when all constants become one, or late."""
        if not turn or loop not in self.strides:
            return self
        bytes_moved = turn * self.strides[loop]
        return replace(self, offset=self.offset + bytes_moved) if is_early else replace(self, moved=self.moved + bytes_moved)

    @property
    def far_address(self) -> _Key | None:
        """The address that it needs because a constant offset does not reach so far from `base`: as much of it as stays within reach is left to the offset."""
        if self.base is None or self.offset + self.moved < _LOCAL_REACH:
            return None
        parts = self.moved if self.offset < _LOCAL_REACH else self.offset if self.moved < _LOCAL_REACH else self.offset + self.moved
        return ("address", self.base, parts)


@dataclass(frozen=True, eq=False)
class _Loop:
    body: list[_Code]


@dataclass(frozen=True, eq=False)
class _Cut:
    """An end of straight code: a branch, or the start or the end of a loop."""


@dataclass(frozen=True, eq=False)
class _Stretch:
    """Straight code, and the values that live before and behind it; `carried`: of the former, those that a loop, which it begins, hands from turn to turn."""

    steps: Sequence[_Step]
    before: frozenset[_Key]
    behind: frozenset[_Key]
    carried: frozenset[_Key] = frozenset()


_Code: TypeAlias = "_Step | _Loop | _Cut | _Stretch"


@dataclass(frozen=True, eq=False)
class _Sum:
    """An index: variables times numbers, of which those that count a loop's turns add `strides` each turn, and a constant.

    is_plain: whether it is a mere sum; otherwise `variables` are all that are in it.
    """

    variables: Mapping[_Key, int] = field(default_factory=dict)
    strides: Mapping[int, int] = field(default_factory=dict)
    constant: int = 0
    is_plain: bool = True

    def plus(self, other: _Sum) -> _Sum:
        constant, is_plain = self.constant + other.constant, self.is_plain and other.is_plain
        return _Sum(_added(self.variables, other.variables), _added(self.strides, other.strides), constant, is_plain)

    def times(self, factor: int) -> _Sum:
        variables = {key: each * factor for key, each in self.variables.items()}
        return _Sum(variables, {counter: each * factor for counter, each in self.strides.items()}, self.constant * factor, self.is_plain)


def _added(a: Mapping[Any, int], b: Mapping[Any, int]) -> dict[Any, int]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}


class _Reader:
    """Reads statements into steps."""

    def __init__(self) -> None:
        # Registers of each value.
        self.sizes: dict[_Key, float] = {}
        # Operations of the loop's body so far, as `_MOST_OPERATIONS` counts them.
        self._cost = 0
        self._early_cost = 0
        # Instructions for integers so far.
        self._slots = 0
        # Names of variables and private arrays, which are numbers here; arrays that are accessed as a whole, and values that are read by lane.
        self._names: dict[Any, int] = {}
        self._whole: set[int] = set()
        self._by_lane: set[int] = set()
        # Variables that are lanes of others, and so take no registers.
        self._copies: dict[int, tuple[_Key, ...]] = {}
        # Counters of loops, and variables that are sums with them.
        self._counters: set[int] = set()
        self._sums: dict[int, _Sum] = {}
        # Sums without any.
        self._invariants: dict[_Key, _Sum] = {}
        # Bytes of local memory before each of its arrays.
        self._starts: dict[int, int] = {}
        self._fresh = itertools.count()
        # What stays in registers around the outermost loop.
        self._kept: dict[_Key, None] = {}
        self._depth = 0

    def read(self, body: tirx.Stmt) -> list[_Code]:
        """All of a function."""
        size = 0

        def allocation(stmt: tirx.AllocBuffer) -> None:
            nonlocal size
            if str(stmt.buffer.scope()) in _LOCAL:
                self._starts[self._name(stmt.buffer)] = size
                size += 4 * array_registers(stmt.buffer)

        def access(node: tvm.ir.TensorLoad | tirx.BufferStore) -> None:
            buffer = node.source if isinstance(node, tvm.ir.TensorLoad) else node.buffer
            index = node.indices[0]
            if str(buffer.scope()) == _PRIVATE and not isinstance(index.base if isinstance(index, tirx.Ramp) else index, tirx.IntImm):
                self._whole.add(self._name(buffer))
            if isinstance(node, tirx.BufferStore) and str(buffer.scope()) == _PRIVATE and _is_scalar_by_scalar(node.value):
                self._by_lane.add(self._name(buffer))

        def bind(node: tirx.Bind) -> None:
            if _is_scalar_by_scalar(node.value):
                self._by_lane.add(self._name(node.var))

        def call(node: tvm.ir.Call) -> None:
            if op_name(node) == "tirx.address_of" and isinstance(node.args[0], tvm.ir.TensorLoad):
                self._whole.add(self._name(node.args[0].source))

        def lanes(node: tirx.Shuffle) -> None:
            for vector in node.vectors:
                self._by_lane.add(self._name(vector.source if isinstance(vector, tvm.ir.TensorLoad) else vector))

        copied: list[tuple[int, int]] = []

        def copy(node: tirx.BufferStore) -> None:
            if str(node.buffer.scope()) == _PRIVATE and isinstance(node.value, tirx.Var):
                copied.append((self._name(node.value), self._name(node.buffer)))

        structural_walk(body, (tirx.BufferStore, copy))
        structural_walk(
            body,
            [(tirx.AllocBuffer, allocation), ((tvm.ir.TensorLoad, tirx.BufferStore), access), (tirx.Bind, bind), (tvm.ir.Call, call), (tirx.Shuffle, lanes)],
        )
        # What is read by lane as a copy lives by lane.
        self._by_lane.update(variable for variable, buffer in copied if buffer in self._by_lane)
        return self._statement(body)

    def _statement(self, stmt: tirx.Stmt) -> list[_Code]:
        match stmt:
            case tirx.SeqStmt():
                return [step for child in stmt.seq for step in self._statement(child)]
            case tirx.AttrStmt():
                own: list[_Code] = []
                if stmt.attr_key == "thread_extent" and str(stmt.node.thread_tag).startswith("threadIdx"):
                    own.append(_Step("index", (), self._variable(stmt.node.var)))
                return own + self._statement(stmt.body)
            case tirx.For():
                return self._loop(stmt)
            case tirx.IfThenElse():
                steps, uses = self._expression(stmt.condition)
                self._cost += _CONDITION_COST
                branches = [step for branch in (stmt.then_case, stmt.else_case) if branch is not None for step in [*self._statement(branch), _Cut()]]
                return [*steps, _Step("index", uses), _Cut(), *branches]
            case tirx.Bind():
                return self._bind(stmt)
            case tirx.BufferStore():
                return self._store(stmt)
            case tirx.Evaluate():
                return self._call(stmt.value)
        return []

    def _loop(self, loop: tirx.For) -> list[_Code]:
        before, self._cost, self._early_cost = (self._cost, self._early_cost), 0, 0
        if self._depth == 0:
            self._kept = {}
        self._depth += 1
        counter = self._variable(loop.loop_var)
        self._counters.add(self._name(loop.loop_var))
        body = self._statement(loop.body)
        turns = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else _MOST_TURNS + 1
        cost = turns * (self._cost + _CONDITION_COST)
        code: list[_Code]
        if turns > _MOST_TURNS or cost > _MOST_OPERATIONS:
            self._cost += before[0] + _INDEX_COST
            self._early_cost += before[1]
            code = [_Step("index", (), counter), _Cut(), _Loop([*body, _Step("index", counter, counter)]), _Cut()]
        else:
            is_early = turns * self._early_cost <= _MOST_EARLY_OPERATIONS
            self._cost, self._early_cost = before[0] + cost, before[1] + turns * self._early_cost
            self.sizes.update(dict.fromkeys(counter, 0))  # its values are constants
            name = self._name(loop.loop_var)
            code = [step.in_turn(name, turn, is_early=is_early) if isinstance(step, _Step) else step for turn in range(turns) for step in body]
        self._depth -= 1
        return [_Step("index", (), tuple(self._kept)), *code] if self._depth == 0 and self._kept else code

    def _bind(self, stmt: tirx.Bind) -> list[_Code]:
        if "float" not in dtype_of(stmt.value):
            before = self._slots
            steps, uses = self._expression(stmt.value)
            slots = self._slots - before
            found = self._sum_of(stmt.value)
            if found.strides and found.is_plain:
                # Of turns that are unrolled only the constant differs.
                self._sums[self._name(stmt.var)] = found
                return steps
            if found.is_plain:
                self._invariants.update(dict.fromkeys(self._variable(stmt.var), self._in_full(found)))
            return [*steps, _Step("index", uses, self._variable(stmt.var), slots=slots)]
        if _is_copy(stmt.value):
            steps, self._copies[self._name(stmt.var)] = self._expression(stmt.value)
            return steps
        return self._assign(self._variable(stmt.var), stmt.value)

    def _store(self, stmt: tirx.BufferStore) -> list[_Code]:
        scope = str(stmt.buffer.scope())
        if scope == _PRIVATE:
            values = self._elements(stmt.buffer, stmt.indices[0], lanes_of(stmt.value))
            return self._assign(values, stmt.value, is_part=self._name(stmt.buffer) in self._whole)
        place = "local" if scope in _LOCAL else "buffer"
        self._cost += _LOCAL_COST if place == "local" else _ACCESS_COST
        self._early_cost += lanes_of(stmt.value) if isinstance(stmt.indices[0], tirx.Ramp) else 1
        steps, uses = self._expression(stmt.value)
        before = self._slots
        more, indices = self._expression(stmt.indices[0])
        step = _Step("store", uses, (), place, _ADDRESS.get(place, 0), indices, slots=self._slots - before)
        if place == "local":
            step = self._in_local_memory(step, stmt.buffer, stmt.indices[0])
        stores = lanes_of(stmt.value) if isinstance(stmt.indices[0], tirx.Ramp) else 1
        return [*steps, *more, *(replace(step, offset=step.offset + 4 * lane) for lane in range(stores))]

    def _call(self, call: Any) -> list[_Code]:
        name = op_name(call)
        if name == "tirx.tvm_storage_sync":
            self._cost += 1
            return [_Step("barrier", ())]
        if is_async_copy(call):
            # The texel passes by the registers.
            parts = [self._expression(call.args[place]) for place in (1, 3, 5)]
            uses = tuple(key for _, keys in parts for key in keys)
            return [*(step for steps, _ in parts for step in steps), _Step("store", (), (), "buffer", _ADDRESS["buffer"], uses)]
        if name != "tirx.texture2d_store" and not is_half_store(call):
            steps, uses = self._expression(call)
            return [*steps, _Step("value", uses, tuple(use for use in uses if len(use) == 1))]
        self._cost += _ACCESS_COST
        self._early_cost += 1
        place, value, index = ("image", call.args[-1], call.args[1:4]) if name == "tirx.texture2d_store" else ("buffer", call.args[1], [call.args[2]])
        steps, uses = self._expression(value)
        before = self._slots
        read = [self._expression(part) for part in index]
        indices = tuple(key for _, keys in read for key in keys)
        slots = self._slots - before
        return [*steps, *(step for more, _ in read for step in more), _Step("store", uses, (), place, _ADDRESS[place], indices, slots=slots)]

    def _assign(self, values: tuple[_Key, ...], value: Any, *, is_part: bool = False) -> list[_Code]:
        if _place(value) is not None:
            return self._load(value, values)
        steps, uses = self._expression(value)
        if not is_part and _is_copy(value) and len(uses) in (1, len(values)):
            return [*steps, _Step("copy", uses, values)]
        return [*steps, _Step("value", (*uses, *values) if is_part else uses, values)]

    def _load(self, load: Any, values: tuple[_Key, ...]) -> list[_Code]:
        place = _place(load)
        assert place is not None
        index = load.indices if isinstance(load, tvm.ir.TensorLoad) else load.args[1:4] if place == "image" else load.args[1:2]
        before = self._slots
        read = [self._expression(part) for part in index]
        slots = self._slots - before
        uses = tuple(key for _, keys in read for key in keys)
        self._cost += _LOCAL_COST if place == "local" else _ACCESS_COST
        self._early_cost += lanes_of(load) if _is_scalar_by_scalar(load) else 1
        is_plain = place == "local" and isinstance(load, tvm.ir.TensorLoad)
        step = _Step("load", uses, values, place, 0 if is_plain else _ADDRESS.get(place, 1), slots=slots)
        if is_plain:
            step = self._in_local_memory(step, load.source, load.indices[0])
        # What is no vector in memory is read number by number.
        is_split = _is_scalar_by_scalar(load) and len(values) == lanes_of(load)
        parts = [(value,) for value in values] if is_split else [values]
        loads = [replace(step, defines=part, offset=step.offset + 4 * lane) for lane, part in enumerate(parts)]
        return [*(more for steps, _ in read for more in steps), *loads]

    def _expression(self, expr: Any) -> tuple[list[_Code], tuple[_Key, ...]]:
        """Steps for the loads in it, and the values that it uses."""
        if isinstance(expr, tirx.Var):
            name = self._name(expr)
            return [], tuple(self._sums[name].variables) if name in self._sums else self._copies.get(name) or self._variable(expr)
        if _place(expr) is not None:
            name = -next(self._fresh) - 1
            if _is_scalar_by_scalar(expr):
                self._by_lane.add(name)
            values = self._value(("loaded", name), name, registers_of(expr), lanes_of(expr))
            return self._load(expr, values), values
        if isinstance(expr, tvm.ir.TensorLoad):
            steps, uses = self._expression(expr.indices[0])
            return steps, (*self._elements(expr.source, expr.indices[0], lanes_of(expr)), *uses)
        if isinstance(expr, tirx.Shuffle):
            (steps, uses), lane = self._expression(expr.vectors[0]), expr.indices[0]
            return steps, uses[int(lane) : int(lane) + 1] if len(uses) == lanes_of(expr.vectors[0]) and isinstance(lane, tirx.IntImm) else uses
        if is_conditional(expr):
            return self._conditional(expr)
        operations = _operations(expr)
        self._cost += operations
        if "float" in dtype_of(expr):
            self._early_cost += operations
        elif operations:
            self._early_cost += 1
            self._slots += 2 if isinstance(expr, tirx.Mul) and not _is_power_of_two(expr.b) else 1
        read = [self._expression(part) for part in _parts(expr)]
        return [step for steps, _ in read for step in steps], tuple(dict.fromkeys(key for _, keys in read for key in keys))

    def _conditional(self, expr: tvm.ir.Call) -> tuple[list[_Code], tuple[_Key, ...]]:
        """A load under a condition is a branch of its own. Where the condition has two parts, the way past it leaves the value undefined: it then keeps
        its registers from one turn to the next."""
        condition, then, otherwise = expr.args
        self._cost += _CONDITION_COST
        (steps, uses), (inside, values), (outside, others) = (self._expression(part) for part in (condition, then, otherwise))
        if not any(isinstance(step, _Step) and step.kind == "load" for step in inside):
            return [*steps, *inside, *outside], (*uses, *values, *others)
        kept: tuple[_Key, ...] = ()
        if self._depth and isinstance(condition, tirx.And):
            kept = self._value(("kept", next(self._fresh)), 0, registers_of(expr), 1)
            self._kept.update(dict.fromkeys(kept))
            inside = [_Step("index", kept, kept), *inside]
        return [*steps, _Step("index", uses), _Cut(), *inside, _Cut(), *outside], (*values, *others)

    def _variable(self, var: tirx.Var) -> tuple[_Key, ...]:
        kind = tvm.DataType(dtype_of(var) or "handle")
        return self._value((self._name(var),), self._name(var), registers_of(var) if str(kind) != "handle" else 0, int(kind.lanes))

    def _elements(self, buffer: tirx.Var, index: tirx.Expr, lanes: int) -> tuple[_Key, ...]:
        name, kind = self._name(buffer), tvm.DataType(str(buffer.dtype))
        if name in self._whole:
            return self._value((name,), -1, array_registers(buffer), 1)
        first, each = int(index.base if isinstance(index, tirx.Ramp) else index), int(kind.bits) * int(kind.lanes) / 32
        places = range(first, first + (lanes // int(kind.lanes)))
        return tuple(key for place in places for key in self._value((name, place), name, each, int(kind.lanes)))

    def _value(self, key: _Key, name: int, registers: float, lanes: int) -> tuple[_Key, ...]:
        keys = tuple((*key, "lane", lane) for lane in range(lanes)) if lanes > 1 and name in self._by_lane else (key,)
        for one in keys:
            self.sizes.setdefault(one, registers / len(keys))
        return keys

    def _in_local_memory(self, step: _Step, buffer: tirx.Var, index: tirx.Expr) -> _Step:
        kind = tvm.DataType(str(buffer.dtype))
        size = int(kind.bits) * int(kind.lanes) // 8
        found = self._sum_of(index)
        whole = self._in_full(found).times(size)
        offset = self._starts.get(self._name(buffer), 0) + whole.constant
        # Turns are told by `strides`.
        base = frozenset((key, each) for key, each in whole.variables.items() if key[0] not in self._counters)
        return replace(step, base=base, offset=offset, strides=whole.strides)

    def _in_full(self, found: _Sum) -> _Sum:
        """A sum in which variables that are sums themselves are taken apart."""
        parts = (self._invariants.get(key, _Sum({key: 1})).times(factor) for key, factor in found.variables.items())
        return functools.reduce(_Sum.plus, parts, _Sum(constant=found.constant, strides=found.strides))

    def _sum_of(self, index: Any) -> _Sum:
        match index:
            case tirx.IntImm():
                return _Sum(constant=int(index))
            case tirx.Var():
                name = self._name(index)
                (key,) = self._variable(index)
                return self._sums.get(name) or _Sum({key: 1}, {name: 1} if name in self._counters else {})
            case tirx.Mul() if isinstance(index.b, tirx.IntImm):
                return self._sum_of(index.a).times(int(index.b))
            case tirx.Add():
                return self._sum_of(index.a).plus(self._sum_of(index.b))
            case tirx.Sub():
                return self._sum_of(index.a).plus(self._sum_of(index.b).times(-1))
            case tirx.Ramp():
                return self._sum_of(index.base)
        before = self._cost, self._early_cost, self._slots
        found = _Sum(dict.fromkeys(self._expression(index)[1], 1), is_plain=False)
        self._cost, self._early_cost, self._slots = before
        return found

    def _name(self, var: Any) -> int:
        return self._names.setdefault(var, len(self._names) + 1)


def _place(expr: Any) -> str | None:
    """Where an expression loads from: image, buffer, local memory; None for what is no load, or one of a private array."""
    if isinstance(expr, tvm.ir.TensorLoad) or is_load_for_tensor_cores(expr):
        scope = scope_of(expr)
        return None if scope == _PRIVATE else "local" if scope in _LOCAL else "buffer"
    return "buffer" if is_half_load(expr) else "image" if is_texel_load(expr) else None


def _is_scalar_by_scalar(expr: Any) -> bool:
    """Whether an expression loads a vector of what is none in memory."""
    return isinstance(expr, tvm.ir.TensorLoad) and _place(expr) is not None and isinstance(expr.indices[0], tirx.Ramp)


def _parts(expr: Any) -> list[Any]:
    """Operands of an expression."""
    match expr:
        case tvm.ir.Call():
            return list(expr.args)
        case tirx.Ramp():
            return [expr.base]
        case tirx.Broadcast() | tirx.Cast():
            return [expr.value]
        case tirx.Select():
            return [expr.condition, expr.true_value, expr.false_value]
    return [part for part in (getattr(expr, "a", None), getattr(expr, "b", None)) if part is not None]


def _operations(expr: Any) -> int:
    if isinstance(expr, (tirx.Mul, tvm.ir.Call)) and multiply_adds_of(expr):
        return multiply_adds_of(expr)
    return _INDEX_COST if isinstance(expr, _ARITHMETIC) and "float" not in dtype_of(expr) else 0


_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.LShift, tirx.RShift, tirx.FloorDiv, tirx.FloorMod)


def _is_power_of_two(expr: Any) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) > 0 and int(expr) & (int(expr) - 1) == 0


def _is_copy(expr: Any) -> bool:
    """Whether an expression is lanes of values that there are."""
    match expr:
        case tirx.Var():
            return True
        case tvm.ir.TensorLoad():
            return _place(expr) is None
        case tirx.Shuffle():
            return all(map(_is_copy, expr.vectors))
        case tirx.Broadcast():
            return _is_copy(expr.value)
        case tvm.ir.Call():
            return (extern_name(expr) or "").startswith("(float") and all(map(_is_copy, expr.args[1:]))
    return False


def _live(code: Sequence[_Code], behind: frozenset[_Key], sizes: dict[_Key, float]) -> list[_Code]:
    """The code in stretches with what lives before and behind each, from the end; loops twice, as the next turn uses what one leaves."""
    found: list[_Code] = []
    live = behind

    def close(steps: list[_Step]) -> None:
        nonlocal live
        if steps:
            whole = _with_far_addresses(steps[::-1], sizes)
            now = set(live)
            for step in reversed(whole):
                now.difference_update(step.defines)
                now.update(step.uses, step.indices)
            found.append(_Stretch(whole, frozenset(now), live))
            live = frozenset(now)
            steps.clear()

    steps: list[_Step] = []
    for item in reversed(code):
        if isinstance(item, _Step):
            steps.append(item)
            continue
        close(steps)
        if isinstance(item, _Loop):
            first = _before(_live(item.body, live, sizes), live)
            body = _live(item.body, live | first, sizes)
            if body and isinstance(body[0], _Stretch):
                body[0] = replace(body[0], carried=first & _defined_in(item.body))
            found.append(_Loop(body))
            live = _before(body, live | first)
    close(steps)
    return found[::-1]


def _with_far_addresses(steps: Sequence[_Step], sizes: dict[_Key, float]) -> list[_Step]:
    """Straight code with the addresses that it needs in local memory."""
    found: list[_Step] = []
    there: set[_Key] = set()
    for step in steps:
        key = step.far_address
        if key is None:
            found.append(step)
            continue
        if key not in there:
            there.add(key)
            sizes[key] = 1
            found.append(_Step("index", step.uses if step.kind == "load" else step.indices, (key,), slots=1))
        found.append(replace(step, uses=(*step.uses, key)))
    return found


def _defined_in(code: Sequence[_Code]) -> frozenset[_Key]:
    return frozenset(key for item in code for key in (item.defines if isinstance(item, _Step) else _defined_in(item.body) if isinstance(item, _Loop) else ()))


def _before(code: Sequence[_Code], behind: frozenset[_Key]) -> frozenset[_Key]:
    """What lives before code that `_live` made."""
    for item in code:
        return item.before if isinstance(item, _Stretch) else _before(item.body, behind) if isinstance(item, _Loop) else behind
    return behind


def _stretches(code: Sequence[_Code]) -> Iterator[_Stretch]:
    for item in code:
        if isinstance(item, _Stretch):
            yield item
        elif isinstance(item, _Loop):
            yield from _stretches(item.body)


class _Schedule:
    """One stretch of straight code, put in order step by step.

    A load and a store are put in order twice, first their address.
    """

    def __init__(self, stretch: _Stretch, sizes: dict[_Key, float]) -> None:
        self._steps = steps = [step for step in stretch.steps if step.kind != "copy"]
        self._sizes = sizes
        # A value that is defined again is another one: it goes by its key and the step that defines it, -1 for what is there before.
        current = {key: (key, -1) for key in stretch.before}
        self._used: list[list[tuple[_Key, int]]] = []
        self._uses_left: dict[tuple[_Key, int], int] = {}
        self._followers: list[list[int]] = [[] for _ in steps]
        self._sources: list[set[int]] = []
        self._address_sources: list[set[int]] = []
        self._previous: list[int] = []
        accesses: set[int] = set()
        latest: dict[str, int] = {}
        self._barriers: list[int] = []
        for step in stretch.steps:
            if step.kind == "copy":
                same = [current.get(key, (key, -1)) for key in step.uses]
                current.update(zip(step.defines, same * len(step.defines) if len(same) == 1 else same, strict=False))
                continue
            number = len(self._used)
            used = [current.get(key, (key, -1)) for key in (*step.uses, *step.indices)]
            for value in used:
                self._uses_left[value] = self._uses_left.get(value, 0) + 1
            self._used.append(used)
            self._sources.append({source for _, source in used if source >= 0})
            # What a store writes is none of what its address waits for.
            in_address = used if step.kind == "load" else used[len(step.uses) :]
            self._address_sources.append({source for _, source in in_address if source >= 0} if step.address else set())
            self._previous.append(-1)
            if step.kind in ("load", "store"):
                accesses.add(number)
                if step.place != "image":
                    self._previous[-1] = latest.get(step.place, -1)
                    latest[step.place] = number
            elif step.kind == "barrier":
                self._sources[-1] |= accesses
                accesses = set()
                self._barriers.append(number)
            for source in self._sources[-1]:
                self._followers[source].append(number)
            current.update((key, (key, number)) for key in step.defines)
        self._final = {current.get(key, (key, -1)) for key in stretch.behind}
        self._carried = stretch.carried
        self._defined = [
            sum(sizes[key] for key in step.defines if (key, number) in self._uses_left or (key, number) in self._final) for number, step in enumerate(steps)
        ]
        self._waits = [len(sources) for sources in self._sources]
        self._address_waits = [len(sources) for sources in self._address_sources]
        self._loads_left = sum(step.kind == "load" and step.place != "local" for step in steps)
        self._is_done = [False] * len(steps)
        # Steps whose sources are there: of addresses those to come, and everything else.
        self._addresses: list[int] = []
        self._ready: list[int] = []
        # Loads that nothing has waited for, and for how many more instructions what uses them is put off.
        self._under_way: dict[bool, set[int]] = {True: set(), False: set()}
        self._delay = {True: 0, False: 0}
        self._now = self._peak = self._written = sum(sizes[key] for key in stretch.before)

    def run(self) -> tuple[float, float]:
        """Registers that live at once at most, and those that are written one after the other, with those that were there."""
        for number, step in enumerate(self._steps):
            if step.address:
                self._waits[number] += 1  # for its address
                if not self._address_waits[number]:
                    insort(self._addresses, number)
            elif not self._waits[number]:
                insort(self._ready, number)
        while self._addresses or self._ready:
            self._step()
        return self._peak, self._written

    def _step(self) -> None:
        """Do what comes next: first what frees registers, or adds none; then what is used next. What would wait comes when nothing else is left."""
        ready = [number for number in self._ready if not self._is_barred(number)]
        put_off = [number for number in ready if self._is_put_off(number)]
        waits = set(put_off)
        for numbers in ([number for number in ready if number not in waits], put_off):
            nearest: tuple[int, int] | None = None
            for number in numbers:
                if self._effect(number) <= 0:
                    return self._do(number)
                use = (self._nearest_use(number), number)
                nearest = use if nearest is None else min(nearest, use)
            if self._addresses and (nearest is None or self._addresses[0] <= nearest[0]):
                return self._compute_address()
            if nearest is not None:
                return self._do(nearest[1])
        raise AssertionError("something is ready as long as anything is left")

    def _effect(self, number: int) -> float:
        step = self._steps[number]
        return self._defined[number] - step.address - self._freed(number, counted_only=True) * (step.kind != "load" or not step.address)

    def _nearest_use(self, number: int) -> int:
        step = self._steps[number]
        if step.kind == "load" and self._defined[number] > 1:
            return number
        return min((f for f in self._followers[number] if not self._is_done[f]), default=len(self._steps))

    def _is_put_off(self, number: int) -> bool:
        step = self._steps[number]
        sources = self._sources[number]
        previous = self._previous[number]
        if self._delay[True] and (sources & self._under_way[True] or previous in self._under_way[True]):
            return True
        if self._delay[False] and self._loads_left and (sources & self._under_way[False] or previous in self._under_way[False]):
            return True
        return step.kind == "load" and len(self._under_way[step.place == "local"]) >= _UNDER_WAY

    def _is_barred(self, number: int) -> bool:
        if self._steps[number].kind not in ("load", "store"):
            return False
        previous = self._previous[number]
        return (previous >= 0 and not self._is_done[previous]) or (bool(self._barriers) and number > self._barriers[0])

    def _do(self, number: int) -> None:
        self._ready.remove(number)
        self._is_done[number] = True
        step = self._steps[number]
        if step.kind == "barrier":
            self._barriers.remove(number)
        self._now -= step.address
        if step.kind == "load":
            is_local = step.place == "local"
            if not step.address:
                self._use(number)
            self._under_way[is_local].add(number)
            self._loads_left -= not is_local
            self._written += self._defined[number]
            self._pass(1)
            self._delay[is_local] = _DELAY[step.place]
            self._define(number)
            return
        for is_local, loads in self._under_way.items():
            if self._sources[number] & loads:
                loads.clear()
                self._delay[is_local] = 0
        self._pass(step.slots if step.kind == "index" else max(1, int(self._defined[number])))
        self._use(number)
        self._define(number)

    def _pass(self, slots: int) -> None:
        for is_local in (True, False):
            self._delay[is_local] = max(0, self._delay[is_local] - slots)

    def _compute_address(self) -> None:
        number = self._addresses.pop(0)
        step = self._steps[number]
        if step.kind == "load":
            self._use(number)
        self._now += step.address
        self._written += step.address
        self._pass(_SLOTS[step.place] + step.slots)
        self._peak = max(self._peak, self._now + (step.place != "local") * _COMPUTED * min(_COMPUTED_AT_ONCE, 1 + len(self._addresses)))
        self._wait_no_more(number)

    def _use(self, number: int) -> None:
        self._now -= self._freed(number)
        for value in self._used[number]:
            self._uses_left[value] -= 1

    def _define(self, number: int) -> None:
        self._now += self._defined[number]
        self._peak = max(self._peak, self._now)
        for follower in self._followers[number]:
            if number in self._address_sources[follower]:
                self._address_waits[follower] -= 1
                if not self._address_waits[follower]:
                    insort(self._addresses, follower)
            self._wait_no_more(follower)

    def _wait_no_more(self, number: int) -> None:
        self._waits[number] -= 1
        if not self._waits[number]:
            insort(self._ready, number)

    def _freed(self, number: int, *, counted_only: bool = False) -> float:
        return sum(
            self._sizes[value[0]]
            for value in self._used[number]
            if self._uses_left[value] == 1 and value not in self._final and not (counted_only and value[1] < 0 and value[0] not in self._carried)
        )
