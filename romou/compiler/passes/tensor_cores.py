"""Sums of products on tensor cores: a warp computes the sums of all its work-items together.

A schedule marks a nest (`primitives.tensor_cores`) that adds 16 products to each number of a work-item's register tile.
The same nest without this pass computes the same sums one by one. The pass only changes who loads which operand. PTX's
`mma.sync.m16n8k16` multiplies 16 rows with 8 columns, 16 deep. Work-item (x = t, y % 8 = g) of the warp brings A and B,
and gets C (PTX ISA, "Matrix Fragments for mma.m16n8k16"):

    A   rows g and g + 8, depths 2t, 2t + 1, 2t + 8, 2t + 9
    B   column g, the same depths
    C   rows g and g + 8, columns 2t and 2t + 1

The order of the 16 depths is free, as long as A and B agree. The meaning of rows and columns is free, too:

    depths of t              the four lanes of input texel `group` = t, so B needs one texel of each work-item
    rows g and g + 8         two lanes of an output texel of the work-items with g, so two instructions make the texel
    columns 2t and 2t + 1    two pixels of the work-items with x = t
    column g                 pixel w + g % 2 of work-item x = g / 2

Then every work-item ends with the sums of its tile, and the code after the nest does not change:

    for group in 4: for ilane in 4:                     a = texels of the weight at (own texel, group = t, ilane in 4)
      for o, w, lane:                          ->       b = texel of the data at (pixel of column g, group = t)
        acc[o, w, lane] += data(group, ilane, w)        tensor_core_fma(acc, a, b)  for each texel and pair of pixels
          * weight(group, ilane, o, lane)

In a language whose tensor cores take whole matrices, `cooperative_matrices.py` goes on from there.

fp32 takes two of `mma.sync.m16n8k8` instead of one instruction of fp16, each with two lanes of the input texel.
Work-item (t, g) brings depths t and t + 4 in A and B, and gets the same C. fp32 is rounded to TF32 once,
when it is loaded. Under the mark `SPLIT_TENSOR_CORES` it is split instead, and products take three times as many
instructions (`tensor_core_fma_tf32x3` in `devices/backends/ptx.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm_ffi.structural import structural_mutate, structural_walk

from romou.base.errors import BuildError
from romou.compiler.passes.cooperative_matrices import multiply_in_local_memory
from romou.compiler.passes.warp_nest import FLOATS, PAIR, WarpNest
from romou.compiler.tir.calls import is_fp16_conversion
from romou.compiler.tir.primitives import LANES, SPLIT_TENSOR_CORES, TENSOR_CORE_MARKS
from romou.compiler.tir.traversal import function_pass
from romou.devices.backends.dialect import dialect_of, load_texel_pair, tensor_core_fma, tf32_of_fp32


@function_pass
def use_tensor_cores(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute marked nests with tensor cores, after fp16 is bits and before addresses are eliminated.

    The marks are removed.
    """
    dialect = dialect_of(func)
    threads: dict[str, tirx.Var] = {}

    def thread(stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "thread_extent":
            threads[str(stmt.node.thread_tag)] = stmt.node.var

    def nest_of(stmt: tirx.AttrStmt) -> WarpNest:
        return WarpNest(stmt.body, threads, dialect)

    def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        if stmt.attr_key not in TENSOR_CORE_MARKS:
            return mutator.default_mutate(stmt)
        return _warp_sums(nest_of(stmt), splits_floats=stmt.attr_key == SPLIT_TENSOR_CORES)

    structural_walk(func.body, (tirx.AttrStmt, thread))
    if dialect.has_cooperative_matrices:
        return multiply_in_local_memory(func, nest_of)
    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, marked)))


def _warp_sums(nest: WarpNest, *, splits_floats: bool) -> tirx.Stmt:
    statements = list[tirx.Stmt]()

    def bind(name: str, factor: tirx.Expr) -> tirx.Var:
        texel = nest.texel_of(factor)
        is_fp16 = str(texel.ty.dtype) == nest.fp16_texel
        variable = tirx.Var(name, nest.fp16_texel if is_fp16 else FLOATS)
        statements.append(tirx.Bind(variable, texel if is_fp16 or splits_floats else tf32_of_fp32(texel)))
        return variable

    weights: list[list[tirx.Expr]] = [[] for _ in range(nest.texels)]
    for texel, depth in itertools.product(range(0, nest.texels, PAIR), range(LANES)):
        factors = [nest.weight(texel_of_pair, depth) for texel_of_pair in range(texel, min(texel + PAIR, nest.texels))]
        place_of_pair = _place_of_pair(factors, nest.analyzer)
        if place_of_pair is None:
            values: list[tirx.Expr] = [bind("weight", factor) for factor in factors]
        else:
            both = tirx.decl_buffer([PAIR], nest.fp16_texel, "weights", scope="local")
            statements += [tirx.AllocBuffer(both), load_texel_pair(*place_of_pair, both)]
            values = [tirx.BufferLoad(both, [index]) for index in range(PAIR)]
        for index, value in enumerate(values):
            weights[texel + index].append(value)
    columns = [bind("data", nest.data(pixel)) for pixel in range(0, nest.pixels, PAIR)]
    for texel, factors in enumerate(weights):
        for pixel, column in zip(range(0, nest.pixels, PAIR), columns, strict=True):
            first = nest.place(texel, pixel, 0)
            if [nest.place(texel, pixel + p, number) - first for p in range(PAIR) for number in range(LANES)] != list(
                range(PAIR * LANES)
            ):
                raise BuildError(
                    f"tensor cores add to pixels that lie side by side in registers; these do not: {nest.store}"
                )
            statements.append(tensor_core_fma(nest.store.buffer, first, factors, column, splits_floats=splits_floats))
    sums: tirx.Stmt = tirx.SeqStmt(statements)
    sums = sums if nest.condition is None else tirx.IfThenElse(nest.condition, sums, None)
    return tirx.SeqStmt([*nest.before, sums]) if nest.before else sums


def _place_of_pair(factors: Sequence[tirx.Expr], analyzer: Any) -> tuple[tirx.Expr, tirx.Var] | None:
    """Return (pair, buffer) if two factors are adjacent texels in memory and the first has an even position, else None.

    One load then reads both.
    """
    if len(factors) < PAIR or not all(map(is_fp16_conversion, factors)):
        return None
    (first,), (second,) = (factor.args[1].indices for factor in factors)
    modular_set = analyzer.modular_set(first)
    is_pair = (
        analyzer.can_prove_equal(second - first, LANES)
        and not int(modular_set.coeff) % (PAIR * LANES)
        and not int(modular_set.base) % (PAIR * LANES)
    )
    return (analyzer.simplify(first // (PAIR * LANES)), factors[0].args[1].source) if is_pair else None
