"""Rewrites of statements that TVM's code generators write wrongly or cannot write.

- Loops that the device's compiler unrolls: CUDA has `#pragma unroll`.
- Pairs of fp16 values (OpenCL): TVM makes one like C++, and reads its bits through a pointer.
- Separate bytes (OpenCL): TVM packs them into an integer and stores its value in each lane.
- Constants of more than seven digits (OpenCL): TVM prints seven.
- Truth values in memory (OpenCL, CUDA): TVM takes a vector of them for a vector of 32-bit or 16-bit integers.
- Vectors of truth values (OpenCL): a true lane is -1, a true scalar is 1. A cast keeps that, and select reads the sign.
- Reads of registers and local memory (CUDA): TVM writes vectors lane by lane, and names vectors by text. A second
  `acc[0]` in the same block is the first one's value, even if acc[0] was written in between. Each statement therefore
  reads into a variable.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm_ffi.structural import structural_equal, structural_map, structural_mutate, structural_walk

from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import lanes_of
from romou.compiler.tir.primitives import UNROLL_BY_COMPILER
from romou.compiler.tir.traversal import function_pass, sequence_of, statements_of, with_fields
from romou.devices.backends.dialect import Dialect, dialect_of, dialects_of

_PAIR = "float16x2"
_PROMOTED = ("int8", "uint8", "int16", "uint16")
# C computes them in int. All other results are within the type of their operands.
_WIDENED = (tirx.Add, tirx.Sub, tirx.Mul, tirx.BitwiseNot)
_ELEMENTWISE = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or),
)


@function_pass
def unroll_by_compiler(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Mark the loops of a device function that its compiler unrolls, after TVM has unrolled the others.

    The marks are removed.
    """

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        new = mutator.default_mutate(stmt)
        if stmt.attr_key != UNROLL_BY_COMPILER:
            return new
        # Declarations of variables and a barrier may come before the loop.
        return sequence_of(
            [
                with_fields(child, kind=tirx.ForKind.UNROLLED) if isinstance(child, tirx.For) else child
                for child in statements_of(new.body)
            ]
        )

    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


@tvm.transform.module_pass(opt_level=0)
def unroll_without_pragmas(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Unroll the loops that `unroll_by_compiler` leaves, if the device's language (OpenCL C) has no pragma for it."""
    return mod if any(dialect.has_unroll_pragma for dialect in dialects_of(mod)) else tirx.transform.UnrollLoop()(mod)


@function_pass
def number_truth_values(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Convert truth values by choices, after vectors are made.

    float4(a < b)      ->      select(a < b, float4(1), float4(0))
    """
    return (
        func.with_body(structural_map(func.body, (tirx.Cast, _number))) if dialect_of(func).has_negative_truth else func
    )


@function_pass
def compare_lanes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compare lanes as OpenCL's select needs it, after the last simplification, which would undo it.

    select(x == y, v, w)
        ->  select(int4(x == y) != int4(0), v, w)      for scalars x and y, and vectors v and w

    In CUDA, TVM declares such a condition as a vector like v, but no truth value converts to it. It also writes `~` and
    `!` of a vector, which CUDA lacks.
    """
    dialect = dialect_of(func)
    if dialect.takes_vectors_apart:
        func = func.with_body(structural_map(func.body, [(tirx.BitwiseNot, _inverted), (tirx.Not, _negated)]))
    is_changed = dialect.has_negative_truth or dialect.takes_vectors_apart
    return func.with_body(structural_map(func.body, (tirx.Select, _compared))) if is_changed else func


@function_pass
def keep_digits(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write constants that have more digits as sums of constants of seven. Simplification would undo it.

    The last digit of a scale may decide a quantization step.

    16777215.0      ->      1.677722e+07f + -5.0e+00f
    """
    return (
        func.with_body(structural_map(func.body, (tirx.FloatImm, _in_parts)))
        if dialect_of(func).prints_seven_digits
        else func
    )


def _in_parts(constant: tirx.FloatImm) -> tirx.Expr:
    dtype, value = str(constant.ty), float(constant.value)
    if not math.isfinite(value):
        # It is printed as INFINITY or NAN, which are floats: select(double, float, long) is ambiguous.
        return tirx.Cast(dtype, tirx.FloatImm("float32", value)) if dtype == "float64" else constant
    if dtype not in ("float32", "float64"):
        return constant
    number = np.dtype(dtype).type
    parts, rest = list[tirx.Expr](), number(value)
    # Seven digits each: three make a double.
    while rest and len(parts) < 3:
        printed = number(f"{rest:.6e}")
        parts.append(tirx.FloatImm(dtype, float(printed)))
        rest = number(rest - printed)
    return functools.reduce(tirx.Add, parts) if len(parts) > 1 else constant


@function_pass
def gather_bytes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write vectors of bytes as vectors of scalar loads, unless they are contiguous and aligned.

    Addresses must be final.

    int8x4 v = x[ramp(i, 3, 4)]      ->      int8x4 v = (char4)(x[i], x[i + 3], x[i + 6], x[i + 9])
    boolx4 v = x[ramp(i, 1, 4)]      ->      boolx4 v = (int4)(x[i], x[i + 1], x[i + 2], x[i + 3]) != (int4)(0)
    y[ramp(i, 1, 4)] = boolx4(v)     ->      int4 t = select(v, (int4)(1), (int4)(0))
                                             y[i] = t.s0 != 0
                                             y[i + 1] = t.s1 != 0
                                             ...
    """
    dialect = dialect_of(func)
    if dialect.widens_truth_values:
        func = func.with_body(structural_map(func.body, (tirx.Cast, _as_truth)))
        func = func.with_body(structural_map(func.body, (tirx.BufferStore, _scattered)))
    if dialect.widens_truth_values or dialect.packs_gathered_bytes:
        func = func.with_body(structural_map(func.body, (TensorLoad, functools.partial(_gathered, dialect))))
    return func


@function_pass
def name_pairs(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write pairs of fp16 values and their bits in the kernel's language.

    half2(a, b)             ->      (half2)(a, b)
    *(half2*)(&(bits))      ->      as_half2(bits)
    """
    dialect = dialect_of(func)
    if not dialect.packs_fp16_as_bits:
        return func

    def gathered(vector: tirx.Shuffle) -> tirx.Expr:
        is_pair = str(vector.ty) == _PAIR and len(vector.vectors) == 2
        return dialect.vector_of(vector.vectors, _PAIR) if is_pair else vector

    def named(call: Call) -> tirx.Expr:
        if op_name(call) != "tirx.reinterpret" or _PAIR not in (str(call.ty), str(call.args[0].ty)):
            return call
        return dialect.reinterpreted(call.args[0], str(call.ty))

    return func.with_body(structural_map(func.body, [(tirx.Shuffle, gathered), (Call, named)]))


def _as_truth(cast: tirx.Cast) -> tirx.Expr:
    """Convert a vector to truth values: nonzero is true. TVM would cut off fractions."""
    wanted, source = (tvm.DataType(str(expr.ty)) for expr in (cast, cast.value))
    if not is_truth(wanted) or is_truth(source) or int(source.lanes) == 1:
        return cast
    return tirx.NE(cast.value, tirx.Broadcast(tirx.const(0, str(source.with_lanes(1))), int(source.lanes)))


def is_truth(dtype: tvm.DataType) -> bool:
    """Return whether a type is a truth value or a vector of them."""
    return bool(dtype.type_code == tvm.DataType("bool").type_code)


def _scattered(store: tirx.BufferStore) -> tirx.Stmt:
    lanes = lanes_of(store.value)
    if not is_truth(tvm.DataType(str(store.value.ty))) or lanes == 1:
        return store
    numbers = tirx.Select(store.value, *(tirx.Broadcast(tirx.const(value, "int32"), lanes) for value in (1, 0)))
    vector = tirx.Var("truths", numbers.ty)
    indices_by_lane = [[*store.indices[:-1], lane_of(store.indices[-1], lane)] for lane in range(lanes)]
    values = [tirx.NE(tirx.Shuffle([vector], [lane]), tirx.const(0, "int32")) for lane in range(lanes)]
    stores = [
        tirx.BufferStore(store.buffer, value, indices) for value, indices in zip(values, indices_by_lane, strict=True)
    ]
    return tirx.SeqStmt([tirx.Bind(vector, numbers), *stores])


def _gathered(dialect: Dialect, load: TensorLoad) -> tirx.Expr:
    dtype, index = tvm.DataType(str(load.ty)), load.indices[-1]
    lanes = lanes_of(index)
    is_packed = dialect.packs_gathered_bytes and dtype.bits == 8 and not is_truth(dtype) and not _is_aligned(index)
    if lanes == 1 or not (is_packed or (dialect.widens_truth_values and is_truth(dtype))):
        return load
    scalars = [tirx.BufferLoad(load.source, [*load.indices[:-1], lane_of(index, lane)]) for lane in range(lanes)]
    if is_truth(dtype):
        return tirx.NE(dialect.vector_of(scalars, f"int32x{lanes}"), tirx.Broadcast(tirx.const(0, "int32"), lanes))
    return dialect.vector_of(scalars, str(dtype))


def _is_aligned(index: tirx.Expr) -> bool:
    """Return whether TVM loads the lanes of an address as one vector: contiguous, at a multiple of their number."""
    if not isinstance(index, tirx.Ramp) or not isinstance(index.stride, tirx.IntImm) or int(index.stride) != 1:
        return False
    start = tvm.sym.Analyzer().modular_set(index.base)
    lanes = lanes_of(index)
    return int(start.coeff) % lanes == 0 and int(start.base) % lanes == 0


def lane_of(expr: tirx.Expr, lane: int) -> tirx.Expr:
    """Return one lane of a vector of integers as a scalar expression."""
    if lanes_of(expr) == 1:
        return expr
    if isinstance(expr, tirx.Ramp):
        return expr.base + expr.stride * lane
    if isinstance(expr, tirx.Broadcast):
        return expr.value
    if isinstance(expr, tirx.Cast):
        return tirx.Cast(str(tvm.DataType(str(expr.ty)).with_lanes(1)), lane_of(expr.value, lane))
    if isinstance(expr, tirx.Select):
        return tirx.Select(*(lane_of(part, lane) for part in (expr.condition, expr.true_value, expr.false_value)))
    if isinstance(expr, _ELEMENTWISE):
        return type(expr)(lane_of(expr.a, lane), lane_of(expr.b, lane))
    return tirx.Shuffle([expr], [lane])


def _negated(value: tirx.Not) -> tirx.Expr:
    lanes = lanes_of(value)
    return value if lanes == 1 else tirx.EQ(value.a, tirx.Broadcast(tirx.const(0, "bool"), lanes))


def _inverted(inversion: tirx.BitwiseNot) -> tirx.Expr:
    dtype = tvm.DataType(str(inversion.ty))
    ones = tirx.const(
        -1 if dtype.type_code == tvm.DataType("int").type_code else 2**dtype.bits - 1, str(dtype.with_lanes(1))
    )
    return inversion if dtype.lanes == 1 else tirx.bitwise_xor(inversion.a, tirx.Broadcast(ones, dtype.lanes))


@function_pass
def wrap_short_integers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Narrow 8-bit and 16-bit scalars, which C's arithmetic widens: results that others read, and both choices of a
    choice. It runs after divisions became choices.

    (x + y) <= z             ->      (uchar)(x + y) <= z
    select(c, x + y, x)      ->      select(c, (short)(x + y), (short)(x))
    """
    dialect = dialect_of(func)

    def choice(select: tirx.Select, mutator: Any) -> tirx.Expr:
        if str(select.ty) not in _PROMOTED:
            return mutator.default_mutate(select)
        values = (select.true_value, select.false_value)
        new = [mutator.mutate(value) for value in values]
        return tirx.Select(
            mutator.mutate(select.condition),
            *(
                one if isinstance(value, _WIDENED) else dialect.narrowed(one)
                for value, one in zip(values, new, strict=True)
            ),
        )

    def result(expr: tirx.Expr, mutator: Any) -> tirx.Expr:
        new = mutator.default_mutate(expr)
        return dialect.narrowed(new) if str(new.ty) in _PROMOTED else new

    return func.with_body(structural_mutate(func.body, [(tirx.Select, choice), (_WIDENED, result)]))


def _compared(select: tirx.Select) -> tirx.Expr:
    condition = select.condition.value if isinstance(select.condition, tirx.Broadcast) else select.condition
    lanes = lanes_of(select)
    if lanes == 1 or lanes_of(condition) > 1:
        return select
    vectors = [tirx.Broadcast(value, lanes) for value in (tirx.Cast("int32", condition), tirx.const(0, "int32"))]
    return tirx.Select(tirx.NE(*vectors), select.true_value, select.false_value)


def _number(cast: tirx.Cast) -> tirx.Expr:
    source, wanted = (tvm.DataType(str(expr.ty)) for expr in (cast.value, cast))
    lanes = int(source.lanes)
    if not is_truth(source) or lanes == 1:
        return cast
    scalar = str(wanted).removesuffix(f"x{lanes}")
    return tirx.Select(cast.value, *(tirx.Broadcast(tirx.const(value, scalar), lanes) for value in (1, 0)))


_CHANGING = ("local", "shared", "shared.dyn")


@function_pass
def name_register_reads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Read registers and local memory of a device function into variables, after the last simplification."""
    if not dialect_of(func).takes_vectors_apart:
        return func
    return func.with_body(structural_map(func.body, ((tirx.BufferStore, tirx.Bind, tirx.Evaluate), _named)))


def _named(stmt: Any) -> tirx.Stmt:
    if isinstance(getattr(stmt, "value", None), tvm.ir.TensorLoad):
        return stmt  # a copy is written unchanged
    loads: list[tvm.ir.TensorLoad] = []

    def read(load: tvm.ir.TensorLoad) -> None:
        if (
            lanes_of(load) > 1
            and str(load.source.scope()) in _CHANGING
            and not any(structural_equal(load, other) for other in loads)
        ):
            loads.append(load)

    structural_walk(stmt, (tvm.ir.TensorLoad, read))
    if not loads:
        return stmt
    variables = [tirx.Var("read", load.ty) for load in loads]

    def name(load: tvm.ir.TensorLoad) -> tirx.Expr:
        index = next((i for i, other in enumerate(loads) if structural_equal(load, other)), None)
        return load if index is None else variables[index]

    named = structural_map(stmt, (tvm.ir.TensorLoad, name))
    return tirx.SeqStmt([*(tirx.Bind(v, load) for v, load in zip(variables, loads, strict=True)), named])
