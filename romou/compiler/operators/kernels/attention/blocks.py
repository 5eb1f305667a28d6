"""Recognition of attention in the blocks of a function: softmax(score(Q K^T)) V.

    product[b, m, n] = sum over d of query[b, m, d] * key[b, n, d]
    peak[b, m]       = max over n of score(product[b, m, n])              score: scale, mask, bias
    total[b, m]      = sum over n of exp(score(product[b, m, n]) - peak[b, m])
    result[b, m, v]  = sum over n of exp(score(product[b, m, n]) - peak[b, m]) / total[b, m] * value[b, n, v]
    output[...]      = epilogue(result[b, m, v])

Everything is rewritten over the axes of the last sum, so transposed, reshaped and broadcast operands are just indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_equal, structural_map

from romou.compiler.scheduling.blocks import (
    Reduction,
    axes_of,
    has_load,
    is_elementwise_of,
    loads_of,
    reduction_of,
    replace_loads,
)
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import is_equal, is_one, largest
from romou.compiler.tir.primitives import LANES
from romou.compiler.tir.traversal import has_var, nodes_in, substitute


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The parts of an attention, over the axes `batch`, `row`, `key`, `depth` and `column`.

    batch: axis -> extent. The axes of the output besides `row` and `column`.
    extents: of `row`, `key`, `depth` and `column`.
    query, key_value, value: elements of Q over (batch, row, depth), of K over (batch, key, depth) and of V over
        (batch, key, column).
    product: the buffer of Q times K, which `score` loads once or more, over (batch, row, key).
    fill: the weight of every key in some rows, such as those without a valid key. None if no row has one.
    is_filled: condition over (batch, row) for these rows. None for the rows whose weights are NaN.
    result: the buffer of the last sum, which `output` loads. Its axes are those of the output.
    output: the store of an element of the output.
    """

    batch: Mapping[tirx.Var, Any]
    row: tirx.Var
    key: tirx.Var
    depth: tirx.Var
    column: tirx.Var
    extents: tuple[Any, Any, int, int]
    query: tirx.Expr
    key_value: tirx.Expr
    value: tirx.Expr
    product: tirx.Buffer
    score: tirx.Expr
    fill: tirx.Expr | None
    is_filled: tirx.Expr | None
    result: tirx.Buffer
    output: tirx.BufferStore

    @property
    def axes(self) -> dict[tirx.Var, Any]:
        """All axes with their extents."""
        rows, keys, depth, columns = self.extents
        return {**self.batch, self.row: rows, self.key: keys, self.depth: depth, self.column: columns}


def attention_of(blocks: Sequence[s_tir.SBlock], bounds: Mapping[tirx.Var, int]) -> Attention | None:
    """Return the attention that the blocks of a simplified function compute, or None if they have another form.

    bounds: of sizes at run time.
    """
    reductions = [_simplified(reduction) for reduction in map(reduction_of, blocks) if reduction is not None]
    if [r.operation for r in reductions] != [tirx.Add, tirx.Max, tirx.Add, tirx.Add] or len(blocks) - 4 not in (0, 1):
        return None
    product, peak, total, result = reductions
    epilogue = blocks[4] if len(blocks) == 5 else None
    if reduction_of(blocks[3]) is None or any(len(r.reduced) != 1 for r in reductions):
        return None
    if epilogue is not None:
        extents = (axes_of(block).values() for block in (epilogue, result.block))
        if not is_elementwise_of(epilogue, result.buffer, bounds) or not all(map(is_equal, *extents)):
            return None
    return _matched(product, peak, total, result, epilogue, bounds)


def _matched(
    product: Reduction,
    peak: Reduction,
    total: Reduction,
    result: Reduction,
    epilogue: s_tir.SBlock | None,
    bounds: Mapping[tirx.Var, int],
) -> Attention | None:
    key = result.reduced[0].var
    factors = _factors_of(result.term)
    weights = [factor for factor in factors if has_load(factor, product.buffer)]
    if len(factors) != 2 or len(weights) != 1:
        return None
    (value,) = (factor for factor in factors if factor is not weights[0])
    weight, fill, is_filled = _without_fill(weights[0], key)
    score = _score_of(weight, key, product, peak, total)
    if score is None:
        return None
    axes = axes_of(result.block)
    depth = product.reduced[0].var
    load = next(load for load in loads_of(score) if load.source.same_as(product.buffer))
    operands = [_at(factor, product, load.indices) for factor in _factors_of(product.term)]
    if len(operands) != 2:
        return None
    of_keys = [operand for operand in operands if has_var(operand, key)]
    of_rows = [operand for operand in operands if not has_var(operand, key)]
    if len(of_keys) != 1 or len(of_rows) != 1:
        return None
    columns = [axis for axis in axes if has_var(value, axis) and not has_var(score, axis) and not axis.same_as(key)]
    columns = [axis for axis in columns if not has_var(of_rows[0], axis) and not has_var(of_keys[0], axis)]
    # No index contains an axis of extent 1.
    others = [axis for axis in axes if not (has_var(value, axis) or has_var(of_keys[0], axis))]
    rows = [axis for axis in others if has_var(of_rows[0], axis) or is_one(axes[axis])]
    if len(columns) != 1 or not rows:
        return None
    row, column = max(rows, key=lambda axis: largest(axes[axis], bounds)), columns[0]
    batch = {axis: extent for axis, extent in axes.items() if not any(axis.same_as(a) for a in (row, key, column))}
    store = result.block.body
    output = tirx.BufferStore(store.buffer, tirx.BufferLoad(store.buffer, store.indices), store.indices)
    if epilogue is not None:
        own = {axis.var: index for axis, index in zip(epilogue.iter_vars, store.indices, strict=True)}
        output = substitute(epilogue.body, own)
    return Attention(
        batch=batch,
        row=row,
        key=key,
        depth=depth,
        column=column,
        extents=(axes[row], axes[key], axes_of(product.block)[depth], axes[column]),
        query=of_rows[0],
        key_value=of_keys[0],
        value=value,
        product=product.buffer,
        score=score,
        fill=fill,
        is_filled=is_filled,
        result=result.buffer,
        output=output,
    )


def _score_of(
    weight: tirx.Expr, key: tirx.Var, product: Reduction, peak: Reduction, total: Reduction
) -> tirx.Expr | None:
    """Return the score in exp(score - peak) / total, or None if `weight` has another form."""
    weight = _uncast(weight)
    if not isinstance(weight, tirx.Div):
        return None
    power, divisor = _uncast(weight.a), _uncast(weight.b)
    if not (isinstance(divisor, TensorLoad) and divisor.source.same_as(total.buffer)):
        return None
    score = _exponent_of(power, peak.buffer)
    if score is None or not has_load(score, product.buffer) or has_load(score, peak.buffer):
        return None
    (at_peak,) = (load for load in loads_of(power) if load.source.same_as(peak.buffer))
    # All three passes have to read the same scores.
    maximum = _at(peak.term, peak, at_peak.indices, key)
    summed = _exponent_of(_uncast(_at(total.term, total, divisor.indices, key)), peak.buffer)
    is_same = summed is not None and structural_equal(maximum, score) and structural_equal(summed, score)
    loads = [load for load in loads_of(score) if load.source.same_as(product.buffer)]
    is_one_element = all(structural_equal(load, loads[0]) for load in loads)
    return score if is_same and is_one_element else None


def _exponent_of(power: tirx.Expr, peak: tirx.Buffer) -> tirx.Expr | None:
    """Return a in exp(a - peak), or None."""
    if op_name(power) not in ("tirx.exp", "prim.exp"):
        return None
    difference = _uncast(power.args[0])
    if not isinstance(difference, tirx.Sub):
        return None
    subtracted = _uncast(difference.b)
    is_peak = isinstance(subtracted, TensorLoad) and subtracted.source.same_as(peak)
    return _uncast(difference.a) if is_peak else None


def _without_fill(weight: tirx.Expr, key: tirx.Var) -> tuple[tirx.Expr, tirx.Expr | None, tirx.Expr | None]:
    """Split a choice between a weight and a number in its place.

    select(isnan(weight), fill, weight)      ->      weight, fill, None
    select(is_filled[row], fill, weight)     ->      weight, fill, is_filled[row]
    """
    weight = _uncast(weight)
    if not isinstance(weight, tirx.Select):
        return weight, None, None
    number, condition = weight.true_value, weight.condition
    is_number = isinstance(number, tirx.FloatImm) or (
        isinstance(number, TensorLoad) and all(isinstance(index, tirx.IntImm) for index in number.indices)
    )
    tests = [call for call in nodes_in(condition, tvm.ir.Call) if op_name(call) in ("tirx.isnan", "prim.isnan")]
    # fp16 is widened for the test.
    if is_number and len(tests) == 1 and structural_equal(_uncast(tests[0].args[0]), _uncast(weight.false_value)):
        return (weight.false_value, number, None) if _is_truth_of(condition, tests[0]) else (weight, None, None)
    is_of_row = is_number and not tests and not has_var(condition, key)
    return (weight.false_value, number, condition) if is_of_row else (weight, None, None)


def _is_truth_of(condition: tirx.Expr, test: tvm.ir.Call) -> bool:
    """Return whether a condition is `test`, perhaps written as 0 < cast(test)."""
    if isinstance(condition, tirx.LT) and isinstance(condition.a, tirx.IntImm) and int(condition.a) == 0:
        condition = _uncast(condition.b)
    return bool(structural_equal(condition, test))


def _factors_of(term: tirx.Expr) -> list[tirx.Expr]:
    product = _uncast(term)
    return [_uncast(product.a), _uncast(product.b)] if isinstance(product, tirx.Mul) else []


def _uncast(expr: tirx.Expr) -> tirx.Expr:
    """Drop conversions around an expression. Kernels compute in fp32 whatever the storage type."""
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr


def _at(
    expr: tirx.Expr, reduction: Reduction, indices: Sequence[tirx.Expr], reduced: tirx.Var | None = None
) -> tirx.Expr:
    """Return an expression over a reduction's axes for the element of its result at `indices`."""
    values = dict(zip(reduction.block.body.indices, indices, strict=True))
    if reduced is not None:
        values[reduction.reduced[0].var] = reduced
    return _uncast(substitute(expr, values))


def _simplified(reduction: Reduction) -> Reduction:
    """Return a reduction with simple indices. Reshapes between the products leave quotients and remainders."""
    analyzer = tvm.sym.Analyzer()
    for axis in reduction.block.iter_vars:
        analyzer.bind(axis.var, axis.dom)

    def simple(load: TensorLoad) -> tirx.Expr:
        return tirx.BufferLoad(load.source, [analyzer.simplify(index) for index in load.indices])

    return replace(reduction, term=structural_map(reduction.term, (TensorLoad, simple)))


def texels_of(attention: Attention) -> set[str]:
    """Return the parameters that the kernel accesses only in whole texels: factors of the products, and the output."""
    a, texels = attention, set[str]()
    depth, columns = a.extents[2:]
    # A filled row adds up single lanes of the values.
    others = (a.score, a.is_filled, a.fill, None if a.fill is None else a.value)
    rest = [load.source for expr in others if expr is not None for load in loads_of(expr)]
    rest = [source for source in rest if not source.same_as(a.product)]
    for value, along, extent in (
        (a.query, a.depth, depth),
        (a.key_value, a.depth, depth),
        (a.value, a.column, columns),
    ):
        vectors, names = Vectors(a.axes, along, LANES), {str(load.source.name) for load in loads_of(value)}
        texels |= {name for name in names if extent % LANES == 0 and vectors.takes_texels(value, name)}
    stored = Vectors(a.axes, a.column, LANES)
    if columns % LANES == 0 and stored.form_of(a.output.value) is not None:
        destination = tirx.BufferLoad(a.output.buffer, a.output.indices)
        results = [destination, *(load for load in loads_of(a.output.value) if not load.source.same_as(a.result))]
        texels |= {str(e.source.name) for e in results if stored.takes_texels(e, str(e.source.name))}
    return texels - {str(source.name) for source in rest}


def with_score(attention: Attention, product: tirx.Expr) -> tirx.Expr:
    """Return the score of an element of Q times K, computed in the type that `product` has."""
    kind = str(attention.product.dtype)
    return replace_loads(attention.score, attention.product, lambda _: product.astype(kind))
