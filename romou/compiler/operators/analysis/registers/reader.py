"""Reader that turns statements of lowered TIR into instructions.

It unrolls the loops that Mesa's compiler unrolls, for Adreno or Mali.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from romou.compiler.operators.analysis.expressions import (
    LOCAL,
    PRIVATE,
    dtype_of,
    element_bytes,
    lanes_of,
    multiply_adds_of,
)
from romou.compiler.operators.analysis.registers.index_sums import IndexSums
from romou.compiler.operators.analysis.registers.instructions import (
    ADDRESS,
    BlockEnd,
    Code,
    Instruction,
    Loop,
    MemorySpace,
    Value,
)
from romou.compiler.operators.analysis.registers.values import Values, loads_lane_by_lane, place_of
from romou.compiler.tir.calls import (
    extern_name,
    is_async_copy,
    is_conditional,
    is_fp16_store,
    keeps_next_loop,
    op_name,
)
from romou.devices.backends.launch import INSIDE_IMAGE, PLAIN_IMAGE, ROW_AXES

# Limits of loops that a compiler unrolls: iterations (Mesa's limit), and operations of the unrolled loop. Operations:
# each lane of a product by its spelling, because `mad` is a product and a sum until both are joined, 9 for a memory
# access with its index and its 64-bit address or an image's coordinates, 2 for local memory, 20 for a condition with
# its selection and for an iteration. Fitted: they predict the loops that Mesa's compiler for Adreno 660 keeps in all
# but 3 of 104 kernels.
_MOST_ITERATIONS, _MOST_OPERATIONS = 32, 1600
# Up to this number of operations (Mesa's limit; products by lanes, accesses and indices as 1) a loop is unrolled before
# addresses are split. No innermost loop inside another one is unrolled with more: of 87 first configs for Adreno 630,
# Mesa keeps ten such loops of windows of 1x7 and 7x1, in all spellings of products. Other loops it may unroll, so they
# have the limit above. Of 68 first configs for Adreno 660, 64 have as many loops as these rules predict.
_MOST_EARLY_OPERATIONS = 832
# Limits of a loop of at most three iterations: early operations, and operations as for `_MOST_OPERATIONS`. Of 49 loops
# of windows above the limit before, for Adreno 660 and 630, Mesa unrolls 15, however products are spelled: three
# iterations up to 1,107 and 2,168. It keeps 34: three from 1,134 on, and four and seven of 1,012 and 1,050.
_FEW_ITERATIONS, _MOST_EARLY_OF_FEW, _MOST_OF_FEW = 3, 1120, 2250
_CALL_COST, _PRODUCT_COST = {"fma": 0.6, "mad": 1.2}, 0.66
_ACCESS_COST, _LOCAL_COST, _CONDITION_COST = 9, 2, 20
# Mesa's compiler for Mali unrolls loops before it splits vectors. Each vector is an operation: a fused product, 2 for a
# product and its sum, 3 for an access with its index, 2 for local memory. Loops above `_MOST_VECTORS` are kept. Of
# first configs for Mali-G610, those that spill have more registers than the others in 96% of pairs in fp16 and 98% in
# fp32 with this limit, and in 92% and 55% with the early limit, because a loop that is unrolled takes more registers.
_MOST_VECTORS = 1100
_VECTOR_CALL_COST, _VECTOR_PRODUCT_COST = {"fma": 1}, 2
_VECTOR_ACCESS_COST, _VECTOR_LOCAL_COST = 3, 2
# Images that are read without a sampler, so their coordinates stay integers.
_PLAIN_IMAGES = {PLAIN_IMAGE, INSIDE_IMAGE, *ROW_AXES}
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.LShift, tirx.RShift, tirx.FloorDiv, tirx.FloorMod)


def is_unrolled(iterations: Any, products: Any, loads: Any) -> Any:
    """Return whether a loop is unrolled for certain, however its products are spelled. Takes arrays, too.

    products, loads: of one iteration, each lane of a product counted.
    """
    operations = max(_CALL_COST.values()) * products + _ACCESS_COST * loads + _CONDITION_COST
    return (iterations <= _MOST_ITERATIONS) & (iterations * operations <= _MOST_OPERATIONS)


def is_kept_on_mali(iterations: Any, vectors: Any, accesses: Any, *, is_fused: Any) -> Any:
    """Return whether Mesa's compiler for Mali keeps a loop, or one inside it, for certain. Takes arrays, too.

    vectors, accesses: products and loads of one iteration, each of a vector
    is_fused: whether a product and its sum are one operation
    """
    operations = np.where(is_fused, _VECTOR_CALL_COST["fma"], _VECTOR_PRODUCT_COST) * vectors
    operations = operations + _VECTOR_ACCESS_COST * accesses
    return (iterations > 1) & (iterations * operations > _MOST_VECTORS)


@dataclass
class _Cost:
    """Operations so far in a loop's body, and instructions for integers.

    Operations are counted as for `_MOST_OPERATIONS` and `_MOST_EARLY_OPERATIONS`, the latter for Adreno or Mali.
    """

    operations: float = 0
    early: int = 0
    slots: int = 0


class Reader:
    """The reader of one function. Afterwards `values` has the registers of each of its values.

    is_mali: whether loops are unrolled as by Mesa's compiler for Mali, instead of Adreno.
    """

    def __init__(self, body: tirx.Stmt, *, is_mali: bool = False) -> None:
        self._is_mali = is_mali
        self.values = Values(body)
        self._sums = IndexSums(self.values, self._uses_without_cost)
        self._cost = _Cost()
        # Values that stay in registers around the outermost loop.
        self._kept: dict[Value, None] = {}
        self._depth = 0
        # Loops that have been read, and those of them that are not unrolled.
        self._loops = self._kept_loops = 0
        # Whether the next loop is marked as one that stays.
        self._stays = False
        self.code = self._statement(body)

    def _statement(self, stmt: tirx.Stmt) -> list[Code]:
        match stmt:
            case tirx.SeqStmt():
                return [item for child in stmt.seq for item in self._statement(child)]
            case tirx.AttrStmt():
                own: list[Code] = []
                if stmt.attr_key == "thread_extent" and str(stmt.node.thread_tag).startswith("threadIdx"):
                    own.append(Instruction("index", (), self.values.variable(stmt.node.var)))
                return own + self._statement(stmt.body)
            case tirx.For():
                return self._loop(stmt)
            case tirx.IfThenElse():
                code, uses = self._expression(stmt.condition)
                self._cost.operations += _CONDITION_COST
                branches = [
                    item
                    for branch in (stmt.then_case, stmt.else_case)
                    if branch is not None
                    for item in [BlockEnd(opens=True), *self._statement(branch), BlockEnd(closes=True)]
                ]
                return [*code, Instruction("index", uses), *branches]
            case tirx.Bind():
                return self._bind(stmt)
            case tirx.BufferStore():
                return self._store(stmt)
            case tirx.Evaluate():
                return self._call(stmt.value)
        return []

    def _loop(self, loop: tirx.For) -> list[Code]:
        stays, self._stays = self._stays, False
        before, self._cost = self._cost, _Cost(slots=self._cost.slots)
        if self._depth == 0:
            self._kept = {}
        self._depth += 1
        counter = self.values.variable(loop.loop_var)
        self._sums.add_counter(loop.loop_var)
        loops_before, kept_before = self._loops, self._kept_loops
        body = self._statement(loop.body)
        # An innermost loop inside another one.
        is_within = self._depth > 1 and self._loops == loops_before
        self._loops += 1
        iterations = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else _MOST_ITERATIONS + 1
        cost, early = iterations * (self._cost.operations + _CONDITION_COST), iterations * self._cost.early
        code: list[Code]
        if self._is_mali:
            is_kept = early > _MOST_VECTORS
        else:
            is_kept = early > _MOST_EARLY_OPERATIONS and (
                early > _MOST_EARLY_OF_FEW or cost > _MOST_OF_FEW
                if iterations <= _FEW_ITERATIONS
                else is_within or cost > _MOST_OPERATIONS
            )
        # A loop that contains a loop is kept.
        if stays or iterations > _MOST_ITERATIONS or is_kept or self._kept_loops > kept_before:
            self._kept_loops += 1
            self._cost.operations += before.operations
            self._cost.early += before.early
            code = [
                Instruction("index", (), counter),
                BlockEnd(),
                Loop([*body, Instruction("index", counter, counter)]),
                BlockEnd(),
            ]
        else:
            self._cost.operations, self._cost.early = before.operations + cost, before.early + early
            self.values.sizes.update(dict.fromkeys(counter, 0))  # its values are constants
            name, is_early = self.values.number_of(loop.loop_var), early <= _MOST_EARLY_OPERATIONS
            code = [
                item.in_iteration(name, i, is_early=is_early) if isinstance(item, Instruction) else item
                for i in range(iterations)
                for item in body
            ]
        self._depth -= 1
        return [Instruction("index", (), tuple(self._kept)), *code] if self._depth == 0 and self._kept else code

    def _bind(self, stmt: tirx.Bind) -> list[Code]:
        if "float" not in dtype_of(stmt.value):
            before = self._cost.slots
            code, uses = self._expression(stmt.value)
            slots = self._cost.slots - before
            if self._sums.bind(stmt.var, stmt.value):
                return code
            operation, index = self._sums.operation(stmt.value)
            variable = self.values.variable(stmt.var)
            return [*code, Instruction("index", uses, variable, slots=slots, operation=operation, index=index)]
        if _is_copy(stmt.value):
            code, self.values.copies[self.values.number_of(stmt.var)] = self._expression(stmt.value)
            return code
        return self._assign(self.values.variable(stmt.var), stmt.value)

    def _store(self, stmt: tirx.BufferStore) -> list[Code]:
        scope = str(stmt.buffer.scope())
        if scope == PRIVATE:
            values = self.values.elements(stmt.buffer, stmt.indices[0], lanes_of(stmt.value))
            return self._assign(values, stmt.value, is_part=self.values.is_whole(stmt.buffer))
        place: MemorySpace = "local" if scope in LOCAL else "buffer"
        stores = lanes_of(stmt.value) if isinstance(stmt.indices[0], tirx.Ramp) else 1
        self._count_access(place, stores)
        code, uses = self._expression(stmt.value)
        before = self._cost.slots
        more, indices = self._expression(stmt.indices[0])
        instruction = Instruction(
            "store", uses, (), place, ADDRESS.get(place, 0), indices, slots=self._cost.slots - before
        )
        if place == "local":
            instruction = self._in_local_memory(instruction, stmt.buffer, stmt.indices[0])
        return [*code, *more, *(replace(instruction, offset=instruction.offset + 4 * lane) for lane in range(stores))]

    def _call(self, call: Any) -> list[Code]:
        name = op_name(call)
        if keeps_next_loop(call):
            self._stays = True
            return []
        if name == "tirx.tvm_storage_sync":
            self._cost.operations += 1
            return [Instruction("barrier", ())]
        if is_async_copy(call):
            # The texel does not pass through registers.
            code, uses = self._together([call.args[position] for position in (1, 3, 5)])
            return [*code, Instruction("store", (), (), "buffer", ADDRESS["buffer"], uses)]
        if name != "tirx.texture2d_store" and not is_fp16_store(call):
            code, uses = self._expression(call)
            return [*code, Instruction("value", uses, tuple(use for use in uses if len(use) == 1))]
        place: MemorySpace = "image" if name == "tirx.texture2d_store" else "buffer"
        value, index = (call.args[-1], call.args[1:4]) if place == "image" else (call.args[1], [call.args[2]])
        self._count_access(place, 1)
        code, uses = self._expression(value)
        before = self._cost.slots
        more, indices = self._together(index)
        return [
            *code,
            *more,
            Instruction("store", uses, (), place, ADDRESS[place], indices, slots=self._cost.slots - before),
        ]

    def _assign(self, values: tuple[Value, ...], value: Any, *, is_part: bool = False) -> list[Code]:
        if place_of(value) is not None:
            return self._load(value, values)
        code, uses = self._expression(value)
        if not is_part and _is_copy(value) and len(uses) in (1, len(values)):
            return [*code, Instruction("copy", uses, values)]
        return [*code, Instruction("value", (*uses, *values) if is_part else uses, values)]

    def _load(self, load: Any, values: tuple[Value, ...]) -> list[Code]:
        place = place_of(load)
        assert place is not None
        index = (
            load.indices
            if isinstance(load, tvm.ir.TensorLoad)
            else load.args[1:4]
            if place == "image"
            else load.args[1:2]
        )
        before = self._cost.slots
        code, uses = self._together(index)
        slots = self._cost.slots - before
        is_by_lane = loads_lane_by_lane(load)
        self._count_access(place, lanes_of(load) if is_by_lane else 1)
        is_plain = place == "local" and isinstance(load, tvm.ir.TensorLoad)
        instruction = Instruction("load", uses, values, place, 0 if is_plain else ADDRESS.get(place, 1), slots=slots)
        if is_plain:
            instruction = self._in_local_memory(instruction, load.source, load.indices[0])
        elif place == "image":
            image = load.args[0].args[0] if isinstance(load.args[0], tvm.ir.Call) else load.args[0]
            scope = str(getattr(image.ty, "storage_scope", ""))
            instruction = replace(
                instruction, index=self._sums.texel(image, index), is_sampled=scope not in _PLAIN_IMAGES
            )
        else:
            instruction = replace(instruction, index=self._sums.changing(index))
        # A vector from a buffer of scalars is read lane by lane.
        parts = [(value,) for value in values] if is_by_lane and len(values) == lanes_of(load) else [values]
        return [
            *code,
            *(
                replace(instruction, defines=part, offset=instruction.offset + 4 * lane)
                for lane, part in enumerate(parts)
            ),
        ]

    def _count_access(self, place: MemorySpace, accesses: int) -> None:
        self._cost.operations += _LOCAL_COST if place == "local" else _ACCESS_COST
        of_vector = _VECTOR_LOCAL_COST if place == "local" else _VECTOR_ACCESS_COST
        self._cost.early += of_vector if self._is_mali else accesses

    def _in_local_memory(self, access: Instruction, buffer: tirx.Var, index: tirx.Expr) -> Instruction:
        base, constant, strides = self._sums.address(index, element_bytes(buffer))
        start = self.values.local_starts.get(self.values.number_of(buffer), 0)
        return replace(access, base=base, offset=start + constant, strides=strides)

    def _together(self, exprs: Any) -> tuple[list[Code], tuple[Value, ...]]:
        """Return the instructions of several expressions, and the values that they use."""
        read = [self._expression(expr) for expr in exprs]
        return [item for code, _ in read for item in code], tuple(value for _, values in read for value in values)

    def _uses_without_cost(self, expr: Any) -> tuple[Value, ...]:
        before = replace(self._cost)
        _, uses = self._expression(expr)
        self._cost = before
        return uses

    def _expression(self, expr: Any) -> tuple[list[Code], tuple[Value, ...]]:
        """Return the instructions for the loads in an expression, and the values that it uses."""
        if isinstance(expr, tirx.Var):
            index_sum = self._sums.known(expr)
            return [], tuple(index_sum.variables) if index_sum else self.values.copies.get(
                self.values.number_of(expr)
            ) or self.values.variable(expr)
        if place_of(expr) is not None:
            values = self.values.loaded(expr)
            return self._load(expr, values), values
        if isinstance(expr, tvm.ir.TensorLoad):
            code, uses = self._expression(expr.indices[0])
            return code, (*self.values.elements(expr.source, expr.indices[0], lanes_of(expr)), *uses)
        if isinstance(expr, tirx.Shuffle):
            (code, uses), lane = self._expression(expr.vectors[0]), expr.indices[0]
            return code, uses[int(lane) : int(lane) + 1] if len(uses) == lanes_of(expr.vectors[0]) and isinstance(
                lane, tirx.IntImm
            ) else uses
        if isinstance(expr, tirx.Let):
            # The variable needs no register: the compiler computes its value at each use.
            code, self.values.copies[self.values.number_of(expr.var)] = self._expression(expr.value)
            more, uses = self._expression(expr.body)
            return [*code, *more], uses
        if is_conditional(expr):
            return self._conditional(expr)
        products = multiply_adds_of(expr) if isinstance(expr, (tirx.Mul, tvm.ir.Call)) else 0
        self._cost.operations += products * _CALL_COST.get(extern_name(expr) or "", _PRODUCT_COST)
        if products and self._is_mali:
            vectors = products // lanes_of(expr)
            self._cost.early += vectors * _VECTOR_CALL_COST.get(extern_name(expr) or "", _VECTOR_PRODUCT_COST)
        elif products:
            self._cost.early += products
        elif isinstance(expr, _ARITHMETIC) and "float" not in dtype_of(expr):
            self._cost.early += not (self._is_mali and _is_number(expr))
            self._cost.slots += 2 if isinstance(expr, tirx.Mul) and not _is_power_of_two(expr.b) else 1
        code, uses = self._together(_operands(expr))
        return code, tuple(dict.fromkeys(uses))

    def _conditional(self, expr: tvm.ir.Call) -> tuple[list[Code], tuple[Value, ...]]:
        """Read a load under a condition, which is a branch.

        If the condition has two parts, the path around the load leaves the value undefined. The value then keeps its
        registers from one iteration to the next.
        """
        condition, then, otherwise = expr.args
        self._cost.operations += _CONDITION_COST
        (code, uses), (inside, values), (outside, others) = (
            self._expression(part) for part in (condition, then, otherwise)
        )
        if not any(isinstance(item, Instruction) and item.kind == "load" for item in inside):
            return [*code, *inside, *outside], (*uses, *values, *others)
        if self._depth and isinstance(condition, tirx.And):
            kept = self.values.kept(expr)
            self._kept.update(dict.fromkeys(kept))
            inside = [Instruction("index", kept, kept), *inside]
        branch = [BlockEnd(opens=True), *inside, BlockEnd(closes=True)]
        return [*code, Instruction("index", uses), *branch, *outside], (*values, *others)


def _operands(expr: Any) -> list[Any]:
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


def _is_number(expr: Any) -> bool:
    """Return whether integer arithmetic has no variables."""
    return isinstance(expr, tirx.IntImm) or (isinstance(expr, _ARITHMETIC) and all(map(_is_number, _operands(expr))))


def _is_power_of_two(expr: Any) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) > 0 and int(expr) & (int(expr) - 1) == 0


def _is_copy(expr: Any) -> bool:
    """Return whether an expression selects lanes of existing values."""
    match expr:
        case tirx.Var():
            return True
        case tvm.ir.TensorLoad():
            return place_of(expr) is None
        case tirx.Shuffle():
            return all(map(_is_copy, expr.vectors))
        case tirx.Broadcast():
            return _is_copy(expr.value)
        case tvm.ir.Call():
            return (extern_name(expr) or "").startswith("(float") and all(map(_is_copy, expr.args[1:]))
    return False
