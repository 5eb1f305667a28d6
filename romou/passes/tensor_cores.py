"""Sums of products on tensor cores (CUDA): what each work-item of a warp would sum up by itself, the warp sums up together.

A schedule marks a nest (`primitives.tensor_cores`) in which a work-item adds 16 products to each number of its register tile. The same nest without
this pass computes the same sums one by one: the pass only changes who loads what. PTX's `mma.sync.m16n8k16` multiplies 16 rows with 8 columns, 16 deep;
work-item (x = t, y % 8 = g) of the warp brings, and gets (PTX ISA, "Matrix Fragments for mma.m16n8k16"),

    A   rows g and g + 8, depths 2t, 2t + 1, 2t + 8, 2t + 9
    B   column g, the same depths
    C   rows g and g + 8, columns 2t and 2t + 1

The order of the 16 depths is free, as long as A and B agree, and so is what rows and columns stand for. The four depths of t are the four lanes of input
texel `group` = t: what B wants of a work-item is one texel, as it lies in memory. Rows g and g + 8 are two lanes of an output texel of the work-items with
g, so that two instructions make the whole texel; columns 2t and 2t + 1 are two pixels of those with x = t. Then every work-item ends with the
sums of its own tile, and nothing behind the nest changes:

    for group in 4: for ilane in 4:                     a = texels of the weight at (own texel, group = t, ilane in 4)
      for o, w, lane:                          ->       b = texel of the data at (pixel of column g, group = t)
        acc[o, w, lane] += data(group, ilane, w)        tensor_core_fma(acc, a, b)           for each texel and each pair of pixels
          * weight(group, ilane, o, lane)

where column g is pixel w + g % 2 of work-item x = g / 2.

fp32 takes two of `mma.sync.m16n8k8` for one instruction of fp16, each with two lanes of the input texel: of work-item (t, g) it wants depths t and t + 4 in
A and B, and gives the same C. fp32 is rounded to TF32 once, when it is loaded.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map, structural_mutate, structural_walk

from romou.backends.dialect import load_texel, load_texel_pair, tensor_core_fma, tf32_of_fp32
from romou.core.errors import BuildError
from romou.passes.bindings import statements_of
from romou.tir.calls import is_conditional, is_fp16_conversion
from romou.tir.primitives import LANES, TENSOR_CORES

# Work-items of a warp along y.
_ROWS = 8
# Pixels that one instruction takes of a work-item, and texels that one load may bring.
PAIR = 2
# Texels in registers: the bits of fp16 as they lie in memory, or floats.
_FP16, _FLOATS = "uint64", "float32x4"


@tirx.transform.prim_func_pass(opt_level=0)
def use_tensor_cores(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Run on a device function after its fp16 has become bits, before addresses are eliminated; the marks go."""
    threads: dict[str, tirx.Var] = {}

    def thread(stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "thread_extent":
            threads[str(stmt.node.thread_tag)] = stmt.node.var

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        return _warp_sums(stmt.body, threads) if stmt.attr_key == TENSOR_CORES else mutator.default_mutate(stmt)

    structural_walk(func.body, (tirx.AttrStmt, thread))
    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


def _warp_sums(marked: tirx.Stmt, threads: Mapping[str, tirx.Var]) -> tirx.Stmt:
    # A barrier may stand before the nest.
    *statements, nest = statements_of(marked)
    loops: list[tirx.For] = []
    store: Any = nest
    while isinstance(store, tirx.For):
        loops.append(store)
        store = store.body
    if len(loops) not in (4, 5) or not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add) or not isinstance(store.value.b, tirx.Mul):
        raise BuildError(f"a nest that is marked for tensor cores adds up products over (group, lane, texel, pixel, lane); this one does not: {nest}")
    group, ilane, *tile, w, lane = (loop.loop_var for loop in loops)
    pixels, texels = int(loops[-2].extent), int(loops[2].extent) if tile else 1
    t, g = threads["threadIdx.x"], threads["threadIdx.y"] % _ROWS
    data, weight = store.value.b.a, store.value.b.b
    analyzer = tvm.sym.Analyzer()

    def at(values: Mapping[tirx.Var, Any]) -> dict[tirx.Var, tirx.Expr]:
        numbers = {var: tirx.const(value, "int32") if isinstance(value, int) else value for var, value in values.items()}
        return {lane: tirx.const(0, "int32"), group: t, **numbers}

    def bind(name: str, factor: tirx.Expr) -> tirx.Var:
        texel = _texel_of(factor, analyzer)
        is_fp16 = str(texel.ty.dtype) == _FP16
        variable = tirx.Var(name, _FP16 if is_fp16 else _FLOATS)
        statements.append(tirx.Bind(variable, texel if is_fp16 else tf32_of_fp32(texel)))
        return variable

    weights: list[list[tirx.Expr]] = [[] for _ in range(texels)]
    for texel, depth in itertools.product(range(0, texels, PAIR), range(LANES)):
        factors = [_replaced(weight, at({ilane: depth, **dict.fromkeys(tile, one)})) for one in range(texel, min(texel + PAIR, texels))]
        place_of_pair = _place_of_pair(factors, analyzer)
        if place_of_pair is None:
            values: list[tirx.Expr] = [bind("weight", factor) for factor in factors]
        else:
            both = tirx.decl_buffer([PAIR], _FP16, "weights", scope="local")
            statements += [tirx.AllocBuffer(both), load_texel_pair(*place_of_pair, both)]
            values = [tirx.BufferLoad(both, [one]) for one in range(PAIR)]
        for one, value in enumerate(values):
            weights[texel + one].append(value)
    # All at once: t stands for the group of channels here, and column g is another work-item's.
    columns = [bind("data", _replaced(data, at({ilane: 0, w: pixel + g % PAIR, t: g // PAIR}))) for pixel in range(0, pixels, PAIR)]

    def place(texel: int, pixel: int, number: int) -> int:
        (index,) = store.indices
        return int(analyzer.simplify(_replaced(index, at({w: pixel, lane: number, **dict.fromkeys(tile, texel)}))))

    for texel, factors in enumerate(weights):
        for pixel, column in zip(range(0, pixels, PAIR), columns, strict=True):
            first = place(texel, pixel, 0)
            if [place(texel, pixel + p, number) - first for p in range(PAIR) for number in range(LANES)] != list(range(PAIR * LANES)):
                raise BuildError(f"tensor cores add to pixels that lie side by side in registers; these do not: {store}")
            statements.append(tensor_core_fma(store.buffer, first, factors, column))
    return tirx.SeqStmt(statements)


def _replaced(expr: tirx.Expr, values: Mapping[tirx.Var, tirx.Expr]) -> tirx.Expr:
    """`expr` with variables replaced, all at once."""
    return structural_map(expr, (tirx.Var, lambda var: values.get(var, var)))


def _place_of_pair(factors: Sequence[tirx.Expr], analyzer: Any) -> tuple[tirx.Expr, tirx.Var] | None:
    """(pair, buffer) where two factors are texels side by side in memory, the first one at an even place: one load brings both. None elsewhere."""
    if len(factors) < PAIR or not all(map(is_fp16_conversion, factors)):
        return None
    (first,), (second,) = (factor.args[1].indices for factor in factors)
    found = analyzer.modular_set(first)
    is_pair = analyzer.can_prove_equal(second - first, LANES) and not int(found.coeff) % (PAIR * LANES) and not int(found.base) % (PAIR * LANES)
    return (analyzer.simplify(first // (PAIR * LANES)), factors[0].args[1].source) if is_pair else None


def _texel_of(factor: tirx.Expr, analyzer: Any) -> tirx.Expr:
    """The four fp32 numbers, or the bits of the four fp16 numbers, that start with a factor of the product; zeros where the factor is zero."""
    if is_conditional(factor):
        condition, value, otherwise = factor.args
        texel = _texel_of(value, analyzer)
        is_zero = isinstance(otherwise, tirx.FloatImm) and float(otherwise.value) == 0
        zeros = tirx.const(0, _FP16) if str(texel.ty.dtype) == _FP16 else tirx.Broadcast(tirx.const(0.0, "float32"), LANES)
        return tirx.if_then_else(condition, texel, zeros if is_zero else _texel_of(otherwise, analyzer))
    if isinstance(factor, tvm.ir.TensorLoad) and str(factor.ty.dtype) == "float32":
        (index,) = factor.indices
        return tirx.BufferLoad(factor.source, [tirx.Ramp(analyzer.simplify(index), tirx.const(1, "int32"), LANES)])
    if not is_fp16_conversion(factor):
        raise BuildError(f"tensor cores multiply fp16 or fp32 that is read from memory, not {factor}")
    bits = factor.args[1]
    (index,) = bits.indices
    return load_texel(analyzer.simplify(index // LANES), bits.source)
